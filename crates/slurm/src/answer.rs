//! Parsers for the output of `scontrol` and `sinfo`. Job names, paths and comments are unquoted in it and may contain
//! anything, even text that looks like a field. A field that occurs twice is therefore rejected.

mod job;
mod listed;
mod node;
mod owner;
mod sinfo;
mod standing;
mod waiting;

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

pub use job::JobState;
pub(crate) use job::{jobs, runs_on};
pub use listed::ListedJob;
pub(crate) use listed::{SACCT_FORMAT, listed, squeue_format};
pub(crate) use node::node;
pub use node::{NodeReason, NodeState};
pub use owner::{OwnersView, Refusable};
pub(crate) use owner::{owners_view, refusable};
pub use sinfo::HeldNode;
pub(crate) use sinfo::{COMMENTS_FORMAT, SINFO_FORMAT, SinfoLine, comments, held_nodes, is_held, sinfo_line};
pub use standing::JobStanding;
pub(crate) use standing::{STANDING_FORMAT, accounted, standings};
pub use waiting::WaitingJob;
pub(crate) use waiting::{WAITING_FORMAT, waiting};

/// Seconds since the Unix epoch.
pub type UnixSeconds = u64;

/// Year and month of `slurm-wlm 22.05.8`, the output of `-V`.
pub(crate) fn release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split_whitespace().next_back()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The fields of a line of `squeue -O`, and what follows them. squeue pads and cuts each field to its width.
fn columns<const N: usize>(line: &str, widths: [usize; N]) -> ([&str; N], &str) {
    let mut rest = line;
    let fields = widths.map(|width| {
        let (field, more) = rest.split_at_checked(width).unwrap_or((rest, ""));
        rest = more;
        field.trim_end()
    });
    (fields, rest)
}

/// Fields of [`numbered_steps`] for `squeue -s -O`.
pub(crate) const STEPS_FORMAT: &str = "jobid:16,stepid:64";

/// The steps of some jobs with a number: `14.6`, not `14.batch`. squeue also lists those of the other members of an array
/// if it is asked for the member whose id is that of the array.
pub(crate) fn numbered_steps(text: &str, jobs: &[u32]) -> Vec<String> {
    let number = |step: &str| step.rsplit_once('.').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
    let step = |line: &str| {
        let (job, step) = line.split_once(' ')?;
        let step = step.trim();
        (jobs.contains(&job.parse().ok()?) && number(step)).then(|| step.to_owned())
    };
    text.lines().filter_map(step).collect()
}

/// Parses `scontrol show config`: keys and values; numbered keys also as one list.
pub(crate) fn config(text: &str) -> BTreeMap<String, String> {
    let mut config: BTreeMap<String, String> = BTreeMap::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let (key, value) = (key.trim(), value.trim());
        config.insert(key.to_owned(), value.to_owned());
        if let Some((name, _)) = key.split_once('[').filter(|(_, number)| number.ends_with(']')) {
            let list = config.entry(name.to_owned()).or_default();
            if !list.is_empty() {
                list.push(',');
            }
            list.push_str(value);
        }
    }
    config
}

/// Value of the first occurrence of a key.
fn first<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Value of a key that must not occur twice.
fn only<'a>(text: &'a str, key: &str) -> Result<Option<&'a str>, String> {
    let mut values = text.split(' ').filter_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    match (values.next(), values.next()) {
        (_, Some(_)) => {
            Err(format!("{key} appears twice in the answer (a name or path that looks like it?)"))
        }
        (value, None) => Ok(value),
    }
}

/// Parses `2026-11-21T02:01:38`, in UTC because the commands run with TZ=UTC.
pub(crate) fn time(text: &str) -> Option<UnixSeconds> {
    // The parser below would also accept other forms.
    let exact = text.len() == 19 && text.as_bytes().get(10) == Some(&b'T');
    let time = exact.then(|| humantime::parse_rfc3339_weak(text).ok())??;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Parses `1-02:03:04`, `10:00`, `30`; `None` for `UNLIMITED` and everything else.
fn duration(text: &str) -> Option<Duration> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (days.parse::<u64>().ok()?, rest),
        None => (0, text),
    };
    let parts: Vec<u64> = rest.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let seconds = match parts.as_slice() {
        [hours, minutes, seconds] => hours * 3600 + minutes * 60 + seconds,
        [minutes, seconds] => minutes * 60 + seconds,
        [minutes] => minutes * 60,
        _ => return None,
    };
    Some(Duration::from_secs(days * 86_400 + seconds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbered_and_plain_config_keys_give_the_same_list() {
        let get = |text: &str, key: &str| config(text).get(key).cloned();
        let old = "Prolog                  = /etc/slurm/prolog.d/*\nEpilog                  = (null)\n";
        assert_eq!(get(old, "Prolog").as_deref(), Some("/etc/slurm/prolog.d/*"));
        // As printed by 24.11.5 and 26.05.5.
        let new = "Configuration data as of 2026-11-21T09:54:00\nProlog[0]               = /etc/slurm/prolog.d/*\n\
                   Prolog[1]               = /etc/slurm/last\nAuthInfo                = cred_expire=5\n";
        assert_eq!(get(new, "Prolog").as_deref(), Some("/etc/slurm/prolog.d/*,/etc/slurm/last"));
        assert_eq!(get(new, "Prolog[1]").as_deref(), Some("/etc/slurm/last"));
        assert_eq!((get(new, "AuthInfo").as_deref(), get(new, "Epilog")), (Some("cred_expire=5"), None));
    }

    #[test]
    fn only_steps_with_a_number_are_listed() {
        let text = "14   14.batch  \n14   14.extern \n14   14.6  \n15  12_3.0 \n\n14   14.interactive\n";
        assert_eq!(numbered_steps(text, &[14, 15]), ["14.6", "12_3.0"]);
        assert_eq!(numbered_steps(text, &[12]), [""; 0], "the member of an array has an id of its own");
        assert_eq!(numbered_steps("", &[14]), [""; 0]);
    }

    #[test]
    fn a_release_is_parsed_to_year_and_month() {
        let answers = ["slurm-wlm 22.05.8", "slurm 23.02.7\n", "slurm 25.05.0-0rc1", "", "slurm", "22.x"];
        let releases = answers.map(release);
        assert_eq!(releases, [Some((22, 5)), Some((23, 2)), Some((25, 5)), None, None, None]);
    }

    #[test]
    fn times_and_durations_are_parsed_strictly() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00", 0),
            ("2000-02-29T00:00:00", 951_782_400),
            ("2026-11-21T02:01:38", 1_795_226_498),
        ] {
            assert_eq!(time(text), Some(seconds), "{text}");
        }
        for text in
            ["Unknown", "None", "", "2026-13-01T00:00:00", "2026-11-21 02:01:38", "2026-11-21T02:01:3x"]
        {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!(duration("00:10:00"), Some(Duration::from_secs(600)));
        assert_eq!(duration("2-01:00:00"), Some(Duration::from_secs(2 * 86_400 + 3600)));
        assert_eq!(duration("UNLIMITED"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(JobId=|NodeName=|Reason=|State=| |\\[|\\]|@|é|[a-z0-9:\\-T]){0,40}") {
            let _ = (time(&text), duration(&text));
        }
    }
}
