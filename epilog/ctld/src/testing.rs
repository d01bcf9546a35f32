//! A fake controller, used through `bin_dir` as at a site.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use railgate_model::UnixMillis;
use railgate_runner::Config;
use railgate_slurm::{Acting, Consent, Entry, Env, Ledger, RequeueConfig, SlurmConfig, job_from_env};
use railgate_store::ReportConfig;

use crate::call::Call;
use crate::ended_job::Note;

const SCONTROL: &str = r#"#!/bin/sh
here=@HERE@
echo "${0##*/} $*" >> $here/calls
# Lines of `comment` are a job's number, a bar and its AdminComment.
write() {
    grep -q "^$1|" $here/comment || return
    { grep -v "^$1|" $here/comment; printf '%s|%s\n' "$1" "$2"; } > $here/comment.new
    mv $here/comment.new $here/comment
}
case "${0##*/} $*" in
sacct\ *)
    for word; do case "$word" in --delimiter=*) mark=${word#*=} ;; esac; done
    sed "s/|/$mark/; s/\$/$mark/" $here/comment; exit ;;
"sacctmgr -V") cat $here/release; exit ;;
"sacctmgr -i")
    [ -e $here/deaf ] && exit 1
    sed -n 's/^modify job where jobid=\([0-9_]*\) set AdminComment="\([^"]*\)"$/\1 \2/p' |
        while read -r id text; do write "$id" "$text"; done
    exit ;;
sacctmgr\ *) id=${5#jobid=}; write "$id" "${7#AdminComment=}"; exit ;;
esac
[ -e $here/dead ] && { echo "Unable to contact slurm controller" >&2; exit 1; }
[ "${0##*/}" != squeue ] || { cat $here/standings; exit; }
[ "$1" = -o ] && shift
case "$1 $2" in
"show job")
    # One answer less each time: epilogs end one after the other.
    next=$(ls $here/job.* | head -1); cat $next
    [ $(ls $here/job.* | wc -l) -gt 1 ] && rm $next; : ;;
# What the next query gets.
"show node") cat $here/nodes; [ ! -e $here/nodes.next ] || mv $here/nodes.next $here/nodes ;;
"show config") cat $here/config ;;
"write batch_script") cat $here/script ;;
esac
"#;

/// The end of one job.
pub(crate) struct Scene {
    place: tempfile::TempDir,
    pub(crate) env: Env,
    pub(crate) requeue: RequeueConfig,
    pub(crate) acting: Acting,
}

/// A job as printed by 22.05.8, with the fields in `more` replaced.
pub(crate) fn job(more: &[(&str, &str)]) -> String {
    let mut fields = vec![
        ("JobId", "7"),
        ("JobName", "train"),
        ("JobState", "COMPLETING"),
        ("Reason", "NonZeroExitCode"),
        ("Requeue", "1"),
        ("ExpeditedRequeue", "No"),
        ("Restarts", "0"),
        ("BatchFlag", "1"),
        ("TimeLimit", "1-00:00:00"),
        ("StartTime", "2026-11-21T01:00:00"),
        ("EndTime", "2026-11-21T01:10:00"),
        ("LastSchedEval", "2026-11-21T01:00:00"),
        ("PreemptTime", "None"),
        ("ReqNodeList", "(null)"),
        ("ExcNodeList", "(null)"),
        ("NodeList", ""),
        ("OverSubscribe", "OK"),
        ("TresPerNode", "gres:gpu:8"),
        ("StdErr", "/home/ada/err"),
        ("StdIn", "/dev/null"),
        ("StdOut", "/home/ada/out"),
    ];
    for (key, value) in more {
        fields.iter_mut().find(|(have, _)| have == key).unwrap().1 = value;
    }
    let words: Vec<String> = fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{}\n", words.join(" "))
}

/// A node of the job.
pub(crate) fn node(name: &str, state: &str, reason: &str) -> String {
    let reason = match reason {
        "" => String::new(),
        text => format!(" Reason={text} [root@2026-11-21T01:10:01]"),
    };
    format!("NodeName={name} OS=Linux State={state} Partitions=main{reason}\n")
}

impl Scene {
    pub(crate) fn new(exit: &str, restarts: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("bin")).unwrap();
        for name in ["scontrol", "scancel", "squeue", "sacct", "sacctmgr"] {
            let file = place.path().join("bin").join(name);
            fs::write(&file, SCONTROL.replace("@HERE@", &place.path().display().to_string())).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let env = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_JOB_GID", "1000"),
            ("SLURM_JOB_USER", "ada"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_CLUSTER_NAME", "test"),
            ("SLURM_JOB_EXIT_CODE", exit),
            ("SLURM_JOB_RESTART_COUNT", restarts),
            ("SPANK_RAILGATE_REQUEUE", "auto"),
        ];
        let scene = Scene {
            place,
            env: env.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect(),
            requeue: RequeueConfig { wait: Duration::from_secs(20), ..RequeueConfig::default() },
            acting: Acting::Allowed,
        };
        scene.jobs(&[job(&[])]);
        scene.file("nodes", &(node("n1", "IDLE", "") + &node("n2", "IDLE", "")));
        scene.file("config", "JobFileAppend           = 1\n");
        scene.file("script", "#!/bin/sh\n");
        scene.file("standings", "");
        scene
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.insert(OsString::from(name), OsString::from(value));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    /// Sets the successive outputs of `show job`; the last one repeats.
    pub(crate) fn jobs(&self, answers: &[String]) {
        for n in 0..100 {
            let _ = fs::remove_file(self.path(&format!("job.{n:02}")));
        }
        for (n, answer) in answers.iter().enumerate() {
            self.file(&format!("job.{n:02}"), answer);
        }
    }

    pub(crate) fn call(&self) -> Call {
        let config = Config {
            requeue: self.requeue.clone(),
            slurm: SlurmConfig { bin_dir: self.path("bin"), ..SlurmConfig::default() },
            report: ReportConfig { local_dir: self.path("reports"), ..ReportConfig::default() },
            ..Config::default()
        };
        assert_eq!(config.requeue.default, Consent::Never);
        let job = job_from_env(&self.env).unwrap();
        Call::with(config, self.acting.clone(), self.place.path().to_owned(), self.env.clone(), job).unwrap()
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// All changes, in order.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.calls()
            .into_iter()
            .filter_map(|call| call.strip_prefix("scontrol ").map(str::to_owned))
            .filter(|call| {
                !call.starts_with("-o show") && !call.starts_with("show") && !call.starts_with("write")
            })
            .collect()
    }

    pub(crate) fn ledger(&self) -> Vec<Entry> {
        Ledger::new(self.place.path()).read().unwrap()
    }
}

/// A note of a job on two nodes.
pub(crate) fn ended_at(job: u32, time: UnixMillis) -> Note {
    Note {
        job,
        member: None,
        uid: 1000,
        gid: 1000,
        restarts: 0,
        nodelist: "n[1-2]".to_owned(),
        name: Some("train".to_owned()),
        exit: Some(0),
        time,
    }
}
