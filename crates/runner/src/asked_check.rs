//! A full check that the result of a user's job asks for: the prolog of the node's next job runs it.
//!
//! A user can ask for it at will, so at most one follows in an hour. It costs the next job the time of `--railgate-gate=full`.

use std::time::{Duration, SystemTime};

use railgate_fsutil::write_whole;

use crate::Places;

/// In the directory of the node's state: a full check is asked for.
const ASKED: &str = "full-check-asked";
/// When the last one was taken, as the file's time.
const TAKEN: &str = "full-check-taken";
/// Shortest time between two.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Asks for a full check of this node before its next job.
pub fn ask_full_check(places: &Places) {
    if let Err(why) = write_whole(&places.state.join(ASKED), b"", 0o600) {
        tracing::warn!("no full check can be asked for: {ASKED}: {why}");
    }
}

/// Whether a full check is asked for and due; then it counts as taken. It stays asked for until [`full_check_done`].
pub(crate) fn take_full_check(places: &Places) -> bool {
    if std::fs::symlink_metadata(places.state.join(ASKED)).is_err() {
        return false;
    }
    let taken = places.state.join(TAKEN);
    let recent = |time: SystemTime| time.elapsed().is_ok_and(|age| age < INTERVAL);
    if std::fs::symlink_metadata(&taken).and_then(|file| file.modified()).is_ok_and(recent) {
        return false;
    }
    // Without the record of it, every job could ask for one.
    write_whole(&taken, b"", 0o600).is_ok()
}

/// A full check of this node has run: none is asked for any more.
pub(crate) fn full_check_done(places: &Places) {
    match std::fs::remove_file(places.state.join(ASKED)) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!("a full check stays asked for: {ASKED}: {why}")
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_check_is_taken_once_in_an_hour() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { state: dir.path().to_owned(), ..Places::default() };
        assert!(!take_full_check(&places));
        ask_full_check(&places);
        assert!(take_full_check(&places));
        full_check_done(&places);
        full_check_done(&places);
        assert!(!take_full_check(&places));
        ask_full_check(&places);
        assert!(!take_full_check(&places), "the last one was just now");
        assert!(dir.path().join(ASKED).exists(), "it follows when the hour is over");
        let old = SystemTime::now() - Duration::from_secs(3601);
        std::fs::File::options().write(true).open(dir.path().join(TAKEN)).unwrap().set_modified(old).unwrap();
        assert!(take_full_check(&places));
    }
}
