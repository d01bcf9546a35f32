//! Debian's slurmdbd and MariaDB on a cluster whose root directory has both; and stand-ins for sacct and sacctmgr where there is no
//! accounting database: AdminComments lie in a file.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::cluster::{Cluster, Process};
use crate::poll;

const MINUTE: Duration = Duration::from_secs(60);

const SLURMDBD: &str = "\
AuthType=auth/munge
DbdHost=ctl
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
";

/// Whoever reaches the socket may do everything: it is this machine's alone, and gone with it. MariaDB's own directory below /run
/// has another name from Debian's 11.8.9 on. With snapshot isolation, the default from 11.6 on, slurmdbd of 26.05 may end.
const MARIADB: &str = "\
set -e
mkdir -p /run/mysqld /tmp/db
ln -sfn mysqld /run/mariadbd
chown mysql /run/mysqld /tmp/db
mariadb-install-db --user=mysql --datadir=/tmp/db --skip-test-db > /var/log/mariadb-install.log 2>&1
exec mariadbd --user=mysql --datadir=/tmp/db --socket=/run/mysqld/mysqld.sock \\
    --pid-file=/run/mysqld/mysqld.pid --skip-networking --skip-grant-tables --skip-log-bin \\
    --loose-innodb-snapshot-isolation=0 > /var/log/mariadb.log 2>&1
";

const READY: &str = "\
install -m 600 -o slurm /etc/slurm/slurmdbd.given /etc/slurm/slurmdbd.conf
chown slurm /var/log/slurm
slurmdbd";

/// A cluster that was none for accounting gets one. The database ends with what is returned.
///
/// # Errors
/// MariaDB, slurmdbd or slurmctld did not start, or is not in the root directory.
pub fn start(cluster: &Cluster) -> Result<Process> {
    let root = cluster.root();
    let database = root.spawn(&["sh", "-c", MARIADB])?;
    poll::until(MINUTE, "MariaDB to answer", || {
        Ok(root.run(&["mariadb-admin", "ping"])?.ok().is_ok().then_some(()))
    })
    .with_context(|| cluster.read("ctl", "/var/log/mariadb.log").unwrap_or_default())?;
    cluster.write("ctl", "/etc/slurm/slurmdbd.given", SLURMDBD)?;
    root.run(&["sh", "-ec", READY])?.ok()?;
    let conf = cluster.read("ctl", "/etc/slurm/slurm.conf")?;
    let name = conf.lines().find_map(|line| line.strip_prefix("ClusterName=")).context("no ClusterName")?;
    let accounting = [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=ctl",
        "AccountingStoreFlags=job_comment",
    ];
    let conf = conf.replace("AccountingStorageType=accounting_storage/none", &accounting.join("\n"));
    cluster.write("ctl", "/etc/slurm/slurm.conf", &conf)?;
    poll::until(MINUTE, "slurmdbd to know the cluster", || {
        let added = root.run(&["sacctmgr", "-i", "add", "cluster", name])?.both();
        Ok((added.contains("Adding") || added.contains("already exists")).then_some(()))
    })
    .with_context(|| cluster.read("ctl", "/var/log/slurm/slurmdbd.log").unwrap_or_default())?;
    cluster.stop_slurmctld()?;
    // The database gives the cluster a number of its own, and from 24.11 on another one is refused.
    root.run(&["rm", "-f", "/var/spool/slurmctld/clustername"])?.ok()?;
    cluster.start_slurmctld()?;
    Ok(database)
}

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
