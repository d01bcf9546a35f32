use railgate_model::Reading;
use railgate_node_report::usage::{HostField, Values};
use railgate_probe::GroupUse;

/// The job's cgroup between two samples.
#[derive(Debug, Default)]
pub(crate) struct Host {
    before: Option<GroupUse>,
}

impl Host {
    /// Figures over the last `seconds`; unknown for the first sample.
    pub(crate) fn values(&mut self, now: Option<&GroupUse>, seconds: f64) -> Values<HostField> {
        let mut values = Values::default();
        let Some(now) = now else { return values };
        let before = self.before.replace(now.clone());
        values.put(HostField::Memory, now.memory_mib.known().copied());
        let Some(before) = before else { return values };
        let float = |get: fn(&GroupUse) -> &Reading<f64>| grown(get(&before).known(), get(now).known());
        #[expect(clippy::cast_precision_loss, reason = "rates have few digits")]
        let bytes = |get: fn(&GroupUse) -> &Reading<u64>| {
            let (was, is) = (get(&before).known()?, get(now).known()?);
            is.checked_sub(*was).map(|more| more as f64 / seconds)
        };
        let percent = |stalled: Option<f64>| stalled.map(|stalled| (stalled / seconds * 100.0).min(100.0));
        values.put(HostField::Cpu, float(|group| &group.cpu_s).map(|busy| busy / seconds));
        values.put(HostField::CpuPressure, percent(float(|group| &group.cpu_stall_s)));
        values.put(HostField::MemoryPressure, percent(float(|group| &group.memory_stall_s)));
        values.put(HostField::IoPressure, percent(float(|group| &group.io_stall_s)));
        values.put(HostField::IoRead, bytes(|group| &group.read_bytes));
        values.put(HostField::IoWrite, bytes(|group| &group.written_bytes));
        values
    }
}

fn grown(was: Option<&f64>, is: Option<&f64>) -> Option<f64> {
    Some(is? - was?).filter(|more| *more >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(cpu_s: f64, read_bytes: u64) -> GroupUse {
        GroupUse {
            cpu_s: Reading::Known(cpu_s),
            cpus: Reading::Unsupported,
            memory_mib: Reading::Known(5.0),
            memory_peak_mib: Reading::Unsupported,
            oom_kills: Reading::Unsupported,
            cpu_stall_s: Reading::Unsupported,
            memory_stall_s: Reading::Unsupported,
            io_stall_s: Reading::Known(cpu_s / 4.0),
            read_bytes: Reading::Known(read_bytes),
            written_bytes: Reading::Failed("gone".into()),
            frozen: Reading::Unsupported,
        }
    }

    #[test]
    fn rates_need_two_readings_and_an_increasing_counter() {
        let mut host = Host::default();
        assert_eq!(host.values(Some(&group(10.0, 100)), 5.0).mean(HostField::Cpu), None);
        let values = host.values(Some(&group(20.0, 50)), 5.0);
        assert_eq!(values.mean(HostField::Cpu), Some(2.0));
        assert_eq!(values.mean(HostField::IoPressure), Some(50.0));
        assert_eq!(values.mean(HostField::Memory), Some(5.0));
        assert_eq!((values.mean(HostField::IoRead), values.mean(HostField::IoWrite)), (None, None));
        assert!(host.values(None, 5.0).is_empty());
    }
}
