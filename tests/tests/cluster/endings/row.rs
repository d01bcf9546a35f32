//! A row of the table: one ending.

use anyhow::Result;
use railgate_tests::cluster::{Cluster, Process};

/// Words of sbatch for a job with a GPU.
pub(super) const GPU: &[&str] = &["-p", "gpu", "--gres=gpu:1"];
/// Of a job without, on a node without.
pub(super) const CPU: &[&str] = &["-p", "cpu"];

/// What a script may call.
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
    /// A task of the array that the row above submits, or submits itself when it is the first of its name.
    Task(u32),
}

/// When something is done to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Slurm knows it and it waits, for a reason that contains this, in small letters.
    Waits(&'static str),
    /// Its script has made the mark `began` in this attempt.
    Began(u32),
    /// Its prolog, or epilog, waits for the test.
    In(&'static str),
    /// It runs again, or waits to.
    Back,
}

/// What is done with.
pub(super) struct Stage<'a> {
    pub(super) cluster: &'a Cluster,
    /// The job's number, and what scontrol and scancel take.
    pub(super) job: u32,
    pub(super) name: &'a str,
    /// srun or salloc.
    pub(super) process: Option<&'a Process>,
}

impl Stage<'_> {
    /// Lets whatever waits in the job's script, prolog or epilog go on.
    pub(super) fn go(&self) -> Result<()> {
        self.cluster.write("ctl", &format!("/home/rgalice/marks/go.{}", self.job), "")
    }

    /// The job's owner runs a command on the job.
    pub(super) fn owner(&self, words: &[&str]) -> Result<()> {
        self.cluster.alice().run(&[words, &[self.name]].concat())?.ok().map(drop)
    }

    /// Root does.
    pub(super) fn admin(&self, words: &[&str]) -> Result<()> {
        self.cluster.root().run(&[words, &[self.name]].concat())?.ok().map(drop)
    }

    /// Root changes the job.
    pub(super) fn update(&self, what: &str) -> Result<()> {
        let job = format!("jobid={}", self.name);
        self.cluster.root().run(&["scontrol", "update", &job, what])?.ok().map(drop)
    }

    /// Root changes a node.
    pub(super) fn node(&self, node: &str, what: &[&str]) -> Result<()> {
        let node = format!("nodename={node}");
        self.cluster.root().run(&[&["scontrol", "update", &node], what].concat())?.ok().map(drop)
    }
}

/// Something done to a job.
pub(super) type Act = fn(&Stage<'_>) -> Result<()>;

/// One ending.
#[derive(Clone)]
pub(super) struct Ending {
    /// What it is; also the job's name. That of an array stands before the comma.
    pub(super) name: &'static str,
    pub(super) how: How,
    pub(super) words: Vec<&'static str>,
    script: String,
    pub(super) acts: Vec<(When, Act)>,
    /// The first line, from after the cluster's name to a semicolon.
    pub(super) says: &'static str,
    /// What is done after the first line was read, and what it says then.
    pub(super) after: Option<(Act, &'static str)>,
    /// What is left of it when slurmctld has forgotten it, without and with slurmdbd: nobody else records what becomes of a job
    /// that waits to start again.
    pub(super) forgotten: Option<(&'static str, &'static str)>,
    /// It waits, and that is how it stays.
    pub(super) waits: bool,
    /// Of one that never began nobody but Slurm and its database knows.
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

    /// The job's name, which all tasks of an array share.
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
