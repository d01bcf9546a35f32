use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::answer::{
    self, HeldNode, JobStanding, JobState, ListedJob, NodeState, OwnersView, Refusable, SINFO_FORMAT,
    SinfoLine, WaitingJob, held_nodes,
};
use crate::breaker::{self, Cap};
use crate::command::{SlurmError, run_bytes};
use crate::{BreakerConfig, Env, SlurmConfig, hostlist};

/// Longest AdminComment that is read and therefore ever written, bytes.
pub(crate) const MAX_ADMIN_COMMENT: usize = 8192;

/// Added to the deadline of a command for each change that it makes.
const EACH_CHANGE: Duration = Duration::from_millis(200);

/// Runs Slurm's commands, each in a child process with a deadline. Each value is one argument; no shell is involved.
#[derive(Clone, Debug)]
pub struct Client {
    bin_dir: PathBuf,
    conf: Option<OsString>,
    timeout: Duration,
    until: Option<Instant>,
}

/// Name of a job for Slurm's commands. A plain id that is also the id of an array would mean all its members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobRef(String);

impl JobRef {
    /// A job that is not a member of an array, or the leader of a heterogeneous job.
    pub fn plain(id: u32) -> Self {
        JobRef(id.to_string())
    }

    /// A member of an array.
    pub fn member(array: u32, task: u32) -> Self {
        JobRef(format!("{array}_{task}"))
    }
}

/// Selects the jobs of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The job with this id, and all members of the array with this id.
    Job(u32),
    /// The jobs of this uid.
    User(u32),
}

impl Listing {
    fn args(self) -> [String; 2] {
        match self {
            Listing::Job(job) => ["-j".to_owned(), job.to_string()],
            Listing::User(uid) => ["-u".to_owned(), uid.to_string()],
        }
    }
}

impl std::fmt::Display for JobRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Client {
    /// Creates a client from `[slurm]`. `hook`: the environment that Slurm gave to the hook.
    pub fn new(config: &SlurmConfig, hook: &Env) -> Self {
        let conf = config.conf.as_ref().map(|path| path.clone().into_os_string());
        let given = || {
            let given = hook.get(OsStr::new("SLURM_CONF"))?;
            std::path::Path::new(given).is_absolute().then(|| given.clone())
        };
        Client {
            bin_dir: config.bin_dir.clone(),
            conf: conf.or_else(given),
            timeout: config.timeout,
            until: None,
        }
    }

    /// The same client with a deadline for all its commands.
    #[must_use]
    pub fn until(&self, until: Instant) -> Self {
        let until = self.until.map_or(until, |earlier| earlier.min(until));
        Client { until: Some(until), ..self.clone() }
    }

    /// Queries one node.
    ///
    /// # Errors
    /// [`SlurmError`]; `Refused` for a node that Slurm does not know.
    pub fn node(&self, name: &str) -> Result<NodeState, SlurmError> {
        let text = self.run("scontrol", &["-o", "show", "node", name])?;
        let line = text.lines().next().unwrap_or_default();
        answer::node(line)
            .and_then(|node| {
                if node.name == name { Ok(node) } else { Err(format!("answer is about {}", node.name)) }
            })
            .map_err(|why| unreadable("scontrol show node", why))
    }

    /// Queries several nodes at once. Nodes that Slurm does not know are missing from the result.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn nodes(&self, names: &[String]) -> Result<Vec<NodeState>, SlurmError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let text = self.run("scontrol", &["-o", "show", "node", &hostlist::compress(names)])?;
        text.lines()
            .filter(|line| line.starts_with("NodeName="))
            .map(|line| answer::node(line).map_err(|why| unreadable("scontrol show node", why)))
            .collect()
    }

    /// Queries all nodes at once, also those of hidden partitions.
    ///
    /// # Errors
    /// [`SlurmError`]; also `Unreadable` for an answer without a node.
    pub fn all_nodes(&self) -> Result<Vec<NodeState>, SlurmError> {
        let text = self.run("scontrol", &["-a", "-o", "show", "node"])?;
        let nodes: Result<Vec<NodeState>, String> =
            text.lines().filter(|line| line.starts_with("NodeName=")).map(answer::node).collect();
        match nodes {
            Ok(nodes) if nodes.is_empty() => {
                Err(unreadable("scontrol show node", "no node in the answer".to_owned()))
            }
            Ok(nodes) => Ok(nodes),
            Err(why) => Err(unreadable("scontrol show node", why)),
        }
    }

    /// Nodes that are drained or going down, and the current caps of `[breaker]`: the cluster's first, then one per
    /// partition.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn held_nodes_and_caps(
        &self,
        config: &BreakerConfig,
    ) -> Result<(Vec<HeldNode>, Vec<Cap>), SlurmError> {
        let cluster = self.cluster()?;
        let caps = breaker::caps(config, &cluster);
        Ok((held_nodes(cluster), caps))
    }

    /// All nodes with their comments, which [`LetThrough`](crate::LetThrough) and [`HangNote`](crate::HangNote) parse.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn comments(&self) -> Result<Vec<(String, String)>, SlurmError> {
        let args = ["-h", "-a", "-N", "-O", answer::COMMENTS_FORMAT];
        let text = self.run_bytes("sinfo", &args, Stdio::null(), Duration::ZERO)?;
        Ok(answer::comments(&text))
    }

    /// The cap of `[breaker]` that forbids a drain of the node now; `None` if it is allowed.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn reached_cap(&self, config: &BreakerConfig, node: &str) -> Result<Option<Cap>, SlurmError> {
        Ok(breaker::allows(config, &self.cluster()?, node).err())
    }

    /// Every node in every partition, one line each.
    pub(crate) fn cluster(&self) -> Result<Vec<SinfoLine>, SlurmError> {
        let text = self.run("sinfo", &["-h", "-a", "-N", "-o", SINFO_FORMAT])?;
        // Lines of any other form are the rest of a reason that contains a line break.
        Ok(text.lines().filter_map(answer::sinfo_line).collect())
    }

    /// Queries one job; all components of a heterogeneous one, the leader first.
    ///
    /// # Errors
    /// [`SlurmError`]; also `Unreadable` if the job's text imitates Slurm's fields.
    pub fn job(&self, job: &JobRef) -> Result<Vec<JobState>, SlurmError> {
        let text = self.run("scontrol", &["-o", "show", "job", &job.0])?;
        answer::jobs(&text).map_err(|why| unreadable("scontrol show job", why))
    }

    /// The job's AdminComment; `None` if it is longer than may be rewritten.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn admin_comment(&self, job: &JobRef) -> Result<Option<String>, SlurmError> {
        // Queried alone: in `show job` it is surrounded by text of users.
        let width = MAX_ADMIN_COMMENT + 1;
        let format = format!("admin_comment:{width}");
        let text = self.run("squeue", &["-h", "-t", "all", "-j", &job.0, "-O", &format])?;
        // Every record has this width; the leader of a heterogeneous job comes first.
        let text = text.get(..width).unwrap_or(&text).trim_end();
        Ok(match text {
            "(null)" | "N/A" => Some(String::new()),
            text => (text.len() <= MAX_ADMIN_COMMENT).then(|| text.to_owned()),
        })
    }

    /// State of jobs in slurmctld, by job id, in one query. Jobs that it has purged are missing. Other jobs may be
    /// included: the id of an array's last member is also the array's.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn standings(&self, jobs: &[&JobRef]) -> Result<BTreeMap<u32, JobStanding>, SlurmError> {
        if jobs.is_empty() {
            return Ok(BTreeMap::new());
        }
        // A job in a hidden partition is shown only with -a, even to SlurmUser.
        let args = ["-h", "-a", "-t", "all", "-j", &list(jobs), "-O", answer::STANDING_FORMAT];
        match self.run_bytes("squeue", &args, Stdio::null(), Duration::ZERO) {
            Ok(text) => answer::standings(&text).map_err(|why| unreadable("squeue", why)),
            // Slurm returns this error only for a query of one id.
            Err(SlurmError::Refused { said, .. }) if said.contains("Invalid job id") => Ok(BTreeMap::new()),
            Err(why) => Err(why),
        }
    }

    /// Jobs that wait only because others use the nodes, in hidden partitions too. An array is one job.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn waiting_jobs(&self) -> Result<Vec<WaitingJob>, SlurmError> {
        let text = self.run("squeue", &["-h", "-a", "-t", "PENDING", "-O", answer::WAITING_FORMAT])?;
        answer::waiting(&text).map_err(|why| unreadable("squeue", why))
    }

    /// Jobs in slurmctld, with the members of an array one by one; empty if it has purged them.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn queued_jobs(&self, which: Listing) -> Result<Vec<ListedJob>, SlurmError> {
        let mark = mark()?;
        let format = answer::squeue_format(&mark);
        let [option, value] = which.args();
        let args = ["-h", "-a", "-r", "-t", "all", &option, &value, "-o", &format];
        match self.run_bytes("squeue", &args, Stdio::null(), Duration::ZERO) {
            Ok(text) => answer::listed(&String::from_utf8_lossy(&text), &mark)
                .map_err(|why| unreadable("squeue", why)),
            Err(SlurmError::Refused { said, .. }) if said.contains("Invalid job id") => Ok(Vec::new()),
            Err(why) => Err(why),
        }
    }

    /// Jobs in the accounting database; those of a user for the last 30 days.
    ///
    /// # Errors
    /// [`SlurmError`]; also `Refused` on a site without accounting.
    pub fn accounted_jobs(&self, which: Listing) -> Result<Vec<ListedJob>, SlurmError> {
        let mark = mark()?;
        let delimiter = format!("--delimiter={mark}");
        let [option, value] = which.args();
        let mut args = vec!["-n", "-X", "-p", &delimiter, &option, &value, "-o", answer::SACCT_FORMAT];
        if matches!(which, Listing::User(_)) {
            args.extend(["-S", "now-30days"]);
        }
        let text = self.run_bytes("sacct", &args, Stdio::null(), Duration::ZERO)?;
        answer::listed(&String::from_utf8_lossy(&text), &mark).map_err(|why| unreadable("sacct", why))
    }

    /// AdminComment of the last run of jobs in the accounting database, by job id, in one query. Jobs that are not in
    /// the database are missing. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// [`SlurmError`]; also `Refused` on a site without accounting.
    pub fn accounted_comments(&self, jobs: &[&JobRef]) -> Result<BTreeMap<u32, String>, SlurmError> {
        // A comment may contain line breaks and any delimiter that its author could guess, and would then imitate the
        // comment of another job.
        let mark = mark()?;
        let delimiter = format!("--delimiter={mark}");
        let args = ["-n", "-X", "-p", &delimiter, "-j", &list(jobs), "-o", "JobIDRaw,AdminComment"];
        let text = self.run_bytes("sacct", &args, Stdio::null(), Duration::ZERO)?;
        answer::accounted(&String::from_utf8_lossy(&text), &mark).map_err(|why| unreadable("sacct", why))
    }

    /// Whether sacctmgr keeps capitals: before 23.02 it converts text to lower case. False if its release is unknown.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn accounting_keeps_capitals(&self) -> Result<bool, SlurmError> {
        let text = self.run("sacctmgr", &["-V"])?;
        Ok(answer::release(&text).is_some_and(|release| release >= (23, 2)))
    }

    /// Replaces the AdminComment of one job in the accounting database.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub(crate) fn set_accounted_comment(&self, job: &JobRef, comment: &str) -> Result<(), SlurmError> {
        let (id, comment) = (format!("jobid={}", job.0), format!("AdminComment={comment}"));
        self.run("sacctmgr", &["-i", "modify", "job", "where", &id, "set", &comment]).map(drop)
    }

    /// Replaces many AdminComments with one process that reads its commands from a file. sacctmgr continues after a
    /// failed command, so only the database knows which ones took effect.
    ///
    /// # Errors
    /// [`SlurmError`]; some comments may have been replaced nevertheless.
    pub(crate) fn set_accounted_comments(&self, commands: &[String]) -> Result<(), SlurmError> {
        let input = || -> io::Result<File> {
            let mut file = File::from(memfd_create("sacctmgr", MFdFlags::MFD_CLOEXEC)?);
            file.write_all((commands.join("\n") + "\n").as_bytes())?;
            file.rewind()?;
            Ok(file)
        };
        let input = input().map_err(|why| unreadable("sacctmgr", why.to_string()))?;
        let more = EACH_CHANGE * u32::try_from(commands.len()).unwrap_or(u32::MAX);
        self.run_bytes("sacctmgr", &["-i"], Stdio::from(input), more).map(drop)
    }

    /// `scontrol show config`. Keys that newer releases number (`Prolog[0]`, `Prolog[1]`) are also there under the
    /// plain name, values separated by commas.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn config(&self) -> Result<BTreeMap<String, String>, SlurmError> {
        Ok(answer::config(&self.run("scontrol", &["show", "config"])?))
    }

    /// `scontrol show topology`: switches, blocks or rings, one line each; empty on a cluster without a topology.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn topology(&self) -> Result<String, SlurmError> {
        self.run("scontrol", &["show", "topology"])
    }

    /// How a job's owner can be notified. Text of the job surrounds these fields in the output, so the path is only
    /// as trustworthy as the owner: open it as the owner.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn owners_view(&self, job: u32) -> Result<OwnersView, SlurmError> {
        let text = self.run("scontrol", &["show", "job", &job.to_string()])?;
        Ok(answer::owners_view(&text, job))
    }

    /// How to refuse a job: its name for Slurm's commands, and whether it may be requeued. `None` if it is not a
    /// batch job or Slurm's output is ambiguous.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn refusable(&self, job: u32) -> Result<Option<Refusable>, SlurmError> {
        let text = self.run("scontrol", &["show", "job", &job.to_string()])?;
        Ok(answer::refusable(&text, job))
    }

    /// Numbered steps of jobs that have these ids of their own, as `14.6` or `12_3.0`: not those of their scripts and of
    /// Slurm itself, nor those of other members of an array whose id is asked for.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn steps(&self, jobs: &[u32]) -> Result<Vec<String>, SlurmError> {
        let list: Vec<String> = jobs.iter().map(u32::to_string).collect();
        let text = self.run("squeue", &["-h", "-s", "-j", &list.join(","), "-O", answer::STEPS_FORMAT])?;
        Ok(answer::numbered_steps(&text, jobs))
    }

    /// Whether steps of a job, including its extern step, run on this machine. Queries only the local step daemons.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn has_steps_here(&self, job: u32) -> Result<bool, SlurmError> {
        // Wording of the supported releases.
        const NONE: [&str; 3] = ["does not exist on", "There are no steps", "No steps found"];
        match self.run("scontrol", &["listpids", &job.to_string()]) {
            Ok(_) => Ok(true),
            Err(SlurmError::Refused { said, .. }) if NONE.iter().any(|none| said.contains(none)) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Whether slurmctld has the job on a node: running, starting or completing. False for a job that it has purged.
    ///
    /// # Errors
    /// [`SlurmError`]; also if the output is ambiguous.
    pub fn runs_on(&self, job: u32, node: &str) -> Result<bool, SlurmError> {
        match self.run("squeue", &["-h", "-t", "all", "-j", &job.to_string(), "-o", "%T|%N"]) {
            Ok(text) => answer::runs_on(&text, node).map_err(|why| unreadable("squeue", why)),
            Err(SlurmError::Refused { said, .. }) if said.contains("Invalid job id") => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Returns the beginning of the batch script, long enough for its `#SBATCH` lines.
    ///
    /// # Errors
    /// [`SlurmError`]; `Refused` for a job without a script.
    pub fn batch_script(&self, job: &JobRef) -> Result<String, SlurmError> {
        self.run("scontrol", &["write", "batch_script", &job.0, "-"])
    }

    /// Drains a node.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn drain_node(&self, name: &str, reason: &str) -> Result<(), SlurmError> {
        self.update(&[("NodeName", name), ("State", "DRAIN"), ("Reason", reason)])
    }

    /// Resumes a drained node and changes nothing else; Slurm removes the reason with the drain.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn undrain_node(&self, name: &str) -> Result<(), SlurmError> {
        self.update(&[("NodeName", name), ("State", "UNDRAIN")])
    }

    /// Changes only a node's reason.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn set_reason(&self, name: &str, reason: &str) -> Result<(), SlurmError> {
        self.update(&[("NodeName", name), ("Reason", reason)])
    }

    /// Replaces a node's comment.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub(crate) fn set_comment(&self, name: &str, comment: &str) -> Result<(), SlurmError> {
        self.update(&[("NodeName", name), ("Comment", comment)])
    }

    /// Requeues a job.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn requeue(&self, job: &JobRef) -> Result<(), SlurmError> {
        self.run("scontrol", &["requeue", &job.0]).map(drop)
    }

    /// Requeues and holds a job. Its owner can release it.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn requeue_hold(&self, job: &JobRef) -> Result<(), SlurmError> {
        self.run("scontrol", &["requeuehold", &job.0]).map(drop)
    }

    /// Holds a pending job in a way that its owner can release.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn hold(&self, job: &JobRef) -> Result<(), SlurmError> {
        self.run("scontrol", &["uhold", &job.0]).map(drop)
    }

    /// Cancels a job.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn cancel(&self, job: &JobRef) -> Result<(), SlurmError> {
        self.run("scancel", &[&job.0]).map(drop)
    }

    /// Sends a signal to the tasks of a step; without a step, to the batch script of the job and to all its children.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn signal(&self, job: u32, step: Option<u32>, signal: &str) -> Result<(), SlurmError> {
        let done = match step {
            Some(step) => self.run("scancel", &["--signal", signal, &format!("{job}.{step}")]),
            None => self.run("scancel", &["--full", "--signal", signal, &job.to_string()]),
        };
        done.map(drop)
    }

    /// Sets fields of a job.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn update_job(&self, job: &JobRef, fields: &[(&str, &str)]) -> Result<(), SlurmError> {
        let mut all = vec![("JobId", job.0.as_str())];
        all.extend_from_slice(fields);
        self.update(&all)
    }

    /// Writes a line to the terminal or output of a running job.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn notify(&self, job: &JobRef, text: &str) -> Result<(), SlurmError> {
        self.run("scontrol", &["notify", &job.0, &railgate_text::clip(text, 1000)]).map(drop)
    }

    fn update(&self, fields: &[(&str, &str)]) -> Result<(), SlurmError> {
        let words: Vec<String> = fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut args = vec!["update"];
        args.extend(words.iter().map(String::as_str));
        self.run("scontrol", &args).map(drop)
    }

    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Result<String, SlurmError> {
        let text = self.run_bytes(program, args, Stdio::null(), Duration::ZERO)?;
        String::from_utf8(text).map_err(|_| unreadable(program, "answer is not UTF-8".to_owned()))
    }

    /// Runs a command. `more` is added to the usual deadline.
    fn run_bytes(
        &self,
        program: &str,
        args: &[&str],
        input: Stdio,
        more: Duration,
    ) -> Result<Vec<u8>, SlurmError> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let timeout = match self.until {
            None => self.timeout + more,
            Some(until) => (self.timeout + more).min(until.saturating_duration_since(Instant::now())),
        };
        if timeout.is_zero() {
            return Err(SlurmError::Silent { what: program.to_owned(), after: timeout });
        }
        // TZ: times have no zone. LC_ALL: messages are matched.
        let mut env = vec![
            ("PATH", OsString::from("/usr/bin:/bin")),
            ("LC_ALL", OsString::from("C")),
            ("TZ", OsString::from("UTC")),
        ];
        if let Some(conf) = &self.conf {
            env.push(("SLURM_CONF", conf.clone()));
        }
        run_bytes(&self.bin_dir.join(program), &args, &env, input, timeout)
    }
}

fn list(jobs: &[&JobRef]) -> String {
    jobs.iter().map(|job| job.0.as_str()).collect::<Vec<_>>().join(",")
}

/// Returns a separator for fields that contain text of users.
fn mark() -> Result<String, SlurmError> {
    unguessable().map_err(|why| unreadable("/dev/urandom", why.to_string()))
}

/// Returns 32 random hexadecimal digits.
fn unguessable() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn unreadable(what: &str, why: String) -> SlurmError {
    SlurmError::Unreadable { what: what.to_owned(), why }
}
