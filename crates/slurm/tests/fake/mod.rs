//! A fake controller, used through `bin_dir` as at a site: shell scripts that read and write files.
#![expect(clippy::unwrap_used, reason = "a helper of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_slurm::{Acting, BreakerConfig, Client, DrainDesk, Env, SlurmConfig};

const SCONTROL: &str = r#"#!/bin/sh
# Nodes are directories: state, reason, since. One update at a time, as slurmctld has it.
here=@HERE@
echo "$*" >> $here/calls
[ -e $here/silent ] && sleep 1000
[ -e $here/dead ] && { echo "slurm_load_node error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }
[ "$1" = -o ] && shift
case "$1 $2" in
"show node")
    for name in $(echo $3 | tr , ' '); do
        node=$here/nodes/$name
        [ -d $node ] || { echo "Node $name not found" >&2; exit 1; }
        printf 'NodeName=%s OS=Linux State=%s Partitions=main' $name "$(cat $node/state)"
        [ -s $node/reason ] && printf ' Reason=%s [root@%s]' "$(cat $node/reason)" $(date -u -d @$(cat $node/since) +%Y-%m-%dT%H:%M:%S)
        [ -s $node/comment ] && printf ' Comment=%s' "$(cat $node/comment)"
        echo
    done ;;
"update NodeName="*)
    name=${2#NodeName=}; node=$here/nodes/$name; shift 2
    for word; do
        case "$word" in
        State=DRAIN) echo IDLE+DRAIN > $node/state ;;
        State=UNDRAIN) echo IDLE > $node/state; : > $node/reason ;;
        Comment=*) printf %s "${word#Comment=}" > $node/comment ;;
        Reason=*) printf %s "${word#Reason=}" > $node/reason; date +%s > $node/since ;;
        esac
    done ;;
*) echo "invalid keyword: $1" >&2; exit 1 ;;
esac
"#;

const SINFO: &str = r#"#!/bin/sh
here=@HERE@
echo "sinfo $*" >> $here/calls
[ -e $here/storm ] && [ $(grep -c ^sinfo $here/calls) = 2 ] && {
    echo IDLE+DRAIN > $here/nodes/n2/state; echo 1 > $here/nodes/n2/since; cat $here/storm > $here/nodes/n2/reason
    echo "Unable to contact slurm controller" >&2; exit 1
}
[ -e $here/dead ] && { echo "slurm_load_partitions: Unable to contact slurm controller" >&2; exit 1; }
for node in $here/nodes/*; do
    state=idle; grep -q DRAIN $node/state && state=drained
    since=Unknown; [ -s $node/since ] && since=$(date -u -d @$(cat $node/since) +%Y-%m-%dT%H:%M:%S)
    reason=none; [ -s $node/reason ] && reason=$(cat $node/reason)
    echo "${node##*/}|main*|$state|$since|$reason"
done
"#;

/// The fake cluster, with directories for each node's files.
#[derive(Debug)]
pub(crate) struct Cluster {
    place: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new(nodes: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let cluster = Cluster { place };
        fs::create_dir(cluster.path("bin")).unwrap();
        for (name, script) in [("scontrol", SCONTROL), ("sinfo", SINFO)] {
            let file = cluster.path("bin").join(name);
            fs::write(&file, script.replace("@HERE@", &cluster.place.path().display().to_string())).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for node in nodes {
            for dir in ["nodes", "run", "state"] {
                fs::create_dir_all(cluster.path(dir).join(node)).unwrap();
            }
            cluster.set(node, "IDLE", "", 0);
        }
        cluster
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn set(&self, node: &str, state: &str, reason: &str, since: u64) {
        let dir = self.path("nodes").join(node);
        fs::write(dir.join("state"), state).unwrap();
        fs::write(dir.join("reason"), reason).unwrap();
        fs::write(dir.join("since"), if since == 0 { String::new() } else { since.to_string() }).unwrap();
    }

    pub(crate) fn get(&self, node: &str) -> (String, String) {
        let read =
            |name| fs::read_to_string(self.path("nodes").join(node).join(name)).unwrap().trim().to_owned();
        (read("state"), read("reason"))
    }

    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    pub(crate) fn flag(&self, name: &str, there: bool) {
        let flag = self.path(name);
        if there { fs::write(flag, "").unwrap() } else { fs::remove_file(flag).unwrap() }
    }

    /// Makes one of Slurm's programs print this text and nothing else.
    pub(crate) fn answer(&self, program: &str, text: &str) {
        let script = format!("#!/bin/sh\nprintf '%s' '{text}'\n");
        fs::write(self.path("bin").join(program), script).unwrap();
    }

    pub(crate) fn client(&self, timeout: Duration) -> Client {
        let config = SlurmConfig { bin_dir: self.path("bin"), timeout, ..SlurmConfig::default() };
        Client::new(&config, &Env::new())
    }

    pub(crate) fn desk(&self, node: &str, max_nodes: u32, acting: Acting) -> DrainDesk {
        let breaker = BreakerConfig {
            max_nodes,
            max_percent: 100.0,
            partition_max_nodes: 100,
            partition_max_percent: 100.0,
            ..BreakerConfig::default()
        };
        let dir = |name: &str| self.path(name).join(node);
        DrainDesk::new(self.client(Duration::from_secs(5)), breaker, &dir("run"), &dir("state"), acting)
    }

    pub(crate) fn pending(&self, node: &str) -> Option<String> {
        fs::read_to_string(Path::new(&self.path("state")).join(node).join("pending-reason.json")).ok()
    }
}
