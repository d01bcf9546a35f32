use std::path::Path;

/// The open mode of the job's log that sbatch was given, on its command line or by `SBATCH_OPEN_MODE`. Slurm does not
/// show it later, and a job whose log would be truncated is not requeued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// A restart appends to the log.
    Append,
    /// A restart truncates the log.
    Truncate,
}

impl OpenMode {
    /// Name in the variable that carries it.
    pub fn as_str(self) -> &'static str {
        match self {
            OpenMode::Append => "append",
            OpenMode::Truncate => "truncate",
        }
    }

    fn parse(text: &[u8]) -> Option<Self> {
        match text.to_ascii_lowercase().as_slice() {
            b"a" | b"append" => Some(OpenMode::Append),
            b"t" | b"truncate" => Some(OpenMode::Truncate),
            _ => None,
        }
    }
}

/// Short options of sbatch with a value, in the same word or the next.
const SHORT_WITH_VALUE: &[u8] = b"AaBbCcDdeFGiJLMmNnopqStwx";
/// Short options without a value; `k` may have one in the same word.
const SHORT_ALONE: &[u8] = b"hHIkOQsuvVW";

/// Long options of sbatch without a value, or with one only after an equals sign.
const LONG_ALONE: &[&str] = &[
    "contiguous",
    "exclusive",
    "get-user-env",
    "help",
    "hold",
    "ignore-pbs",
    "immediate",
    "nice",
    "no-kill",
    "no-requeue",
    "overcommit",
    "oversubscribe",
    "parsable",
    "propagate",
    "quiet",
    "reboot",
    "requeue",
    "share",
    "spread-job",
    "test-only",
    "usage",
    "use-min-nodes",
    "verbose",
    "version",
    "wait",
];

/// Long options whose value may be the next word.
const LONG_WITH_VALUE: &[&str] = &[
    "account",
    "acctg-freq",
    "array",
    "batch",
    "bb",
    "bbf",
    "begin",
    "chdir",
    "cluster-constraint",
    "clusters",
    "comment",
    "constraint",
    "container",
    "container-id",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "error",
    "exclude",
    "export",
    "export-file",
    "extra",
    "extra-node-info",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "input",
    "job-name",
    "kill-on-invalid-dep",
    "licenses",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "nodefile",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "ntasks-per-socket",
    "open-mode",
    "output",
    "partition",
    "power",
    "prefer",
    "priority",
    "profile",
    "qos",
    "railgate-gate",
    "railgate-profile",
    "railgate-profiler",
    "railgate-requeue",
    "reservation",
    "segment",
    "signal",
    "sockets-per-node",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "tres-per-task",
    "uid",
    "wckey",
    "wrap",
];

/// The open mode in `/proc/self/cmdline` and `SBATCH_OPEN_MODE`. `None` if neither sets it, the program is not
/// sbatch, or it is ambiguous: an unknown option may have taken the next word as its value.
pub fn told_open_mode(cmdline: &[u8], variable: Option<&[u8]>) -> Option<OpenMode> {
    let mut words = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|byte| *byte == 0);
    let program = std::str::from_utf8(words.next()?).ok()?;
    if Path::new(program).file_name()? != "sbatch" {
        return None;
    }
    match of_words(words) {
        Ok(Some(mode)) => Some(mode),
        // The command line takes precedence.
        Ok(None) => OpenMode::parse(variable?),
        Err(Unclear) => None,
    }
}

struct Unclear;

/// The last occurrence counts; the script's name ends the options.
fn of_words<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Option<OpenMode>, Unclear> {
    let mut mode = None;
    while let Some(word) = words.next() {
        if word == b"--" || word == b"-" || !word.starts_with(b"-") {
            break;
        }
        let Some(long) = word.strip_prefix(b"--") else {
            short(&word[1..], &mut words)?;
            continue;
        };
        let long = std::str::from_utf8(long).map_err(|_| Unclear)?;
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.as_bytes())),
            None => (long, None),
        };
        // getopt also accepts unambiguous prefixes; `--o` would match several options.
        if name.len() >= 2 && "open-mode".starts_with(name) {
            let value = value.or_else(|| words.next()).ok_or(Unclear)?;
            mode = Some(OpenMode::parse(value).ok_or(Unclear)?);
        } else if value.is_none() && LONG_WITH_VALUE.contains(&name) {
            words.next();
        } else if value.is_none() && !LONG_ALONE.contains(&name) {
            return Err(Unclear);
        }
    }
    Ok(mode)
}

/// Handles short options: `-vN2`, `-N2`, `-N 2`.
fn short<'a>(letters: &[u8], words: &mut impl Iterator<Item = &'a [u8]>) -> Result<(), Unclear> {
    for (at, letter) in letters.iter().enumerate() {
        if SHORT_WITH_VALUE.contains(letter) {
            if at + 1 == letters.len() {
                words.next();
            }
            return Ok(());
        }
        if *letter == b'k' {
            return Ok(());
        }
        if !SHORT_ALONE.contains(letter) {
            return Err(Unclear);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: &[&str], variable: Option<&str>) -> Option<&'static str> {
        let mut cmdline = words.join("\0").into_bytes();
        cmdline.push(0);
        told_open_mode(&cmdline, variable.map(str::as_bytes)).map(OpenMode::as_str)
    }

    #[test]
    fn the_command_line_takes_precedence_over_the_variable() {
        let append = Some("append");
        for (words, variable, expected) in [
            (&["sbatch", "--open-mode=append", "job.sh"][..], None, append),
            (&["/usr/bin/sbatch", "-N", "2", "--open-mode", "APPEND", "job.sh"], None, append),
            (&["sbatch", "-vN2", "-k", "--exclusive", "--wrap", "x", "--open-m=a"], None, append),
            (&["sbatch", "--open-mode=append", "--open-mode=t", "job.sh"], None, Some("truncate")),
            (&["sbatch", "--open-mode=truncate", "job.sh"], append, Some("truncate")),
            (&["sbatch", "--gres=gpu:8", "job.sh"], append, append),
            (&["sbatch"], append, append),
            (&["sbatch", "job.sh"], Some("what"), None),
        ] {
            assert_eq!(told(words, variable), expected, "{words:?} {variable:?}");
        }
    }

    #[test]
    fn words_of_other_options_and_of_the_script_are_ignored() {
        for words in [
            &["sbatch", "job.sh", "--open-mode=append"][..],
            &["sbatch", "--exclusive", "job.sh", "--open-mode=append"],
            &["sbatch", "-J", "--open-mode=append", "job.sh"],
            &["sbatch", "--job-name", "--open-mode=append", "job.sh"],
            &["sbatch", "--", "--open-mode=append"],
            &["sbatch", "-N1", ":", "--open-mode=append", "job.sh"],
            &["salloc", "--open-mode=append"],
            &["/home/ada/sbatch.py", "--open-mode=append"],
            &[""],
        ] {
            assert_eq!(told(words, None), None, "{words:?}");
        }
    }

    #[test]
    fn an_unknown_option_makes_the_open_mode_unclear() {
        for words in [
            &["sbatch", "--site-option", "job.sh", "--open-mode=append"][..],
            &["sbatch", "-Z", "x", "--open-mode=append", "job.sh"],
            &["sbatch", "--open-mode=sometimes", "job.sh"],
            &["sbatch", "--open-mode"],
        ] {
            assert_eq!(told(words, Some("append")), None, "{words:?}");
        }
        // An unknown option with its value in the same word is unambiguous.
        assert_eq!(told(&["sbatch", "--site-option=1", "--open-mode=append", "x"], None), Some("append"));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_command_lines_do_not_panic(bytes: Vec<u8>) {
            let mut cmdline = b"sbatch\0".to_vec();
            cmdline.extend(&bytes);
            told_open_mode(&cmdline, Some(&bytes));
            told_open_mode(&bytes, None);
        }
    }
}
