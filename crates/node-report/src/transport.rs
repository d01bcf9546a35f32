//! Detects whether a job with rails used them.

use std::time::Duration;

use railgate_model::{Allocation, RailMap, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::plain::{bytes, float, span};
use crate::tasks::{TaskGroup, Tasks};
use crate::{NodeReport, PortUse, Window};

/// Traffic of a rail over [`LONG_RUN`] below which the job did not use it. Management traffic of the fabric is
/// some kilobytes.
const STILL_BYTES: u64 = 10 << 20;
/// Shorter runs may have ended before their first collective.
const LONG_RUN: Duration = Duration::from_secs(180);

/// Transport of NCCL on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// The transport.
    pub over: Over,
    /// Confidence.
    pub sure: Sure,
    /// Reason for this conclusion, as a sentence.
    pub why: String,
    /// Why NCCL did not use the rails, if known: `NCCL_IB_DISABLE=1`.
    pub cause: Option<String>,
}

/// Transport that NCCL used between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// RDMA over the rails.
    Rails,
    /// TCP sockets: a silent fallback.
    Sockets,
    /// A net plugin other than NCCL's own decides; its transport is not known.
    Plugin,
    /// Not known.
    Unknown,
}

/// Confidence in a conclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sure {
    /// One observation supports it.
    Possible,
    /// Independent observations agree.
    Likely,
}

/// Judges the node report of a job on `nodes` nodes. `settled` after the first use of NCCL its communicators
/// exist, or the job does not need them. `None` if there was no choice: one node, no GPUs, no rails.
pub fn transport(
    report: &NodeReport,
    tasks: Option<&Tasks>,
    nodes: usize,
    settled: Duration,
) -> Option<Transport> {
    let map = report.rail_map.as_ref().filter(|map| !map.rails.is_empty())?;
    if nodes < 2 || report.job.allocation == Allocation::NoGpus {
        return None;
    }
    let seen = Seen::of(tasks);
    let still = still(report, map);
    let told = |over, sure, why: String| Some(Transport { over, sure, why, cause: None });
    if let Some(plugin) = &seen.plugin {
        return told(Over::Plugin, Sure::Likely, format!("{plugin} is loaded"));
    }
    if seen.rdma > 0 {
        let why = format!(
            "{} of {} processes with NCCL held RDMA devices open",
            seen.rdma,
            seen.nccl.max(seen.rdma)
        );
        // Open devices and idle rails: the job may not have run its first collective yet.
        let sure = if still.as_ref().is_ok() { Sure::Possible } else { Sure::Likely };
        return told(Over::Rails, sure, why);
    }
    let without = seen.without_devices(settled);
    let (sure, why) = match (&without, &still) {
        (Some(without), Ok(still)) => (Sure::Likely, format!("{without}, and {still}")),
        (Some(without), Err(other)) => (Sure::Possible, format!("{without}; {other}")),
        (None, Ok(still)) if seen.used_gpus => (Sure::Possible, still.clone()),
        (None, _) => return told(Over::Unknown, Sure::Possible, seen.nothing(tasks)),
    };
    let cause = seen.groups.iter().find_map(|group| cause(group, map));
    Some(Transport { over: Over::Sockets, sure, why, cause })
}

struct Seen<'t> {
    groups: Vec<&'t TaskGroup>,
    nccl: u32,
    rdma: u32,
    unknown: u32,
    used_gpus: bool,
    plugin: Option<String>,
    first: Option<UnixMillis>,
    last: Option<UnixMillis>,
}

impl<'t> Seen<'t> {
    fn of(tasks: Option<&'t Tasks>) -> Self {
        let groups: Vec<&TaskGroup> = tasks
            .iter()
            .flat_map(|tasks| &tasks.groups)
            .filter(|group| group.nccl + group.cuda > 0)
            .collect();
        let sum = |pick: fn(&TaskGroup) -> u32| groups.iter().map(|group| pick(group)).sum();
        let with_nccl = || groups.iter().filter(|group| group.nccl > 0);
        Seen {
            nccl: sum(|group| group.nccl),
            rdma: sum(|group| group.rdma),
            unknown: sum(|group| group.rdma_unknown),
            used_gpus: groups.iter().any(|group| group.cuda > 0),
            plugin: groups.iter().find_map(|group| plugin(group)),
            first: with_nccl().filter_map(|group| group.nccl_first).min(),
            last: with_nccl().filter_map(|group| group.nccl_last).max(),
            groups,
        }
    }

    /// Processes that use NCCL without an open RDMA device, long after NCCL was loaded.
    fn without_devices(&self, settle: Duration) -> Option<String> {
        let (first, last) = (self.first?, self.last?);
        let settled = Duration::from_millis(last.saturating_sub(first)) >= settle;
        (self.nccl > 0 && self.unknown == 0 && settled).then(|| {
            let after = span(Duration::from_millis(last - first).as_secs_f64());
            format!(
                "{} processes had NCCL loaded and no RDMA device open, even {after} after the first check",
                self.nccl
            )
        })
    }

    fn nothing(&self, tasks: Option<&Tasks>) -> String {
        match tasks {
            None => "the processes were not checked".to_owned(),
            Some(tasks) if tasks.looks == 0 => "no process of the job was seen".to_owned(),
            Some(_) if self.unknown > 0 => "the processes' open files could not be read".to_owned(),
            Some(_) if self.nccl == 0 => "no process was seen with libnccl.so mapped".to_owned(),
            Some(_) => "the processes were seen only while they started".to_owned(),
        }
    }
}

/// Net plugin that is loaded, requested, or configured by the site. NCCL's internal transports have names too,
/// and `none` is no plugin. HPC-X's plugin uses the rails like NCCL's own, so the site's setting alone hides no
/// fallback.
fn plugin(group: &TaskGroup) -> Option<String> {
    if let Some(file) = &group.net_plugin {
        return Some(file.clone());
    }
    let value = |name: &str| group.env.get(name).or_else(|| group.files.get(name)).map(String::as_str);
    let own = |text: &str| ["", "ib", "socket", "none"].contains(&text.to_ascii_lowercase().as_str());
    ["NCCL_NET", "NCCL_NET_PLUGIN"]
        .iter()
        .find_map(|name| value(name).filter(|text| !own(text)).map(|text| format!("{name}={text}")))
        .or_else(|| {
            value("RAILGATE_NET").filter(|net| *net == "ofi").map(|net| format!("RAILGATE_NET={net}"))
        })
}

/// Sentence about rails that carried almost nothing in a long run; the error is why traffic proves nothing.
fn still(report: &NodeReport, map: &RailMap) -> Result<String, String> {
    let seconds = report
        .window
        .and_then(Window::seconds)
        .ok_or("the rails' counters were not read before and after the run")?;
    if seconds < LONG_RUN.as_secs_f64() {
        return Err(format!("the run ({}) is too short to judge by the rails' counters", span(seconds)));
    }
    let rails: Vec<&PortUse> = report.ports.iter().filter(|port| port.rail.is_some()).collect();
    let mut total = 0_u64;
    for port in &rails {
        match (port.tx_bytes.delta.known(), port.rx_bytes.delta.known()) {
            (Some(sent), Some(received)) => total = total.saturating_add(*sent).saturating_add(*received),
            _ => return Err(format!("the traffic of {}:{} is not known", port.hca, port.port)),
        }
    }
    if rails.len() < map.rails.len() {
        return Err("not every rail's counters are known".to_owned());
    }
    if total > STILL_BYTES {
        return Err(format!("the node's rails carried {}, for this job or others", bytes(float(total))));
    }
    Ok(format!("the node's rails carried {} in {}", bytes(float(total)), span(seconds)))
}

fn cause(group: &TaskGroup, map: &RailMap) -> Option<String> {
    let value = |name: &str| group.env.get(name).or_else(|| group.files.get(name)).map(String::as_str);
    if let Some(set) = value("NCCL_IB_DISABLE").filter(|set| *set != "0" && !set.is_empty()) {
        return Some(format!("NCCL_IB_DISABLE={set}"));
    }
    if let Some(net) = value("NCCL_NET").filter(|net| net.eq_ignore_ascii_case("socket")) {
        return Some(format!("NCCL_NET={net}"));
    }
    let list = value("NCCL_IB_HCA").filter(|list| !list.is_empty() && !list.starts_with('^'))?;
    let exact = list.starts_with('=');
    let names: Vec<&str> =
        list.trim_start_matches('=').split(',').filter_map(|entry| entry.split(':').next()).collect();
    let fits = |hca: &str| names.iter().any(|name| if exact { *name == hca } else { hca.starts_with(name) });
    (!map.rails.iter().any(|rail| fits(&rail.hca)))
        .then(|| format!("NCCL_IB_HCA={list} names no rail of this node"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, job, part};
    use railgate_model::Reading;

    const SETTLED: Duration = Duration::from_secs(30);

    fn ranks(env: &[(&str, &str)], rdma: u32) -> Tasks {
        let group = TaskGroup {
            step: "0".to_owned(),
            processes: 8,
            nccl: 8,
            cuda: 8,
            rdma,
            nccl_first: Some(START),
            nccl_last: Some(START + 60_000),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..TaskGroup::default()
        };
        Tasks { looks: 3, groups: vec![group], ..Tasks::default() }
    }

    fn node(carried: u64) -> NodeReport {
        let mut report = part("n1", &job(0..8), "", vec![], 0);
        for port in &mut report.ports {
            port.tx_bytes.delta = Reading::Known(carried);
            port.rx_bytes.delta = Reading::Known(carried);
        }
        report
    }

    fn told(report: &NodeReport, tasks: Option<&Tasks>) -> (Over, Sure, Option<String>) {
        let found = transport(report, tasks, 2, SETTLED).unwrap();
        (found.over, found.sure, found.cause)
    }

    #[test]
    fn two_observations_give_higher_confidence_than_one() {
        let (quiet, busy) = (node(0), node(1 << 30));
        let without = ranks(&[], 0);
        assert_eq!(told(&quiet, Some(&without)), (Over::Sockets, Sure::Likely, None));
        assert_eq!(told(&busy, Some(&without)), (Over::Sockets, Sure::Possible, None));
        assert_eq!(told(&busy, Some(&ranks(&[], 3))), (Over::Rails, Sure::Likely, None));
        assert_eq!(told(&quiet, Some(&ranks(&[], 3))), (Over::Rails, Sure::Possible, None));
        assert_eq!(told(&quiet, None).0, Over::Unknown);
        let mut statically = ranks(&[], 0);
        statically.groups[0].nccl = 0;
        assert_eq!(told(&quiet, Some(&statically)), (Over::Sockets, Sure::Possible, None));
        assert_eq!(told(&busy, Some(&statically)).0, Over::Unknown);
        let mut young = ranks(&[], 0);
        young.groups[0].nccl_last = Some(START + 5_000);
        assert_eq!(told(&busy, Some(&young)).0, Over::Unknown);
        let mut shut = ranks(&[], 0);
        shut.groups[0].rdma_unknown = 1;
        assert_eq!(told(&busy, Some(&shut)).0, Over::Unknown);
    }

    #[test]
    fn without_a_choice_there_is_no_conclusion() {
        let report = node(0);
        assert_eq!(transport(&report, Some(&ranks(&[], 0)), 1, SETTLED), None);
        let mut railless = report.clone();
        railless.rail_map.as_mut().unwrap().rails.clear();
        assert_eq!(transport(&railless, Some(&ranks(&[], 0)), 2, SETTLED), None);
        let mut short = report.clone();
        short.window.as_mut().unwrap().end = short.window.unwrap().start + 60_000;
        assert_eq!(told(&short, Some(&ranks(&[], 0))).1, Sure::Possible);
    }

    #[test]
    fn foreign_plugin_is_no_fallback_and_the_cause_is_named() {
        let report = node(0);
        for env in [("NCCL_NET", "AWS Libfabric"), ("NCCL_NET_PLUGIN", "ofi"), ("RAILGATE_NET", "ofi")] {
            assert_eq!(told(&report, Some(&ranks(&[env], 0))).0, Over::Plugin);
        }
        let mut loaded = ranks(&[], 0);
        loaded.groups[0].net_plugin = Some("libnccl-net-ofi.so".to_owned());
        assert_eq!(told(&report, Some(&loaded)).0, Over::Plugin);
        for (env, cause) in [
            (("NCCL_IB_DISABLE", "1"), Some("NCCL_IB_DISABLE=1")),
            (("NCCL_NET", "Socket"), Some("NCCL_NET=Socket")),
            (("NCCL_IB_HCA", "=mlx5_99:1"), Some("NCCL_IB_HCA==mlx5_99:1 names no rail of this node")),
            (("NCCL_IB_HCA", "mlx5"), None),
            (("NCCL_IB_HCA", "^mlx5_99"), None),
            (("NCCL_IB_DISABLE", "0"), None),
        ] {
            let (over, _, told) = told(&report, Some(&ranks(&[env], 0)));
            assert_eq!((over, told.as_deref()), (Over::Sockets, cause), "{env:?}");
        }
    }
}
