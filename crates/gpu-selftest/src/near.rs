//! Which processors are near a card.

use std::fs;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use railgate_model::PciAddress;

/// Moves this thread to the processors beside a card, so that the host memory that it gets is there. Returns the NUMA node; `None`: the
/// machine has only one, or the thread may not run there.
pub(crate) fn go_near(card: PciAddress) -> Option<u32> {
    let of_card = |name: &str| fs::read_to_string(format!("/sys/bus/pci/devices/{card}/{name}")).ok();
    // -1 without NUMA.
    let node = of_card("numa_node")?.trim().parse().ok()?;
    sched_setaffinity(Pid::from_raw(0), &processors(&of_card("local_cpulist")?)?).ok()?;
    Some(node)
}

/// `0-31,64-95`
fn processors(list: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for processor in first.parse::<usize>().ok()?..=last.parse().ok()? {
            set.set(processor).ok()?;
        }
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        let set = processors("0-1,5\n").unwrap();
        let has: Vec<usize> = (0..8).filter(|processor| set.is_set(*processor).unwrap()).collect();
        assert_eq!(has, [0, 1, 5]);
        for wrong in ["", "a", "1-", "0-99999999"] {
            assert!(processors(wrong).is_none(), "{wrong:?}");
        }
    }
}
