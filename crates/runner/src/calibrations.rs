//! Calibrations of this node's GPUs: `/var/lib/railgate/calibrations.json`. `railgate calibrate` writes it. The
//! epilog and the sampler read it through [`gpu_figures`], so that report and metrics agree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use railgate_fsutil::read::whole_bytes;
use railgate_fsutil::{FileLock, trusted, write_whole};
use railgate_node_report::usage::{Card, Cards, GpuFigures};

use crate::history::LOCK_WAIT;
use crate::{Config, Places};

/// Largest file that is read, bytes: 256 cards take a quarter of it.
const MAX_FILE: u64 = 256 << 10;

fn file(places: &Places) -> PathBuf {
    places.state.join("calibrations.json")
}

/// The figures of this node's GPUs that are in force: its calibrated cards, the site's models, the built-in table.
/// A file that cannot be used is logged; its cards have the factor of their model.
pub fn gpu_figures(places: &Places, config: &Config) -> GpuFigures {
    let (cards, problems) = calibrated_cards(places);
    for why in problems {
        tracing::warn!("{why}; the factor of the GPU's model is used");
    }
    GpuFigures { site: config.stats.models.clone(), cards }
}

/// The calibrated cards of this node, and what could not be used, one line each.
pub fn calibrated_cards(places: &Places) -> (Cards, Vec<String>) {
    let path = file(places);
    match read(&path) {
        Ok(Some((cards, left_out))) => {
            (cards, left_out.iter().map(|why| format!("{}: {why}", path.display())).collect())
        }
        Ok(None) => (Cards::default(), Vec::new()),
        Err(why) => (Cards::default(), vec![why]),
    }
}

/// `None` without a file.
fn read(path: &Path) -> Result<Option<(Cards, Vec<String>)>, String> {
    // The factor decides figures that admins compare nodes by, so only root may set it.
    if let Err(why) = trusted(path) {
        return if why.is_absent() { Ok(None) } else { Err(why.to_string()) };
    }
    let content = whole_bytes(path, MAX_FILE).map_err(|why| why.to_string())?;
    Cards::parse(&content).map(Some).map_err(|why| format!("{}: {why}", path.display()))
}

/// Stores the calibration of a card, in place of an earlier one. If the file has rows that cannot be used, it is kept
/// as `calibrations.json.bad`; returns that path.
///
/// # Errors
/// The values are out of range, or the file cannot be trusted, locked or written; the message names it.
pub fn keep_calibration(places: &Places, uuid: &str, card: Card) -> io::Result<Option<PathBuf>> {
    if let Some(why) = card.problem() {
        return Err(io::Error::other(why));
    }
    let path = file(places);
    let kept = fs::create_dir_all(&places.state).and_then(|()| {
        let _held = FileLock::take(&path.with_extension("lock"), LOCK_WAIT)?;
        if let Err(why) = trusted(&path)
            && !why.is_absent()
        {
            return Err(io::Error::other(why));
        }
        let (mut cards, problems) = calibrated_cards(places);
        let bad = path.with_extension("json.bad");
        let aside = !problems.is_empty();
        if aside {
            fs::rename(&path, &bad)?;
        }
        cards.put(uuid, card);
        write_whole(&path, &cards.to_json().map_err(io::Error::other)?, 0o644)?;
        Ok(aside.then_some(bad))
    });
    kept.map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn card(activity_per_work: f64) -> Card {
        Card {
            model: "NVIDIA H200".to_owned(),
            activity_per_work,
            band: 0.034,
            driver: Some("580.159.04".to_owned()),
            measured: 1_800_000_000_000,
            railgate: "0.1.0".to_owned(),
            by: "calibrate".to_owned(),
        }
    }

    fn places(root: &Path) -> Places {
        Places { state: root.join("state"), ..Places::default() }
    }

    fn from(places: &Places, uuid: &str) -> &'static str {
        gpu_figures(places, &Config::default()).of("NVIDIA H200", uuid).unwrap().calibration.unwrap().2
    }

    #[test]
    fn a_stored_calibration_is_in_force_for_its_card_alone() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        assert_eq!(from(&places, "GPU-1"), "built-in");
        assert_eq!(keep_calibration(&places, "GPU-1", card(1.09)).unwrap(), None);
        assert_eq!(keep_calibration(&places, "GPU-2", card(1.11)).unwrap(), None);
        assert_eq!(keep_calibration(&places, "GPU-1", card(1.10)).unwrap(), None);
        let (cards, problems) = calibrated_cards(&places);
        assert_eq!((cards.get("GPU-1"), cards.get("GPU-2")), (Some(&card(1.10)), Some(&card(1.11))));
        assert_eq!((problems, from(&places, "GPU-1"), from(&places, "GPU-3")), (vec![], "card", "built-in"));
        assert!(keep_calibration(&places, "GPU-1", card(9.0)).is_err());
        assert_eq!(from(&places, "GPU-1"), "card");
    }

    #[test]
    fn a_bad_file_is_named_and_kept_and_the_model_has_its_factor() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        fs::create_dir(&places.state).unwrap();
        for bad in ["{", "{\"schema\": 1, \"cards\": {\"GPU-1\": {}}}"] {
            fs::write(file(&places), bad).unwrap();
            let (_, problems) = calibrated_cards(&places);
            assert!(
                matches!(&problems[..], [one] if one.contains("state/calibrations.json: ")),
                "{problems:?}"
            );
            assert_eq!(from(&places, "GPU-1"), "built-in");
            let aside = keep_calibration(&places, "GPU-1", card(1.09)).unwrap().unwrap();
            assert_eq!((fs::read_to_string(aside).unwrap().as_str(), from(&places, "GPU-1")), (bad, "card"));
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_not_used_and_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        keep_calibration(&places, "GPU-1", card(1.09)).unwrap();
        fs::set_permissions(&places.state, fs::Permissions::from_mode(0o777)).unwrap();
        let (_, problems) = calibrated_cards(&places);
        assert!(problems[0].contains("others may write it"), "{problems:?}");
        assert_eq!(from(&places, "GPU-1"), "built-in");
        let why = keep_calibration(&places, "GPU-1", card(1.10)).unwrap_err().to_string();
        assert!(why.contains("others may write it") && file(&places).exists(), "{why}");
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_is_an_error_with_its_name() {
        let place = tempfile::tempdir().unwrap();
        let places = places(place.path());
        fs::write(&places.state, "not a directory").unwrap();
        let why = keep_calibration(&places, "GPU-1", card(1.09)).unwrap_err().to_string();
        assert!(why.contains("state/calibrations.json: "), "{why}");
    }
}
