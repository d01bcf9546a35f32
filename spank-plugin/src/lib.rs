//! `spank_railgate.so`: only the entry points that Slurm calls.
//!
//! Each exported hook needs a reason, since each has a cost: a job prolog or epilog symbol makes slurmd start one
//! more process per job, and all of this code runs in processes of others. There is one file for each context in
//! which Slurm calls the plugin:
//!
//! | Slurm context | process | file |
//! |---|---|---|
//! | local, allocator | srun, sbatch, salloc | `submit.rs` |
//! | remote | slurmstepd and, after the fork, the task | `remote.rs`, `after_step.rs` |
//! | slurmd, job script | slurmd | none |
//!
//! Every hook returns 0, so that a failure of railgate never breaks a job.
#![allow(unsafe_code, reason = "Slurm's plugin interface is C")]

mod after_step;
mod arguments;
mod before_script;
mod child;
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

/// The plugin's name, which is also part of the variables that carry its options.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks the symbol up by this name")]
pub static plugin_name: [u8; 9] = *b"railgate\0";

/// The plugin's type.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks the symbol up by this name")]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The Slurm release that it was built for; Slurm refuses a plugin of another release.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks the symbol up by this name")]
pub static plugin_version: c_uint = include!(concat!(env!("OUT_DIR"), "/version.rs"));

/// Registers the options in every context in which Slurm parses or forwards them.
///
/// # Safety
/// Called by Slurm, with a handle and arguments that are valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(spank: spank_t, argc: c_int, argv: *const *const c_char) -> c_int {
    guard::guarded("init", || {
        with_handle(spank, argc, argv, |handle, arguments| {
            // This must come first: where the option is not registered, Slurm refuses a job that uses it.
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

/// On the submit host: passes the chosen options on to the scripts of slurmd and slurmctld. In slurmstepd: reads the
/// prolog's files while the node's file system is still visible.
///
/// # Safety
/// Called by Slurm, with a handle and arguments that are valid during the call.
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

/// In each task, as the user, shortly before its program starts: sets the task's environment.
///
/// # Safety
/// Called by Slurm, with a handle and arguments that are valid during the call.
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

/// In slurmstepd, when a task has ended: remembers that one failed.
///
/// # Safety
/// Called by Slurm, with a handle and arguments that are valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_exit(
    spank: spank_t,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    guard::guarded("task_exit", || {
        with_handle(spank, argc, argv, |handle, arguments| {
            arguments.panic_if("task_exit");
            after_step::note_end(handle);
        });
    })
}

/// In slurmstepd, when all tasks have ended: after a failed step of `railgate launch`, checks the node.
///
/// # Safety
/// Called by Slurm, with a handle and arguments that are valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_exit(spank: spank_t, argc: c_int, argv: *const *const c_char) -> c_int {
    guard::guarded("exit", || {
        with_handle(spank, argc, argv, |handle, arguments| {
            arguments.panic_if("exit");
            if matches!(handle.context(), Ok(Context::Remote)) {
                after_step::check_node(handle, arguments);
            }
        });
    })
}

fn with_handle(
    spank: spank_t,
    argc: c_int,
    argv: *const *const c_char,
    work: impl FnOnce(&SpankHandle<'_>, &Arguments),
) {
    // The crate's own option support is not used: it cannot validate values.
    let mut cache = OptionCache::default();
    let handle = init_spank_handle(spank, argc, argv, &mut cache);
    let arguments = Arguments::read(handle.plugin_argv().unwrap_or_default());
    work(&handle, &arguments);
}
