//! Cluster for the cases of the hostile suite, and the conditions that must hold after each case.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use railgate_tests::cluster::{CONTROLLER, Cluster, REPORTS, Session};
use railgate_tests::poll;
use serde_json::Value;

pub(super) const MINUTE: Duration = Duration::from_secs(60);
const ALICE: u32 = 5001;
const BOB: u32 = 5002;

/// One attack.
#[derive(Debug)]
pub(crate) struct Case {
    /// Name in messages and in docs/security.md.
    pub(crate) id: &'static str,
    /// What the user does, and what must follow besides [`Stage::holds`].
    pub(crate) does: &'static str,
    /// Fails if the attack could not be carried out, or if a condition specific to this case is violated.
    pub(crate) run: fn(&Stage<'_>) -> Result<()>,
}

/// All cases that attack one input.
#[derive(Debug)]
pub(crate) struct Input {
    /// The input's name in docs/security.md.
    pub(crate) name: &'static str,
    pub(crate) cases: &'static [Case],
}

/// A cluster on which Bob attacks and Alice works.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a Cluster,
    /// The node of Bob's jobs, and of Alice's after them.
    pub(crate) node: String,
    /// ID of Bob's last job.
    last: Cell<Option<u32>>,
    /// Number of bytes of each log that have been read.
    read: RefCell<BTreeMap<(String, String), usize>>,
    before: Before,
}

/// Files that no user may change.
#[derive(Debug, Default, PartialEq, Eq)]
struct Before {
    /// Contents of each machine's /etc that differ from the image.
    etc: BTreeMap<String, Vec<u8>>,
    /// Other files that differ from the image, and files of root in world-writable directories.
    roots: BTreeSet<String>,
    /// Alice's files and her first report.
    alice: BTreeMap<String, Vec<u8>>,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Result<Self> {
        let mut stage = Stage {
            cluster,
            node: cluster.nodes().first().context("no node")?.clone(),
            last: Cell::new(None),
            read: RefCell::default(),
            before: Before::default(),
        };
        cluster.alice().run(&["bash", "-c", "umask 077; echo dear > diary; mkdir own"])?.ok()?;
        let first = stage.canary().context("before the first case")?;
        stage.before = stage.protected_files()?;
        let kept = format!("{REPORTS}/test/{first}");
        each_below(&cluster.path(CONTROLLER, &kept)?, &mut |path, _| {
            stage.before.alice.insert(path.display().to_string(), fs::read(path).unwrap_or_default());
        });
        ensure!(stage.before.alice.len() >= 2, "no report in {kept}");
        Ok(stage)
    }

    pub(crate) fn alice(&self) -> Session<'a> {
        self.cluster.alice()
    }

    pub(crate) fn bob(&self) -> Session<'a> {
        self.cluster.bob()
    }

    /// A session of Bob on the node, as pam_slurm_adopt would permit.
    pub(crate) fn bob_there(&self) -> Session<'a> {
        self.cluster.bob().on(&self.node)
    }

    pub(crate) fn root_there(&self) -> Session<'a> {
        self.cluster.root().on(&self.node)
    }

    /// Runs a job of Bob on all GPUs of the node. It must end with 0, which confirms that the attack was carried out.
    pub(crate) fn bobs(&self, script: &str) -> Result<u32> {
        self.bobs_with(&[], script, &["COMPLETED"])
    }

    /// The same with further sbatch options and other permitted end states.
    pub(crate) fn bobs_with(&self, words: &[&str], script: &str, ends: &[&str]) -> Result<u32> {
        let id = self.submit(words, script)?;
        self.ended(id, ends)?;
        Ok(id)
    }

    /// Submits a job of Bob with all GPUs of the node, without waiting for it.
    pub(crate) fn submit(&self, words: &[&str], script: &str) -> Result<u32> {
        self.submit_from(&self.bob(), words, script)
    }

    /// The same from a session of Bob with its own environment.
    pub(crate) fn submit_from(&self, bob: &Session<'_>, words: &[&str], script: &str) -> Result<u32> {
        let whole = ["-N1", "-w", &self.node, "--gres=gpu:8", "-o", "out.%j"];
        let id = bob.sbatch(&[&whole[..], words].concat(), script)?;
        self.last.set(Some(id));
        Ok(id)
    }

    /// Waits until a job has ended in one of these states and its epilog has run.
    pub(crate) fn ended(&self, id: u32, ends: &[&str]) -> Result<()> {
        let state = poll::until(MINUTE, &format!("job {id} to be {}", ends.join(" or ")), || {
            Ok(Some(self.state(id)?).filter(|state| OVER.contains(&state.as_str())))
        })?;
        ensure!(ends.contains(&state.as_str()), "job {id} is {state}; its output: {}", self.output(id));
        self.cluster.wait_node(&self.node, "epilogs over", MINUTE, |node| !node.state().contains("COMPL"))?;
        Ok(())
    }

    /// Runs `what` while Bob's job is on the node: after its script has started, before it ends.
    pub(crate) fn during(&self, begin: &str, what: impl FnOnce(u32) -> Result<()>) -> Result<u32> {
        let script = format!(
            "{begin}\n: > on.$SLURM_JOB_ID\nuntil [ -e go.$SLURM_JOB_ID ]; do sleep 0.05; done\nkill $(jobs -p) 2> /dev/null\nexit 0"
        );
        let id = self.submit(&[], &script)?;
        let result = self.begun(id).and_then(|()| what(id));
        self.bobs_file(&format!("go.{id}"))?;
        let ended = self.ended(id, &["COMPLETED"]);
        for file in ["on", "go"] {
            fs::remove_file(self.cluster.path(CONTROLLER, &format!("/home/rgbob/{file}.{id}"))?).ok();
        }
        result.and(ended).map(|()| id)
    }

    /// Creates an empty file of Bob in his home.
    pub(crate) fn bobs_file(&self, name: &str) -> Result<()> {
        let path = self.cluster.path(CONTROLLER, &format!("/home/rgbob/{name}"))?;
        fs::write(&path, "")?;
        Ok(chown(&path, Some(BOB), Some(BOB))?)
    }

    fn begun(&self, id: u32) -> Result<()> {
        let on = poll::until(MINUTE, &format!("job {id} to begin"), || {
            if self.cluster.output(&format!("/home/rgbob/on.{id}")).is_some() {
                return Ok(Some(true));
            }
            let state = self.state(id)?;
            Ok(OVER.contains(&state.as_str()).then_some(false))
        })?;
        ensure!(on, "job {id} ended before it began; its output: {}", self.output(id));
        Ok(())
    }

    /// State of a job, for example `RUNNING`, from squeue: `scontrol show job` cannot be parsed if a name has newlines.
    fn state(&self, id: u32) -> Result<String> {
        let squeue = ["squeue", "-h", "-t", "all", "-o", "%T", "-j", &id.to_string()];
        Ok(self.cluster.root().run(&squeue)?.stdout.trim().to_owned())
    }

    /// Starts a job of Alice on this node that may be requeued to any node. Its first attempt ends with exit code 3 on
    /// [`Stage::alice_ends`].
    pub(crate) fn alice_begins_on(&self, node: &str) -> Result<u32> {
        let set = |state: &str| -> Result<()> {
            for other in self.cluster.nodes().iter().filter(|other| *other != node) {
                let name = format!("nodename={other}");
                self.cluster.root().run(&["scontrol", "update", &name, state, "reason=later"])?.ok()?;
            }
            Ok(())
        };
        let script = "[ ${SLURM_RESTART_COUNT:-0} = 0 ] || exit 0\n: > began\nuntil [ -e end ]; do sleep 0.1; done\nrm began end\nexit 3";
        set("state=drain")?;
        let words = ["-N1", "--gres=gpu:4", "--railgate-requeue=auto", "-o", "/dev/null"];
        let begun = self.alice().sbatch(&words, script).and_then(|job| {
            poll::until(MINUTE, "Alice's job to begin", || Ok(self.cluster.output("/home/rgalice/began")))?;
            Ok(job)
        });
        set("state=resume")?;
        begun
    }

    /// Ends that attempt.
    pub(crate) fn alice_ends(&self) -> Result<()> {
        self.cluster.write(CONTROLLER, "/home/rgalice/end", "")
    }

    /// Output of a job of Bob.
    pub(crate) fn output(&self, id: u32) -> String {
        self.cluster.output(&format!("/home/rgbob/out.{id}")).unwrap_or_default()
    }

    /// Checks all conditions that must hold after each case. The error begins with the violated condition.
    pub(crate) fn holds(&self) -> Result<()> {
        self.nodes_are_up()?;
        let canary = self.canary().context("canary")?;
        self.nodes_are_up()?;
        let periodic = self.root_there().run(&["/etc/railgate/periodic.sh"])?;
        ensure!(periodic.code == 0, "periodic check: {periodic}");
        self.nodes_are_up()?;
        let ping = self.cluster.root().run(&["scontrol", "ping"])?;
        ensure!(ping.stdout.contains("is UP"), "slurmctld: {ping}");
        self.logs_are_clean()?;
        self.reports_are_clean(canary)?;
        self.nothing_is_left()?;
        let now = self.protected_files()?;
        self.same("/etc", &now.etc, &self.before.etc)?;
        self.same("files of Alice's", &now.alice, &self.before.alice)?;
        let more: Vec<_> = now.roots.difference(&self.before.roots).collect();
        ensure!(more.is_empty(), "files outside of railgate's places: {more:?}");
        Ok(())
    }

    fn nodes_are_up(&self) -> Result<()> {
        for name in self.cluster.nodes() {
            let node = self.cluster.node(name)?;
            let state = node.state();
            let well = ["DRAIN", "DOWN", "FAIL"].iter().all(|bad| !state.contains(bad));
            ensure!(well, "node: {name} is {state} ({})", node.field("Reason"));
        }
        Ok(())
    }

    /// A job of Alice on the node that Bob used, as a check that everything still works.
    fn canary(&self) -> Result<u32> {
        let words = ["-N1", "-w", &self.node, "--gres=gpu:8", "-o", "/dev/null"];
        let id = self.alice().sbatch(&words, "srun -n1 printenv NCCL_IB_HCA > canary")?;
        let job = self.cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        ensure!(job.restarts() == 0, "job {id} was restarted");
        self.ended(id, &["COMPLETED"])?;
        let rails = self.cluster.output("/home/rgalice/canary").unwrap_or_default();
        ensure!(rails.matches("mlx5_").count() == 8, "job {id} had NCCL_IB_HCA={rails}");
        let text = self.alice().run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
        let report: Value = serde_json::from_str(&text).context("its report")?;
        ensure!(text.split('\n').all(clean), "its report has control characters");
        let attempt = &report["attempts"][0];
        let node = &attempt["nodes"][0];
        let fit = |phase: &str| node[phase]["verdict"]["fitness"].as_str().unwrap_or_default().to_owned();
        let right = report["job"] == id
            && report["uid"] == ALICE
            && report["ended"]["kind"] == "completed"
            && node["node"] == self.node.as_str()
            && node["rail_map"]["rails"].as_array().is_some_and(|rails| rails.len() == 8)
            && ["prolog", "epilog"].iter().all(|phase| matches!(fit(phase).as_str(), "fit" | "degraded"))
            && report["problems"].as_array().is_some_and(Vec::is_empty)
            && node["faults"].as_array().is_some_and(Vec::is_empty);
        ensure!(right, "its report is wrong: {}", text.chars().take(30_000).collect::<String>());
        Ok(id)
    }

    /// Checks the logs of railgate's programs since the last case: only railgate's lines, no control characters.
    fn logs_are_clean(&self) -> Result<()> {
        let nodes = self.cluster.nodes().iter().map(|node| (node.as_str(), "/var/log/railgate.log"));
        let own = (CONTROLLER, "/var/lib/railgate/controller/epilog-ctld.log");
        for (machine, path) in nodes.chain([own]) {
            let Ok(log) = self.cluster.read(machine, path) else { continue };
            let mut read = self.read.borrow_mut();
            let from = read.entry((machine.to_owned(), path.to_owned())).or_default();
            for line in log.get(*from..).unwrap_or(&log).lines() {
                let stamped = line.len() > 20 && line.starts_with("20") && line.as_bytes()[10] == b'T';
                ensure!(
                    stamped && line.len() < 4096 && clean(line),
                    "log: {machine}:{path}: {:?}",
                    line.chars().take(300).collect::<String>()
                );
            }
            *from = log.len();
        }
        Ok(())
    }

    /// Checks the reports of Bob's last job and of Alice's, as both users and root see them.
    fn reports_are_clean(&self, canary: u32) -> Result<()> {
        let (root, bobs) = (self.cluster.root(), self.last.get());
        let shown = [(&root, bobs, "text"), (&root, bobs, "json"), (&self.alice(), Some(canary), "text")];
        for (session, job, format) in shown {
            let Some(job) = job.map(|job| job.to_string()) else { continue };
            let said = session.run(&["railgate", "report", &job, "--format", format])?.both();
            let bad = said.split('\n').find(|line| !clean(line));
            ensure!(bad.is_none(), "report of job {job} as {format}: {bad:?}");
            ensure!(!said.contains("root:x:0"), "report of job {job} shows another file");
        }
        for words in [&["sinfo", "-R", "-h"][..], &["squeue", "-h", "-o", "%i %r"]] {
            let said = self.cluster.root().run(words)?.stdout;
            ensure!(said.lines().all(clean), "{}: {said:?}", words[0]);
        }
        Ok(())
    }

    /// Checks that no run directory, mount or sampler of an ended job remains.
    fn nothing_is_left(&self) -> Result<()> {
        let look =
            "ls -A /run/railgate/jobs; grep railgate/jobs /proc/self/mountinfo; pgrep -x railgate-sample";
        let mut last = String::new();
        poll::until(Duration::from_secs(10), "the leftovers of a job to be gone", || {
            last = self.root_there().run(&["sh", "-c", look])?.both();
            Ok(last.is_empty().then_some(()))
        })
        .with_context(|| format!("left behind: {last}"))
    }

    fn same(
        &self,
        what: &str,
        now: &BTreeMap<String, Vec<u8>>,
        then: &BTreeMap<String, Vec<u8>>,
    ) -> Result<()> {
        let changed: Vec<&String> =
            now.keys().chain(then.keys()).filter(|path| now.get(*path) != then.get(*path)).collect();
        ensure!(changed.is_empty(), "{what} changed: {changed:?}");
        Ok(())
    }

    /// Current content of [`Before`]. A state directory of railgate that others may write is an error.
    fn protected_files(&self) -> Result<Before> {
        let mut now = Before::default();
        let first = self.cluster.first_process()?;
        for (machine, _) in self.cluster.machines() {
            let upper = PathBuf::from(format!("/proc/{first}/root/media/machines/{machine}/upper"));
            each_below(&upper, &mut |path, _| {
                let inside = path.strip_prefix(&upper).unwrap_or(path);
                let name = format!("{machine}:/{}", inside.display());
                if inside.starts_with("etc") {
                    now.etc.insert(name, fs::read(path).unwrap_or_default());
                } else if !["var/log", "var/spool", "var/lib", "var/cache", "var/tmp"]
                    .iter()
                    .any(|dir| inside.starts_with(dir))
                {
                    now.roots.insert(name);
                }
            });
            // In world-writable directories: files that root made.
            for dir in ["/tmp", "/var/tmp", "/dev/shm"] {
                each_below(&self.cluster.path(&machine, dir)?, &mut |path, meta| {
                    if meta.uid() == 0 {
                        now.roots.insert(format!("{machine}:{}", path.display()));
                    }
                });
            }
            for dir in ["/run/railgate", "/var/lib/railgate"] {
                let mut open = None;
                each_below(&self.cluster.path(&machine, dir)?, &mut |path, meta| {
                    let theirs = [ALICE, BOB].contains(&meta.uid());
                    if theirs || meta.mode() & 0o022 != 0 || meta.is_symlink() {
                        open =
                            Some(format!("{} (uid {}, mode {:o})", path.display(), meta.uid(), meta.mode()));
                    }
                });
                if let Some(open) = open {
                    bail!("railgate's own directory on {machine}: {open}");
                }
            }
        }
        // Bob's own directories must not contain files of root.
        for dir in ["/home/rgbob", "/shared"] {
            each_below(&self.cluster.path(CONTROLLER, dir)?, &mut |path, meta| {
                if meta.uid() == 0 {
                    now.roots.insert(path.display().to_string());
                }
            });
        }
        for dir in ["/home/rgalice/diary", "/home/rgalice/own"] {
            let path = self.cluster.path(CONTROLLER, dir)?;
            let meta = fs::symlink_metadata(&path).with_context(|| dir.to_owned())?;
            let kind = format!("{dir} {:o} {}", meta.mode(), meta.uid());
            now.alice.insert(kind, fs::read(&path).unwrap_or_default());
            each_below(&path, &mut |path, _| drop(now.alice.insert(path.display().to_string(), Vec::new())));
        }
        for path in self.before.alice.keys().filter(|path| path.starts_with("/proc/")) {
            now.alice.insert(path.clone(), fs::read(path).unwrap_or_default());
        }
        Ok(now)
    }

    /// Repairs the cluster after a failed case, so that the next case starts on a working one.
    pub(crate) fn mend(&self) -> Result<()> {
        let root = self.cluster.root();
        for user in ["rgbob", "rgalice"] {
            root.run(&["scancel", "-u", user])?;
        }
        for name in self.cluster.nodes() {
            self.cluster.hardware(name)?.heal()?;
            for machine in [name.as_str(), CONTROLLER] {
                root.clone().on(machine).run(&["pkill", "-KILL", "-u", "rgbob"])?;
                root.clone().on(machine).run(&["rm", "-f", "/tmp/owned", "/etc/railgate/disable"])?;
            }
            // readmit settles the kernel log's findings if the drain is railgate's.
            root.clone().on(name).run(&["railgate", "readmit", name])?;
            root.run(&["scontrol", "update", &format!("nodename={name}"), "state=resume"])?;
        }
        let clear = format!(
            "rm -f /home/rgalice/began /home/rgalice/end; cd {REPORTS}/test && chmod 755 . && find . -maxdepth 1 -user rgbob -exec rm -rf {{}} +"
        );
        root.run(&["sh", "-c", &clear])?;
        self.last.set(None);
        Ok(())
    }

    /// Ends a real hardware fault that a case injected into a node, and resumes the node.
    pub(crate) fn repaired(&self, node: &str) -> Result<()> {
        self.cluster.hardware(node)?.heal()?;
        let given = self.cluster.root().on(node).run(&["railgate", "readmit", node])?;
        ensure!(given.code == 0, "readmit: {given}");
        self.cluster.wait_node(node, "idle", MINUTE, |node| node.state() == "IDLE")?;
        Ok(())
    }
}

const OVER: [&str; 7] =
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"];

/// Whether a text has no character that affects a terminal or the reading order of a line: control characters of both sets, and
/// bidirectional controls.
pub(super) fn clean(text: &str) -> bool {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !text.chars().any(|c| c.is_control() || turns(c))
}

/// Calls `each` for everything below a directory except directories, without following links.
fn each_below(dir: &Path, each: &mut impl FnMut(&Path, &Metadata)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            each_below(&entry.path(), each);
        } else {
            each(&entry.path(), &meta);
        }
    }
}
