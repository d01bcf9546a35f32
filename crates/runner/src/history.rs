use std::fs;
use std::io;
use std::path::PathBuf;

use railgate_gate::Memory;
use railgate_node::{KernelMark, Snapshot};
use railgate_rundir::{read_small, write_whole};
use serde::{Deserialize, Serialize};

use crate::Places;

/// What this node remembers from look to look, over boots: `/var/lib/railgate/history.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// For the gate.
    pub memory: Memory,
    /// Kernel records up to here are dealt with: the whole node was found clean after them, or drained
    /// because of them.
    pub settled: Option<KernelMark>,
    /// When old reports were last removed, Unix seconds.
    pub swept: u64,
}

fn file(places: &Places) -> PathBuf {
    places.state.join("history.json")
}

impl History {
    /// What is remembered. An unreadable file is our own fault: it is logged, and everything is new.
    pub fn load(places: &Places) -> Self {
        let path = file(places);
        match read_small(&path) {
            Ok(content) => serde_json::from_slice(&content).unwrap_or_else(|why| {
                tracing::warn!("{}: {why}; starting anew", path.display());
                History::default()
            }),
            Err(why) if why.kind() == io::ErrorKind::NotFound => History::default(),
            Err(why) => {
                tracing::warn!("{}: {why}; nothing is remembered", path.display());
                History::default()
            }
        }
    }

    /// Remembers. A state directory that cannot be written is logged and changes nothing else.
    pub fn store(&self, places: &Places) {
        let path = file(places);
        let written = fs::create_dir_all(&places.state)
            .and_then(|()| serde_json::to_vec(self).map_err(io::Error::from))
            .and_then(|content| write_whole(&path, &content, 0o644));
        if let Err(why) = written {
            tracing::warn!("{}: {why}; this look is not remembered", path.display());
        }
    }

    /// Everything that the kernel has said up to this snapshot is dealt with.
    pub fn settle(&mut self, snapshot: &Snapshot) {
        if let Some(mark) = kernel_mark(snapshot) {
            self.settled = Some(mark);
        }
    }
}

/// Where the kernel's log ended in a snapshot.
pub fn kernel_mark(snapshot: &Snapshot) -> Option<KernelMark> {
    let seq = snapshot.kernel_log.data()?.last_seq?;
    (!snapshot.boot_id.is_empty()).then(|| KernelMark { boot_id: snapshot.boot_id.clone(), seq })
}
