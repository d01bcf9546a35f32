//! Syntax of sbatch's option values: the forms that every supported release of Slurm accepts. Their meaning in this
//! cluster (a partition's name, a GPU's type) is known only to Slurm.

use railgate_rundir::{GateChoice, HangChoice, ProfileName, ProfilerChoice, RequeueChoice};
use railgate_slurm::hostlist;

/// Syntax of the values of some options.
struct Form {
    options: &'static [&'static str],
    expected: &'static str,
    example: &'static str,
    fits: fn(&str) -> bool,
}

const FORMS: [Form; 18] = [
    Form { options: &["nodes"], expected: "a number, or MIN-MAX", example: "4", fits: is_range },
    Form { options: &["gres"], expected: "gpu[:TYPE][:COUNT]", example: "gpu:8", fits: is_gres },
    Form {
        options: &["cpus-per-task", "ntasks", "ntasks-per-node"],
        expected: "a number above 0",
        example: "8",
        fits: is_count,
    },
    Form {
        options: &["time"],
        expected: "MINUTES, H:MM:SS, D-H or D-H:MM:SS",
        example: "24:00:00",
        fits: is_time,
    },
    Form { options: &["mem"], expected: "a number with K, M, G or T", example: "64G", fits: is_size },
    Form {
        options: &["array"],
        expected: "task numbers, and how many run at once",
        example: "1-100%16",
        fits: is_array,
    },
    Form { options: &["signal"], expected: "[B:]SIGNAL[@SECONDS]", example: "B:USR1@300", fits: is_signal },
    Form {
        options: &["open-mode"],
        expected: "append or truncate",
        example: "append",
        fits: |value| matches!(value, "append" | "truncate"),
    },
    Form {
        options: &["dependency"],
        expected: "TYPE:JOBID, several with ','",
        example: "afterok:48213",
        fits: is_dependency,
    },
    Form {
        options: &["exclude", "nodelist"],
        expected: "a list of nodes",
        example: "gn[1-4]",
        fits: is_hostlist,
    },
    Form {
        options: &["mail-type"],
        expected: "events, several with ','",
        example: "END,FAIL",
        fits: is_mail,
    },
    Form { options: &["switches"], expected: "COUNT[@TIME]", example: "1@30:00", fits: is_switches },
    Form {
        options: &["exclusive"],
        expected: "no value, or user",
        example: "",
        fits: |value| matches!(value, "" | "user"),
    },
    Form { options: &["requeue", "no-requeue"], expected: "no value", example: "", fits: str::is_empty },
    Form {
        options: &["railgate-gate"],
        expected: "off, quick, full or preflight",
        example: "quick",
        fits: |value| value.parse::<GateChoice>().is_ok(),
    },
    Form {
        options: &["railgate-requeue"],
        expected: "auto, never or a number",
        example: "auto",
        fits: |value| value.parse::<RequeueChoice>().is_ok(),
    },
    Form {
        options: &["railgate-profiler"],
        expected: "on or off",
        example: "on",
        fits: |value| value.parse::<ProfilerChoice>().is_ok(),
    },
    Form {
        options: &["railgate-hang"],
        expected: "report, notify, end, or end,after=TIME",
        example: "end,after=10m",
        fits: |value| value.parse::<HangChoice>().is_ok(),
    },
];

/// Checks whether sbatch accepts the value. `now` is the current value of the option, if the script has it.
///
/// # Errors
/// sbatch does not accept it; the message describes the syntax, with an example.
pub(super) fn check(option: &str, value: &str, now: Option<&str>) -> Result<(), String> {
    if option == "railgate-profile" {
        return value.parse::<ProfileName>().map(drop).map_err(|why| format!("{why}, as in {option}=debug"));
    }
    if let Some(form) = FORMS.iter().find(|form| form.options.contains(&option)) {
        if (form.fits)(value) {
            return Ok(());
        }
        return Err(format!("expected {}, as in {option}={}", form.expected, form.example));
    }
    match (value.is_empty(), now) {
        (true, Some("")) | (false, _) => Ok(()),
        (true, Some(now)) => Err(format!("expected a value, as in {option}={now}")),
        (true, None) => Err(format!("expected a value, as in {option}=NAME")),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_count(text: &str) -> bool {
    is_digits(text) && text.parse::<u32>().is_ok_and(|count| count > 0 && count < 1 << 31)
}

fn is_range(text: &str) -> bool {
    match text.split_once('-') {
        None => is_count(text),
        Some((least, most)) => {
            let number = |text: &str| text.parse::<u32>().ok();
            is_count(least) && is_count(most) && number(least) <= number(most)
        }
    }
}

/// `gpu:8`, `gpu:h100:8,nvme:1`. Other names than `gpu` are defined by the site, so only a value without a valid
/// name, or a misspelled `gpu` (`8`, `gpus:8`, `gpu8`), is refused.
fn is_gres(text: &str) -> bool {
    text.split(',').all(|item| {
        let parts: Vec<&str> = item.split(':').collect();
        let (name, rest) = parts.split_first().unwrap_or((&"", &[]));
        let counted = |text: &str| {
            is_count(text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']).unwrap_or(text))
        };
        // Profiles of MIG slices (`1g.10gb`) begin with a digit.
        let is_type = |text: &str| is_word(text) && !is_digits(text);
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
        let is_name = begins && is_word(name) && (*name == "gpu" || !name.starts_with("gpu"));
        is_name
            && match rest {
                [] => true,
                [one] => counted(one) || is_type(one),
                [of_type, count] => is_type(of_type) && counted(count),
                _ => false,
            }
    })
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

fn is_time(text: &str) -> bool {
    let (days, clock) = text.split_once('-').map_or((None, text), |(days, clock)| (Some(days), clock));
    let parts: Vec<&str> = clock.split(':').collect();
    days.is_none_or(is_digits)
        && parts.len() <= 3
        && parts.iter().all(|part| is_digits(part) && part.len() < 8)
}

fn is_size(text: &str) -> bool {
    let number = text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']).unwrap_or(text);
    is_digits(number) && number.len() < 10
}

fn is_array(text: &str) -> bool {
    let (tasks, at_once) = text.split_once('%').map_or((text, None), |(tasks, most)| (tasks, Some(most)));
    let is_range = |item: &str| {
        let (range, step) = item.split_once(':').map_or((item, None), |(range, step)| (range, Some(step)));
        let ends = range.split_once('-').map_or((range, range), |ends| ends);
        let in_order = ends.0.parse::<u32>().ok() <= ends.1.parse::<u32>().ok();
        is_digits(ends.0) && is_digits(ends.1) && in_order && step.is_none_or(is_count)
    };
    at_once.is_none_or(is_count) && tasks.split(',').all(is_range)
}

fn is_signal(text: &str) -> bool {
    const NAMES: [&str; 12] =
        ["HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT", "STOP"];
    let (whom, rest) = text.split_once(':').map_or((None, text), |(whom, rest)| (Some(whom), rest));
    let (signal, before) =
        rest.split_once('@').map_or((rest, None), |(signal, before)| (signal, Some(before)));
    let name = signal.strip_prefix("SIG").unwrap_or(signal);
    // R: is for preemption, and newer releases refuse it where that is off.
    whom.is_none_or(|whom| whom == "B")
        && (NAMES.contains(&name) || is_count(signal) && signal.len() < 3)
        && before.is_none_or(|before| is_digits(before) && before.parse::<u16>().is_ok())
}

fn is_dependency(text: &str) -> bool {
    const TYPES: [&str; 5] = ["after", "afterany", "aftercorr", "afternotok", "afterok"];
    let is_job = |text: &str| {
        let id = text.split_once('_').map_or(text, |(id, task)| if is_digits(task) { id } else { "" });
        is_count(id)
    };
    text.split([',', '?']).all(|one| {
        one == "singleton"
            || one
                .split_once(':')
                .is_some_and(|(kind, jobs)| TYPES.contains(&kind) && jobs.split(':').all(is_job))
    })
}

/// The name of a file with node names contains a `/`.
fn is_hostlist(text: &str) -> bool {
    text.contains('/') || (!text.contains(' ') && hostlist::expand(text).is_ok_and(|nodes| !nodes.is_empty()))
}

fn is_mail(text: &str) -> bool {
    const EVENTS: [&str; 12] = [
        "NONE",
        "BEGIN",
        "END",
        "FAIL",
        "REQUEUE",
        "ALL",
        "INVALID_DEPEND",
        "TIME_LIMIT",
        "TIME_LIMIT_90",
        "TIME_LIMIT_80",
        "TIME_LIMIT_50",
        "ARRAY_TASKS",
    ];
    text.split(',').all(|event| EVENTS.contains(&event.to_ascii_uppercase().as_str()))
}

fn is_switches(text: &str) -> bool {
    let (count, time) = text.split_once('@').map_or((text, None), |(count, time)| (count, Some(time)));
    is_count(count) && time.is_none_or(is_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_sbatch_accepts_are_accepted() {
        for (option, values) in [
            ("nodes", &["1", "2-4"][..]),
            (
                "gres",
                &["gpu", "gpu:8", "gpu:h100", "gpu:h100:8", "gpu:1g.10gb:2", "gpu:8,nvme:1", "tmpdisk:100G"],
            ),
            ("cpus-per-task", &["1", "64"]),
            ("time", &["30", "90:00", "24:00:00", "2-0", "2-12:30", "1-00:00:00"]),
            ("mem", &["0", "64000", "64G", "1T"]),
            ("array", &["1", "0-7", "1-100%16", "1,3,5-9:2"]),
            ("signal", &["USR1", "SIGUSR1", "10", "B:USR1@300", "USR1@0"]),
            ("open-mode", &["append", "truncate"]),
            (
                "dependency",
                &["singleton", "afterok:12", "afterok:12:13,afterany:14", "after:12?aftercorr:7_3"],
            ),
            ("exclude", &["gn1", "gn[1-4,7]", "./bad-nodes"]),
            ("mail-type", &["END,FAIL", "all", "TIME_LIMIT_80"]),
            ("switches", &["1", "1@30:00"]),
            ("exclusive", &["", "user"]),
            ("requeue", &[""]),
            ("railgate-gate", &["off", "full"]),
            ("railgate-requeue", &["auto", "never", "3"]),
            ("railgate-profiler", &["on", "off"]),
            ("railgate-hang", &["report", "end", "end,after=10m"]),
            ("railgate-profile", &["debug"]),
            ("partition", &["h100"]),
        ] {
            for value in values {
                assert_eq!(check(option, value, None), Ok(()), "{option}={value}");
            }
        }
    }

    #[test]
    fn invalid_values_are_refused_with_the_key_and_an_example() {
        for (option, values) in [
            ("nodes", &["", "0", "four", "-1", "4-2", "1-", "2 "][..]),
            (
                "gres",
                &[
                    "",
                    "8",
                    "gpus:8",
                    "gpu8",
                    "gpu:",
                    "gpu:h100:",
                    "gpu:h100:x",
                    "gpu:0",
                    "gpu=8",
                    "gpu:8,",
                    "gpu:a:b:8",
                ],
            ),
            ("ntasks-per-node", &["", "0", "x", "99999999999"]),
            ("time", &["", "24h", "1:2:3:4", "1-2-3", "-1", ":30"]),
            ("mem", &["", "64 GB", "G", "lots"]),
            ("array", &["", "1-", "1..8", "8-1", "1%", "1-8%0", "a"]),
            ("signal", &["", ":USR1", "X:USR1@5", "USR9", "USR1@", "USR1@99999"]),
            ("open-mode", &["", "write"]),
            ("dependency", &["", "48213", "afterok", "afterok:", "afterok:x"]),
            ("exclude", &["", "gn[1-", "gn1 gn2"]),
            ("mail-type", &["", "always"]),
            ("switches", &["", "0", "1@"]),
            ("exclusive", &["yes"]),
            ("requeue", &["yes"]),
            ("railgate-gate", &["", "fast"]),
            ("railgate-requeue", &["", "always"]),
            ("railgate-profiler", &["", "yes"]),
            ("railgate-hang", &["", "yes", "end,after=1s"]),
            ("railgate-profile", &["", "../x"]),
        ] {
            for value in values {
                let why = check(option, value, None).expect_err(&format!("{option}={value}"));
                assert!(why.starts_with("expected ") && why.contains(&format!("as in {option}=")), "{why}");
            }
        }
        let why = check("job-name", "", Some("train"));
        assert_eq!(why.unwrap_err(), "expected a value, as in job-name=train");
    }
}
