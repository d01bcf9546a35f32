//! Power and temperature between the rounds of a soak.

use serde_json::{Value, json};

use super::{check, gpu, plan, played};
use crate::Unit;

/// Samples of two cards, 5 s apart, the second one 10 W above the first one.
fn samples(id: &str, at: u64, watts: &[f64]) -> Value {
    let known = |value: f64| json!({ "known": value });
    let mut lines = String::new();
    for (at, watts) in (at..).step_by(5000).zip(watts) {
        for (gpu, more) in [("0000:61:00.0", 0.0), ("0000:62:00.0", 10.0)] {
            let power = watts + more;
            let temperature = json!({ "known": if power > 300.0 { 70 } else { 40 } });
            let line = json!({ "at": at, "gpu": { "known": gpu }, "power_w": known(power), "temperature_c": temperature });
            lines.push_str(&format!("{line}\n"));
        }
    }
    json!({ "command": id, "line": "", "exit": 0, "stdout": lines, "stderr": "" })
}

#[test]
fn a_soak_shows_how_cards_cool_down_between_its_rounds() {
    let outputs = |unit: &Unit| {
        let round = u64::from(unit.repetition);
        let mut all = vec![check(&json!([])), gpu(1.0)];
        match unit.nodes[0].as_str() {
            "n1" => {
                all.push(samples("rest.before", round * 100_000, &[70.0]));
                all.push(samples("rest.after", round * 100_000 + 60_000, &[400.0, 200.0, 100.0, 80.0]));
            }
            // NVML gave no power, and its last answers did not come.
            "n2" => {
                let line = json!({ "at": round * 100_000, "gpu": { "known": "0000:61:00.0" },
                    "power_w": { "failed": "GPU is lost" }, "temperature_c": { "known": 33 } });
                all.push(json!({ "command": "rest.before", "line": "", "exit": 0, "stdout": line.to_string(), "stderr": "" }));
                all.push(json!({ "command": "rest.after", "line": "", "exit": 3, "stdout": "", "stderr": "no answer" }));
            }
            // An older railgate.
            _ => {}
        }
        json!(all)
    };
    let report = played(plan("[soak]\nrepetitions = 2\n"), &outputs).report();
    let [power, temperature] = report.charts.as_slice() else { panic!("{:?}", report.charts) };
    assert!(power.title.ends_with(", W") && temperature.title.ends_with(", °C"));
    let names = |chart: &crate::Chart| chart.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(power), names(temperature)),
        (vec!["n1".to_owned()], vec!["n1".to_owned(), "n2".to_owned()])
    );
    let points = &power.rows[0].points;
    assert_eq!(points.len(), 10);
    assert_eq!((points[1].at, points[1].lowest, points[1].highest), (160_000, 400.0, 410.0));
    assert!(points.is_sorted_by_key(|point| point.at));
    // Of two rounds: n2 lacks one power and four samples, n3 and n4 five samples each.
    assert_eq!((power.unknown, temperature.unknown), (2 * (5 + 5 + 5), 2 * (4 + 5 + 5)));

    let figure = report.figures.iter().find(|figure| figure.id == "soak.between.rest_power_w").unwrap();
    assert_eq!((figure.unit.as_str(), figure.values.len(), figure.max), ("W", 20, 410.0));
    assert!(figure.tolerance.is_empty() && figure.values[0].part == "n1 0000:61:00.0");
    // What a card does at rest is not its highest value under load.
    let under_load =
        report.heat_maps.iter().find(|map| map.title.starts_with("Highest temperature")).unwrap();
    assert!(under_load.rows.iter().all(|row| row.values == [Some(60.0); 2]), "{under_load:?}");

    let page = crate::html(&report);
    assert!(page.contains("read before the tests of each round and 0, 5, 10 and 15 s after them"));
    assert!(page.contains("30 readings gave no value."));
    assert_eq!(page.matches("<svg").count(), 2);
    assert_eq!(page.matches("class=\"over-time\"").count(), 10 + 10 + 2);
}

#[test]
fn a_soak_without_samples_is_unknown() {
    let report = played(plan("[soak]\n"), &|_| json!([check(&json!([])), gpu(1.0)])).report();
    assert!(report.charts.iter().all(|chart| chart.rows.is_empty() && chart.unknown == 20));
    let page = crate::html(&report);
    assert!(page.matches("Unknown: no reading gave a value.").count() == 2 && !page.contains("<svg"));
    let without = played(plan("[node]\n"), &|_| json!([check(&json!([])), gpu(1.0)])).report();
    assert!(without.charts.is_empty());
}

#[test]
fn any_time_and_value_can_be_drawn() {
    let outputs = |unit: &Unit| {
        let (at, watts) = if unit.repetition == 1 { (0, -1.7e308) } else { (u64::MAX, 1.7e308) };
        let line = json!({ "at": at, "gpu": "unsupported", "power_w": { "known": watts }, "temperature_c": { "known": u32::MAX } });
        json!([{ "command": "rest.before", "line": "", "exit": 0, "stdout": line.to_string(), "stderr": "" }])
    };
    let report = played(plan("[soak]\nrepetitions = 2\n"), &outputs).report();
    assert_eq!(report.charts[0].rows.len(), 4);
    let page = crate::html(&report);
    assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains("inf"));
}
