//! Next steps for the owner of a job, the same list in every format of the report.

use std::fmt::Display;

use railgate_diagnosis::{Diagnosis, HANG, KILLED_RANK, SLOW_CLOCK};
use railgate_model::{JobRequest, OomLimit};
use railgate_node_report::plain::{plain, span};
use railgate_node_report::{ActKind, DecisionKind};

use crate::view::screen::telling;
use crate::why::memory::shortage;
use crate::why::{refused, way_out};
use crate::{Attempt, EndKind, JobReport};

/// The steps, the most useful first; empty if there is nothing to do. `job` is the job id or its placeholder.
pub(crate) fn next_steps(report: &JobReport, job: &dyn Display) -> Vec<String> {
    let mut steps: Vec<String> = of_the_end(report, job).into_iter().collect();
    let diagnoses = telling(report).map_or(&[][..], |(_, analysis)| &analysis.diagnoses);
    for one in diagnoses.iter().take(3) {
        let text = match one.rule.as_str() {
            rule if rule == SLOW_CLOCK && one.confidence != "low" => {
                format!("submit with --exclude={}", one.part.split(' ').next().unwrap_or_default())
            }
            _ => where_it_says_why(report, one).unwrap_or_else(|| one.fix.clone()),
        };
        steps.push(text);
    }
    if !report.missing.is_empty() {
        steps.push(format!(
            "ask an admin to collect the missing parts: `railgate report {job} --full` lists them at the end, under \
             MISSING FROM THIS REPORT"
        ));
    }
    let mut unique: Vec<String> = Vec::new();
    for step in steps.iter().map(|text| plain(text)).filter(|step| !step.is_empty()) {
        if !unique.contains(&step) {
            unique.push(step);
        }
    }
    unique
}

/// The line of the log with the error of the rank that a finding is about: its owner need not search for it.
fn where_it_says_why(report: &JobReport, one: &Diagnosis) -> Option<String> {
    let first = report.first_error.as_ref()?;
    let of_rank = |rank: u32| one.part.ends_with(&format!(" rank {rank}"));
    let is_of_it = match one.rule.as_str() {
        KILLED_RANK => first.rank.is_none_or(of_rank),
        HANG => first.rank.is_some_and(of_rank),
        _ => false,
    };
    is_of_it.then(|| first.step())
}

/// The job's request, from Slurm's record, else from the newest decision of the controller.
pub(crate) fn request(report: &JobReport) -> JobRequest {
    let of_slurm = report.slurm.iter().map(|view| &view.request);
    let decided = report.attempts.iter().rev().filter_map(|attempt| attempt.decision.as_ref());
    let mut request = JobRequest::default();
    for known in of_slurm.chain(decided.map(|decision| &decision.request)) {
        request.log = request.log.or_else(|| known.log.clone());
        request.memory = request.memory.or_else(|| known.memory.clone());
        request.time_limit_s = request.time_limit_s.or(known.time_limit_s);
    }
    request
}

/// Path of the log, else how to find it.
fn log(report: &JobReport, job: &dyn Display) -> String {
    match &report.log {
        Some(path) => path.clone(),
        None if report.slurm.is_some() => {
            format!("the job's output (`scontrol show job {job}`: StdErr)")
        }
        None => format!("the job's output file (slurm-{job}.out unless --output names another)"),
    }
}

/// Step that follows from how the last attempt ended.
fn of_the_end(report: &JobReport, job: &dyn Display) -> Option<String> {
    let last = report.attempts.last()?;
    Some(match report.ended.kind {
        EndKind::Running | EndKind::Completed | EndKind::Cancelled | EndKind::Requeued => return None,
        EndKind::Waiting => return way_out(report, job),
        EndKind::Timeout => {
            let limit = request(report).time_limit_s.map(|seconds| {
                format!(" than {}", span(std::time::Duration::from_secs(seconds).as_secs_f64()))
            });
            format!(
                "submit it with a longer --time{}, or save a checkpoint before the limit (railgate template list)",
                limit.unwrap_or_default()
            )
        }
        EndKind::Preempted => "submit it again; with #SBATCH --requeue Slurm does that by itself".to_owned(),
        EndKind::OutOfMemory => more_memory(report, job, last),
        EndKind::MovedByGate => {
            let cancelled = report.slurm.as_ref().is_some_and(|view| view.state.starts_with("CANCELLED"));
            if !cancelled {
                return None;
            }
            match report
                .slurm
                .as_ref()
                .is_some_and(|view| view.required.iter().any(|name| refused(report, name)))
            {
                true => "submit it again without asking for that node by name (--nodelist)".to_owned(),
                false => "submit it again; with #SBATCH --requeue Slurm requeues a batch job".to_owned(),
            }
        }
        EndKind::Deadline => "submit it again with a later --deadline, or a shorter --time".to_owned(),
        EndKind::NodeDied if comes_back(last) => return None,
        EndKind::NodeDied => "submit it again; with #SBATCH --requeue Slurm does that by itself".to_owned(),
        EndKind::Hardware | EndKind::Preflight if comes_back(last) => return None,
        EndKind::Hardware | EndKind::Preflight => again(last),
        EndKind::Hung if comes_back(last) => return None,
        EndKind::Hung => after_hang(last),
        EndKind::Application | EndKind::Unknown => return of_the_exit(report, job, last),
    })
}

/// Advice after a hang that the guard ended.
fn after_hang(attempt: &Attempt) -> String {
    let hangs = attempt.nodes.iter().filter_map(|node| node.hangs.as_ref()).flat_map(|hangs| &hangs.list);
    let ended = hangs.filter(|hang| hang.act.is_some()).min_by_key(|hang| hang.since);
    let advice = ended.map(|hang| format!("{}; ", hang.advice())).unwrap_or_default();
    format!("{advice}then submit it again; with #SBATCH --railgate-requeue=auto it is requeued by itself")
}

/// Whether the job is requeued, or will be by Slurm or railgate.
fn comes_back(attempt: &Attempt) -> bool {
    let back = [DecisionKind::Requeued, DecisionKind::RequeuedBySlurm, DecisionKind::Moved];
    attempt.decision.as_ref().is_some_and(|decision| back.contains(&decision.what))
}

fn more_memory(report: &JobReport, job: &dyn Display, last: &Attempt) -> String {
    let asked = request(report).memory;
    // The job may have used no more than it requested.
    if shortage(last).is_some_and(|shortage| shortage.limit == Some(OomLimit::Node)) {
        let asked = asked.map(|memory| format!(" (this run asked for {memory})")).unwrap_or_default();
        return format!(
            "submit it with --mem for all that it needs{asked}, so that Slurm keeps other jobs off that memory, or \
             with --exclusive"
        );
    }
    match asked {
        Some(memory) if memory.ends_with("CPU") => {
            format!("submit it with a larger --mem-per-cpu (this run asked for {memory})")
        }
        Some(memory) => format!("submit it with a larger --mem (this run asked for {memory})"),
        None => format!(
            "submit it with a larger --mem (sacct -j {job} -o JobID,ReqMem,MaxRSS shows limit and use)"
        ),
    }
}

/// Advice after a fault of a node.
fn again(attempt: &Attempt) -> String {
    const MOST: usize = 4;
    let mut nodes: Vec<&str> = attempt.ended.proof.iter().map(|proof| proof.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    // A drained node takes no jobs, so only the other nodes need to be avoided.
    let drained = |name: &str| {
        let did = attempt
            .nodes
            .iter()
            .any(|node| node.node == name && node.acts.iter().any(|act| act.what == ActKind::Drained));
        let seen = attempt.decision.iter().flat_map(|decision| &decision.nodes);
        did || seen.into_iter().any(|node| node.node == name && node.state.contains("DRAIN"))
    };
    nodes.retain(|name| !drained(name));
    nodes.truncate(MOST);
    let exclude =
        if nodes.is_empty() { String::new() } else { format!(" with --exclude={}", nodes.join(",")) };
    let without_consent = attempt.decision.as_ref().is_some_and(|decision| decision.not_asked);
    let option = "#SBATCH --railgate-requeue=auto";
    let asks = if without_consent {
        format!("; {option} lets railgate restart it after such a fault")
    } else {
        String::new()
    };
    format!("submit it again{exclude}{asks}")
}

/// Advice after an end that only the job's output explains.
fn of_the_exit(report: &JobReport, job: &dyn Display, attempt: &Attempt) -> Option<String> {
    if let Some(first) = &report.first_error {
        return Some(first.step());
    }
    let log = log(report, job);
    let exit = attempt.exit()?;
    Some(match (exit.code(), exit.signal()) {
        (0, 0) => format!("sacct -j {job} -o JobID,State,ExitCode shows how it ended"),
        (127, 0) => format!(
            "read the last lines of {log}: they name the command that was not found; check `module load` and PATH \
             in the job script"
        ),
        (126, 0) => format!(
            "read the last lines of {log}: they name the file that could not be executed; check its permissions and \
             its first line"
        ),
        (137, 0) | (_, 9) => format!(
            "read the last lines of {log}; sacct -j {job} -o JobID,ReqMem,MaxRSS shows whether memory ran short"
        ),
        (135, 0) | (_, 7) => {
            format!("read the last lines of {log}; check the space in /dev/shm on the node (df -h /dev/shm)")
        }
        _ => format!("read the last lines of {log}: they hold the error message"),
    })
}

#[cfg(test)]
mod tests {
    use railgate_model::{JobRequest, KernelLine};
    use railgate_node_report::testing::{START, decision, job, lost_gpu, part};
    use railgate_node_report::{DecisionKind, NodeReport, SlurmView};

    use crate::testing::{merged, slurm, story};
    use crate::{JobReport, brief, html, json, redacted, text};

    fn asked() -> JobRequest {
        JobRequest {
            log: Some("/home/ann/my run.err".to_owned()),
            memory: Some("4G per node".to_owned()),
            time_limit_s: Some(7200),
        }
    }

    fn ended(status: i32, state: &str) -> JobReport {
        let view = SlurmView { request: asked(), ..slurm(state).unwrap() };
        merged(nodes(status), vec![], Some(view))
    }

    fn nodes(status: i32) -> Vec<NodeReport> {
        ["n1", "n2"].map(|node| part(node, &job(0..8), "", vec![], status)).into()
    }

    #[test]
    fn every_failure_has_a_next_step() {
        for (status, state, wants) in [
            (256, "FAILED", "read the last lines of /home/ann/my run.err: they hold the error message"),
            (127 << 8, "FAILED", "the command that was not found"),
            (126 << 8, "FAILED", "could not be executed"),
            (11, "FAILED", "/home/ann/my run.err"),
            (9, "FAILED", "sacct -j 48213 -o JobID,ReqMem,MaxRSS"),
            (125, "OUT_OF_MEMORY", "larger --mem (this run asked for 4G per node)"),
            (0, "TIMEOUT", "longer --time than 2 h 00 min"),
            (0, "PREEMPTED", "--requeue"),
        ] {
            let report = ended(status, state);
            let first = report.next_steps.first().cloned().unwrap_or_default();
            assert!(first.contains(wants), "{status} {state}: {first}");
            let few = brief(&report);
            assert!(!few.contains("DO       nothing"), "{state}: {few}");
        }
        for state in ["COMPLETED", "CANCELLED by 1000"] {
            assert_eq!(ended(0, state).next_steps, [""; 0], "{state}");
        }
        assert!(
            story().next_steps.iter().all(|step| !step.contains("submit")),
            "it has come back and completed"
        );
    }

    #[test]
    fn exit_code_alone_does_not_suggest_a_higher_limit() {
        for code in [1, 2, 3, 42, 127, 134, 139] {
            let steps = ended(code << 8, "FAILED").next_steps.join(" | ");
            assert!(!steps.contains("--mem") && !steps.contains("--time"), "{code}: {steps}");
        }
    }

    #[test]
    fn every_format_has_the_same_steps_and_log() {
        let report = ended(256, "FAILED");
        let step = "read the last lines of /home/ann/my run.err: they hold the error message";
        assert_eq!(report.next_steps[0], step);
        let mut raw = Vec::new();
        json(&report, &mut raw).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&raw).unwrap();
        assert_eq!((&value["next_steps"][0], &value["log"]), (&step.into(), &"/home/ann/my run.err".into()));
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for page in [text(&report, false).to_string(), brief(&report).to_string()] {
            assert!(one_line(&page).replace("do read", "DO read").contains(&format!("DO {step}")), "{page}");
        }
        assert!(html(&report).contains("read the last lines of /home/ann/my run.err"));
        assert!(text(&ended(0, "COMPLETED"), false).contains("/home/ann/my run.err"), "a good job's log");
        let covered = redacted(&report);
        assert!(covered.contains("DO") && !covered.contains("run.err"), "{covered}");
    }

    #[test]
    fn unrecorded_log_is_described() {
        let first = |view: Option<SlurmView>| merged(nodes(256), vec![], view).next_steps.remove(0);
        assert!(first(None).contains("slurm-48213.out unless --output names another"), "{}", first(None));
        assert!(first(slurm("FAILED")).contains("`scontrol show job 48213`: StdErr"));
        // Slurm no longer has the job; the controller's decision does.
        let mut decided = decision(0, DecisionKind::Left, 256);
        (decided.request, decided.nodes) = (asked(), vec![]);
        let report = merged(nodes(256), vec![decided], None);
        assert_eq!(report.log.as_deref(), Some("/home/ann/my run.err"));
        assert!(report.next_steps[0].contains("/home/ann/my run.err"));
    }

    #[test]
    fn memory_per_cpu_and_kernel_records_select_the_advice() {
        let mut killed = nodes(137 << 8);
        killed[0].kernel.lines.push(KernelLine {
            seq: 9,
            time: START + 5,
            level: 3,
            text: "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB, UID:1000"
                .to_owned(),
        });
        let request = JobRequest { memory: Some("500M per CPU".to_owned()), ..asked() };
        let view = SlurmView { request, ..slurm("FAILED").unwrap() };
        let report = merged(killed.clone(), vec![], Some(view.clone()));
        assert!(report.next_steps[0].contains("larger --mem-per-cpu (this run asked for 500M per CPU)"));
        let mut crowded = killed.clone();
        crowded[0].kernel.lines[0].text =
            "Out of memory: Killed process 4711 (a) total-vm:1kB, UID:1000".to_owned();
        let step = merged(crowded, vec![], Some(view)).next_steps.remove(0);
        assert!(step.contains("for all that it needs (this run asked for 500M per CPU)"), "{step}");
        assert!(step.contains("--exclusive") && !step.contains("larger"), "{step}");
        assert!(merged(killed, vec![], None).next_steps[0].contains("larger --mem (sacct -j 48213"));
    }

    #[test]
    fn requeue_option_is_suggested_only_if_it_was_not_set() {
        let broken =
            || vec![part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256), nodes(256).remove(1)];
        let left = |consent: &str, state: &str| {
            let mut left = decision(0, DecisionKind::Left, 256);
            consent.clone_into(&mut left.consent);
            left.not_asked = consent == "never";
            state.clone_into(&mut left.nodes[0].state);
            merged(broken(), vec![left], slurm("FAILED")).next_steps.remove(0)
        };
        assert_eq!(
            left("never", "IDLE+DRAIN"),
            "submit it again; #SBATCH --railgate-requeue=auto lets railgate restart it after such a fault"
        );
        assert_eq!(left("auto", "IDLE+DRAIN"), "submit it again");
        assert_eq!(left("auto", "IDLE"), "submit it again with --exclude=n1");
        let back = merged(broken(), vec![decision(0, DecisionKind::Requeued, 256)], slurm("FAILED"));
        assert_eq!(back.next_steps, [""; 0]);
    }
}
