//! Batch jobs that railgate itself submits, found again by their names.

use std::path::Path;

use crate::client::Client;
use crate::command::SlurmError;
use crate::hostlist;

/// A job to submit. Slurm starts it at most once (`--no-requeue`).
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Its name, which no other job has.
    pub name: &'a str,
    /// Its nodes, all of them, without other jobs.
    pub nodes: &'a [String],
    /// Time limit, minutes.
    pub limit_min: u32,
    /// File for its output.
    pub output: &'a Path,
    /// More options.
    pub options: &'a [String],
    /// The script.
    pub script: &'a Path,
}

/// A job, as squeue or sacct reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchJob {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// For example `RUNNING` or `NODE_FAIL`.
    pub state: String,
    /// Why it is in this state.
    pub reason: String,
}

/// A node, as sinfo reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStanding {
    /// Its name.
    pub node: String,
    /// For example `idle` or `down*`.
    pub state: String,
    /// Why it is down or drained.
    pub reason: String,
}

impl BatchJob {
    /// Returns whether the job can still run, or still runs.
    pub fn is_alive(&self) -> bool {
        !railgate_model::job_has_ended(&self.state)
    }

    /// Returns whether the job ended by itself, without an error.
    pub fn is_completed(&self) -> bool {
        self.state == "COMPLETED"
    }

    /// Returns whether a node of the job failed.
    pub fn node_failed(&self) -> bool {
        ["NODE_FAIL", "BOOT_FAIL"].contains(&self.state.as_str())
    }

    /// Returns whether the job waits for something that does not change by itself: a held job, or nodes that are down or drained.
    pub fn is_stuck(&self) -> bool {
        let reason = self.reason.to_ascii_lowercase();
        self.state == "PENDING"
            && [
                "down",
                "drain",
                "reqnodenotavail",
                "held",
                "badconstraints",
                "partitionnodelimit",
                "launch failed",
            ]
            .iter()
            .any(|sign| reason.contains(sign))
    }
}

impl NodeStanding {
    /// Returns whether a job can start on the node, now or after others.
    pub fn is_available(&self) -> bool {
        let state = &self.state;
        let away = ["down", "drain", "fail", "error", "reboot", "unknown", "future"];
        !away.iter().any(|sign| state.contains(sign) && !state.contains("powered_down"))
            && !state.ends_with('*')
    }

    /// Returns state and reason, for example `drained (railgate: gpu-lost@3: …)`.
    pub fn words(&self) -> String {
        if ["", "none", "None"].contains(&self.reason.as_str()) {
            self.state.clone()
        } else {
            format!("{} ({})", self.state, self.reason)
        }
    }
}

impl Client {
    /// Submits a job and returns its id. After [`SlurmError::no_answer`] the job may exist: search it by its name.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn submit(&self, job: &Batch<'_>) -> Result<u32, SlurmError> {
        let count = job.nodes.len();
        let mut args = vec![
            "--parsable".to_owned(),
            "--exclusive".to_owned(),
            "--no-requeue".to_owned(),
            "--mem=0".to_owned(),
            "--chdir=/".to_owned(),
            "--open-mode=append".to_owned(),
            format!("--job-name={}", job.name),
            format!("--comment={}", job.name),
            format!("--nodes={count}"),
            format!("--ntasks={count}"),
            "--ntasks-per-node=1".to_owned(),
            format!("--nodelist={}", hostlist::compress(job.nodes)),
            format!("--time={}", job.limit_min),
            format!("--output={}", job.output.display()),
        ];
        args.extend_from_slice(job.options);
        args.push(job.script.display().to_string());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let answer = self.run("sbatch", &args)?;
        // `1234` or `1234;cluster`
        let id = answer.trim().split(';').next().unwrap_or_default().parse();
        id.map_err(|_| SlurmError::Unreadable {
            what: "sbatch".to_owned(),
            why: format!("answer '{}'", answer.trim()),
        })
    }

    /// Returns the jobs of the calling user with these names that slurmctld knows, ended ones as well. Other users can use the same
    /// names.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn jobs_named(&self, names: &[&str]) -> Result<Vec<BatchJob>, SlurmError> {
        let user = caller();
        let mut found = Vec::new();
        for name in chunks(names) {
            let fixed = ["--noheader", "--all", "--states=all", "--format=%A|%T|%j|%r"];
            found.extend(jobs(&self.run("squeue", &[&fixed[..], &[&user, &name]].concat())?));
        }
        Ok(found)
    }

    /// Returns the jobs of the calling user with this name in the accounting database.
    ///
    /// # Errors
    /// [`SlurmError`], also where there is no such database.
    pub fn accounted_named(&self, name: &str, since: &str) -> Result<Vec<BatchJob>, SlurmError> {
        let (name, since) = (format!("--name={name}"), format!("--starttime={since}"));
        let fixed = ["--noheader", "--allocations", "--parsable2", "--format=JobIDRaw,State,JobName,Reason"];
        Ok(jobs(&self.run("sacct", &[&fixed[..], &[&caller(), &name, &since]].concat())?))
    }

    /// Returns the states of all nodes.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn standing_of_nodes(&self) -> Result<Vec<NodeStanding>, SlurmError> {
        let text = self.run("sinfo", &["--noheader", "--all", "--Node", "--format=%N|%T|%E"])?;
        Ok(text.lines().filter_map(standing).collect())
    }

    /// Returns whether a reservation is for maintenance (`Flags=MAINT`).
    ///
    /// # Errors
    /// [`SlurmError`]; `Refused` for a reservation that Slurm does not know.
    pub fn is_maintenance(&self, reservation: &str) -> Result<bool, SlurmError> {
        let text = self.run("scontrol", &["--oneliner", "show", "reservation", reservation])?;
        Ok(has_maint(&text))
    }

    /// Cancels the jobs of the calling user with this name.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn cancel_named(&self, name: &str) -> Result<(), SlurmError> {
        self.run("scancel", &[&caller(), &format!("--name={name}")]).map(drop)
    }
}

/// Most bytes of names in one argument: Linux allows 128 KiB.
const MOST_BYTES: usize = 100 * 1024;

/// The option for jobs of the calling user.
fn caller() -> String {
    format!("--user={}", nix::unistd::getuid())
}

/// Options `--name=A,B,…` for all names.
fn chunks(names: &[&str]) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    for name in names {
        match options.last_mut().filter(|option| option.len() + name.len() < MOST_BYTES) {
            Some(option) => {
                option.push(',');
                option.push_str(name);
            }
            None => options.push(format!("--name={name}")),
        }
    }
    options
}

/// Lines `id|state|name|reason`. The name holds no separator: it is railgate's own.
fn jobs(text: &str) -> Vec<BatchJob> {
    let job = |line: &str| {
        let mut fields = line.trim().splitn(4, '|').map(str::to_owned);
        Some(BatchJob {
            id: fields.next()?.parse().ok()?,
            state: fields.next()?,
            name: fields.next()?,
            reason: fields.next().unwrap_or_default(),
        })
    };
    text.lines().filter_map(job).collect()
}

/// Flags of `scontrol show reservation`: `Flags=MAINT,SPEC_NODES`.
fn has_maint(text: &str) -> bool {
    let flags = text.split_whitespace().find_map(|word| word.strip_prefix("Flags="));
    flags.is_some_and(|flags| flags.split(',').any(|flag| flag == "MAINT"))
}

fn standing(line: &str) -> Option<NodeStanding> {
    let mut fields = line.splitn(3, '|').map(|field| field.trim().to_owned());
    Some(NodeStanding {
        node: fields.next()?,
        state: fields.next()?,
        reason: fields.next().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_asked_for_in_several_commands() {
        let names: Vec<String> = (0..4096).map(|number| format!("railgate-accept:{number:060}:1")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let options = chunks(&all);
        assert!(options.len() == 4 && options.iter().all(|option| option.len() < 128 * 1024));
        let asked = options.iter().flat_map(|option| option.strip_prefix("--name=").unwrap().split(','));
        assert!(asked.eq(all));
        assert_eq!((chunks(&[]).len(), chunks(&["a"])), (0, vec!["--name=a".to_owned()]));
    }

    #[test]
    fn jobs_and_nodes_are_parsed() {
        let parsed = jobs(
            "7|PENDING|railgate-accept:1:a:1|Nodes required for job are DOWN, DRAINED | x\n8|CANCELLED by 0|b|None\nx\n",
        );
        assert_eq!(
            (parsed.len(), parsed[0].id, parsed[0].reason.as_str()),
            (2, 7, "Nodes required for job are DOWN, DRAINED | x")
        );
        assert!(parsed[0].is_alive() && parsed[0].is_stuck() && !parsed[1].is_alive());
        let node = |state: &str| NodeStanding {
            node: "gn1".to_owned(),
            state: state.to_owned(),
            reason: "none".to_owned(),
        };
        for state in ["idle", "allocated", "mixed", "maint", "reserved", "planned", "completing", "idle~"] {
            assert!(node(state).is_available(), "{state}");
        }
        for state in ["down", "down*", "idle*", "drained", "draining", "fail", "reboot^", "unknown"] {
            assert!(!node(state).is_available(), "{state}");
        }
        assert!(has_maint("ReservationName=m StartTime=x Flags=IGNORE_JOBS,MAINT TRES=cpu=2"));
        assert!(
            !has_maint("ReservationName=MAINT StartTime=x Flags= TRES=cpu=2") && !has_maint("Flags=NO_MAINT")
        );
        let held = standing("gn1|drained|railgate: a|b").unwrap();
        assert_eq!(held.words(), "drained (railgate: a|b)");
        assert_eq!(node("idle").words(), "idle");
    }
}
