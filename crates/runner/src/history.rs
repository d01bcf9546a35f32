use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use railgate_fsutil::{FileLock, read_small, write_whole};
use railgate_gate::Memory;
use railgate_model::{KernelMark, Snapshot};
use serde::{Deserialize, Serialize};

use crate::Places;

/// A lock holder only reads and writes one small file.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(2);

/// State that this node keeps between check runs and over boots: `/var/lib/railgate/history.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// State of the gate.
    pub memory: Memory,
    /// Kernel log records up to this mark are settled: a later check run of the whole node found it fit, or the node
    /// was drained because of them.
    pub settled: Option<KernelMark>,
    /// When old reports were last removed, Unix seconds.
    pub swept: u64,
    /// A finding may still persist ([`FindingHistory`](crate::FindingHistory)).
    pub open: bool,
    /// Since when this state is kept, Unix seconds; 0 without state.
    pub begun: u64,
    /// GPUs and RDMA devices of the last check run, by UUID and GUID: the hardware that the state is about.
    pub hardware: BTreeSet<String>,
}

fn file(places: &Places) -> PathBuf {
    places.state.join("history.json")
}

/// Where [`History::settled`] is kept if the state directory is not writable. A kernel log mark is void after a boot,
/// so `/run` serves as well.
fn settled_file(places: &Places) -> PathBuf {
    places.run.join("settled.json")
}

impl History {
    /// Loads the state. An unreadable file is a fault of railgate: it is logged, and the state starts empty.
    pub fn load(places: &Places) -> Self {
        let mut history = Self::load_file(places);
        let mark = read_small(&settled_file(places)).ok();
        if let Some(mark) = mark.and_then(|mark| serde_json::from_slice(&mark).ok()) {
            history.settle_to(mark);
        }
        history
    }

    fn load_file(places: &Places) -> Self {
        let path = file(places);
        match read_small(&path) {
            Ok(content) => serde_json::from_slice(&content).unwrap_or_else(|why| {
                tracing::warn!("{}: {why}; starting with an empty history", path.display());
                History::default()
            }),
            Err(why) if why.kind() == io::ErrorKind::NotFound => History::default(),
            Err(why) => {
                tracing::warn!("{}: {why}; starting with an empty history", path.display());
                History::default()
            }
        }
    }

    /// Changes the state under a lock. Check runs of several jobs overlap, so `change` receives the current content
    /// of the file. A state directory that is not writable is logged and has no other effect.
    pub fn change(places: &Places, change: impl FnOnce(&mut History)) {
        if let Err(why) = History::try_change(places, change) {
            tracing::warn!("{why}; this check run is not saved");
        }
    }

    /// As [`History::change`], but returns the error.
    ///
    /// # Errors
    /// The file cannot be locked or written; the message names it.
    pub fn try_change(places: &Places, change: impl FnOnce(&mut History)) -> io::Result<()> {
        let path = file(places);
        let changed = fs::create_dir_all(&places.state).and_then(|()| {
            let _held = FileLock::take(&path.with_extension("lock"), LOCK_WAIT)?;
            let mut history = History::load(places);
            change(&mut history);
            write_whole(&path, &serde_json::to_vec(&history)?, 0o644)?;
            match fs::remove_file(settled_file(places)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
                _ => Ok(()),
            }
        });
        changed.map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", path.display())))
    }

    /// Settles everything up to this snapshot, in `/run` if the state directory is not writable: otherwise the same
    /// kernel records would drain the node again after its repair.
    pub(crate) fn keep_settled(places: &Places, snapshot: &Snapshot) {
        let Some(mark) = kernel_mark(snapshot) else { return };
        let Err(why) = History::try_change(places, |history| history.settle(snapshot)) else { return };
        let path = settled_file(places);
        let kept = serde_json::to_vec(&mark)
            .map_err(io::Error::from)
            .and_then(|mark| write_whole(&path, &mark, 0o644));
        match kept {
            Ok(()) => tracing::warn!("{why}; handled kernel records are saved in {}", path.display()),
            Err(also) => tracing::error!(
                "{why}; {}: {also}; the node may be drained again for handled kernel records",
                path.display()
            ),
        }
    }

    /// Starts an empty state, and logs that, if there is none (first installation, a stateless node after a boot) or
    /// if all of it is about other hardware under this node name.
    pub(crate) fn begin(&mut self, snapshot: &Snapshot) {
        let here = snapshot.identities();
        let (node, past) = (&snapshot.node, !self.hardware.is_empty());
        if past && !here.is_empty() && self.hardware.is_disjoint(&here) {
            tracing::warn!("{node}: every GPU and RDMA device was replaced: the saved history is discarded");
            *self = History {
                memory: Memory { checks: self.memory.checks.clone(), ..Memory::default() },
                swept: self.swept,
                open: self.open,
                ..History::default()
            };
        }
        if self.begun == 0 {
            self.begun = snapshot.taken / 1000;
            if !past {
                tracing::info!("{node}: no saved state, the node is checked as a new one");
            }
        }
        if !here.is_empty() {
            self.hardware = here;
        }
    }

    /// Settles everything in the kernel log up to this snapshot. The mark never moves back: a check run that began
    /// before another may end after it.
    pub fn settle(&mut self, snapshot: &Snapshot) {
        if let Some(mark) = kernel_mark(snapshot) {
            self.settle_to(mark);
        }
    }

    fn settle_to(&mut self, mark: KernelMark) {
        let later = self.settled.as_ref().is_none_or(|old| old.boot_id != mark.boot_id || old.seq < mark.seq);
        if later {
            self.settled = Some(mark);
        }
    }
}

/// End of the kernel log in a snapshot; `None` if it was not read.
pub fn kernel_mark(snapshot: &Snapshot) -> Option<KernelMark> {
    let seq = snapshot.kernel_log.data()?.last_seq?;
    (!snapshot.boot_id.is_empty()).then(|| KernelMark { boot_id: snapshot.boot_id.clone(), seq })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use railgate_model::Profile;

    use super::*;

    fn places(root: &Path) -> Places {
        Places { state: root.join("state"), ..Places::default() }
    }

    fn said_up_to(seq: u64) -> Snapshot {
        let mut snapshot = railgate_simulate::simulated(&Profile::generic(), &[]);
        if let railgate_model::Part::Read { data, .. } = &mut snapshot.kernel_log {
            data.last_seq = Some(seq);
        }
        snapshot
    }

    #[test]
    fn overlapping_check_runs_keep_the_changes_of_both() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| History::change(&places, |history| history.swept += 1));
            }
        });
        assert_eq!(History::load(&places).swept, 8);
    }

    #[test]
    fn other_hardware_under_the_same_name_starts_an_empty_state() {
        let (profile, _) = railgate_simulate::parse("h100-sxm", &[]).unwrap();
        let mut node = railgate_simulate::simulated(&profile, &[]);
        let mut history = History::default();
        history.begin(&node);
        history.memory = history.memory.after(&node, true);
        let begun = history.begun;
        assert!(begun > 0 && history.memory.inventory.len() == 8);
        let railgate_model::Part::Read { data, .. } = &mut node.gpus else { panic!("no GPUs") };
        for gpu in &mut data.gpus {
            gpu.uuid = railgate_model::Reading::Known(format!("GPU-new-{}", gpu.index));
        }
        node.taken += 5000;
        // New GPUs in the old chassis; the HCAs stay.
        history.begin(&node);
        assert_eq!((history.begun, history.memory.inventory.len()), (begun, 8));
        let railgate_model::Part::Read { data, .. } = &mut node.fabric else { panic!("no fabric") };
        data.hcas.clear();
        let mut other = history.clone();
        other.hardware = ["GPU-old".to_owned()].into();
        other.begin(&node);
        assert_eq!((other.begun, other.memory.inventory.len()), (begun + 5, 0));
        assert!(!other.memory.is_new("gpu-lost"), "what it knows of checks stays");
    }

    #[test]
    fn the_settled_mark_is_kept_in_run_while_the_state_directory_is_not_writable() {
        let place = tempfile::tempdir().unwrap();
        let places = Places { run: place.path().join("run"), ..places(place.path()) };
        fs::create_dir(&places.run).unwrap();
        fs::write(&places.state, "not a directory").unwrap();
        let why = History::try_change(&places, |_| ()).unwrap_err().to_string();
        assert!(why.contains("state/history.json: "), "{why}");
        History::keep_settled(&places, &said_up_to(7));
        assert_eq!(History::load(&places).settled.unwrap().seq, 7);
        // Moved to the state directory as soon as that is writable.
        fs::remove_file(&places.state).unwrap();
        History::change(&places, |history| history.swept = 1);
        assert!(!settled_file(&places).exists());
        assert_eq!(History::load(&places).settled.unwrap().seq, 7);
    }

    #[test]
    fn the_settled_mark_holds_until_the_next_boot() {
        let mut history = History::default();
        for (seq, settled) in [(7, 7), (5, 7), (9, 9)] {
            history.settle(&said_up_to(seq));
            assert_eq!(history.settled.as_ref().unwrap().seq, settled, "{seq}");
        }
        let mut rebooted = said_up_to(2);
        rebooted.boot_id = "another".to_owned();
        history.settle(&rebooted);
        assert_eq!(history.settled.unwrap().seq, 2);
    }
}
