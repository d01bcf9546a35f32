use railgate_model::{Class, Job, Part, Severity};
use railgate_node_report::testing::{
    HOUR, START, add, after, decision, finding, job, lost_gpu, machine, part, rails, refused,
};
use railgate_node_report::{SlurmView, kernel_events, port_uses};

use super::*;
use crate::JobReport;
use crate::testing::{merged, slurm, story};

fn pair(first: NodeReport, second: NodeReport) -> JobReport {
    merged(vec![first, second], vec![], None)
}

fn quiet(node: &str, status: i32) -> NodeReport {
    part(node, &job(0..8), "", vec![], status)
}

#[test]
fn lost_gpu_with_its_xid_is_a_hardware_fault_in_time_order() {
    let broken = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
    let report = pair(broken, quiet("n2", 256));
    assert_eq!(report.ended.kind, EndKind::Hardware, "{:#?}", report.ended);
    assert!(
        report.ended.why.contains("exit code 1") && report.ended.why.contains("First, on n1: gpu-lost@3: "),
        "{}",
        report.ended.why
    );
    let times: Vec<_> = report.ended.proof.iter().map(|proof| proof.time).collect();
    assert_eq!(times[0], Some(START + HOUR - 60_000));
    assert!(times.is_sorted_by_key(|time| time.unwrap_or(u64::MAX)));
    assert!(report.ended.proof.iter().any(|proof| proof.what.contains("Xid 79")));
}

#[test]
fn a_result_of_the_jobs_own_preflight_is_no_proof_of_a_hardware_fault() {
    let found = finding("preflight", "", Severity::Fail, Class::Node, "rail 3 of n1: 96 Gb/s");
    let named = |more: Vec<Finding>| part("n1", &job(0..8), "", [vec![found.clone()], more].concat(), 256);
    let mut node = named(vec![]);
    node.evidence[0].own = Some(true);
    // The controller has seen the same evidence.
    let mut requeued = decision(0, DecisionKind::Requeued, 256);
    requeued.nodes.iter_mut().for_each(|node| (node.node, node.evidence) = ("n1".to_owned(), true));
    assert!(!requeued.nodes.is_empty());
    for decisions in [vec![], vec![requeued]] {
        let report = merged(vec![node.clone(), quiet("n2", 256)], decisions, None);
        let ended = &report.attempts[0].ended;
        assert_eq!(ended.kind, EndKind::Preflight, "{ended:#?}");
        assert_eq!(
            ended.why,
            "The job's own preflight named n1; the job ended with exit code 1. The job's \
             tasks wrote this result, and railgate did not confirm it. On n1: rail 3 of n1: 96 Gb/s. An admin: railgate check --full on n1."
        );
        assert_eq!(ended.proof[0].what, "reported by the job: rail 3 of n1: 96 Gb/s");
        assert!(hardware(&report.attempts[0]).is_empty());
        let said = "reported by the job's own preflight: rail 3 of n1: 96 Gb/s";
        let mut events = report.timeline.iter();
        assert!(
            events.any(|event| event.what == said && event.weight == crate::Weight::Warn),
            "{:#?}",
            report.timeline
        );
    }
    // Proven faults take precedence.
    let mut broken = named(vec![lost_gpu()]);
    broken.evidence.iter_mut().for_each(|item| item.own = Some(true));
    let ended = pair(broken, quiet("n2", 256)).ended;
    assert_eq!(ended.kind, EndKind::Hardware);
    assert!(ended.proof.iter().all(|proof| !proof.what.contains("96 Gb/s")), "{ended:#?}");
}

#[test]
fn report_and_controller_judge_a_site_finding_alike() {
    let raid = finding("site-raid", "", Severity::Fail, Class::Node, "md0 degraded");
    let judged = |own: Option<bool>, discounted: Vec<railgate_node_report::Discounted>| {
        let mut node = part("n1", &job(0..8), "", vec![raid.clone()], 256);
        node.evidence[0].own = own;
        let mut left = decision(0, DecisionKind::Left, 256);
        (left.nodes, left.discounted) = (vec![], discounted);
        "no node has evidence of a fault that ended it".clone_into(&mut left.why);
        merged(vec![node, quiet("n2", 256)], vec![left], slurm("FAILED")).ended
    };
    // A node without GPUs; the controller does not count it either.
    let unsure = judged(None, vec![]);
    assert_eq!(unsure.kind, EndKind::Unknown, "{unsure:#?}");
    assert!(
        unsure.why.contains(
            "site-raid: md0 degraded on n1 does not count as the cause: it is not known whether the job held \
             the part"
        ),
        "{}",
        unsure.why
    );
    assert!(unsure.proof.iter().any(|proof| proof.what.contains("md0 degraded")), "it stays visible");
    assert_eq!(judged(Some(true), vec![]).kind, EndKind::Hardware);
    // The report omits what the controller omitted, with the same reason.
    let left_out = railgate_node_report::Discounted {
        node: "n1".to_owned(),
        subject: "site-raid".to_owned(),
        why: "(requeue.site_checks)".to_owned(),
    };
    let ended = judged(Some(true), vec![left_out]);
    assert_eq!(ended.kind, EndKind::Unknown, "{ended:#?}");
    assert!(ended.why.contains("does not count as the cause: (requeue.site_checks)"), "{}", ended.why);
}

#[test]
fn requesting_a_restart_is_suggested_only_if_it_would_have_helped() {
    let page = |node: NodeReport| {
        let mut left = decision(0, DecisionKind::Left, 256);
        (left.nodes, left.not_asked, left.consent) = (vec![], true, "never".to_owned());
        "a restart was not asked for (--railgate-requeue)".clone_into(&mut left.why);
        let report = merged(vec![node, quiet("n2", 256)], vec![left], slurm("FAILED"));
        crate::text(&report, true).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let own = page(quiet("n1", 256));
    assert!(!own.contains("not asked for") && own.contains("no fault of a node ended it"), "{own}");
    let lost = page(part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256));
    assert!(lost.contains("a restart was not asked for (#SBATCH --railgate-requeue=auto)"), "{lost}");
}

#[test]
fn unknown_xid_leaves_the_cause_open() {
    let report = pair(part("n1", &job(0..8), "gpu-xid-9999@2", vec![], 256), quiet("n2", 256));
    assert_eq!(report.ended.kind, EndKind::Unknown, "{:#?}", report.ended);
    assert!(report.ended.why.contains("Xid 9999, which railgate does not know"), "{}", report.ended.why);
    let report = pair(part("n1", &job(0..2), "gpu-xid-9999@2", vec![], 256), quiet("n2", 256));
    assert_eq!(report.ended.kind, EndKind::Application, "another job's GPU: {:#?}", report.ended);
}

/// The kernel log of the first node has only one record, with this Xid.
fn with_record(code: u32, text: &str) -> JobReport {
    let mut node = part("n1", &job(0..8), "gpu-xid-31@2", vec![], 256);
    let place = "NVRM: Xid (PCI:0000:c3:00)";
    for xid in &mut node.kernel.xids {
        (xid.code, xid.text) = (code, format!("{place}: {code}, {text}"));
    }
    pair(node, quiet("n2", 256))
}

#[test]
fn reports_and_gate_use_the_same_xid_table() {
    let ended = |code: u32| with_record(code, "pid=4711, name=python3, Ch 00000010").ended;
    // Once missing in the table of the reports, though the gate drained.
    for code in [151, 169] {
        assert_eq!(ended(code).kind, EndKind::Hardware, "{code}");
    }
    // Harmless, but once turned an application's failure into "could not tell".
    for code in [14, 37, 38, 66, 67, 93, 106, 107, 141, 152, 153, 160, 161, 162, 163, 164, 165] {
        assert_eq!(ended(code).kind, EndKind::Application, "{code}: {}", ended(code).why);
    }
    // A note of the gate, without consequences.
    assert_eq!(ended(157).kind, EndKind::Application);
    assert_eq!(ended(137).kind, EndKind::Application);
    assert!(ended(137).proof[0].what.contains("a fault of the peer GPU"), "{:?}", ended(137).proof);
    // In the catalogue, but not reported by any current GPU.
    let unused = ended(61);
    assert_eq!(unused.kind, EndKind::Unknown);
    assert!(
        unused.why.contains(
            "Xid 61 (PMU_BREAKPOINT), for which the action in NVIDIA's catalogue is CONTACT_SUPPORT"
        )
    );
}

#[test]
fn nvlink_5_record_is_hardware_if_the_catalogue_requires_a_reset() {
    let ended = |code: u32, text: &str| with_record(code, text).ended.kind;
    let link = |intr_info: &str| {
        ended(149, &format!("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 ({intr_info} 0x00000000 0x00000000)"))
    };
    assert_eq!(link("0x021425c6"), EndKind::Hardware, "RESET_GPU");
    assert_eq!(link("0x026001c6"), EndKind::Application, "IGNORE");
    let track = "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000)";
    assert_eq!(ended(145, track), EndKind::Application, "XID_154_EVAL");
    let software = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a4c2 0x00000001 0x00000001)";
    assert_eq!(ended(145, software), EndKind::Application, "software may be the cause");
    assert_eq!(ended(145, "with another wording"), EndKind::Application);
}

#[test]
fn controllers_evidence_counts_if_the_node_report_is_missing() {
    let nodes = vec![quiet("n2", 256)];
    let report = merged(nodes, vec![decision(0, DecisionKind::Requeued, 256)], None);
    assert_eq!(report.ended.kind, EndKind::Hardware, "{:#?}", report.ended);
    assert!(report.ended.why.contains("First, on n1: railgate: gpu-lost@3"), "{}", report.ended.why);
}

#[test]
fn gpu_of_another_job_is_no_evidence() {
    let report = pair(part("n1", &job(4..8), "gpu-lost@3", vec![lost_gpu()], 256), quiet("n2", 256));
    assert_eq!(report.ended.kind, EndKind::Application, "{:#?}", report.ended);
}

#[test]
fn evidence_after_the_end_does_not_count() {
    let mut late = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
    for xid in &mut late.kernel.xids {
        xid.time = START + HOUR + 60_000;
    }
    for item in &mut late.evidence {
        item.time = Some(START + HOUR + 60_000);
    }
    assert_eq!(pair(late, quiet("n2", 256)).ended.kind, EndKind::Application);
}

#[test]
fn application_xids_indicate_the_program() {
    for (code, status) in [(13, 256), (31, 134 << 8), (43, 11)] {
        let own = part("n1", &job(0..8), &format!("gpu-xid-{code}@2"), vec![], status);
        let ended = pair(own, quiet("n2", status)).ended;
        assert_eq!(ended.kind, EndKind::Application, "{code}: {ended:#?}");
        assert!(ended.why.contains(&format!("Xid {code}")), "{}", ended.why);
        assert!(ended.why.contains("no hardware Xid") && !ended.proof.is_empty(), "{ended:#?}");
    }
    let plain = pair(quiet("n1", 256), quiet("n2", 256)).ended;
    assert!(plain.why.contains("in Python, an exception"), "{}", plain.why);
}

#[test]
fn state_in_slurm_takes_precedence() {
    for (state, kind) in [
        ("COMPLETED", EndKind::Completed),
        ("CANCELLED by 1000", EndKind::Cancelled),
        ("TIMEOUT", EndKind::Timeout),
        ("PREEMPTED", EndKind::Preempted),
        ("OUT_OF_MEMORY", EndKind::OutOfMemory),
        ("NODE_FAIL", EndKind::NodeDied),
        ("FAILED", EndKind::Hardware),
    ] {
        let broken = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
        let report = merged(vec![broken, quiet("n2", 256)], vec![], slurm(state));
        assert_eq!(report.ended.kind, kind, "{state}: {:#?}", report.ended);
        assert!(!report.ended.proof.is_empty(), "{state}: the evidence stays visible");
    }
    let report = merged(vec![quiet("n1", 0), quiet("n2", 0)], vec![], slurm("CANCELLED by 1000"));
    assert!(report.ended.why.contains("uid 1000") && report.ended.proof.is_empty());
    let hung = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 0);
    let report = merged(vec![hung, quiet("n2", 0)], vec![], slurm("TIMEOUT"));
    assert!(report.ended.why.contains("may have hung"));
}

#[test]
fn exit_code_zero_alone_is_not_informative() {
    let ended = pair(quiet("n1", 0), quiet("n2", 0)).ended;
    assert_eq!(ended.kind, EndKind::Unknown);
    assert!(ended.why.contains("cancelled and timed-out jobs"));
}

fn killed_text(pid: u32, uid: u32) -> String {
    format!(
        "Memory cgroup out of memory: Killed process {pid} (python) total-vm:9kB, anon-rss:9kB, file-rss:0kB, \
         shmem-rss:0kB, UID:{uid} pgtables:4kB oom_score_adj:0"
    )
}

/// Two jobs share the node, and the kernel kills a process of the other one.
#[test]
fn out_of_memory_of_another_job_is_not_attributed_to_the_job() {
    let summary = |path: &str, uid: u32| {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={path},\
             task_memcg={path}/step_0,task=python,pid=4711,uid={uid}"
        )
    };
    let ended = |texts: &[String]| {
        let mut node = quiet("n1", 256);
        node.kernel.lines = (9..)
            .zip(texts)
            .map(|(seq, text)| railgate_model::KernelLine {
                seq,
                time: START + 5,
                level: 3,
                text: text.clone(),
            })
            .collect();
        pair(node, quiet("n2", 256)).ended
    };
    let plain = ended(&[]);
    assert_eq!(plain.kind, EndKind::Application);
    for foreign in [
        vec![summary("/slurm_n2/uid_5002/job_1057", 5002), killed_text(4711, 5002)],
        // Another job of the same user.
        vec![summary("/system.slice/slurmstepd.scope/job_1057", 1000), killed_text(4711, 1000)],
        vec![summary("/user.slice/user-1000.slice/session-3.scope", 1000)],
        vec![killed_text(4711, 5002)],
    ] {
        assert_eq!(ended(&foreign), plain, "{foreign:?}");
    }
    for own in [
        vec![summary("/slurm_n2/uid_1000/job_48213", 1000), killed_text(4711, 1000)],
        vec![summary("/system.slice/slurmstepd.scope/job_48213", 1000), killed_text(4711, 1000)],
        vec![killed_text(4711, 1000)],
    ] {
        assert_eq!(ended(&own).kind, EndKind::OutOfMemory, "{own:?}");
    }
}

#[test]
fn out_of_memory_is_detected_from_slurm_signal_and_kernel() {
    assert_eq!(pair(quiet("n1", 125), quiet("n2", 125)).ended.kind, EndKind::OutOfMemory);
    let mut killed = quiet("n1", 137 << 8);
    killed.kernel.lines.push(railgate_model::KernelLine {
        seq: 9,
        time: START + 5,
        level: 3,
        text: killed_text(4711, 1000),
    });
    let ended = pair(killed, quiet("n2", 137 << 8)).ended;
    assert_eq!(ended.kind, EndKind::OutOfMemory);
    assert!(ended.proof[0].what.contains("4711"));
}

/// The shell of a template, or a user's script, turns the end of a step into an ordinary exit code.
#[test]
fn out_of_memory_is_detected_from_slurms_step_record_and_the_kernels_record() {
    let with = |status, derived, line: Option<&str>| {
        let mut node = quiet("n1", status);
        node.exit = Some(Exit { status, derived });
        node.kernel.lines.extend(line.map(|text| railgate_model::KernelLine {
            seq: 9,
            time: START + 5,
            level: 3,
            text: text.to_owned(),
        }));
        pair(node, quiet("n2", status)).ended
    };
    // Slurm's marker is 125 as a signal, with or without the core bit.
    for mark in [125, 253] {
        let ended = with(256, Some(mark), None);
        assert_eq!(ended.kind, EndKind::OutOfMemory);
        assert!(ended.why.contains("a step of the job ran out of memory"), "{}", ended.why);
    }
    assert_eq!(with(256, Some(9), None).kind, EndKind::Application);
    let mut broken = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
    broken.exit = Some(Exit { status: 256, derived: Some(253) });
    assert_eq!(
        pair(broken, quiet("n2", 256)).ended.kind,
        EndKind::Hardware,
        "the end of the step is unknown"
    );
    assert_ne!(with(0, Some(253), None).kind, EndKind::OutOfMemory, "the script continued and succeeded");

    let summary = |limit: &str| {
        format!(
            "oom-kill:constraint={limit},task_memcg=/slurm/uid_1000/job_48213/step_0,task=a,pid=4711,uid=1000"
        )
    };
    let job = summary("CONSTRAINT_MEMCG,cpuset=/,mems_allowed=0,oom_memcg=/slurm/uid_1000/job_48213");
    let node = summary("CONSTRAINT_NONE,cpuset=/,mems_allowed=0,global_oom");
    for (status, line, wants) in [
        (256, job.as_str(), "The job reached its memory limit"),
        // Also if Slurm itself reports out of memory.
        (125, &job, "The job reached its memory limit"),
        (256, &node, "The node ran out of memory"),
        (256, &killed_text(4711, 1000), "The kernel killed a process because memory ran out"),
    ] {
        let ended = with(status, Some(253), Some(line));
        assert_eq!(ended.kind, EndKind::OutOfMemory);
        assert!(ended.why.starts_with(wants) && ended.proof[0].what == line, "{ended:?}");
    }
}

#[test]
fn job_without_gpus_is_not_shown_gpu_faults_of_others() {
    let mut node = quiet("n1", 256);
    node.job.allocation = Allocation::NoGpus;
    node.gpus.clear();
    let mut now = after(&machine("n1", ""), "gpu-lost@3");
    now.taken = START + 60_000;
    node.kernel = kernel_events(&now, 0, &node.job, &railgate_node_report::StatsConfig::default());
    assert!(node.kernel.xids.is_empty() && node.kernel.lines.is_empty(), "{:?}", node.kernel);
}

#[test]
fn missing_data_is_not_blamed_on_the_program() {
    let report = merged(vec![quiet("n1", 256)], vec![], None);
    assert_eq!(report.ended.kind, EndKind::Unknown);
    assert!(
        report.ended.doubts[0].contains("1 of 2 nodes have not reported (n2)"),
        "{:?}",
        report.ended.doubts
    );
    assert!(
        report.missing.iter().any(|missing| missing.what.contains("n2") && missing.collect.contains("--dir"))
    );

    let mut blind = quiet("n1", 256);
    let mut now = after(&machine("n1", ""), "");
    now.kernel_log = Part::Failed { why: "permission denied".to_owned(), took_ms: 1.0 };
    blind.kernel = kernel_events(&now, START, &blind.job, &railgate_node_report::StatsConfig::default());
    let ended = pair(blind, quiet("n2", 256)).ended;
    assert_eq!(ended.kind, EndKind::Unknown);
    assert!(ended.doubts[0].contains("permission denied"), "{:?}", ended.doubts);

    let mut overrun = quiet("n1", 256);
    overrun.kernel.overrun = true;
    assert_eq!(pair(overrun, quiet("n2", 256)).ended.kind, EndKind::Unknown);
}

#[test]
fn link_that_went_down_is_suspicious_only_on_the_jobs_rails() {
    let flapped = |gpus: std::ops::Range<u32>| {
        let mut report = part("n1", &job(gpus), "", vec![], 256);
        let before = machine("n1", "");
        let mut now = after(&before, "");
        if let Part::Read { data, .. } = &mut now.fabric {
            let map = rails(&before);
            let hca = data.hcas.iter_mut().find(|hca| hca.name == map.rails[2].hca).unwrap();
            add(&mut hca.ports[0], "link_downed", 2);
        }
        report.ports = port_uses(Some(&before), &now, Some(&rails(&before)));
        pair(report, quiet("n2", 256)).ended
    };
    let own = flapped(0..4);
    assert_eq!(own.kind, EndKind::Unknown);
    assert!(own.why.contains("rail 2") && own.why.contains("2 times"), "{}", own.why);
    assert_eq!(flapped(4..8).kind, EndKind::Application);
}

#[test]
fn refusal_names_node_and_reason() {
    let report = merged(vec![refused("n2", &job(0..8))], vec![], slurm("PENDING"));
    assert_eq!(report.ended.kind, EndKind::MovedByGate);
    assert!(
        report
            .ended
            .why
            .starts_with("n2 was unfit before the job started. It had not started; Slurm requeues it")
    );
    assert!(report.ended.proof[0].what.contains("gpu-lost@3"));
    let report = merged(vec![refused("n2", &job(0..8))], vec![], slurm("CANCELLED"));
    assert_eq!(report.ended.kind, EndKind::MovedByGate);
    let forgotten = merged(vec![refused("n2", &job(0..8))], vec![], None);
    assert_eq!(forgotten.ended.kind, EndKind::Unknown, "{}", forgotten.ended.why);
    assert!(report.ended.why.contains("Slurm cancelled the job"), "{}", report.ended.why);
}

#[test]
fn database_state_of_a_requeued_job_belongs_to_a_later_attempt() {
    for what in [DecisionKind::Moved, DecisionKind::RequeuedBySlurm, DecisionKind::Held] {
        let nodes = vec![refused("n2", &job(0..8))];
        let report = merged(nodes, vec![decision(0, what, 0)], slurm("CANCELLED by 1000"));
        let kinds: Vec<_> = report.attempts.iter().map(|attempt| attempt.ended.kind).collect();
        assert_eq!(kinds, [EndKind::MovedByGate, EndKind::Cancelled], "{what:?}");
    }
    let stayed = decision(0, DecisionKind::Left, 256);
    let report = merged(vec![quiet("n1", 256)], vec![stayed], slurm("FAILED"));
    assert_eq!(report.attempts.len(), 1);
}

#[test]
fn deadline_is_not_a_time_limit() {
    let report = merged(vec![quiet("n1", 0), quiet("n2", 0)], vec![], slurm("DEADLINE"));
    assert_eq!(report.ended.kind, EndKind::Deadline);
}

#[test]
fn dead_node_is_named() {
    let mut report = merged(vec![quiet("n1", 0)], vec![decision(0, DecisionKind::RequeuedBySlurm, 0)], None);
    assert_eq!(report.ended.kind, EndKind::NodeDied, "{:#?}", report.ended);
    assert!(report.ended.why.contains("n2"));
    report = merged(vec![quiet("n1", 0)], vec![], slurm("NODE_FAIL"));
    assert!(report.ended.why.contains("no epilog report from n2"));
}

#[test]
fn running_or_waiting_job_has_not_ended() {
    let mut running = quiet("n1", 0);
    running.end = None;
    running.exit = None;
    let report = merged(vec![running], vec![], slurm("RUNNING"));
    assert_eq!(report.ended.kind, EndKind::Running);
    assert_eq!(merged(vec![], vec![], None).ended.kind, EndKind::Unknown);
}

#[test]
fn each_attempt_has_its_own_end_and_slurms_state_is_for_one() {
    let report = story();
    let kinds: Vec<_> = report.attempts.iter().map(|attempt| attempt.ended.kind).collect();
    assert_eq!(kinds, [EndKind::MovedByGate, EndKind::Hardware, EndKind::Completed]);
    assert_eq!(report.ended.kind, EndKind::Completed);
    assert!(report.timeline.is_sorted_by_key(|event| (event.attempt, event.time)));

    let mut view = slurm("RUNNING").unwrap();
    view.restarts = Some(1);
    let report = merged(vec![quiet("n1", 256), quiet("n2", 256)], vec![], Some(view));
    assert_eq!(report.attempts.len(), 2, "the attempt that runs now has no part yet");
    assert_eq!(report.attempts[0].ended.kind, EndKind::Application);
    assert_eq!(report.attempts[1].ended.kind, EndKind::Running);
    assert!(!report.missing.iter().any(|missing| missing.what.contains("attempt 1")), "{:?}", report.missing);
}

#[test]
fn job_without_gpus_has_no_gpu_doubts() {
    let cpu = |node: &str| {
        let job = Job { allocation: railgate_model::Allocation::NoGpus, ..job(0..8) };
        let mut report = part(node, &job, "", vec![], 256);
        report.gpus.clear();
        report.ports.clear();
        report.kernel =
            railgate_node_report::KernelEvents { unread: Some("not read".to_owned()), ..Default::default() };
        report
    };
    let ended = pair(cpu("n1"), cpu("n2")).ended;
    assert_eq!(ended.kind, EndKind::Application, "{ended:#?}");
    assert!(!ended.why.contains("Xid"), "{}", ended.why);
    let mut unseen = quiet("n1", 256);
    unseen.gpus.clear();
    assert_eq!(pair(unseen, quiet("n2", 256)).ended.kind, EndKind::Unknown);
}

#[test]
fn reports_of_another_user_are_excluded() {
    let other = Job { uid: 2000, ..job(0..8) };
    let report = pair(quiet("n1", 256), part("n2", &other, "", vec![], 256));
    assert_eq!(report.attempts[0].nodes.len(), 1);
    assert!(report.problems[0].contains("uid 2000"));
}

#[test]
fn findings_other_than_hardware_are_no_evidence() {
    let user = finding("mounts", "/tmp", Severity::Fail, Class::User, "full");
    let site = finding("driver", "", Severity::Fail, Class::Site, "mismatch");
    let warn = finding("ib-rate", "mlx5_0", Severity::Warn, Class::Node, "slow");
    let report = pair(part("n1", &job(0..8), "", vec![user, site, warn], 256), quiet("n2", 256));
    assert_eq!(report.ended.kind, EndKind::Application);
    let port = finding("ib-port", "mlx5_2", Severity::Fail, Class::Fabric, "down");
    let item = |gpus| part("n1", &job(gpus), "", vec![port.clone()], 256).evidence.remove(0);
    assert_eq!((item(0..8).own, item(2..3).own, item(4..8).own), (Some(true), Some(true), Some(false)));
}

/// Attempt 0 from its node reports, and Slurm's state of the next one.
fn followed(
    nodes: Vec<NodeReport>,
    decisions: Vec<railgate_node_report::Decision>,
    state: &str,
    reason: &str,
) -> JobReport {
    let view = SlurmView { reason: reason.to_owned(), restarts: Some(1), ..slurm(state).unwrap() };
    merged(nodes, decisions, Some(view))
}

#[test]
fn attempt_with_a_successor_was_requeued() {
    let kind = |report: &JobReport| report.attempts[0].ended.kind;
    let lost = followed(vec![quiet("n1", 0)], vec![], "PENDING", "BeginTime");
    // A restart and a missing report do not prove that a node died.
    assert_eq!(kind(&lost), EndKind::Requeued);
    assert!(lost.attempts[0].ended.why.contains("No epilog report from n2"), "{:#?}", lost.attempts[0].ended);
    let down = |since| {
        let down = railgate_node_report::DownNode {
            node: "n2".to_owned(),
            since,
            reason: "Not responding".to_owned(),
        };
        let view = SlurmView { restarts: Some(1), down: vec![down], ..slurm("RUNNING").unwrap() };
        merged(vec![quiet("n1", 0)], vec![], Some(view)).attempts.remove(0).ended
    };
    assert_eq!(down(START + 9_000).kind, EndKind::NodeDied);
    assert!(down(START + 9_000).why.contains("no epilog report from n2 (Not responding)"));
    assert_eq!(down(START - 9_000).kind, EndKind::Requeued, "it was down before the attempt began");
    let recorded = decision(0, DecisionKind::RequeuedBySlurm, 0);
    let dead = followed(vec![quiet("n1", 0)], vec![recorded], "PENDING", "BeginTime");
    assert_eq!(kind(&dead), EndKind::NodeDied);
    assert_eq!(lost.ended.kind, EndKind::Waiting);
    let asked = followed(vec![quiet("n1", 0), quiet("n2", 0)], vec![], "RUNNING", "None");
    assert_eq!((kind(&asked), asked.ended.kind), (EndKind::Requeued, EndKind::Running));
    assert_eq!(kind(&followed(vec![], vec![], "RUNNING", "None")), EndKind::Unknown);
    let moved = decision(0, DecisionKind::Moved, 0);
    assert_eq!(kind(&followed(vec![quiet("n1", 0)], vec![moved], "PENDING", "")), EndKind::MovedByGate);
}

#[test]
fn held_job_names_the_reason() {
    let mut held = decision(0, DecisionKind::Held, 0);
    held.why = "n2 went down".to_owned();
    let report = followed(vec![quiet("n1", 0)], vec![held], "PENDING", "JobHeldUser");
    assert_eq!(report.attempts[0].ended.kind, EndKind::NodeDied);
    assert_eq!(
        (report.ended.kind, report.ended.why.as_str()),
        (EndKind::Waiting, "It is held: n2 went down.")
    );
}

#[test]
fn controllers_decision_names_the_nodes_of_an_attempt_without_reports() {
    let put_back = decision(0, DecisionKind::RequeuedBySlurm, 0);
    let report = followed(vec![], vec![put_back], "RUNNING", "None");
    assert_eq!(report.attempts[0].nodelist, "n[1-2]");
    assert_eq!(report.attempts[0].ended.kind, EndKind::NodeDied);
}
