use railgate_model::Reading;

use super::Diagnosis;
use super::facts::{Facts, busy, mean_of, median};

/// GPUs stand idle between steps because what they work on is not there yet.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let waited: Vec<f64> = facts
        .reporting()
        .filter_map(|(_, rank)| {
            let steps = rank.step_s?.total;
            (steps > 0.0).then(|| rank.input_s.map(|input| input / steps))?
        })
        .collect();
    let fix = "more loader workers, prefetch, data on local disks or fewer small files";
    if let Some(share) = median(waited.clone()) {
        if share < 0.1 {
            return Vec::new();
        }
        let what = format!("the program waits for its input {:.0} % of its steps' time", 100.0 * share);
        let mut found = Diagnosis::new("application", "high", String::new(), what, fix);
        found.costs = Some(share.min(1.0));
        return vec![found];
    }
    // Nobody says so. The GPUs' idle time, with disks or CPUs at their end, says it less surely.
    let (Reading::Known(busy), Reading::Known(sm)) =
        (facts.mean(busy), facts.mean(|gpu| mean_of(&gpu.sm_percent)))
    else {
        return Vec::new();
    };
    let of_hosts = |of: fn(&crate::usage::HostUsage) -> Option<f64>| {
        median(facts.nodes.iter().filter_map(|node| of(&node.usage.as_ref()?.host)).collect())
    };
    let io = of_hosts(|host| host.io_pressure_percent.known().map(|spread| spread.mean)).unwrap_or(0.0);
    let starved = of_hosts(|host| host.cpu_pressure_percent.known().map(|spread| spread.mean)).unwrap_or(0.0);
    let cpu = of_hosts(|host| Some(host.cpu_cores.known()?.mean / host.cpus_allowed.known()?)).unwrap_or(0.0);
    if busy > 75.0 || sm > 70.0 {
        return Vec::new();
    }
    let why = if io > 10.0 {
        format!("some process waits for disks {io:.0} % of the time")
    } else if starved > 20.0 || cpu > 0.9 {
        format!("{:.0} % of the job's cores are busy", 100.0 * cpu)
    } else {
        return Vec::new();
    };
    let what = format!("GPUs stand idle {:.0} % of the time and {why}: they wait for input", 100.0 - busy);
    let mut found = Diagnosis::new("application", "medium", String::new(), what, fix);
    found.costs = Some((100.0 - busy) / 100.0);
    vec![found]
}
