//! Puts foreign text in every place of a report that accepts any, and reads the page. The compiler cannot tell a text that
//! goes through [`super::Text`] from a bare one, so this test does.

use std::collections::BTreeMap;

use railgate_node_report::testing::{decision, job, lost_gpu, part};
use railgate_node_report::{Application, DecisionKind, Over, Sure, Transport, application};
use railgate_store::{Course, GpuCourse};
use serde_json::{Value, json};

use crate::testing::{large, merged, slurm, story, whole_error};
use crate::{JobReport, html_with};

/// Ends a tag and an attribute, reverses the text after it, and is longer than a text of the page may be.
fn evil() -> String {
    format!("\"'><b>&\u{202e}\n{}", "z".repeat(5000))
}

/// Calls `visit` for each value below `value`, with its path, and with the path in which indices are `#`.
fn walk(value: &Value, path: &str, place: &str, visit: &mut dyn FnMut(&str, &str, &Value)) {
    visit(path, place, value);
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &format!("{path}/{index}"), &format!("{place}/#"), visit);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                walk(field, &format!("{path}/{name}"), &format!("{place}/{name}"), visit);
            }
        }
        _ => {}
    }
}

/// What may stand in place of a value.
fn instead(value: &Value) -> Vec<Value> {
    let evil = evil();
    match value {
        Value::String(_) => vec![json!(evil), json!({"lost": evil}), json!({"failed": evil})],
        Value::Null => vec![json!(evil)],
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("known") => {
            vec![json!({"failed": evil})]
        }
        _ => vec![],
    }
}

/// Copies of the report that together have foreign text in every place that accepts any. In one copy, it would hide parts of
/// the page: those of nodes whose names no longer agree, or of counters that could not be read.
fn hostile(report: &JobReport) -> Vec<JobReport> {
    const SPREAD: usize = 8;
    let whole = serde_json::to_value(report).unwrap();
    let mut places: BTreeMap<(String, usize), Vec<(String, Value)>> = BTreeMap::new();
    walk(&whole, "", "", &mut |path, place, value| {
        for (number, choice) in instead(value).into_iter().enumerate() {
            places.entry((place.to_owned(), number)).or_default().push((path.to_owned(), choice));
        }
    });
    assert!(places.len() > 100, "{}", places.len());
    let mut reports = vec![whole.clone(); SPREAD];
    for (changes, spread) in places.values().zip((0..SPREAD).cycle()) {
        let change = |to: &mut Value| {
            for (path, choice) in changes {
                // An earlier change may have replaced what contained it.
                if let Some(value) = to.pointer_mut(path) {
                    choice.clone_into(value);
                }
            }
        };
        let mut alone = whole.clone();
        change(&mut alone);
        if serde_json::from_value::<JobReport>(alone).is_ok() {
            change(&mut reports[spread]);
        }
    }
    reports.into_iter().map(|report| serde_json::from_value(report).unwrap()).collect()
}

/// A job with what `story` and `large` lack.
fn left() -> JobReport {
    let mut node = part("n1", &job(0..8), "gpu-xid-31@1", vec![lost_gpu()], 256);
    node.options.profile = Some("h100".to_owned());
    node.faults.push("the report could not be written".to_owned());
    node.rail_map.as_mut().unwrap().notes.push("GPU 7 is nearer to another rail".to_owned());
    node.tasks = Some(railgate_node_report::testing::evil_tasks("NCCL"));
    node.applied = railgate_node_report::applied(&node, node.tasks.as_ref().unwrap());
    node.transport =
        Some(Transport { over: Over::Sockets, sure: Sure::Likely, why: "no device".to_owned(), cause: None });
    let course = application::Course { start: 1, span_s: 1.0, step_s: vec![Some(1.0), None, Some(2.0)] };
    let rank = application::RankApplication { steps: 2, course: Some(course), ..Default::default() };
    node.application = Some(Application { ranks: vec![rank], problems: vec![] });
    let mut report = merged(vec![node], vec![decision(0, DecisionKind::Left, 256)], slurm("FAILED"));
    report.problems.push("attempt 0 n7: record checksum mismatch".to_owned());
    report.log = Some("/home/ann/out.log".to_owned());
    report.first_error = Some(whole_error());
    report.attempts[0].first_error = Some(whole_error());
    report
}

#[test]
fn no_foreign_text_reaches_the_page_unfiltered() {
    let evil = evil();
    let gpu =
        GpuCourse { index: 5, busy: vec![Some(50.0)], tensor: vec![Some(40.0)], clock: vec![Some(1800.0)] };
    let course = Course { node: evil.clone(), start: 1, span_s: 60.0, gpus: vec![gpu] };
    for report in [story(), large(2), left()].iter().flat_map(hostile) {
        let pages = [
            html_with(&report, std::slice::from_ref(&course), std::slice::from_ref(&evil)),
            crate::redacted_html(&report),
            crate::answer_html(&report, 1_700_000_000_000),
        ];
        for page in pages {
            assert!(!page.contains("<b>") && !page.contains('\u{202e}'), "{page}");
            assert!(!page.contains(&"z".repeat(4001)), "not shortened: {page}");
        }
    }
}
