//! Accounting for test clusters: Debian's slurmdbd with MariaDB where the root directory has both, and otherwise stand-ins for
//! sacct and sacctmgr that keep AdminComments in a file.

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

/// Every process that can open the socket has all rights. The database belongs to this test machine and is removed with it.
/// From Debian's 11.8.9 on MariaDB's directory below /run has another name. slurmdbd 26.05 can exit under snapshot isolation,
/// the default from MariaDB 11.6 on, so it is off.
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

/// Adds accounting to a running cluster. The database stops when the returned process is dropped.
///
/// # Errors
/// MariaDB, slurmdbd or slurmctld is not in the root directory or did not start.
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
    // slurmdbd assigns the cluster a new id, and slurmctld from 24.11 on refuses to start if the saved one differs.
    root.run(&["rm", "-f", "/var/spool/slurmctld/clustername"])?.ok()?;
    cluster.start_slurmctld()?;
    Ok(database)
}

/// One line for each job and change, `JOBID|AdminComment`. SlurmUser must be able to write it; a job's last line is the valid one.
pub const COMMENTS: &str = "/var/tmp/comments";

/// Stand-in for `/usr/bin/sacct`, which reads [`COMMENTS`].
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

/// Stand-in for `/usr/bin/sacctmgr` of a release that keeps upper case; it appends to [`COMMENTS`].
pub const SACCTMGR: &str = r#"#!/bin/sh
case "$*" in
-V) echo "slurm 24.11.5" ;;
-i) sed -n 's/^modify job where jobid=\([0-9]*\) set AdminComment="\(.*\)"$/\1|\2/p' >> /var/tmp/comments ;;
*) echo "${5#jobid=}|${7#AdminComment=}" >> /var/tmp/comments ;;
esac
"#;
