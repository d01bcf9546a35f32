#!/bin/bash
# Runs ../nhc/nhc.conf under LBNL's Node Health Check. Made by `railgate import nhc`.
RAILGATE_NHC_DIR=$(cd "${0%/*}/../nhc" && pwd) || exit 3
export RAILGATE_NHC_DIR
nhc=$(type -P nhc) || { echo "nhc is not installed"; exit 3; }

# NHC would not find its settings, and mark nodes.
[[ $RAILGATE_NHC_DIR != *[[:space:]]* ]] || { echo "$RAILGATE_NHC_DIR: NHC reads no path with a blank"; exit 3; }
# NHC takes an absent configuration for a healthy node.
for file in nhc.conf sysconfig/nhc; do
    [[ -r $RAILGATE_NHC_DIR/$file ]] || { echo "$RAILGATE_NHC_DIR/$file is missing"; exit 3; }
done

# NHC runs what these files say. Railgate has checked this script and the directories above it in the same way.
unsafe=$(find -L "$RAILGATE_NHC_DIR" \( ! -uid 0 ! -uid "$EUID" -o -perm /022 \) -print -quit) || exit 3
[[ -z $unsafe ]] || { echo "$unsafe: others may write it"; exit 3; }

# NHC evaluates its arguments. This also waits for what a line has started in the background.
output=$("$nhc" "NHC_SITE_SETTINGS=\$SYSCONFIGDIR" "SYSCONFIGDIR=\$RAILGATE_NHC_DIR/sysconfig" 2>&1)
code=$?
[[ $code == 0 ]] && exit 0

what=
while IFS= read -r line; do
    [[ $line == *'Health check failed:  '* ]] && what+=${what:+; }${line#*Health check failed:  }
done <<< "$output"
what=${what:-"NHC ended with exit code $code"}
what=${what:0:1000}
what=${what//\\/\\\\}
what=${what//\"/\\\"}
what=${what//[[:cntrl:]]/ }
echo "{\"status\": \"fail\", \"what\": \"${what//  / }\"}"
exit 2
