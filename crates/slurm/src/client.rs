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
    SinfoLine, held_nodes,
};
use crate::breaker::{self, Cap};
use crate::command::{SlurmError, run_bytes};
use crate::{BreakerConfig, Env, LetThrough, SlurmConfig, hostlist};

/// Longest AdminComment that we read and therefore ever write, bytes.
pub(crate) const MAX_ADMIN_COMMENT: usize = 8192;

/// What each change of many adds to the deadline of the command that makes them.
const EACH_CHANGE: Duration = Duration::from_millis(200);

/// Slurm's own commands, each in a child with a deadline. Values travel as one argument each; no shell ever
/// sees them.
#[derive(Clone, Debug)]
pub struct Client {
    bin_dir: PathBuf,
    conf: Option<OsString>,
    timeout: Duration,
    until: Option<Instant>,
}

/// How Slurm's commands must name a job. A plain id that happens to be an array's would mean all its members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobRef(String);

impl JobRef {
    /// A job that is no member of an array, or the leader of a heterogeneous one.
    pub fn plain(id: u32) -> Self {
        JobRef(id.to_string())
    }

    /// A member of an array.
    pub fn member(array: u32, task: u32) -> Self {
        JobRef(format!("{array}_{task}"))
    }
}

/// Which jobs to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The job of this number, and all members of the array of this number.
    Job(u32),
    /// This user's.
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
    /// A client for this site; `hook` is the environment that Slurm gave to our hook.
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

    /// The same client, none of whose commands lasts beyond `until`.
    #[must_use]
    pub fn until(&self, until: Instant) -> Self {
        let until = self.until.map_or(until, |earlier| earlier.min(until));
        Client { until: Some(until), ..self.clone() }
    }

    /// One node.
    ///
    /// # Errors
    /// [`SlurmError`]; a node that Slurm does not know is `Refused`.
    pub fn node(&self, name: &str) -> Result<NodeState, SlurmError> {
        let text = self.run("scontrol", &["-o", "show", "node", name])?;
        let line = text.lines().next().unwrap_or_default();
        answer::node(line)
            .and_then(|node| {
                if node.name == name { Ok(node) } else { Err(format!("answer is about {}", node.name)) }
            })
            .map_err(|why| unreadable("scontrol show node", why))
    }

    /// Several nodes, in one query. Those that Slurm does not know are missing.
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

    /// Nodes that are drained or going down, with the caps of `[breaker]` as they stand: the cluster's first, then each
    /// partition's.
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

    /// Unfit nodes that the breaker leaves in service, as their comments say, by name.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn let_through(&self) -> Result<BTreeMap<String, LetThrough>, SlurmError> {
        let args = ["-h", "-a", "-N", "-O", answer::COMMENTS_FORMAT];
        let text = self.run_bytes("sinfo", &args, Stdio::null(), Duration::ZERO)?;
        let notes = answer::comments(&text).into_iter();
        Ok(notes.filter_map(|(node, comment)| Some((node, LetThrough::parse(&comment)?))).collect())
    }

    /// The cap of `[breaker]` that forbids draining a node now; `None` where none does.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn reached_cap(&self, config: &BreakerConfig, node: &str) -> Result<Option<Cap>, SlurmError> {
        Ok(breaker::allows(config, &self.cluster()?, node).err())
    }

    /// Every node in every partition.
    pub(crate) fn cluster(&self) -> Result<Vec<SinfoLine>, SlurmError> {
        let text = self.run("sinfo", &["-h", "-a", "-N", "-o", SINFO_FORMAT])?;
        // What has another form is the rest of a reason with a line break in it.
        Ok(text.lines().filter_map(answer::sinfo_line).collect())
    }

    /// One job; all components of a heterogeneous one, the leader first.
    ///
    /// # Errors
    /// [`SlurmError`]; `Unreadable` also where the job's own text looks like Slurm's.
    pub fn job(&self, job: &JobRef) -> Result<Vec<JobState>, SlurmError> {
        let text = self.run("scontrol", &["-o", "show", "job", &job.0])?;
        answer::jobs(&text).map_err(|why| unreadable("scontrol show job", why))
    }

    /// The job's AdminComment; `None` where it is longer than we may rewrite.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn admin_comment(&self, job: &JobRef) -> Result<Option<String>, SlurmError> {
        // Alone in its own query: in `show job` it stands between texts that users write.
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

    /// What slurmctld knows of jobs, by their numbers, in one query. Those that it has forgotten are missing, and others
    /// may be there: the number of an array's last member is the array's, too.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn standings(&self, jobs: &[&JobRef]) -> Result<BTreeMap<u32, JobStanding>, SlurmError> {
        if jobs.is_empty() {
            return Ok(BTreeMap::new());
        }
        // A job in a hidden partition is shown with -a only, also to SlurmUser.
        let args = ["-h", "-a", "-t", "all", "-j", &list(jobs), "-O", answer::STANDING_FORMAT];
        match self.run_bytes("squeue", &args, Stdio::null(), Duration::ZERO) {
            Ok(text) => answer::standings(&text).map_err(|why| unreadable("squeue", why)),
            // Where there is one number only.
            Err(SlurmError::Refused { said, .. }) if said.contains("Invalid job id") => Ok(BTreeMap::new()),
            Err(why) => Err(why),
        }
    }

    /// Jobs as slurmctld has them, an array's members one by one; none where it has forgotten them.
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

    /// Jobs as the accounting database has them, a user's for the last 30 days.
    ///
    /// # Errors
    /// [`SlurmError`]; `Refused` also on a site without accounting.
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

    /// AdminComment of jobs in the accounting database, of their last run, by their numbers, in one query. Those that
    /// the database does not know are missing. Bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// [`SlurmError`]; `Refused` also on a site without accounting.
    pub fn accounted_comments(&self, jobs: &[&JobRef]) -> Result<BTreeMap<u32, String>, SlurmError> {
        // A comment may have line breaks and any delimiter that could be guessed in it, and would then look like the
        // comment of another job.
        let mark = mark()?;
        let delimiter = format!("--delimiter={mark}");
        let args = ["-n", "-X", "-p", &delimiter, "-j", &list(jobs), "-o", "JobIDRaw,AdminComment"];
        let text = self.run_bytes("sacct", &args, Stdio::null(), Duration::ZERO)?;
        answer::accounted(&String::from_utf8_lossy(&text), &mark).map_err(|why| unreadable("sacct", why))
    }

    /// Whether sacctmgr passes a text on with its capitals: before 23.02 it makes them small. No, where it does not say
    /// which release it is.
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

    /// Replaces those of many, by one process that reads its commands from a file. It goes on after a command that
    /// failed, so only the database tells which of them it took.
    ///
    /// # Errors
    /// [`SlurmError`]; some may be replaced all the same.
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

    /// `scontrol show config`. What newer releases print one by one (`Prolog[0]`, `Prolog[1]`) is also there by its
    /// plain name, with commas between.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn config(&self) -> Result<BTreeMap<String, String>, SlurmError> {
        Ok(answer::config(&self.run("scontrol", &["show", "config"])?))
    }

    /// How the owner of a job can be told something. The job's own texts stand around it in the answer, so it is
    /// worth no more than the owner's word: open the file as the owner.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn owners_view(&self, job: u32) -> Result<OwnersView, SlurmError> {
        let text = self.run("scontrol", &["show", "job", &job.to_string()])?;
        Ok(answer::owners_view(&text, job))
    }

    /// What Slurm must do with a job that must not start: how commands name it, whether it is a batch job, and
    /// whether it may be requeued. `None` where Slurm's answer does not tell.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn refusable(&self, job: u32) -> Result<Option<Refusable>, SlurmError> {
        let text = self.run("scontrol", &["show", "job", &job.to_string()])?;
        Ok(answer::refusable(&text, job))
    }

    /// Whether steps of a job run on this machine, the one that holds its containers included: asks the step daemons
    /// here and nobody else.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn has_steps_here(&self, job: u32) -> Result<bool, SlurmError> {
        // As releases word it.
        const NONE: [&str; 3] = ["does not exist on", "There are no steps", "No steps found"];
        match self.run("scontrol", &["listpids", &job.to_string()]) {
            Ok(_) => Ok(true),
            Err(SlurmError::Refused { said, .. }) if NONE.iter().any(|none| said.contains(none)) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Whether slurmctld has a job on a node, running or on its way in or out; one that it has forgotten is nowhere.
    ///
    /// # Errors
    /// [`SlurmError`]; also where the answer does not tell.
    pub fn runs_on(&self, job: u32, node: &str) -> Result<bool, SlurmError> {
        match self.run("squeue", &["-h", "-t", "all", "-j", &job.to_string(), "-o", "%T|%N"]) {
            Ok(text) => answer::runs_on(&text, node).map_err(|why| unreadable("squeue", why)),
            Err(SlurmError::Refused { said, .. }) if said.contains("Invalid job id") => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// The batch script, at most so much of it as holds its `#SBATCH` lines.
    ///
    /// # Errors
    /// [`SlurmError`]; a job without a script is `Refused`.
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

    /// Takes a drain back without touching anything else; Slurm drops the reason with it.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn undrain_node(&self, name: &str) -> Result<(), SlurmError> {
        self.update(&[("NodeName", name), ("State", "UNDRAIN")])
    }

    /// Changes a node's reason only.
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

    /// Puts a job back into the queue.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn requeue(&self, job: &JobRef) -> Result<(), SlurmError> {
        self.run("scontrol", &["requeue", &job.0]).map(drop)
    }

    /// Puts a job back into the queue and holds it. Its owner can release it.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn requeue_hold(&self, job: &JobRef) -> Result<(), SlurmError> {
        self.run("scontrol", &["requeuehold", &job.0]).map(drop)
    }

    /// Holds a waiting job in a way that its owner can release.
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

    /// Changes fields of a job.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn update_job(&self, job: &JobRef, fields: &[(&str, &str)]) -> Result<(), SlurmError> {
        let mut all = vec![("JobId", job.0.as_str())];
        all.extend_from_slice(fields);
        self.update(&all)
    }

    /// Writes a line where the owner of a running job sees it.
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

    fn run(&self, program: &str, args: &[&str]) -> Result<String, SlurmError> {
        let text = self.run_bytes(program, args, Stdio::null(), Duration::ZERO)?;
        String::from_utf8(text).map_err(|_| unreadable(program, "answer is not UTF-8".to_owned()))
    }

    /// `more` is added to the usual deadline.
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
        // TZ: times come without a zone. LC_ALL: we match on messages.
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

/// What parts fields: texts of users stand between them.
fn mark() -> Result<String, SlurmError> {
    unguessable().map_err(|why| unreadable("/dev/urandom", why.to_string()))
}

/// 32 hexadecimal digits.
fn unguessable() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn unreadable(what: &str, why: String) -> SlurmError {
    SlurmError::Unreadable { what: what.to_owned(), why }
}
