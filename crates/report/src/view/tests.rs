use railgate_model::{Class, Job, Reading, Severity};
use railgate_node_report::testing::{decision, finding, job, lost_gpu, part, refused};
use railgate_node_report::{DecisionKind, Over, SlurmView, Sure, Transport};

use crate::testing::{large, merged, slurm, story, whole_error};
use crate::{JobReport, html, text};

fn one_line(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Two nodes with the same variables; NCCL used the rails on the first and fell back to sockets on the second.
fn half_fell_back() -> JobReport {
    let over = |name, over, why: &str| {
        let mut node = part(name, &job(0..8), "", vec![], 0);
        node.transport = Some(Transport { over, sure: Sure::Likely, why: why.to_owned(), cause: None });
        node
    };
    let nodes = vec![
        over("n1", Over::Rails, "8 of 8 processes held RDMA devices open"),
        over("n2", Over::Sockets, "no RDMA device was open"),
    ];
    merged(nodes, vec![], None)
}

#[test]
fn nodes_with_different_transports_are_separate_in_every_format() {
    let report = half_fell_back();
    let page = html(&report);
    let (_, of_html) = page.split_once("NCCL environment").unwrap();
    let whole = one_line(&text(&report, true));
    let (_, of_text) = whole.split_once("NCCL ENVIRONMENT").unwrap();
    for section in [of_html, of_text] {
        let (rails, sockets) = section.split_once("n2").expect(section);
        assert!(
            rails.contains("NCCL ran over the rails: 8 of 8 processes held RDMA devices open"),
            "{rails}"
        );
        assert!(sockets.contains("NCCL ran over sockets: no RDMA device was open"), "{sockets}");
    }
}

fn other_rails() -> JobReport {
    let mut nodes: Vec<_> = ["n1", "n2"].map(|name| part(name, &job(0..8), "", vec![], 0)).into();
    nodes[1].rail_map.as_mut().unwrap().rails[0].hca = "mlx5_9".to_owned();
    merged(nodes, vec![], None)
}

/// A node of the first attempt has not reported.
fn doubtful_before() -> JobReport {
    let again = Job { restarts: 1, ..job(0..8) };
    let parts = vec![
        part("n1", &job(0..8), "", vec![], 256),
        part("n1", &again, "", vec![], 0),
        part("n2", &again, "", vec![], 0),
    ];
    merged(parts, vec![], slurm("COMPLETED"))
}

#[test]
fn node_with_different_rails_is_named_in_every_format() {
    let report = other_rails();
    for page in [html(&report), text(&report, true).to_string()] {
        assert!(page.contains("other device names or rails on n2"), "{page}");
    }
}

/// Collects all [`super::Sentence`]s and rows of the screen.
fn sentences(value: &serde_json::Value, all: &mut Vec<String>) {
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| sentences(item, all)),
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if name == "sentence" => all.push(text.to_owned()),
                    _ => sentences(field, all),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_sentence_of_the_view_is_in_text_and_html() {
    let mut lacking = merged(vec![part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256)], vec![], None);
    lacking.problems.push("attempt 0 n7: record checksum mismatch <&>".to_owned());
    let mut left_out = merged(
        vec![part("n1", &job(0..8), "", vec![], 256)],
        vec![decision(0, DecisionKind::Left, 256)],
        slurm("FAILED"),
    );
    let node = &mut left_out.attempts[0].nodes[0];
    node.faults.push("the report could not be written".to_owned());
    node.rail_map.as_mut().unwrap().notes.push("GPU 7 is nearer to another rail".to_owned());
    // In the last attempt and in one before it.
    let mut with_errors = story();
    with_errors.first_error = Some(whole_error());
    with_errors.attempts[1].first_error = Some(whole_error());
    with_errors.attempts[1].first_error.iter_mut().for_each(|error| error.what.insert_str(0, "earlier: "));
    for report in [
        half_fell_back(),
        other_rails(),
        doubtful_before(),
        story(),
        large(4),
        large(20),
        lacking,
        left_out,
        with_errors,
    ] {
        let mut all = Vec::new();
        sentences(&serde_json::to_value(super::view(&report)).unwrap(), &mut all);
        assert!(all.len() > 5, "{all:?}");
        all.extend(report.timeline.iter().map(|event| event.what.clone()));
        let (whole, page) = (one_line(&text(&report, true)), one_line(&html(&report)));
        for cell in super::view(&report).collectives.iter().flatten() {
            assert!(whole.contains(cell.as_str()), "text lacks '{cell}'");
            let escaped = format!(">{}</td>", crate::html::esc(cell));
            assert!(page.contains(&escaped), "HTML lacks '{escaped}':\n{page}");
        }
        for sentence in all {
            let sentence = one_line(&sentence);
            assert!(whole.contains(&sentence), "text lacks '{sentence}':\n{whole}");
            let escaped = crate::html::esc(&sentence);
            assert!(page.contains(&escaped), "HTML lacks '{escaped}':\n{page}");
        }
    }
}

fn many(names: std::ops::Range<usize>, faulty: bool) -> Vec<railgate_node_report::NodeReport> {
    let (faults, findings, exit) =
        if faulty { ("gpu-lost@3", vec![lost_gpu()], 256) } else { ("", vec![], 0) };
    names.map(|n| part(&format!("n{n:03}"), &job(0..8), faults, findings.clone(), exit)).collect()
}

#[test]
fn nodes_that_are_not_listed_are_counted_by_whether_they_have_anomalies() {
    let nodes = [many(0..120, true), many(120..250, false)].concat();
    let report = merged(nodes, vec![], slurm("FAILED"));
    let (whole, page) = (one_line(&text(&report, true)), one_line(&html(&report)));
    for (format, all, counters, gate) in [("text", &whole, 116, 20), ("HTML", &page, 56, 56)] {
        let counters = format!(
            "{counters} more nodes with unusual counters; 130 more nodes, nothing unusual in the counters"
        );
        assert!(all.contains(&counters), "{format} lacks '{counters}'");
        let gate = format!("and {gate} more nodes with findings, and 130 more nodes without findings");
        assert!(all.contains(&gate), "{format} lacks '{gate}'");
    }
    let healthy = merged(many(0..200, false), vec![], None);
    for all in [one_line(&text(&healthy, true)), one_line(&html(&healthy))] {
        assert!(all.contains("200 nodes without findings"), "{all}");
        assert!(!all.contains("more nodes without findings"), "{all}");
    }
}

#[test]
fn gpus_of_unknown_owner_are_not_counted_as_none() {
    let known = text(&large(2), true).to_string();
    assert!(known.lines().next().is_some_and(|line| line.contains(" x 8 ")), "{known}");
    let unclear = |nodes: &[usize]| {
        let mut report = large(2);
        for place in nodes {
            for attempt in &mut report.attempts {
                attempt.nodes[*place].gpus.iter_mut().for_each(|gpu| gpu.own = None);
            }
        }
        report
    };
    for report in [unclear(&[0, 1]), unclear(&[1])] {
        for all in [one_line(&text(&report, true)), one_line(&html(&report))] {
            assert!(!all.contains("held no GPU") && !all.contains(" x 8 "), "{all}");
            assert!(!all.contains("GPU-h,"), "{all}");
        }
        let all = text(&report, true).to_string();
        assert!(all.lines().next().is_some_and(|line| line.contains("2 nodes, GPUs not known")), "{all}");
    }
    let all = one_line(&text(&unclear(&[0, 1]), true));
    assert!(all.contains("it is not known which GPUs the job held"), "{all}");
    let part = one_line(&text(&unclear(&[1]), true));
    assert!(part.contains("; which GPUs it held on 1 node is not known"), "{part}");
}

/// The redacted report in every format.
fn redacted_forms(report: &JobReport) -> [(&'static str, String); 3] {
    let text = crate::redacted(report).to_string();
    [("text", text), ("json", crate::redacted_json(report)), ("html", crate::redacted_html(report))]
}

/// Names that the report shortens, that contain punctuation, or that are prefixes of longer words.
#[test]
fn no_part_of_an_unusual_name_remains_in_a_redacted_report() {
    for name in [
        "gpu-rack17-falcon-project-secret-node04.hpc.example",
        "falcon\u{202e}<b>secret",
        "falcon, secret; (x)",
        "falcon-secret.project",
        "fällcon-secret",
    ] {
        let mut node = part(name, &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
        node.job.user = format!("{name}-owner");
        node.job.nodelist = name.to_owned();
        let mut left = decision(0, DecisionKind::Left, 256);
        left.why = format!("{name} broke");
        left.nodes[0].node = name.to_owned();
        let report = merged(vec![node], vec![left], slurm("FAILED"));
        assert!(html(&report).contains("secret"));
        for (form, page) in redacted_forms(&report) {
            let leaks = ["falcon", "secret", "fällcon", "hpc.example", "owner"]
                .iter()
                .find(|word| page.contains(**word));
            assert_eq!(leaks, None, "{name} in {form}:\n{page}");
            assert!(page.contains("node1 gpu-lost@3"), "{form}:\n{page}");
        }
    }
}

#[test]
fn redacted_report_has_no_job_id_in_file_names() {
    let report = merged(vec![part("n1", &job(0..8), "", vec![], 256)], vec![], None);
    assert!(html(&report).contains("slurm-48213.out"));
    for (form, page) in redacted_forms(&report) {
        assert!(page.contains("slurm-JOB.out") && !page.contains("48213"), "{form}:\n{page}");
    }
}

/// A reason by an admin that begins like the name of a check.
#[test]
fn first_word_of_an_admins_reason_is_not_taken_for_a_check() {
    let mut left = decision(0, DecisionKind::Left, 256);
    left.nodes[0].reason = "team-falcon took it: ask bob".to_owned();
    let report = merged(vec![part("n2", &job(0..8), "", vec![], 256)], vec![left], slurm("FAILED"));
    assert!(html(&report).contains("team-falcon"));
    for (form, page) in redacted_forms(&report) {
        assert!(!page.contains("falcon") && !page.contains("bob"), "{form}:\n{page}");
        assert!(page.contains("node1 evidence"), "{form}:\n{page}");
    }
}

#[test]
fn part_of_a_finding_stays_complete_in_a_redacted_report() {
    let down = finding("port-down", "mlx5_6:1", Severity::Fail, Class::Node, "the link is down");
    let report = merged(vec![part("n1", &job(0..8), "", vec![down], 256)], vec![], slurm("FAILED"));
    for (form, page) in redacted_forms(&report) {
        let shown = page.matches("port-down@").count();
        assert!(shown > 1 && page.matches("node1 port-down@mlx5_6:1").count() == shown, "{form}:\n{page}");
    }
}

/// A partition whose name is a word of the report, and a rule whose sentence has rates.
#[test]
fn redacted_sentence_is_complete() {
    let mut report = large(4);
    let attempt = report.attempts.last_mut().unwrap();
    let rail = &mut attempt.nodes[0].usage.as_mut().unwrap().rails[2];
    for rate in [&mut rail.tx_bytes_s, &mut rail.rx_bytes_s] {
        if let Reading::Known(spread) = rate {
            spread.mean /= 10.0;
        }
    }
    report.partition = "compute".to_owned();
    report.user = "mean".to_owned();
    report.attempts.last_mut().unwrap().nodes[0].job.user = "mean".to_owned();
    let parts = report.attempts.iter().flat_map(|attempt| attempt.nodes.clone()).collect();
    let again = merged(parts, vec![], report.slurm.clone());
    report.attempts.last_mut().unwrap().analysis = again.attempts.last().unwrap().analysis.clone();
    for (form, page) in redacted_forms(&report) {
        let page = one_line(&page).replace("&#39;", "'");
        assert!(page.contains("carries far less than the node's other rails"), "{form}:\n{page}");
        assert!(
            page.contains("compute 5") || page.contains("compute 6") || page.contains("compute 7"),
            "{form}:\n{page}"
        );
        assert!(!page.contains("B/s") && !page.contains("PARTITION"), "{form}:\n{page}");
    }
}

/// A rail that stopped: the report has its time, the redacted one neither time nor rate.
#[test]
fn a_degraded_rail_is_reported_with_its_time() {
    use railgate_node_report::usage::{QuietTime, RailQuiet};
    let mut report = large(4);
    let node = &mut report.attempts.last_mut().unwrap().nodes[0];
    let start = node.start + 120_000;
    let longest = QuietTime {
        start,
        end: None,
        seconds: 300.0,
        others_bytes_s: 41e9,
        before_s: 100.0,
        before_bytes_s: 37e9,
    };
    node.usage.as_mut().unwrap().rails[2].quiet =
        Reading::Known(RailQuiet { over_s: 400.0, longest: Some(longest) });
    let parts = report.attempts.iter().flat_map(|attempt| attempt.nodes.clone()).collect();
    let report = merged(parts, vec![], report.slurm.clone());
    let said = one_line(&text(&report, false).to_string());
    let clock = railgate_node_report::plain::clock(start);
    let words = format!(
        " ran degraded on rail 2 (mlx5_2) from {} UTC: no traffic for 5 min 00 s, 37.00 GB/s before",
        &clock[..5]
    );
    assert!(said.contains(&words), "{words}\n{said}");
    for (form, page) in redacted_forms(&report) {
        let page = one_line(&page).replace("&#39;", "'");
        assert!(page.contains("carried nothing for a time, while the node's other rails"), "{form}:\n{page}");
        assert!(!page.contains("degraded on rail") && !page.contains("37.00"), "{form}:\n{page}");
    }
}

/// Slurm separates the words of this reason by blanks or by underscores, depending on the release.
#[test]
fn redacted_report_of_a_held_job_shows_how_to_release_it() {
    for (reason, shown) in [
        ("job requeued in held state", "waiting to start (job requeued in held state)"),
        ("JobHeldUser", "waiting to start (JobHeldUser)"),
    ] {
        let view = SlurmView { reason: reason.to_owned(), restarts: Some(1), ..slurm("PENDING").unwrap() };
        let report = merged(vec![refused("n2", &job(0..8))], vec![], Some(view));
        for (form, page) in redacted_forms(&report) {
            let page = one_line(&page);
            assert!(
                page.contains(shown) && page.contains("scontrol release JOB lets it start"),
                "{form}:\n{page}"
            );
        }
    }
    let view =
        SlurmView { reason: "bob_is_testing".to_owned(), restarts: Some(1), ..slurm("PENDING").unwrap() };
    let report = merged(vec![refused("n2", &job(0..8))], vec![], Some(view));
    for (form, page) in redacted_forms(&report) {
        assert!(!page.contains("bob"), "{form}:\n{page}");
    }
}

#[test]
fn finding_on_the_last_of_many_nodes_is_in_every_format() {
    let found = |number| match number {
        99 => vec![finding("optic-power", "mlx5_6:1", Severity::Warn, Class::Node, "-9.1 dBm")],
        _ => vec![],
    };
    let nodes = (0..100).map(|number| part(&format!("n{number:03}"), &job(0..8), "", found(number), 0));
    let report = merged(nodes.collect(), vec![], None);
    for page in [html(&report), text(&report, true).to_string()] {
        assert!(page.contains("-9.1 dBm"), "{page}");
    }
}
