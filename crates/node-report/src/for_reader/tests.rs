use railgate_model::{Class, Evidence, Finding, KernelLine, Part, Severity, Snapshot, UnixMillis};

use super::*;
use crate::testing::{HOUR, START, after, finding, job, machine, part};
use crate::{Act, ActKind, StatsConfig, kernel_events};

/// Process name, PID, user and job of a foreign user; they occur in no other text of these reports.
const FOREIGN: [&str; 4] = ["evesprogram", "770077", "5002", "990099"];

fn with_lines(snapshot: &mut Snapshot, texts: &[String]) {
    let Part::Read { data, .. } = &mut snapshot.kernel_log else { panic!("no kernel log") };
    let line = |(seq, text): (u64, &String)| {
        let time: UnixMillis = START + HOUR - 60_000;
        KernelLine { seq, time, level: 3, text: text.clone() }
    };
    data.lines.extend((100..).zip(texts).map(line));
}

fn row(what: &str, got: &str, source: &str) -> Evidence {
    let [what, got, want, source] = [what, got, "none", source].map(str::to_owned);
    Evidence { what, got, want, source }
}

fn found(check: &str, part: &str, what: &str, rows: Vec<Evidence>) -> Finding {
    Finding { evidence: rows, ..finding(check, part, Severity::Fail, Class::Node, what) }
}

/// A job on GPUs 0 to 3 beside another user's on the rest, with everything that a check run can find about that
/// one.
fn shared() -> NodeReport {
    let pci = |index: usize| {
        let gpus = machine("n1", "").gpus;
        gpus.data().unwrap().gpus[index].pci.known().unwrap().to_string().trim_end_matches(".0").to_owned()
    };
    let path = "/slurm_n1/uid_5002/job_990099";
    let xid = format!("NVRM: Xid (PCI:{}): 31, pid=770077, name=evesprogram, Ch 00000018", pci(6));
    let own_xid = format!("NVRM: Xid (PCI:{}): 31, pid=4711, name=annsprogram, Ch 00000018", pci(1));
    let hung = "INFO: task evesprogram:770077 blocked for more than 120 seconds.".to_owned();
    let lines = [
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={path},\
             task_memcg={path}/step_0,task=evesprogram,pid=770077,uid=5002"
        ),
        "Memory cgroup out of memory: Killed process 770077 (evesprogram) total-vm:9kB, anon-rss:9kB, \
         file-rss:0kB, shmem-rss:0kB, UID:5002 pgtables:4kB oom_score_adj:0"
            .to_owned(),
        xid.clone(),
        own_xid,
        hung.clone(),
        "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid 770077): CREATE_QP(0x500) failed".to_owned(),
        "EXT4-fs error (device md0): ext4_lookup:1858: inode #2: comm evesprogram: iget".to_owned(),
    ];
    let leftover = "leftover process 770077 (evesprogram, 400 MiB)";
    let findings = vec![
        found(
            "gpu-processes",
            "6",
            leftover,
            vec![row("gpu 6 process 770077", "uid 5002, 400 MiB", "/proc")],
        ),
        found(
            "kmsg-forged",
            "",
            "process 770077 of uid 5002 imitated a driver in the kernel log",
            vec![row("kernel log", "evesprogram[770077]: segfault at 0", "kmsg seq 9")],
        ),
        found(
            "tasks",
            "blocked",
            "1 stuck in the kernel: evesprogram (770077)",
            vec![row("evesprogram (770077)", "state D", "/proc")],
        ),
        found("gpu-xid", "6", "Xid 31", vec![row("Xid 31", &xid, "kmsg seq 102")]),
        found("gpu-recovery-action", "6", "reset", vec![row("x", "y", &format!("kmsg seq 102 at 3: {xid}"))]),
        found("kmsg", "", "a task hangs", vec![row("task-hung", &hung, "kmsg seq 104")]),
    ];
    let job = job(0..4);
    let mut report = part("n1", &job, "", findings, 256);
    let mut now = after(&machine("n1", ""), "");
    with_lines(&mut now, &lines);
    report.kernel = kernel_events(&now, START, &job, &StatsConfig::default());
    let act = |detail: String| Act { what: ActKind::Drained, time: START, by: "epilog".to_owned(), detail };
    report.acts.push(act(format!("railgate: gpu-processes@6: {leftover}; kill it [epilog]")));
    report.acts.push(act("railgate: gpu-processes@6: leftover process 770077 (evespr".to_owned()));
    report
}

#[test]
fn report_has_no_foreign_process_user_or_job() {
    let whole = shared();
    let before = serde_json::to_string(&whole).unwrap();
    for foreign in &FOREIGN[..3] {
        assert!(before.contains(foreign), "{foreign} is not even in the whole one");
    }
    let shown = whole.for_reader();
    let json = serde_json::to_string_pretty(&shown).unwrap();
    for foreign in FOREIGN.into_iter().chain(["evespr"]) {
        assert!(!json.contains(foreign), "{foreign} in:\n{json}");
    }
    assert!(shown.for_reader() == shown);
}

#[test]
fn events_stay_without_foreign_names() {
    let (whole, shown) = (shared(), shared().for_reader());
    let xids = |report: &NodeReport| -> Vec<(u32, Option<PciAddress>, u64)> {
        report.kernel.xids.iter().map(|xid| (xid.code, xid.gpu, xid.time)).collect()
    };
    assert_eq!((xids(&shown), shown.kernel.xids.len()), (xids(&whole), 2));
    let own = shown.kernel.xids.iter().find(|xid| xid.pid.is_some()).unwrap();
    assert_eq!(own.pid, Some(4711));
    assert!(own.text.contains("annsprogram"), "{}", own.text);
    let lines: Vec<&str> = shown.kernel.lines.iter().map(|line| line.text.as_str()).collect();
    for line in [
        "INFO: task …:… blocked for more than 120 seconds.",
        "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid …): CREATE_QP(0x500) failed",
    ] {
        assert!(lines.contains(&line), "{lines:?}");
    }
    let said = |report: &NodeReport| -> Vec<(String, Severity, Class)> {
        let findings = &report.epilog.as_ref().unwrap().verdict.findings;
        findings.iter().map(|found| (found.subject(), found.severity, found.class)).collect()
    };
    assert_eq!(said(&shown), said(&whole));
    let what: Vec<&str> = shown
        .epilog
        .iter()
        .flat_map(|look| &look.verdict.findings)
        .map(|found| found.what.as_str())
        .collect();
    assert_eq!(what[0], "a process that is not of this job");
    assert_eq!(what[2], "1 stuck in the kernel");
    let acts: Vec<&str> = shown.acts.iter().map(|act| act.detail.as_str()).collect();
    assert_eq!(acts[0], "railgate: gpu-processes@6: a process that is not of this job; kill it [epilog]");
}

#[test]
fn data_of_the_job_itself_stays_complete() {
    let row = || vec![row("gpu 1 process 4711", "uid 1000, 400 MiB", "/proc")];
    let own = vec![
        found("gpu-processes", "1", "leftover process 4711 (annsprogram, 400 MiB)", row()),
        found("gpu-processes", "2", "gpu 2 processes unreadable: 999", vec![]),
        found("kmsg-forged", "", "process 4711 of uid 1000 imitated a driver in the kernel log", vec![]),
        found("tasks", "zombies", "5000 zombies", vec![]),
    ];
    let report = part("n1", &job(0..8), "gpu-xid-31@2", own, 256);
    assert!(!report.kernel.xids.is_empty());
    assert!(report.for_reader() == report);
}

/// The attacker's process name imitates the beginning of the record.
#[test]
fn forged_record_is_not_taken_for_the_readers_own() {
    let rows = vec![row("kernel log", "uid 1000, NVRM:[770077]: segfault at 0", "kmsg seq 9")];
    let forged =
        found("kmsg-forged", "", "process 770077 of uid 5002 imitated a driver in the kernel log", rows);
    let shown = part("n1", &job(0..8), "", vec![forged], 256).for_reader();
    assert!(!serde_json::to_string(&shown).unwrap().contains("770077"));
}

/// One slice of a GPU belongs to this job, the other to another job.
#[test]
fn xid_of_a_slice_names_no_process() {
    let mut report = part("n1", &job(0..8), "gpu-xid-31@2", vec![], 256);
    let xid = &mut report.kernel.xids[0];
    xid.text = xid.text.replacen("):", " GPU-I:05):", 1).replacen(
        ": 31, ",
        ": 31, pid=770077, name=evesprogram, ",
        1,
    );
    xid.pid = Some(770_077);
    assert!(xid.text.contains("GPU-I:05): 31, pid=770077"), "{}", xid.text);
    let shown = serde_json::to_string(&report.for_reader()).unwrap();
    assert!(!shown.contains("770077") && !shown.contains("evesprogram"), "{shown}");
}

/// The whole node lacks memory: a process of another job requests it, and one of this job is killed.
#[test]
fn own_kill_record_stays_without_the_cpuset_of_the_other_job() {
    let mut report = part("n1", &job(0..8), "", vec![], 256);
    let record = |cpuset: &str| {
        format!(
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset={cpuset},mems_allowed=0-1,global_oom,\
             task_memcg=/slurm/uid_1000/job_48213/step_0,task=annsprogram,pid=4711,uid=1000"
        )
    };
    report.kernel.lines =
        vec![KernelLine { seq: 9, time: START, level: 6, text: record("job_990099,mems_allowed=0") }];
    assert_eq!(report.for_reader().kernel.lines[0].text, record("…"));
}

#[test]
fn drain_reason_keeps_only_own_jobs() {
    for (text, wants) in [
        (
            "railgate: gpu-lost@3: off bus; reboot [epilog job=7,990099]",
            "railgate: gpu-lost@3: off bus; reboot [epilog job=7]",
        ),
        (
            "railgate: gpu-lost@3: off bus; reboot [prolog job=990099]",
            "railgate: gpu-lost@3: off bus; reboot [prolog]",
        ),
        (
            "n1 went down (railgate: a: b; c [epilog job=990099,7]), n2",
            "n1 went down (railgate: a: b; c [epilog job=7]), n2",
        ),
        ("bad DIMM, ticket 4711", "bad DIMM, ticket 4711"),
        ("one job= and job=x", "one job= and job=x"),
        ("job=1 [epilog job=77]", "job=1 [epilog]"),
        ("", ""),
    ] {
        assert_eq!(reason_for_reader(text, &[7]), wants);
    }
}

#[test]
fn decision_names_no_job_or_process_of_others() {
    let mut decision = crate::testing::decision(0, crate::DecisionKind::Left, 256);
    let mut node = decision.nodes[0].clone();
    let own = decision.job;
    node.reason = format!("railgate: gpu-lost@3: off bus; reboot [epilog job={own},990099]");
    decision.why = format!("n1 went down ({})", node.reason);
    let mut other = node.clone();
    other.reason =
        "railgate: gpu-processes@6: leftover process 770077 (evesprogram, 400 MiB); kill [epilog job=990099]"
            .to_owned();
    let mut plain = node.clone();
    plain.reason = String::new();
    decision.nodes = vec![node, other, plain];
    let seen = decision.for_reader(1000);
    let text = serde_json::to_string(&seen).unwrap();
    for foreign in FOREIGN {
        assert!(!text.contains(foreign), "{foreign} in {text}");
    }
    assert_eq!(seen.nodes[0].reason, format!("railgate: gpu-lost@3: off bus; reboot [epilog job={own}]"));
    assert_eq!(seen.why, format!("n1 went down ({})", seen.nodes[0].reason));
    assert_eq!(
        seen.nodes[1].reason,
        "railgate: gpu-processes@6: a process that is not of this job; kill [epilog]"
    );
    assert_eq!(seen.nodes[2].reason, "");
}

#[test]
fn act_on_a_node_names_no_other_job() {
    let mut report = shared();
    let detail = format!("railgate: gpu-lost@3: off bus; reboot [epilog job={},990099]", report.job.id);
    report.acts.push(Act { detail, ..report.acts[0].clone() });
    let acts = report.for_reader().acts;
    assert_eq!(
        acts.last().unwrap().detail,
        format!("railgate: gpu-lost@3: off bus; reboot [epilog job={}]", report.job.id)
    );
}
