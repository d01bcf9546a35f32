#!/bin/bash
# Runs ../nhc/nhc.conf under LBNL's Node Health Check. Made by `railgate import nhc`.
RAILGATE_NHC_DIR=$(cd "${0%/*}/../nhc" && pwd) || exit 3
export RAILGATE_NHC_DIR
nhc=$(type -P nhc) || { echo "nhc is not installed"; exit 3; }

# With a blank in the path, NHC would not find these settings, and would mark nodes itself.
[[ $RAILGATE_NHC_DIR != *[[:space:]]* ]] || { echo "$RAILGATE_NHC_DIR: NHC reads no path with a blank"; exit 3; }
# Without a configuration, NHC reports a healthy node.
for file in nhc.conf sysconfig/nhc; do
    [[ -r $RAILGATE_NHC_DIR/$file ]] || { echo "$RAILGATE_NHC_DIR/$file is missing"; exit 3; }
done

# NHC runs commands from these files as root. railgate has applied the same check to this script and its directories.
unsafe=$(find -L "$RAILGATE_NHC_DIR" \( ! -uid 0 ! -uid "$EUID" -o -perm /022 \) -print -quit) || exit 3
[[ -z $unsafe ]] || { echo "$unsafe: others may write it"; exit 3; }

# NHC evaluates its arguments. The substitution also waits for background processes of a line.
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
