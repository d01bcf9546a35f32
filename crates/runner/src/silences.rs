//! Silences of alerts that `railgate fleet silence` makes, in a file beside the fleet's history: one JSON object a line.
//!
//! Silences of the configuration are `[alerts.silences]`. `railgate-fleet` reads both before each observation.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::fsync;
use railgate_alerts::{AlertsConfig, Silence, Until};
use railgate_fsutil::{FileLock, Put, ReadError, Untrusted, nofollow, put_at, read, trusted};
use railgate_model::UnixMillis;
use railgate_text::Printable;
use serde::{Deserialize, Serialize};

/// Largest file, bytes.
const MAX_FILE: u64 = 4 << 20;
/// Most lines.
const MAX_SILENCES: usize = 1000;
/// Most names of nodes in one silence.
const MAX_NODES: usize = 5000;
/// Longest name of a node or a check, characters.
const MAX_NAME: usize = 100;
/// Longest reason, characters.
const MAX_REASON: usize = 200;
/// How long a command waits for another one that changes the file.
const WAIT: Duration = Duration::from_secs(5);
/// Shortest and longest silence.
const LENGTH: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(90 * 86_400));

/// A silence in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// A key of a later release could narrow the silence: without it, the silence would cover more than the admin wants.
#[serde(deny_unknown_fields)]
pub struct FleetSilence {
    /// Identifies it: the time of its start in Unix seconds, and a number, `1800000000-1`.
    pub id: String,
    /// Nodes: names, or beginnings of names with a trailing `*`. Empty: all.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// The check; `None`: every condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// A reservation that the node is in; `None`: any or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// The end.
    pub until: Until,
    /// The user who made it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A silence to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSilence {
    /// As [`FleetSilence::nodes`].
    pub nodes: Vec<String>,
    /// As [`FleetSilence::check`].
    pub check: Option<String>,
    /// As [`FleetSilence::reservation`].
    pub reservation: Option<String>,
    /// How long it lasts, 1 minute to 90 days.
    pub length: Duration,
    /// The user who makes it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetSilences {
    /// Those that have not ended, in the order of the file.
    pub silences: Vec<FleetSilence>,
    /// Lines that are ignored, one text each, with file and line.
    pub problems: Vec<String>,
}

/// Why the file cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SilencesError {
    /// Others can change the path.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It cannot be written.
    #[error("{}: {source}", Printable(path.display()))]
    Write {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The new silence is not valid.
    #[error("{0}")]
    Invalid(String),
}

/// The file of silences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilenceFile(PathBuf);

impl FleetSilence {
    /// Why it is not valid.
    fn problem(&self) -> Option<String> {
        let is_name = |name: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
        };
        let is_pattern = |name: &String| {
            let start = name.strip_suffix('*');
            start == Some("") || is_name(start.unwrap_or(name))
        };
        let is_text = |text: &str, most: usize| {
            !text.trim().is_empty() && text.chars().count() <= most && !text.chars().any(char::is_control)
        };
        let wrong_node = self.nodes.iter().find(|name| !is_pattern(name));
        if !is_name(&self.id) {
            Some("id: is not like 1800000000-1".to_owned())
        } else if self.nodes.is_empty() && self.check.is_none() && self.reservation.is_none() {
            Some("nodes: a silence needs nodes, a check or a reservation".to_owned())
        } else if self.nodes.len() > MAX_NODES {
            Some(format!("nodes: more than {MAX_NODES}: use the beginning of the names and *"))
        } else if let Some(name) = wrong_node {
            Some(format!(
                "nodes: '{name}' is not the name of a node, nor the beginning of one with a trailing *"
            ))
        } else if self.check.as_ref().is_some_and(|check| !is_name(check)) {
            Some("check: is not the id of a check".to_owned())
        } else if self.reservation.as_ref().is_some_and(|name| !is_name(name)) {
            Some("reservation: is not the name of a reservation".to_owned())
        } else if !is_text(&self.reason, MAX_REASON) {
            Some(format!("reason: needs 1 to {MAX_REASON} printable characters"))
        } else if !is_text(&self.by, MAX_NAME) {
            Some(format!("by: needs 1 to {MAX_NAME} printable characters"))
        } else {
            None
        }
    }

    fn to_silence(&self) -> Silence {
        Silence {
            nodes: self.nodes.clone(),
            check: self.check.clone(),
            reservation: self.reservation.clone(),
            until: self.until,
            reason: self.reason.clone(),
        }
    }
}

impl FleetSilences {
    /// The configuration with these silences beside its own.
    pub fn with(&self, config: &AlertsConfig) -> AlertsConfig {
        let mut config = config.clone();
        // The blank keeps these names apart from those of the configuration.
        let named = |silence: &FleetSilence| (format!("fleet {}", silence.id), silence.to_silence());
        config.silences.extend(self.silences.iter().map(named));
        config
    }
}

/// A line of the file.
enum Line {
    Good(FleetSilence),
    /// Not valid: its text, and why.
    Bad(String, String),
}

impl SilenceFile {
    /// The file beside a history.
    pub fn beside(database: &Path) -> SilenceFile {
        SilenceFile(database.with_file_name("silences.jsonl"))
    }

    /// Reads the silences that have not ended. A missing file has none; without its directory, the silences are on another machine.
    ///
    /// # Errors
    /// The directory is missing, others can change the path, or the file is a link, not a regular file, or larger than 4 MiB.
    pub fn read(&self, now: UnixMillis) -> Result<FleetSilences, SilencesError> {
        let mut found = FleetSilences::default();
        for (index, line) in self.lines()?.into_iter().enumerate() {
            match line {
                Line::Good(silence) if silence.until.0 > now => found.silences.push(silence),
                Line::Good(_) => {}
                Line::Bad(_, why) => {
                    found.problems.push(format!(
                        "{}:{}: {why}; the line is ignored",
                        self.0.display(),
                        index + 1
                    ));
                }
            }
        }
        let surplus = found.silences.len().saturating_sub(MAX_SILENCES);
        if surplus > 0 {
            found.silences.truncate(MAX_SILENCES);
            let path = self.0.display();
            found
                .problems
                .push(format!("{path}: more than {MAX_SILENCES} silences; the last {surplus} are ignored"));
        }
        Ok(found)
    }

    /// Adds a silence, and removes those that have ended. Lines that are not valid remain.
    ///
    /// # Errors
    /// The silence is not valid, or as [`SilenceFile::read`], or the file cannot be written.
    pub fn add(&self, new: NewSilence, now: UnixMillis) -> Result<FleetSilence, SilencesError> {
        let (least, most) = LENGTH;
        if !(least..=most).contains(&new.length) {
            let is = humantime::format_duration(new.length);
            return Err(SilencesError::Invalid(format!("{is} is not within 1m to 90days")));
        }
        let _lock = self.lock()?;
        let mut lines = self.lines()?;
        let taken = |id: &str| lines.iter().any(|line| matches!(line, Line::Good(known) if known.id == id));
        let ids = (1..).map(|number: usize| format!("{}-{number}", now / 1000));
        let id = ids.into_iter().find(|id| !taken(id)).unwrap_or_default();
        let length = u64::try_from(new.length.as_millis()).unwrap_or(UnixMillis::MAX);
        let NewSilence { nodes, check, reservation, by, reason, .. } = new;
        let silence = FleetSilence {
            id,
            nodes,
            check,
            reservation,
            until: Until(now.saturating_add(length)),
            by,
            reason,
        };
        if let Some(why) = silence.problem() {
            return Err(SilencesError::Invalid(why));
        }
        lines.push(Line::Good(silence.clone()));
        self.write(&lines, now)?;
        Ok(silence)
    }

    /// Removes a silence. Returns it; `None` if there is no such silence, or it has ended.
    ///
    /// # Errors
    /// As [`SilenceFile::add`].
    pub fn remove(&self, id: &str, now: UnixMillis) -> Result<Option<FleetSilence>, SilencesError> {
        let _lock = self.lock()?;
        let mut removed = None;
        let mut left = Vec::new();
        for line in self.lines()? {
            match line {
                Line::Good(silence) if silence.id == id && silence.until.0 > now => removed = Some(silence),
                line => left.push(line),
            }
        }
        if removed.is_some() {
            self.write(&left, now)?;
        }
        Ok(removed)
    }

    fn at(&self, source: io::Error) -> SilencesError {
        SilencesError::Write { path: self.0.clone(), source }
    }

    fn dir(&self) -> Result<PathBuf, SilencesError> {
        Ok(trusted(self.0.parent().unwrap_or(Path::new("/")))?)
    }

    fn lock(&self) -> Result<FileLock, SilencesError> {
        let path = self.dir()?.join("silences.lock");
        FileLock::take(&path, WAIT).map_err(|source| SilencesError::Write { path, source })
    }

    fn lines(&self) -> Result<Vec<Line>, SilencesError> {
        self.dir()?;
        let real = match trusted(&self.0) {
            Ok(real) => real,
            Err(why) if why.is_absent() => return Ok(Vec::new()),
            Err(why) => return Err(why.into()),
        };
        let text = read::whole_bytes(&real, MAX_FILE)?;
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        Ok(lines.map(parse).collect())
    }

    fn write(&self, lines: &[Line], now: UnixMillis) -> Result<(), SilencesError> {
        let mut text = String::new();
        let mut count = 0;
        for line in lines {
            match line {
                Line::Good(silence) if silence.until.0 <= now => continue,
                Line::Good(silence) => {
                    text.push_str(&serde_json::to_string(silence).map_err(|why| self.at(why.into()))?);
                }
                Line::Bad(line, _) => text.push_str(line),
            }
            text.push('\n');
            count += 1;
        }
        if count > MAX_SILENCES || text.len() as u64 > MAX_FILE {
            let limit = format!("at most {MAX_SILENCES} silences and {} MiB fit", MAX_FILE >> 20);
            return Err(self.at(io::Error::new(io::ErrorKind::FileTooLarge, limit)));
        }
        let name = self.0.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let dir = nofollow::place(&self.dir()?).map_err(|why| self.at(why.into()))?;
        // A descriptor of its own that can be synchronised.
        let dir: File = nofollow::dir_at(dir, ".").map_err(|why| self.at(why.into()))?.into();
        let put = Put { mode: Mode::S_IRUSR | Mode::S_IWUSR, sync: true, replace: true };
        put_at(dir.as_fd(), name, text.as_bytes(), put).map_err(|why| self.at(why))?;
        fsync(dir.as_fd()).map_err(|why| self.at(why.into()))
    }
}

fn parse(line: &[u8]) -> Line {
    let text = String::from_utf8_lossy(line).into_owned();
    match serde_json::from_slice::<FleetSilence>(line) {
        Ok(silence) => match silence.problem() {
            Some(why) => Line::Bad(text, why),
            None => Line::Good(silence),
        },
        Err(why) => Line::Bad(text, why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    const T: UnixMillis = 1_800_000_000_000;
    const HOUR: UnixMillis = 3_600_000;

    fn new(nodes: &[&str], hours: u64) -> NewSilence {
        NewSilence {
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            check: None,
            reservation: None,
            length: Duration::from_secs(hours * 3600),
            by: "alice".to_owned(),
            reason: "new fans".to_owned(),
        }
    }

    fn place() -> (tempfile::TempDir, SilenceFile) {
        let dir = tempfile::tempdir().unwrap();
        let file = SilenceFile::beside(&dir.path().join("fleet.db"));
        (dir, file)
    }

    fn ids(file: &SilenceFile, now: UnixMillis) -> Vec<String> {
        file.read(now).unwrap().silences.into_iter().map(|silence| silence.id).collect()
    }

    #[test]
    fn a_silence_holds_until_its_end_or_until_it_is_removed() {
        let (dir, file) = place();
        assert_eq!(file.read(T).unwrap(), FleetSilences::default());
        let first = file.add(new(&["gn1", "gn7*"], 4), T).unwrap();
        file.add(new(&["gn2"], 1), T).unwrap();
        assert_eq!(ids(&file, T), ["1800000000-1", "1800000000-2"]);
        assert_eq!(fs::metadata(dir.path().join("silences.jsonl")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ids(&file, T + HOUR), ["1800000000-1"]);
        // Adding one removes those that have ended.
        file.add(new(&["gn3"], 1), T + 2 * HOUR).unwrap();
        assert_eq!(ids(&file, T), ["1800000000-1", "1800007200-1"]);
        assert_eq!(file.remove("1800000000-1", T + 2 * HOUR).unwrap(), Some(first));
        assert_eq!(file.remove("1800000000-1", T + 2 * HOUR).unwrap(), None);
        assert_eq!(ids(&file, T), ["1800007200-1"]);
    }

    #[test]
    fn a_bad_line_is_reported_and_the_others_hold() {
        let (dir, file) = place();
        file.add(new(&["gn1"], 4), T).unwrap();
        let path = dir.path().join("silences.jsonl");
        let good = fs::read_to_string(&path).unwrap();
        let bad = [
            "{\"id\": ",
            "\u{feff}",
            &good.trim().replace("gn1", "gn*1"),
            &good.trim().replace("\"nodes\":[\"gn1\"],", ""),
            &good.trim().replace("new fans", "a\\nb"),
            &good.trim().replace("\"by\":", "\"reservations\":\"r\",\"by\":"),
        ];
        fs::write(&path, format!("{}\n\n{good}", bad.join("\n"))).unwrap();
        let found = file.read(T).unwrap();
        assert_eq!((found.silences.len(), found.problems.len()), (1, bad.len()), "{found:?}");
        assert!(found.problems[0].contains("silences.jsonl:1: EOF while parsing"), "{found:?}");
        assert!(found.problems[2].contains("silences.jsonl:3: nodes: 'gn*1' is not the name"), "{found:?}");
        // What an admin wrote by hand is not removed.
        file.add(new(&["gn2"], 4), T).unwrap();
        assert_eq!(file.read(T).unwrap().problems.len(), bad.len());
    }

    #[test]
    fn a_link_a_large_file_and_a_file_that_others_can_write_are_refused() {
        let (dir, file) = place();
        let path = dir.path().join("silences.jsonl");
        file.add(new(&["gn1"], 4), T).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(matches!(file.read(T), Err(SilencesError::Untrusted(_))));
        fs::write(&path, vec![b'x'; (4 << 20) + 1]).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(file.read(T).unwrap_err().to_string().contains("more than 4194304 bytes"));
        // A link to a device, which would have no end.
        fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(file.read(T).is_err());
        let elsewhere = SilenceFile::beside(Path::new("/no/such/directory/fleet.db"));
        assert!(elsewhere.read(T).unwrap_err().to_string().starts_with("/no: "));
    }

    #[test]
    fn what_is_not_a_silence_is_refused() {
        let (_dir, file) = place();
        for (wrong, part) in [
            (new(&[], 4), "needs nodes, a check or a reservation"),
            (new(&["gn1"], 0), "0s is not within 1m to 90days"),
            (new(&["gn1"], 3000), "is not within 1m to 90days"),
            (new(&["gn\u{1b}"], 4), "is not the name of a node"),
            (NewSilence { reason: " ".to_owned(), ..new(&["gn1"], 4) }, "reason: needs 1 to 200"),
            (NewSilence { by: "a\nb".to_owned(), ..new(&["gn1"], 4) }, "by: needs 1 to 100"),
            (NewSilence { check: Some("a b".to_owned()), ..new(&["gn1"], 4) }, "check: is not the id"),
            (
                NewSilence { reservation: Some("a,b".to_owned()), ..new(&["gn1"], 4) },
                "reservation: is not the name",
            ),
        ] {
            let why = file.add(wrong, T).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(file.read(T).unwrap(), FleetSilences::default());
    }

    #[test]
    fn silences_of_the_file_stand_beside_those_of_the_configuration() {
        let (_dir, file) = place();
        file.add(new(&["gn1"], 4), T).unwrap();
        let text = "[silences.row7]\nnodes = ['gn7*']\nuntil = '2026-12-01T08:00:00Z'\nreason = 'fans'\n";
        let config: AlertsConfig = toml::from_str(text).unwrap();
        let both = file.read(T).unwrap().with(&config);
        assert_eq!(both.silences.keys().collect::<Vec<_>>(), ["fleet 1800000000-1", "row7"]);
        assert_eq!(both.silences["fleet 1800000000-1"].nodes, ["gn1"]);
    }
}
