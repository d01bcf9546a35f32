//! A row of the table: one ending.

use anyhow::Result;
use railgate_tests::cluster::{Cluster, Process};

/// Options of sbatch for a job with a GPU.
pub(super) const GPU: &[&str] = &["-p", "gpu", "--gres=gpu:1"];
/// Options of sbatch for a job without GPUs, on a node without GPUs.
pub(super) const CPU: &[&str] = &["-p", "cpu"];

/// Functions that scripts may call.
const HELPERS: &str = "\
ulimit -c 0
mark() { : > ~/marks/$1.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}; }
again() { [ ${SLURM_RESTART_COUNT:-0} = 0 ] || exit 0; }
go() { mark began; until [ -e ~/marks/go.$SLURM_JOB_ID ]; do sleep 0.3; done; }
";

/// How a job is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Batch,
    Srun,
    Salloc,
    /// A task of an array. The first row of that name submits the array.
    Task(u32),
}

/// When the action on a job takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Slurm knows the job, and it waits for a reason that contains this text in lower case.
    Waits(&'static str),
    /// Its script has made the mark `began` in this attempt.
    Began(u32),
    /// Its prolog or epilog waits for the test.
    In(&'static str),
    /// It runs again, or waits to be restarted.
    Back,
}

/// What an action works with.
pub(super) struct Stage<'a> {
    pub(super) cluster: &'a Cluster,
    /// Job id as scontrol and scancel accept it.
    pub(super) job: u32,
    pub(super) name: &'a str,
    /// The process of srun or salloc.
    pub(super) process: Option<&'a Process>,
}

impl Stage<'_> {
    /// Releases the job's script, prolog or epilog if one of them waits.
    pub(super) fn go(&self) -> Result<()> {
        self.cluster.write("ctl", &format!("/home/rgalice/marks/go.{}", self.job), "")
    }

    /// Runs a command on the job as its owner.
    pub(super) fn owner(&self, words: &[&str]) -> Result<()> {
        self.cluster.alice().run(&[words, &[self.name]].concat())?.ok().map(drop)
    }

    /// Runs a command on the job as root.
    pub(super) fn admin(&self, words: &[&str]) -> Result<()> {
        self.cluster.root().run(&[words, &[self.name]].concat())?.ok().map(drop)
    }

    /// Changes the job as root (`scontrol update`).
    pub(super) fn update(&self, what: &str) -> Result<()> {
        let job = format!("jobid={}", self.name);
        self.cluster.root().run(&["scontrol", "update", &job, what])?.ok().map(drop)
    }

    /// Changes a node as root.
    pub(super) fn node(&self, node: &str, what: &[&str]) -> Result<()> {
        let node = format!("nodename={node}");
        self.cluster.root().run(&[&["scontrol", "update", &node], what].concat())?.ok().map(drop)
    }
}

/// An action on a job.
pub(super) type Act = fn(&Stage<'_>) -> Result<()>;

/// One ending.
#[derive(Clone)]
pub(super) struct Ending {
    /// Description, and the job's name. For an array the name ends at the comma.
    pub(super) name: &'static str,
    pub(super) how: How,
    pub(super) words: Vec<&'static str>,
    script: String,
    pub(super) acts: Vec<(When, Act)>,
    /// Expected first line, from after the cluster's name to a semicolon.
    pub(super) says: &'static str,
    /// An action after the first line was read, and the expected line afterwards.
    pub(super) after: Option<(Act, &'static str)>,
    /// Expected line after slurmctld has purged the job, without and with slurmdbd, if it differs: for a job that was waiting to
    /// be restarted, only these record the end.
    pub(super) forgotten: Option<(&'static str, &'static str)>,
    /// The job waits and is expected to keep waiting.
    pub(super) waits: bool,
    /// Whether the job started. If not, only Slurm and its database have a record.
    pub(super) began: bool,
}

impl Ending {
    pub(super) fn batch(
        name: &'static str,
        words: &[&'static str],
        script: &str,
        says: &'static str,
    ) -> Self {
        Ending {
            name,
            how: How::Batch,
            words: words.to_vec(),
            script: script.to_owned(),
            acts: Vec::new(),
            says,
            after: None,
            forgotten: None,
            waits: false,
            began: true,
        }
    }

    pub(super) fn with(mut self, words: &[&'static str]) -> Self {
        self.words.extend(words);
        self
    }

    pub(super) fn how(mut self, how: How) -> Self {
        self.how = how;
        self
    }

    pub(super) fn when(mut self, when: When, act: Act) -> Self {
        self.acts.push((when, act));
        self
    }

    pub(super) fn after(mut self, act: Act, says: &'static str) -> Self {
        self.after = Some((act, says));
        self
    }

    pub(super) fn forgotten(mut self, without: &'static str, with: &'static str) -> Self {
        self.forgotten = Some((without, with));
        self
    }

    pub(super) fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    pub(super) fn never_began(mut self) -> Self {
        self.began = false;
        self
    }

    /// The job's name, shared by all tasks of an array.
    pub(super) fn job(&self) -> &'static str {
        match (self.how, self.name.split_once(", ")) {
            (How::Task(_), Some((array, _))) => array,
            _ => self.name,
        }
    }

    pub(super) fn script(&self) -> String {
        format!("{HELPERS}{}", self.script)
    }
}
