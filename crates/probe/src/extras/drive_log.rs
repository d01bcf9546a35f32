//! The SMART log of NVMe drives, which no file provides.

use std::path::Path;

use railgate_child::Task;
use railgate_fsutil::{ReadError, read};
use railgate_model::{DriveHealth, Host, Part, PartName, Reading};

use super::{Ask, Put};
use crate::calls::with_json;
use crate::ioctl::{self, LogPage};
use crate::{SourceConfig, sysfs};

const NAME: &str = "node-drive-logs";

pub(super) const TASK: Task =
    Task::new(NAME, |input| with_json(input, |source: SourceConfig| Ok(drive_logs(&source))));

pub(super) fn begin(ask: &mut Ask<'_>) -> Option<Put> {
    if !ask.request.plan.parts.contains(&PartName::Host) {
        return None;
    }
    let place = ask.calls.add(NAME, ask.source);
    Some(Box::new(move |snapshot, answers| {
        if let Part::Read { data: host, .. } = &mut snapshot.host {
            put(host, &answers.part(Some(place)));
        }
    }))
}

/// Stores the logs with the drives that the host's reader has found. If no child answered, no drive has a log.
fn put(host: &mut Host, logs: &Part<Vec<(String, Reading<DriveHealth>)>>) {
    let Reading::Known(drives) = &mut host.system.nvmes else { return };
    for drive in drives {
        let log = logs.data().map(|logs| logs.iter().find(|(name, _)| *name == drive.name));
        drive.health = match log {
            Some(log) => log.map_or(Reading::Unsupported, |(_, health)| health.clone()),
            None => Reading::Failed(logs.missing().unwrap_or_default()),
        };
    }
}

/// Reads the SMART log of each live controller of this machine. Returns one reading per controller, by name.
///
/// On the real system the log is requested through the controller's device. In another tree, a file `smart_log` beside
/// the controller's attributes has the page.
fn drive_logs(source: &SourceConfig) -> Vec<(String, Reading<DriveHealth>)> {
    let class = source.sysfs.join("class/nvme");
    let names = read::names(&class).unwrap_or_default();
    let is_one = |name: &&String| {
        let number = name.strip_prefix("nvme").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let log = |name: &String| {
        let state = sysfs::attribute(&class.join(name).join("state"));
        // A command to a dead or resetting controller would block.
        if state.is_ok_and(|state| state != "live") {
            return (name.clone(), Reading::Unsupported);
        }
        let page = if source.sysfs == SourceConfig::default().sysfs {
            asked(&Path::new("/dev").join(name))
        } else {
            recorded(&class.join(name).join("smart_log"))
        };
        (name.clone(), page.map(|page| decode(&page)))
    };
    names.iter().filter(is_one).map(log).collect()
}

fn asked(device: &Path) -> Reading<LogPage> {
    let answer = read::open(device)
        .and_then(|file| ioctl::nvme_log(&file, ioctl::SMART_PAGE).map_err(|why| ReadError::io(device, why)));
    match answer {
        Ok(page) => Reading::Known(page),
        // A container has the class directory, but not the device.
        Err(why) if why.errno() == Some(libc::ENOTTY) => Reading::Unsupported,
        Err(why) => sysfs::failure(&why),
    }
}

fn recorded(file: &Path) -> Reading<LogPage> {
    match read::whole_bytes(file, 512).map(LogPage::try_from) {
        Ok(Ok(page)) => Reading::Known(page),
        Ok(Err(short)) => Reading::Failed(format!("{}: {} bytes", file.display(), short.len())),
        Err(why) => sysfs::failure(&why),
    }
}

fn decode(page: &LogPage) -> DriveHealth {
    let mut errors = [0; 16];
    errors.copy_from_slice(&page[160..176]);
    DriveHealth {
        critical_warning: page[0],
        spare_percent: page[3],
        spare_threshold_percent: page[4],
        used_percent: page[5],
        media_errors: u64::try_from(u128::from_le_bytes(errors)).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn logs_are_read_from_a_tree_with_drives() {
        let dir = tempfile::tempdir().unwrap();
        let source = SourceConfig { sysfs: dir.path().to_owned(), ..SourceConfig::default() };
        assert_eq!(drive_logs(&source), [], "a machine without");
        let mut page = vec![0; 512];
        (page[0], page[3], page[4], page[5]) = (4, 100, 10, 103);
        page[160..164].copy_from_slice(&[1, 2, 0, 0]);
        for (name, state, page) in [
            ("nvme0", "live", Some(&page[..])),
            ("nvme1", "live", Some(&page[..100])),
            ("nvme2", "dead", Some(&page[..])),
            ("nvme3", "live", None),
            ("nvme-subsys0", "live", None),
        ] {
            let at = dir.path().join("class/nvme").join(name);
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("state"), format!("{state}\n")).unwrap();
            if let Some(page) = page {
                fs::write(at.join("smart_log"), page).unwrap();
            }
        }
        let logs = drive_logs(&source);
        let health = DriveHealth {
            critical_warning: 4,
            spare_percent: 100,
            spare_threshold_percent: 10,
            used_percent: 103,
            media_errors: 513,
        };
        assert_eq!(logs[0], ("nvme0".to_owned(), Reading::Known(health)));
        assert!(matches!(&logs[1].1, Reading::Failed(why) if why.ends_with("smart_log: 100 bytes")));
        assert_eq!((&logs[2].1, &logs[3].1, logs.len()), (&Reading::Unsupported, &Reading::Unsupported, 4));
    }
}
