use std::fmt;

use serde::{Deserialize, Serialize};

use crate::UnixMillis;

/// A process that runs a rank of a job, as its environment states it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProcess {
    /// `RANK` of a launcher, else `SLURM_PROCID`.
    pub rank: u32,
    /// Step: `0`, `batch`; empty if unknown.
    pub step: String,
    /// `RAILGATE_START`, if it is set: which start of the step inside the attempt.
    pub start: Option<String>,
    /// Process id on the node.
    pub pid: u32,
    /// When it began, clock ticks after the boot: with the process id it identifies the process.
    pub ticks: u64,
    /// When it began; `None` if the clock could not be read.
    pub began: Option<UnixMillis>,
    /// NCCL or CUDA is mapped: the program itself, not a shell that started it.
    pub gpu: bool,
    /// It starts processes of other ranks, as torchrun does, and is no rank: `rank` is Slurm's.
    #[serde(default)]
    pub launcher: bool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessExit {
    /// It returned an exit code, 0 to 255.
    Code(u8),
    /// A signal ended it.
    Signal(u8),
    /// It ended, and the kernel did not tell how.
    Unknown,
}

impl ProcessExit {
    /// From a wait status, as `waitpid` returns it.
    pub fn of_status(status: i32) -> Self {
        let [low, high, ..] = status.to_le_bytes();
        match low & 0x7f {
            0 => ProcessExit::Code(high),
            signal => ProcessExit::Signal(signal),
        }
    }

    /// Whether it ended with an error; `false` if that is not known.
    pub fn is_error(self) -> bool {
        !matches!(self, ProcessExit::Code(0) | ProcessExit::Unknown)
    }
}

/// As the rest of a sentence: `ended with exit code 3`, `was ended by SIGKILL (signal 9)`.
impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ProcessExit::Code(code) => write!(f, "ended with exit code {code}"),
            ProcessExit::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "was ended by {name} (signal {signal})"),
                None => write!(f, "was ended by signal {signal}"),
            },
            ProcessExit::Unknown => f.write_str("ended (its exit code could not be read)"),
        }
    }
}

/// Signals that end a process unless it handles them.
fn signal_name(signal: u8) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_a_code_or_a_signal() {
        for (status, exit, said) in [
            (0, ProcessExit::Code(0), "ended with exit code 0"),
            (3 << 8, ProcessExit::Code(3), "ended with exit code 3"),
            (255 << 8, ProcessExit::Code(255), "ended with exit code 255"),
            (9, ProcessExit::Signal(9), "was ended by SIGKILL (signal 9)"),
            // With a core dump.
            (0x80 | 6, ProcessExit::Signal(6), "was ended by SIGABRT (signal 6)"),
            (35, ProcessExit::Signal(35), "was ended by signal 35"),
        ] {
            assert_eq!(ProcessExit::of_status(status), exit);
            assert_eq!(exit.to_string(), said);
        }
        assert!(ProcessExit::Signal(9).is_error() && !ProcessExit::Unknown.is_error());
    }
}
