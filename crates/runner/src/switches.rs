//! The ways to stop railgate from acting. They are read at every use, and work even if the configuration is invalid.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use railgate_fsutil::{read_small, write_whole};
use serde::{Deserialize, Serialize};

use crate::{Places, now};

/// Content of the pause file that `railgate pause` writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Unix seconds; `None` lasts until `railgate resume`.
    pub until: Option<u64>,
    /// Who paused: user name or uid.
    pub by: String,
    /// The reason that was given.
    pub why: String,
}

/// Whether railgate may change anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// No switch is set.
    On,
    /// `/etc/railgate/disable` exists: railgate does nothing at all.
    Disabled,
    /// Paused: railgate runs checks, logs and reports, and changes nothing.
    Paused(Pause),
}

fn disable_flag(places: &Places) -> PathBuf {
    places.etc.join("disable")
}

fn pause_file(places: &Places) -> PathBuf {
    places.state.join("pause.json")
}

/// Whether `/etc/railgate/disable` exists, or its existence cannot be determined. Tested before anything else is
/// read.
pub fn disabled(places: &Places) -> bool {
    !matches!(fs::symlink_metadata(disable_flag(places)), Err(why) if why.kind() == io::ErrorKind::NotFound)
}

/// State of the switches. An unreadable pause file counts as a pause.
pub fn state(places: &Places) -> Switch {
    if disabled(places) {
        return Switch::Disabled;
    }
    match read_small(&pause_file(places)) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Switch::On,
        Err(why) => Switch::Paused(unreadable(&why.to_string())),
        Ok(content) => match serde_json::from_slice::<Pause>(&content) {
            Ok(pause) if pause.until.is_some_and(|until| until <= now() / 1000) => Switch::On,
            Ok(pause) => Switch::Paused(pause),
            Err(why) => Switch::Paused(unreadable(&why.to_string())),
        },
    }
}

fn unreadable(why: &str) -> Pause {
    Pause { until: None, by: "unknown".to_owned(), why: format!("pause file is unreadable: {why}") }
}

/// Pauses this node; on the controller, the requeueing of the cluster. `length`: `None` lasts until `railgate
/// resume`.
///
/// # Errors
/// The file cannot be written.
pub fn pause(places: &Places, length: Option<Duration>, by: &str, why: &str) -> io::Result<Pause> {
    let until = length.map(|length| (now() / 1000).saturating_add(length.as_secs()));
    let pause = Pause { until, by: by.to_owned(), why: why.to_owned() };
    fs::create_dir_all(&places.state)?;
    write_whole(&pause_file(places), &serde_json::to_vec(&pause)?, 0o644)?;
    Ok(pause)
}

/// Ends a pause. Returns whether there was one.
///
/// # Errors
/// The file cannot be removed.
pub fn resume(places: &Places) -> io::Result<bool> {
    match fs::remove_file(pause_file(places)) {
        Ok(()) => Ok(true),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(root: &std::path::Path) -> Places {
        Places {
            etc: root.join("etc"),
            run: root.join("run"),
            state: root.join("state"),
            share: root.join("share"),
        }
    }

    #[test]
    fn a_pause_lasts_until_it_expires_or_is_ended() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        assert_eq!(state(&places), Switch::On);
        pause(&places, Some(Duration::from_secs(3600)), "root", "driver update").unwrap();
        assert!(matches!(state(&places), Switch::Paused(_)));
        pause(&places, Some(Duration::ZERO), "root", "").unwrap();
        assert_eq!(state(&places), Switch::On);
        pause(&places, None, "root", "").unwrap();
        assert!(resume(&places).unwrap());
        assert!(!resume(&places).unwrap());
        assert_eq!(state(&places), Switch::On);
    }

    #[test]
    fn a_broken_pause_file_pauses() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        fs::create_dir_all(&places.state).unwrap();
        fs::write(pause_file(&places), "{").unwrap();
        assert!(matches!(state(&places), Switch::Paused(_)));
    }

    #[test]
    fn the_disable_file_wins_even_as_a_dangling_link() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        fs::create_dir_all(&places.etc).unwrap();
        std::os::unix::fs::symlink("/nowhere", disable_flag(&places)).unwrap();
        assert_eq!(state(&places), Switch::Disabled);
    }
}
