//! Stand-ins for sacct and sacctmgr where there is no accounting database: AdminComments lie in a file. The real ones are tried by
//! `tests/tests/cluster/accounting.rs`.

/// A line for each job and change, `JOBID|AdminComment`; SlurmUser must be able to write it. The last line of a job counts.
pub const COMMENTS: &str = "/var/tmp/comments";

/// For `/usr/bin/sacct`.
pub const SACCT: &str = r#"#!/bin/sh
mark='|'
for word; do
    case "$word" in --delimiter=*) mark=${word#*=} ;; esac
    [ "$last" = -j ] && ids=$word
    last=$word
done
exec awk -v ids="$ids" -v mark="$mark" 'BEGIN {
    while ((getline line < "/var/tmp/comments") > 0) {
        at = index(line, "|")
        text[substr(line, 1, at - 1)] = substr(line, at + 1)
    }
    count = split(ids, wanted, ",")
    for (n = 1; n <= count; n++) printf "%s%s%s%s\n", wanted[n], mark, text[wanted[n]], mark
}'
"#;

/// For `/usr/bin/sacctmgr`, of a release that keeps capitals.
pub const SACCTMGR: &str = r#"#!/bin/sh
case "$*" in
-V) echo "slurm 24.11.5" ;;
-i) sed -n 's/^modify job where jobid=\([0-9]*\) set AdminComment="\(.*\)"$/\1|\2/p' >> /var/tmp/comments ;;
*) echo "${5#jobid=}|${7#AdminComment=}" >> /var/tmp/comments ;;
esac
"#;
