//! `--railgate-profile`, `--railgate-gate`, `--railgate-requeue`, `--railgate-profiler`, `--railgate-hang`: on the command line, as
//! `#SBATCH` lines and from the environment of an outer job.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Mutex;

use railgate_rundir::{
    BadChoice, CONTROL_GATE, CONTROL_HANG, CONTROL_PROFILE, CONTROL_PROFILER, CONTROL_REQUEUE, GateChoice,
    HangChoice, ProfilerChoice, RequeueChoice,
};
use slurm_spank::LogLevel;
use slurm_spank::spank_sys::{spank_option, spank_option_register, spank_t};

use crate::arguments::Arguments;
use crate::guard;
use crate::log::log;
use crate::profiles;

struct Described {
    name: &'static CStr,
    takes: &'static CStr,
    usage: &'static CStr,
    control: &'static str,
    /// Returns the value to pass on, or a description of the valid values.
    check: fn(&str) -> Result<String, Cow<'static, str>>,
}

const OPTIONS: [Described; 5] = [
    Described {
        name: c"railgate-profile",
        takes: c"NAME",
        usage: c"[railgate] further NCCL settings by name: debug, or what the site offers",
        control: CONTROL_PROFILE,
        check: profiles::check,
    },
    Described {
        name: c"railgate-gate",
        takes: c"off|quick|full|preflight",
        usage: c"[railgate] how thoroughly nodes are checked before the job starts, within the site's policy",
        control: CONTROL_GATE,
        check: checked::<GateChoice>,
    },
    Described {
        name: c"railgate-requeue",
        takes: c"auto|never|N",
        usage: c"[railgate] whether a batch job is requeued after its node failed, within the site's policy",
        control: CONTROL_REQUEUE,
        check: checked::<RequeueChoice>,
    },
    Described {
        name: c"railgate-profiler",
        takes: c"on|off",
        usage: c"[railgate] whether NCCL's collectives are counted for the job's report, within the site's policy",
        control: CONTROL_PROFILER,
        check: checked::<ProfilerChoice>,
    },
    Described {
        name: c"railgate-hang",
        takes: c"report|notify|end[,after=TIME]",
        usage: c"[railgate] what follows when the job hangs, within the site's policy; end: its steps are ended",
        control: CONTROL_HANG,
        check: checked::<HangChoice>,
    },
];

/// Slurm's callback takes no argument of the plugin, so the value is kept in a static. One thread of srun, sbatch or
/// salloc writes and reads it; it stays usable after a panic elsewhere.
static CHOSEN: Mutex<[Option<String>; 5]> = Mutex::new([const { None }; 5]);

/// Registers the options. One that Slurm refuses is left out.
pub(crate) fn register(spank: spank_t, arguments: &Arguments) {
    let _ = arguments;
    for (option, val) in OPTIONS.iter().zip(0..) {
        let mut described = spank_option {
            name: option.name.as_ptr(),
            arginfo: option.takes.as_ptr(),
            usage: option.usage.as_ptr(),
            has_arg: 1,
            val,
            cb: Some(chosen),
        };
        #[cfg(feature = "fault-injection")]
        if arguments.panics_in("option") {
            described.val = PANICS;
        }
        // SAFETY: Slurm copies the description during the call.
        let answer = unsafe { spank_option_register(spank, &raw mut described) };
        if answer != 0 {
            let name = option.name.to_string_lossy();
            log(LogLevel::Debug, format_args!("--{name}: slurm answered {answer}"));
        }
    }
}

#[cfg(feature = "fault-injection")]
const PANICS: c_int = 1000;

/// Slurm calls this once per option and place where it occurs; the last one wins. A non-zero result makes srun,
/// sbatch and salloc refuse to submit, so it is returned for an invalid value only.
unsafe extern "C" fn chosen(val: c_int, text: *const c_char, remote: c_int) -> c_int {
    let mut wrong = None;
    guard::guarded("option", || {
        #[cfg(feature = "fault-injection")]
        #[expect(clippy::panic, reason = "the purpose of the feature")]
        if val == PANICS {
            panic!("asked to, in option");
        }
        // The submit host has validated it, and in a task it is too late to refuse.
        if remote != 0 || text.is_null() {
            return;
        }
        let Some((index, option)) = usize::try_from(val).ok().and_then(|at| Some((at, OPTIONS.get(at)?)))
        else {
            return;
        };
        // SAFETY: Slurm passes a C string that is valid during the call.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        match (option.check)(&text) {
            Ok(value) => {
                let mut chosen = CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if let Some(place) = chosen.get_mut(index) {
                    *place = Some(value);
                }
            }
            // Slurm itself prints the value.
            Err(takes) => wrong = Some(format!("--{} takes {takes}", option.name.to_string_lossy())),
        }
    });
    match wrong {
        None => 0,
        Some(message) => {
            guard::guarded("option", || log(LogLevel::Error, format_args!("{message}")));
            -1
        }
    }
}

/// The chosen options, by the name of the variable that carries them.
pub(crate) fn chosen_values() -> Vec<(&'static str, String)> {
    let chosen = CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    OPTIONS
        .iter()
        .zip(chosen.iter())
        .filter_map(|(option, value)| Some((option.control, value.clone()?)))
        .collect()
}

fn checked<T: FromStr<Err = BadChoice> + Display>(text: &str) -> Result<String, Cow<'static, str>> {
    text.parse::<T>().map(|value| value.to_string()).map_err(|why| why.0.into())
}
