//! Calls every hook of the plugin without Slurm: this executable exports the functions that Slurm provides, loads the built `.so`
//! and calls it as Slurm does.
#![allow(unsafe_code, reason = "it plays Slurm's part of a C interface")]
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use slurm::*;

/// The built plugin, loaded from a copy with a unique name, so that each test has its own static variables.
struct Plugin {
    library: *mut c_void,
    run_dir: tempfile::TempDir,
    arguments: Vec<CString>,
    _alone: MutexGuard<'static, ()>,
}

impl Plugin {
    fn load(context: u32) -> Plugin {
        Plugin::load_from("libspank_railgate.so", context, &[])
    }

    fn that_panics_in(hook: &str, context: u32) -> Plugin {
        Plugin::load_from("libspank_railgate_fault.so", context, &[&format!("panic={hook}")])
    }

    fn load_from(file: &str, context: u32, arguments: &[&str]) -> Plugin {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        slurm(|slurm| *slurm = Slurm { context, ..Slurm::default() });
        let run_dir = tempfile::tempdir().unwrap();
        let copy = run_dir.path().join(file);
        fs::copy(built().join(file), &copy).unwrap();
        let path = CString::new(copy.to_str().unwrap()).unwrap();
        // SAFETY: the plugin has no constructors that run code when loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
        // SAFETY: `dlerror` returns the message of this thread's last error.
        assert!(!library.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
        let run_dir_argument = format!("run_dir={}", run_dir.path().display());
        let arguments = arguments.iter().copied().chain([run_dir_argument.as_str()]);
        let arguments = arguments.map(|argument| CString::new(argument).unwrap()).collect();
        Plugin { library, run_dir, arguments, _alone: alone }
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is loaded.
        unsafe { libc::dlsym(self.library, name.as_ptr()) }
    }

    fn call(&self, hook: &str) -> c_int {
        let argv: Vec<_> = self.arguments.iter().map(|argument| argument.as_ptr()).collect();
        self.call_with(hook, c_int::try_from(argv.len()).unwrap(), argv.as_ptr())
    }

    fn call_with(&self, hook: &str, argc: c_int, argv: *const *const c_char) -> c_int {
        let symbol = self.symbol(hook);
        assert!(!symbol.is_null(), "{hook} is not exported");
        // SAFETY: this is the signature of all hooks in Slurm; the plugin only passes the handle back to this program.
        unsafe {
            let hook: Hook = std::mem::transmute::<*mut c_void, Hook>(symbol);
            hook(ptr::without_provenance_mut(8), argc, argv)
        }
    }

    /// Passes a value for an option, as Slurm does.
    fn choose(&self, option: &str, value: &str, remote: c_int) -> c_int {
        let (val, callback) = slurm(|slurm| slurm.options[option]);
        let value = CString::new(value).unwrap();
        // SAFETY: the plugin registered this callback.
        unsafe { callback(val, value.as_ptr(), remote) }
    }

    fn job_dir(&self) -> PathBuf {
        self.run_dir.path().join("jobs/7/current")
    }

    /// Writes the file that the prolog leaves.
    fn prolog_left(&self, task_env: &[u8]) {
        fs::create_dir_all(self.run_dir.path().join("jobs/7/0-1/user")).unwrap();
        symlink("0-1", self.job_dir()).unwrap();
        fs::write(self.job_dir().join("task.env"), task_env).unwrap();
    }

    fn task(&self, step: u32, task: u32, env: &[(&str, &str)]) -> BTreeMap<String, String> {
        slurm(|slurm| {
            slurm.step = step;
            slurm.task = task;
            slurm.env =
                env.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())).collect();
        });
        assert_eq!(self.call("slurm_spank_task_init"), 0);
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        slurm(|slurm| slurm.env.iter().map(|(name, value)| (text(name), text(value))).collect())
    }

    fn log(&self) -> String {
        slurm(|slurm| slurm.log.join("\n"))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: no symbol of the library is used from here on.
        unsafe { libc::dlclose(self.library) };
    }
}

/// Builds both plugins and returns their directory.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let done = Command::new(cargo)
            .args(["build", "--quiet", "-p", "spank-railgate", "-p", "spank-railgate-fault"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .status()
            .unwrap();
        assert!(done.success());
        // This executable is in deps/.
        std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned()
    })
}

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const HOOKS: [&str; 5] = [
    "slurm_spank_init",
    "slurm_spank_init_post_opt",
    "slurm_spank_task_init",
    "slurm_spank_task_exit",
    "slurm_spank_exit",
];
const TASK_ENV: &[u8] = b"railgate-task-env 1\ndefault NCCL_IB_HCA==mlx5_0:1\nforce RAILGATE_X=1\n";

#[test]
fn exports_the_required_symbols_and_no_costly_hook() {
    let plugin = Plugin::load(LOCAL);
    let text = |name: &str| bytes(plugin.symbol(name).cast());
    assert_eq!(text("plugin_name"), b"railgate");
    assert_eq!(text("plugin_type"), b"spank");
    // SAFETY: Slurm reads the symbol with this type.
    let version = unsafe { *plugin.symbol("plugin_version").cast::<u32>() };
    let expected = option_env!("RAILGATE_SLURM_VERSION").map_or(Some(0x0016_0500), |_| None);
    assert!(expected.is_none_or(|expected| version == expected), "{version:#x}");
    for hook in HOOKS {
        assert!(!plugin.symbol(hook).is_null(), "{hook}");
    }
    // With the first two slurmd starts a process for each job; the others would be called without effect.
    for hook in [
        "job_prolog",
        "job_epilog",
        "local_user_init",
        "user_init",
        "task_init_privileged",
        "task_post_fork",
        "slurmd_exit",
    ] {
        assert!(plugin.symbol(&format!("slurm_spank_{hook}")).is_null(), "{hook}");
    }
}

#[test]
fn options_are_passed_from_the_submit_host_to_the_scripts() {
    for context in [LOCAL, ALLOCATOR] {
        let plugin = Plugin::load(context);
        assert_eq!(plugin.call("slurm_spank_init"), 0);
        assert_eq!(plugin.choose("railgate-gate", "full", 0), 0);
        // From an #SBATCH line, then from the command line.
        assert_eq!(plugin.choose("railgate-gate", "quick", 0), 0);
        assert_eq!(plugin.choose("railgate-requeue", "3", 0), 0);
        assert_eq!(plugin.choose("railgate-profile", "debug", 0), 0);
        assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
        let control = slurm(|slurm| slurm.control.clone());
        let expected: BTreeMap<Vec<u8>, Vec<u8>> =
            [("RAILGATE_GATE", "quick"), ("RAILGATE_PROFILE", "debug"), ("RAILGATE_REQUEUE", "3")]
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect();
        assert_eq!(control, expected);
    }
}

#[test]
fn without_an_option_nothing_is_passed_on() {
    let plugin = Plugin::load(ALLOCATOR);
    assert_eq!(plugin.call("slurm_spank_init"), 0);
    assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
    assert!(slurm(|slurm| slurm.control.is_empty()));
    assert_eq!(plugin.log(), "");
}

/// sbatch's command line is parsed by a function with tests of its own, since this executable does not have that command line.
#[test]
fn sbatch_passes_on_the_open_mode_of_the_log() {
    const CHILD: &str = "RAILGATE_TEST_IS_SBATCH";
    if std::env::var_os(CHILD).is_some() {
        let plugin = Plugin::load(ALLOCATOR);
        assert_eq!(plugin.call("slurm_spank_init"), 0);
        assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
        let told = slurm(|slurm| slurm.control.get(b"RAILGATE_OPEN_MODE".as_slice()).cloned());
        println!("told {}", told.map_or_else(String::new, |told| String::from_utf8(told).unwrap()));
        return;
    }
    built();
    for (program, mode, told) in [
        ("/usr/bin/sbatch", "append", "told append"),
        ("sbatch", "truncate", "told truncate"),
        ("sbatch", "%s%n", "told "),
        ("salloc", "append", "told "),
    ] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.arg0(program).args(["--format=pretty", "--color=never", "--test-threads=1"]);
        // The first word that is not an option: the test's name here, the script's for sbatch.
        child.args(["sbatch_passes_on_the_open_mode_of_the_log", "--nocapture"]);
        let output = child.env(CHILD, "1").env("SBATCH_OPEN_MODE", mode).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let said =
            text.lines().find_map(|line| line.split_once("told ").map(|(_, said)| format!("told {said}")));
        assert_eq!(said.as_deref(), Some(told), "{program} {mode}: {text}");
    }
}

#[test]
fn an_invalid_value_is_refused_only_on_the_submit_host() {
    let plugin = Plugin::load(ALLOCATOR);
    assert_eq!(plugin.call("slurm_spank_init"), 0);
    for (option, value) in [
        ("railgate-gate", "fast"),
        ("railgate-gate", ""),
        ("railgate-requeue", "-1"),
        ("railgate-requeue", "%s%s%n"),
        ("railgate-profiler", "sample"),
        ("railgate-profile", "../../etc/shadow"),
        ("railgate-hang", "end,after=1s"),
        ("railgate-hang", "end,after=$(id)"),
    ] {
        assert_eq!(plugin.choose(option, value, 0), -1, "{option}={value}");
        assert!(plugin.log().contains(&format!("error: railgate: --{option} takes ")), "{}", plugin.log());
        assert_eq!(plugin.choose(option, value, 1), 0, "{option}={value} in a task");
    }
    assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
    assert!(slurm(|slurm| slurm.control.is_empty()));
}

#[test]
fn messages_of_the_plugin_escape_hostile_text() {
    let hostile = "h\x1b[31m\x1b]0;x\x07\u{9b}31m\u{85}\u{202e}\u{2066}\u{2028}\u{e0041}\r\x7f\nFORGED";
    let raw = |c: char| c.is_control() || "\u{202e}\u{2066}\u{2028}\u{e0041}".contains(c);
    let plain = || {
        slurm(|slurm| {
            let shown = slurm.log.iter().filter(|line| line.contains("FORGED")).count();
            slurm.log.iter().for_each(|line| assert!(!line.chars().any(raw), "{line:?}"));
            shown
        })
    };
    let plugin = Plugin::load(ALLOCATOR);
    assert_eq!(plugin.call("slurm_spank_init"), 0);
    for option in
        ["railgate-gate", "railgate-requeue", "railgate-profiler", "railgate-profile", "railgate-hang"]
    {
        plugin.choose(option, hostile, 0);
    }
    // Slurm itself names the value.
    assert_eq!(plain(), 0);
    drop(plugin);
    let plugin = Plugin::load_from("libspank_railgate.so", SLURMD, &[hostile]);
    assert_eq!(plugin.call("slurm_spank_init"), 0);
    assert_eq!(plain(), 1);
    drop(plugin);
    for content in [hostile.to_owned(), format!("railgate-task-env 1\ndefault {hostile}=1\n")] {
        let plugin = Plugin::load(REMOTE);
        plugin.prolog_left(content.as_bytes());
        plugin.task(0, 0, &[]);
        plain();
    }
}

#[test]
fn hooks_do_nothing_in_other_contexts() {
    for context in [SLURMD, JOB_SCRIPT, 99] {
        let plugin = Plugin::load(context);
        for hook in &HOOKS[..2] {
            assert_eq!(plugin.call(hook), 0);
        }
        assert!(slurm(|slurm| slurm.options.is_empty() && slurm.control.is_empty()), "{context}");
        assert_eq!(plugin.log(), "");
    }
}

#[test]
fn an_unknown_argument_is_logged_only_by_slurmd() {
    for (context, heard) in [(SLURMD, true), (REMOTE, false), (LOCAL, false)] {
        let plugin = Plugin::load_from("libspank_railgate.so", context, &["rundir=/x", "panic=init"]);
        assert_eq!(plugin.call("slurm_spank_init"), 0);
        assert_eq!(plugin.log().contains("plugstack.conf: rundir=/x: expected"), heard, "{}", plugin.log());
        assert_eq!(plugin.log().contains("plugstack.conf: panic=init: expected"), heard, "{}", plugin.log());
    }
}

#[test]
fn a_task_gets_its_environment_and_the_first_one_records_it() {
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(TASK_ENV);
    assert_eq!(plugin.call("slurm_spank_init"), 0);
    assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
    let dir = plugin.job_dir();
    let expected = env(&[
        ("NCCL_IB_HCA", "=mlx5_0:1"),
        ("RAILGATE_JOB_DIR", dir.to_str().unwrap()),
        ("RAILGATE_SET", "NCCL_IB_HCA,RAILGATE_X"),
        ("RAILGATE_SET_NCCL_IB_HCA", "=mlx5_0:1"),
        ("RAILGATE_SET_RAILGATE_X", "1"),
        ("RAILGATE_X", "1"),
    ]);
    assert_eq!(plugin.task(0, 1, &[]), expected);
    assert!(!dir.join("user/env.0").exists());
    assert_eq!(plugin.task(0, 0, &[]), expected);
    let noted = fs::read_to_string(dir.join("user/env.0")).unwrap();
    assert_eq!(noted, "railgate-env-used 1\nrailgate NCCL_IB_HCA==mlx5_0:1\nrailgate RAILGATE_X=1\n");

    let own = plugin.task(1, 0, &[("NCCL_IB_HCA", "mine")]);
    assert_eq!((own["NCCL_IB_HCA"].as_str(), own["RAILGATE_KEPT"].as_str()), ("mine", "NCCL_IB_HCA"));
    let noted = fs::read_to_string(dir.join("user/env.1")).unwrap();
    assert_eq!(noted, "railgate-env-used 1\nuser NCCL_IB_HCA=mine\nrailgate RAILGATE_X=1\n");
    assert_eq!(plugin.log(), "");
}

#[test]
fn many_steps_do_not_fill_the_jobs_directory() {
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(TASK_ENV);
    for step in 0..200 {
        assert!(plugin.task(step, 0, &[]).contains_key("NCCL_IB_HCA"));
    }
    assert_eq!(fs::read_dir(plugin.job_dir().join("user")).unwrap().count(), 64);
}

#[test]
fn values_of_the_users_nccl_conf_are_kept() {
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(TASK_ENV);
    let home = plugin.run_dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let has = |variables: &[(&str, &str)]| plugin.task(0, 1, variables).contains_key("NCCL_IB_HCA");
    let at_home = [("HOME", home.to_str().unwrap())];
    assert!(has(&at_home));
    fs::write(home.join("real.conf"), "# mine\nNCCL_IB_HCA=mlx5_7\n").unwrap();
    // Read with the user's rights, so links are followed, as NCCL does.
    symlink("real.conf", home.join(".nccl.conf")).unwrap();
    assert!(!has(&at_home));
    assert_eq!(plugin.task(0, 1, &at_home)["RAILGATE_KEPT"], "NCCL_IB_HCA");
    let elsewhere = home.join("real.conf");
    assert!(!has(&[("NCCL_CONF_FILE", elsewhere.to_str().unwrap())]));
    assert!(!has(&[("HOME", at_home[0].1), ("NCCL_CONF_FILE", "")]));
    for other in ["/nowhere", "real.conf", "/dev/zero"] {
        assert!(has(&[("HOME", at_home[0].1), ("NCCL_CONF_FILE", other)]), "{other}");
    }
    assert_eq!(plugin.log(), "");
}

#[test]
fn a_foreign_network_plugin_keeps_its_variables() {
    let plugin = Plugin::load(REMOTE);
    let file = b"railgate-task-env 2\nnet ib\ndefault;net=ib,sharp NCCL_IB_HCA==mlx5_0:1\ndefault X=1\n";
    plugin.prolog_left(file);
    let names = |variables: &[(&str, &str)]| {
        let task = plugin.task(0, 1, variables);
        (task["RAILGATE_NET"].clone(), task["RAILGATE_SET"].clone())
    };
    assert_eq!(names(&[]), ("ib".to_owned(), "NCCL_IB_HCA,X".to_owned()));
    assert_eq!(names(&[("NCCL_NET", "AWS Libfabric")]), ("ofi".to_owned(), "X".to_owned()));
}

#[test]
fn a_task_in_a_container_gets_the_environment_read_by_slurmstepd() {
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(b"railgate-task-env 1\ndefault NCCL_IB_HCA==mlx5_0:1\ndefault A=1\ndefault B=1\n");
    slurm(|slurm| slurm.env = [(b"B".to_vec(), b"mine".to_vec())].into());
    assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
    // The container hides the node's files, and its image sets variables.
    let hidden = plugin.run_dir.path().join("hidden");
    fs::rename(plugin.run_dir.path().join("jobs"), &hidden).unwrap();
    let task = plugin.task(0, 0, &[("B", "mine"), ("A", "image")]);
    assert_eq!((task["NCCL_IB_HCA"].as_str(), task["A"].as_str()), ("=mlx5_0:1", "image"));
    assert_eq!(task["RAILGATE_SET"], "NCCL_IB_HCA");
    let noted = fs::read_to_string(hidden.join("7/0-1/user/env.0")).unwrap();
    assert_eq!(noted, "railgate-env-used 1\nrailgate NCCL_IB_HCA==mlx5_0:1\nimage A=image\nuser B=mine\n");
    // Another step has its own slurmstepd.
    assert!(!plugin.task(1, 0, &[]).contains_key("NCCL_IB_HCA"));
    assert_eq!(plugin.log(), "");
}

#[test]
fn the_extern_step_is_not_changed() {
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(TASK_ENV);
    assert!(plugin.task(EXTERN, 0, &[]).is_empty());
    assert!(plugin.task(BATCH, 0, &[]).contains_key("NCCL_IB_HCA"));
}

#[test]
fn without_the_prologs_file_the_environment_is_not_changed() {
    let plugin = Plugin::load(REMOTE);
    let had = [("NCCL_IB_HCA", "x"), ("RAILGATE_SET", "NCCL_IB_HCA"), ("RAILGATE_SET_NCCL_IB_HCA", "x")];
    assert_eq!(plugin.task(0, 0, &had), env(&had));
    assert_eq!(plugin.log(), "");
}

#[test]
fn a_damaged_file_changes_nothing_and_is_named() {
    for content in [
        b"".to_vec(),
        b"#!/bin/sh\n".to_vec(),
        b"railgate-task-env 3\ndefault A=1\n".to_vec(),
        b"railgate-task-env 2\ndefault;if=x A=1\n".to_vec(),
        b"railgate-task-env 1\ndefault A=1\ndefault LD-PRELOAD=x\n".to_vec(),
        b"railgate-task-env 1\ndefault A=\xff\n".to_vec(),
        [b"railgate-task-env 1\n".to_vec(), b"default A=1\n".repeat(50_000)].concat(),
    ] {
        let plugin = Plugin::load(REMOTE);
        plugin.prolog_left(&content);
        assert!(plugin.task(0, 0, &[]).is_empty());
        assert!(plugin.log().contains("task.env: "), "{}", plugin.log());
    }
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(TASK_ENV);
    let file = plugin.job_dir().join("task.env");
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(plugin.task(0, 0, &[]).is_empty(), "a FIFO is not read and does not block");
    fs::remove_file(&file).unwrap();
    symlink("/etc/hostname", &file).unwrap();
    assert!(plugin.task(0, 0, &[]).is_empty());
}

#[test]
fn entries_in_the_users_directory_are_not_followed_or_overwritten() {
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(TASK_ENV);
    let user = plugin.job_dir().join("user");
    let elsewhere = plugin.run_dir.path().join("elsewhere");
    symlink(&elsewhere, user.join("env.0")).unwrap();
    fs::write(user.join("env.1"), "theirs").unwrap();
    fs::create_dir(user.join("env.2")).unwrap();
    nix::unistd::mkfifo(&user.join("env.3"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for step in 0..4 {
        assert!(plugin.task(step, 0, &[]).contains_key("NCCL_IB_HCA"));
    }
    assert!(!elsewhere.exists());
    assert_eq!(fs::read_to_string(user.join("env.1")).unwrap(), "theirs");
    fs::remove_dir_all(&user).unwrap();
    assert!(plugin.task(4, 0, &[]).contains_key("NCCL_IB_HCA"), "no directory at all");
}

#[test]
fn hooks_succeed_if_slurms_functions_return_errors() {
    for context in [LOCAL, ALLOCATOR, REMOTE, SLURMD, JOB_SCRIPT] {
        let plugin = Plugin::load(context);
        plugin.prolog_left(TASK_ENV);
        slurm(|slurm| slurm.broken = true);
        for hook in HOOKS {
            assert_eq!(plugin.call(hook), 0, "{hook} in {context}");
        }
    }
}

#[test]
fn hooks_succeed_without_arguments() {
    let plugin = Plugin::load(LOCAL);
    for hook in HOOKS {
        assert_eq!(plugin.call_with(hook, 0, ptr::null()), 0);
    }
}

#[test]
fn a_large_environment_and_unusual_bytes_are_handled() {
    let plugin = Plugin::load(REMOTE);
    plugin.prolog_left(TASK_ENV);
    let large = "x".repeat(100_000);
    let task = plugin.task(0, 0, &[("NCCL_IB_HCA", &large), ("RAILGATE_SET", &",".repeat(100_000))]);
    assert_eq!(task["NCCL_IB_HCA"], large);
    slurm(|slurm| {
        slurm.env =
            [(b"NCCL_IB_HCA".to_vec(), b"\xff\xfe\n".to_vec()), (b"RAILGATE_SET".to_vec(), vec![0xff])]
                .into();
        slurm.step = 1;
    });
    assert_eq!(plugin.call("slurm_spank_task_init"), 0);
    assert_eq!(slurm(|slurm| slurm.env[b"NCCL_IB_HCA".as_slice()].clone()), b"\xff\xfe\n");
    let noted = fs::read_to_string(plugin.job_dir().join("user/env.1")).unwrap();
    assert!(noted.contains("user NCCL_IB_HCA=???\n"), "{noted}");
}

#[test]
fn a_panic_in_a_hook_is_contained_and_later_hooks_work() {
    for (hook, place) in [
        ("slurm_spank_init", "init"),
        ("slurm_spank_init_post_opt", "init_post_opt"),
        ("slurm_spank_task_init", "task_init"),
        ("slurm_spank_task_exit", "task_exit"),
        ("slurm_spank_exit", "exit"),
    ] {
        let mut plugin = Plugin::that_panics_in(place, LOCAL);
        plugin.prolog_left(TASK_ENV);
        for _ in 0..3 {
            assert_eq!(plugin.call(hook), 0);
        }
        for hook in HOOKS {
            assert_eq!(plugin.call(hook), 0);
        }
        let log = plugin.log();
        assert!(log.contains("error: railgate: internal error, the job continues without it: "), "{log}");
        // In the same process without the fault: no lock was left poisoned.
        plugin.arguments.remove(0);
        assert_eq!(plugin.call("slurm_spank_init"), 0);
        assert_eq!(plugin.choose("railgate-gate", "full", 0), 0);
        assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
        assert_eq!(slurm(|slurm| slurm.control.len()), 1);
        slurm(|slurm| slurm.context = REMOTE);
        assert!(plugin.task(0, 0, &[]).contains_key("NCCL_IB_HCA"));
    }
}

#[test]
fn a_panic_in_an_option_callback_refuses_no_job() {
    let plugin = Plugin::that_panics_in("option", ALLOCATOR);
    assert_eq!(plugin.call("slurm_spank_init"), 0);
    let options: BTreeSet<String> = slurm(|slurm| slurm.options.keys().cloned().collect());
    assert_eq!(options.len(), 5);
    for option in &options {
        assert_eq!(plugin.choose(option, "whatever", 0), 0);
    }
    assert_eq!(plugin.call("slurm_spank_init_post_opt"), 0);
    assert!(plugin.log().contains("internal error"), "{}", plugin.log());
}
