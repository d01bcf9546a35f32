use std::path::{Path, PathBuf};

use railgate_model::Reading;
use railgate_node_report::usage::format::HeadRail;
use railgate_node_report::usage::{RailField, Values};
use railgate_probe::{RailTraffic, RailTrouble, rail_traffic, rail_trouble};

/// Interval of reading error counters, seconds. There are twenty files for each port, and reading one may be a
/// command to its firmware.
const SELDOM_S: f64 = 60.0;

/// The node's rails between two samples.
#[derive(Debug)]
pub(crate) struct Rails {
    sysfs: PathBuf,
    rails: Vec<One>,
    looked: f64,
}

#[derive(Debug)]
struct One {
    rail: HeadRail,
    traffic: Option<RailTraffic>,
    trouble: Option<RailTrouble>,
    latest: Option<RailTrouble>,
    /// Counters from an earlier sampler of the run.
    counted: [f64; 3],
}

impl Rails {
    /// `counted`: counters from an earlier sampler of the run, in the same order, which are continued.
    pub(crate) fn new(sysfs: &Path, rails: Vec<HeadRail>, counted: &[[f64; 3]]) -> Self {
        let counted = counted.iter().copied().chain(std::iter::repeat([0.0; 3]));
        let one = |(rail, counted)| One { rail, traffic: None, trouble: None, latest: None, counted };
        let rails = rails.into_iter().zip(counted).map(one).collect();
        let mut rails = Rails { sysfs: sysfs.to_owned(), rails, looked: 0.0 };
        rails.look();
        for one in &mut rails.rails {
            one.traffic = Some(rail_traffic(&rails.sysfs, &one.rail.hca, one.rail.port));
        }
        rails
    }

    fn look(&mut self) {
        for one in &mut self.rails {
            let now = rail_trouble(&self.sysfs, &one.rail.hca, one.rail.port);
            one.trouble.get_or_insert_with(|| now.clone());
            one.latest = Some(now);
        }
    }

    /// Figures over the last `seconds`, and the names of counters that decreased.
    pub(crate) fn values(&mut self, boot_s: f64, seconds: f64) -> (Vec<Values<RailField>>, Vec<String>) {
        // Also at the end of a short run, which is when errors matter.
        if boot_s - self.looked >= SELDOM_S || seconds < 4.0 {
            self.look();
            self.looked = boot_s;
        }
        let mut problems = Vec::new();
        let sysfs = &self.sysfs;
        let all = self.rails.iter_mut().map(|one| {
            let now = rail_traffic(sysfs, &one.rail.hca, one.rail.port);
            let before = one.traffic.replace(now.clone());
            let mut values = Values::default();
            let mut rate = |field, get: fn(&RailTraffic) -> &Reading<u64>| {
                let (was, is) = (before.as_ref().and_then(|before| get(before).known()), get(&now).known());
                values.put(field, grown(was, is).map(|more| more / seconds));
            };
            rate(RailField::Tx, |traffic| &traffic.tx_bytes);
            rate(RailField::Rx, |traffic| &traffic.rx_bytes);
            rate(RailField::XmitWait, |traffic| &traffic.xmit_wait);
            let mut total = |field, before: f64, get: fn(&RailTrouble) -> &Reading<u64>| {
                let was = one.trouble.as_ref().and_then(|first| get(first).known());
                let is = one.latest.as_ref().and_then(|latest| get(latest).known());
                let more = grown(was, is);
                if more.is_none() && was.is_some() && is.is_some() {
                    problems.push(format!("{}:{}: counters went backwards", one.rail.hca, one.rail.port));
                }
                values.put(field, more.map(|more| before + more));
            };
            let [errors, retransmits, congestion] = one.counted;
            total(RailField::Errors, errors, |trouble| &trouble.errors);
            total(RailField::Retransmits, retransmits, |trouble| &trouble.retransmits);
            total(RailField::Congestion, congestion, |trouble| &trouble.congestion);
            values
        });
        (all.collect(), problems)
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates have few digits")]
fn grown(was: Option<&u64>, is: Option<&u64>) -> Option<f64> {
    is?.checked_sub(*was?).map(|more| more as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn rates_are_per_sample_and_error_counters_per_run() {
        let root = tempfile::tempdir().unwrap();
        let port = root.path().join("class/infiniband/mlx5_0/ports/1/counters");
        fs::create_dir_all(&port).unwrap();
        let write = |name: &str, value: u64| fs::write(port.join(name), value.to_string()).unwrap();
        write("port_xmit_data", 1000);
        write("symbol_error", 7);
        let rail = HeadRail { hca: "mlx5_0".into(), port: 1, rail: Some(0) };
        let mut rails = Rails::new(root.path(), vec![rail], &[[4.0, 0.0, 0.0]]);
        write("port_xmit_data", 3500);
        write("symbol_error", 9);
        let (values, problems) = rails.values(100.0, 5.0);
        assert_eq!(values[0].mean(RailField::Tx), Some(2000.0));
        assert_eq!(values[0].mean(RailField::Rx), None);
        assert_eq!(values[0].mean(RailField::Errors), Some(6.0), "four of them an earlier sampler's");
        assert!(problems.is_empty());
        write("port_xmit_data", 5);
        write("symbol_error", 0);
        let (values, problems) = rails.values(170.0, 5.0);
        assert_eq!((values[0].mean(RailField::Tx), values[0].mean(RailField::Errors)), (None, None));
        assert_eq!(problems, ["mlx5_0:1: counters went backwards"]);
    }
}
