//! `spank_railgate.so`: what Slurm calls, and nothing else.
//!
//! Each exported hook has a reason to exist, for each costs: a job prolog or epilog symbol makes slurmd start
//! one more process per job, and everything here lives in other people's processes. The work is in one file
//! per place where Slurm runs us:
//!
//! | Slurm context | process | file |
//! |---|---|---|
//! | local, allocator | srun, sbatch, salloc | `submit.rs` |
//! | remote | slurmstepd and, after the fork, the task | `remote.rs` |
//! | slurmd, job script | slurmd | none: nothing is done there |
//!
//! A hook returns 0 whatever happens, so that a broken railgate never breaks a job.
#![allow(unsafe_code, reason = "Slurm's plugin interface is C")]

mod arguments;
mod guard;
mod log;
mod options;
mod profiles;
mod remote;
mod submit;

use std::ffi::{c_char, c_int, c_uint};

use slurm_spank::spank_sys::spank_t;
use slurm_spank::{Context, OptionCache, SpankHandle, init_spank_handle};

use arguments::Arguments;

/// What Slurm knows the plugin by, also in the names of variables that carry its options.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks the symbol up by this name")]
pub static plugin_name: [u8; 9] = *b"railgate\0";

/// What Slurm takes it for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks the symbol up by this name")]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The release that it was built for; Slurm refuses a plugin of another.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks the symbol up by this name")]
pub static plugin_version: c_uint = include!(concat!(env!("OUT_DIR"), "/version.rs"));

/// Registers the options, wherever Slurm reads or carries them.
///
/// # Safety
/// For Slurm to call, with a handle and arguments that are valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(spank: spank_t, argc: c_int, argv: *const *const c_char) -> c_int {
    guard::guarded("init", || {
        with_handle(spank, argc, argv, |handle, arguments| {
            // First of all: a job that uses an option is refused where the option is not known.
            if matches!(handle.context(), Ok(Context::Local | Context::Allocator | Context::Remote)) {
                options::register(spank, arguments);
            }
            arguments.panic_if("init");
            if matches!(handle.context(), Ok(Context::Slurmd)) {
                arguments.complain();
            }
        });
    })
}

/// On the submit host: passes the chosen options on to the scripts of slurmd and slurmctld. In slurmstepd: reads what the
/// prolog left, while the node's files can still be seen.
///
/// # Safety
/// For Slurm to call, with a handle and arguments that are valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    spank: spank_t,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    guard::guarded("init_post_opt", || {
        with_handle(spank, argc, argv, |handle, arguments| {
            arguments.panic_if("init_post_opt");
            match handle.context() {
                Ok(Context::Local | Context::Allocator) => submit::pass_on(handle),
                Ok(Context::Remote) => remote::remember(handle, arguments),
                _ => {}
            }
        });
    })
}

/// In each task, as the user, shortly before its program starts: gives it its environment.
///
/// # Safety
/// For Slurm to call, with a handle and arguments that are valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    spank: spank_t,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    guard::guarded("task_init", || {
        with_handle(spank, argc, argv, |handle, arguments| {
            arguments.panic_if("task_init");
            remote::prepare(handle, arguments);
        });
    })
}

fn with_handle(
    spank: spank_t,
    argc: c_int,
    argv: *const *const c_char,
    work: impl FnOnce(&SpankHandle<'_>, &Arguments),
) {
    // The crate's own options, which we do not use: they cannot be validated.
    let mut cache = OptionCache::default();
    let handle = init_spank_handle(spank, argc, argv, &mut cache);
    let arguments = Arguments::read(handle.plugin_argv().unwrap_or_default());
    work(&handle, &arguments);
}
