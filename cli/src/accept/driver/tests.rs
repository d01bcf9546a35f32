//! The driver against programs in the place of Slurm's, and with times in the past.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use railgate_slurm::SlurmConfig;

use super::*;

/// The answers of Slurm: files that stand-ins print.
struct Slurm(tempfile::TempDir);

impl Slurm {
    fn new() -> Self {
        let slurm = Slurm(tempfile::tempdir().unwrap());
        for (name, script) in [
            ("squeue", "cat DIR/queue"),
            ("sacct", "cat DIR/accounting"),
            ("sinfo", "for n in 1 2 3 4; do echo \"n$n|idle|none\"; done"),
            ("sbatch", "echo job >> DIR/submitted; wc -l < DIR/submitted"),
        ] {
            let place = slurm.0.path().join(name);
            fs::write(&place, format!("#!/bin/sh\n{script}\n").replace("DIR", &slurm.at(""))).unwrap();
            fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
        }
        slurm.write("queue", "");
        slurm
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    /// Number of jobs that were submitted.
    fn submitted(&self) -> usize {
        fs::read_to_string(self.at("submitted")).map_or(0, |lines| lines.lines().count())
    }

    fn client(&self) -> Client {
        let config = SlurmConfig { bin_dir: self.0.path().to_owned(), ..SlurmConfig::default() };
        Client::new(&config, &BTreeMap::new())
    }
}

/// Lets a driver of a new run of this stage work. At most two nodes load their GPUs at once.
fn with_driver(stage: &str, work: impl FnOnce(&Slurm, &mut Driver<'_>)) {
    let (place, slurm) = (tempfile::tempdir().unwrap(), Slurm::new());
    let dir = Dir::make(&place.path().join("accept")).unwrap();
    fs::write(dir.path().join("plan.toml"), format!("title = 't'\nnodes = 'n[1-4]'\n[{stage}]\n")).unwrap();
    let mut run = dir.run().unwrap();
    let mut writer = dir.write().unwrap();
    let begin = Event::Begin { run: "run".to_owned(), plan: run.plan_digest.clone() };
    step(&mut run.state, &writer.append(begin).unwrap()).unwrap();
    let mut driver = Driver {
        dir: &dir,
        progress: Progress::default(),
        units: run.plan.units(),
        run,
        client: slurm.client(),
        writer,
        absent: BTreeMap::new(),
        waits: BTreeMap::new(),
        ran: BTreeMap::new(),
        loaded_at_once: 2,
        silent: false,
    };
    work(&slurm, &mut driver);
}

const UNIT: &str = "node.n1.r1";

impl Driver<'_> {
    /// Submits the first unit, with or without an answer of sbatch.
    fn begin(&mut self, job: Option<u32>) {
        let unit = || UNIT.to_owned();
        self.log(Event::Submit { unit: unit(), attempt: 1, nodes: vec!["n1".to_owned()] }).unwrap();
        if let Some(job) = job {
            self.log(Event::Submitted { unit: unit(), attempt: 1, job }).unwrap();
        }
    }

    /// One round of questions about jobs; the job is missing for this time.
    fn ask_after(&mut self, seconds: u64) {
        let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        self.absent.insert(UNIT.to_owned(), since);
        self.find_results().unwrap();
        self.ask_about_jobs().unwrap();
    }

    /// Why the first attempt was lost.
    fn lost(&self) -> Option<&str> {
        match &self.run.state.units.get(UNIT)?.attempts.first()?.fate {
            railgate_accept::Fate::Lost { why, .. } => Some(why),
            _ => None,
        }
    }

    fn write_result(&self, unit: &str) {
        fs::write(self.dir.results().join(format!("{unit}.a1.j7.json")), "{}").unwrap();
    }

    fn is_done(&self, unit: &str) -> bool {
        self.run.state.units.get(unit).is_some_and(|of| of.done().is_some())
    }
}

#[test]
fn the_result_of_a_completed_job_has_two_minutes_to_appear() {
    let queue = |state: &str| format!("7|{state}|railgate-accept:run:{UNIT}:1|None\n");
    for (job, queued, accounted, waits_s, why) in [
        (Some(7), queue("COMPLETED"), None, 120, "job 7: COMPLETED (None)"),
        (Some(7), queue("FAILED"), None, 30, "job 7: FAILED (None)"),
        // slurmctld has forgotten it: without accounting it may have completed.
        (Some(7), String::new(), None, 120, "its job is not in the queue"),
        (Some(7), String::new(), Some(queue("COMPLETED")), 120, "job 7: COMPLETED (None)"),
        (Some(7), String::new(), Some(queue("NODE_FAIL")), 30, "job 7: NODE_FAIL (None)"),
        // Of a job that Slurm never accepted there will be no result.
        (None, String::new(), None, 30, "its job is not in the queue"),
    ] {
        with_driver("node", |slurm, driver| {
            driver.begin(job);
            slurm.write("queue", &queued);
            if let Some(accounted) = &accounted {
                slurm.write("accounting", accounted);
            }
            driver.ask_after(0);
            driver.ask_after(waits_s - 2);
            assert_eq!(driver.lost(), None, "{job:?} {queued} {accounted:?}");
            driver.ask_after(waits_s + 1);
            assert_eq!(driver.lost(), Some(why), "{job:?} {queued} {accounted:?}");
        });
    }
}

#[test]
fn a_late_result_counts_and_its_unit_is_not_submitted_again() {
    let completed = format!("7|COMPLETED|railgate-accept:run:{UNIT}:1|None\n");
    with_driver("node", |slurm, driver| {
        driver.begin(Some(7));
        slurm.write("queue", &completed);
        driver.ask_after(119);
        driver.write_result(UNIT);
        driver.ask_after(121);
        assert!(driver.is_done(UNIT) && driver.lost().is_none());
    });
    // It comes after the unit was counted as lost, and before the next attempt.
    with_driver("node", |slurm, driver| {
        driver.begin(Some(7));
        slurm.write("queue", &completed);
        driver.ask_after(121);
        assert!(driver.lost().is_some());
        driver.write_result(UNIT);
        driver.submit().unwrap();
        assert!(driver.is_done(UNIT));
        assert_eq!(driver.run.state.units[UNIT].attempts.len(), 1);
    });
}

#[test]
fn only_so_many_nodes_load_their_gpus_at_once() {
    with_driver("node", |slurm, driver| {
        driver.submit().unwrap();
        driver.submit().unwrap();
        assert_eq!(slurm.submitted(), 2);
        driver.write_result("node.n1.r1");
        driver.find_results().unwrap();
        driver.submit().unwrap();
        assert_eq!((slurm.submitted(), driver.open().len()), (3, 2));
    });
    with_driver("soak", |slurm, driver| {
        driver.submit().unwrap();
        assert_eq!(slurm.submitted(), 2);
    });
    // Other stages load no GPU.
    with_driver("inventory", |slurm, driver| {
        driver.submit().unwrap();
        assert_eq!(slurm.submitted(), 4);
    });
    // jobs_at_once of the plan holds as well.
    with_driver("node", |slurm, driver| {
        driver.run.plan.jobs_at_once = 1;
        driver.submit().unwrap();
        assert_eq!(slurm.submitted(), 1);
    });
}

#[test]
fn a_reservation_is_named_once() {
    let of = |options: &[&str]| {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        reservation(&options).map(str::to_owned).map_err(|why| why.to_string())
    };
    assert_eq!(of(&["--exclusive", "--reservation=m"]).unwrap(), "m");
    for twice in [
        ["--reservation=m", "--reservation=o"],
        ["--reservation=m", "--res=o"],
        ["--reserv=o", "--reservation=m"],
    ] {
        assert_eq!(of(&twice).unwrap_err(), "sbatch in the plan names more than one reservation");
    }
    assert!(of(&["--res=o"]).unwrap_err().contains("add '--reservation=NAME'"));
    assert!(of(&[]).is_err());
}

#[test]
fn a_word_of_the_script_stays_one_word() {
    assert_eq!(quoted(Path::new("/a b/$(c)'d")).unwrap(), r"'/a b/$(c)'\''d'");
    assert!(quoted(Path::new("/a\nb")).is_err());
}
