//! Arguments of the plugin's line in plugstack.conf.

use slurm_spank::LogLevel;

use crate::log::log;

const RUN_DIR: &str = "/run/railgate";

/// For example `run_dir=/run/railgate`.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// Where the prolog leaves the files for the tasks.
    pub(crate) run_dir: String,
    unknown: Vec<String>,
    #[cfg(feature = "fault-injection")]
    panic: Option<String>,
}

impl Arguments {
    pub(crate) fn read(argv: Vec<&str>) -> Self {
        let mut arguments = Arguments {
            run_dir: RUN_DIR.to_owned(),
            unknown: Vec::new(),
            #[cfg(feature = "fault-injection")]
            panic: None,
        };
        for argument in argv {
            match argument.split_once('=') {
                Some(("run_dir", path)) if path.starts_with('/') => {
                    arguments.run_dir = path.trim_end_matches('/').to_owned();
                }
                #[cfg(feature = "fault-injection")]
                Some(("panic", hook)) => arguments.panic = Some(hook.to_owned()),
                _ => arguments.unknown.push(argument.to_owned()),
            }
        }
        arguments
    }

    /// Logs unknown arguments, in slurmd only and once per start, so that users do not see them.
    pub(crate) fn complain(&self) {
        for argument in &self.unknown {
            log(LogLevel::Error, format_args!("plugstack.conf: {argument}: expected run_dir=/absolute/path"));
        }
    }

    #[cfg(feature = "fault-injection")]
    #[expect(clippy::panic, reason = "the purpose of the feature")]
    pub(crate) fn panic_if(&self, hook: &str) {
        if self.panic.as_deref() == Some(hook) {
            panic!("asked to, in {hook}");
        }
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn panics_in(&self, hook: &str) -> bool {
        self.panic.as_deref() == Some(hook)
    }

    #[cfg(not(feature = "fault-injection"))]
    #[expect(clippy::unused_self, reason = "the other build needs it")]
    pub(crate) fn panic_if(&self, _hook: &str) {}
}
