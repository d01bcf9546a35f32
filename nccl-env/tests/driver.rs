//! A stand-in for NCCL: loads the built library by its path and calls it through tables with the layout of NCCL's
//! headers `env_v1.h` and `env_v2.h`, defined here independently. The environment belongs to the whole process, so
//! each scene runs in its own process.
#![allow(unsafe_code, reason = "it plays NCCL's part of a C interface")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests stand outside of test functions")]

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::OnceLock;

use railgate_model::Net;
use railgate_rundir::{NcclEnv, ReleaseSetting};

/// `ncclEnv_v1_t`: name, init, finalize, getEnv.
#[repr(C)]
struct V1 {
    name: *const c_char,
    init: unsafe extern "C" fn(u8, u8, u8, *const c_char) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    get_env: unsafe extern "C" fn(*const c_char) -> *const c_char,
}

/// `ncclEnv_v2_t`: the same with a logger.
#[repr(C)]
struct V2 {
    name: *const c_char,
    init: unsafe extern "C" fn(u8, u8, u8, *const c_char, *const c_void) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    get_env: unsafe extern "C" fn(*const c_char) -> *const c_char,
}

/// Variable with the actions of a scene; without it the process is the test harness.
const SCENE: &str = "RAILGATE_TEST_SCENE";
const LIBRARY: &str = "RAILGATE_TEST_LIBRARY";

/// Builds the library and returns its path.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "-p", "nccl-env-railgate"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(command.status().unwrap().success());
        // This executable is in deps/.
        std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("libnccl_env_railgate.so")
    })
}

/// Runs a scene in its own process and returns its standard output.
fn scene(words: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "plays"]).env(SCENE, words).env(LIBRARY, library());
    for name in ["RAILGATE_JOB_DIR", "RAILGATE_NET", "NCCL_IB_HCA", "NCCL_X"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said.lines()
        .filter_map(|line| line.strip_prefix("> "))
        .fold(String::new(), |text, line| text + line + "\n")
}

unsafe extern "C" fn log(
    _: c_int,
    flags: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: C strings; the plugin passes exactly one text.
    let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
    println!("> log {flags:#x} {} {}", format.to_str().unwrap(), text.to_str().unwrap());
}

/// In the scene's own process: each word is a release to start with, `v1 2.28.9` or `v2 2.30.7`, or `get NAME`, `set
/// NAME=VALUE`, `end`, or `held`, which prints the earlier results again.
#[test]
fn plays() {
    let Some(words) = std::env::var_os(SCENE) else { return };
    let path = CString::new(std::env::var(LIBRARY).unwrap()).unwrap();
    // SAFETY: the library runs no code when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    // SAFETY: the text of the last error in this thread.
    assert!(!library.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
    // SAFETY: the library is loaded.
    let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let (v1, v2) = (symbol(c"ncclEnvPlugin_v1"), symbol(c"ncclEnvPlugin_v2"));
    assert!(!v1.is_null() && !v2.is_null());
    // SAFETY: the tables have NCCL's layout.
    let (v1, v2) = unsafe { (&*v1.cast::<V1>(), &*v2.cast::<V2>()) };
    // SAFETY: static names of the plugin.
    let names = unsafe { [CStr::from_ptr(v1.name), CStr::from_ptr(v2.name)] };
    assert_eq!(names, [c"railgate", c"railgate"]);
    let mut held: Vec<*const c_char> = Vec::new();
    for step in words.to_str().unwrap().split("; ") {
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        let release = || {
            let numbers: Vec<u8> = rest.split('.').map(|number| number.parse().unwrap()).collect();
            (numbers[0], numbers[1], numbers[2])
        };
        let show = |answer: *const c_char| match answer.is_null() {
            true => "null".to_owned(),
            // SAFETY: not null: a C string of the plugin or of the environment.
            false => unsafe { CStr::from_ptr(answer) }.to_str().unwrap().to_owned(),
        };
        match word {
            "v1" => {
                let (major, minor, patch) = release();
                // SAFETY: as NCCL calls it.
                assert_eq!(unsafe { (v1.init)(major, minor, patch, c"+cuda13.0".as_ptr()) }, 0);
            }
            "v2" => {
                let (major, minor, patch) = release();
                // SAFETY: as NCCL calls it, with a logger whose variable arguments are one text.
                assert_eq!(unsafe { (v2.init)(major, minor, patch, ptr::null(), log as *const c_void) }, 0);
            }
            "silent" => {
                let (major, minor, patch) = release();
                // SAFETY: as above, without a logger.
                assert_eq!(unsafe { (v2.init)(major, minor, patch, ptr::null(), ptr::null()) }, 0);
            }
            "get" => {
                let name = CString::new(rest).unwrap();
                // SAFETY: as NCCL calls it.
                let answer = unsafe { (v1.get_env)(name.as_ptr()) };
                // SAFETY: as above; both tables must return the same.
                assert_eq!(unsafe { (v2.get_env)(name.as_ptr()) }, answer);
                held.push(answer);
                println!("> {rest}={}", show(answer));
            }
            "set" => {
                let (name, value) = rest.split_once('=').unwrap();
                // SAFETY: only one thread of this process uses the environment.
                unsafe { std::env::set_var(name, value) };
            }
            "null" => {
                // SAFETY: NCCL itself never passes null.
                assert!(unsafe { (v1.get_env)(ptr::null()) }.is_null());
            }
            "end" => {
                // SAFETY: as NCCL does while the process ends: finalize, then close.
                unsafe {
                    assert_eq!((v1.finalize)(), 0);
                    assert_eq!(libc::dlclose(library), 0);
                }
            }
            "held" => {
                for answer in &held {
                    println!("> held {}", show(*answer));
                }
            }
            _ => panic!("{step}"),
        }
    }
}

fn setting(name: &str, value: &str, from: Option<[u8; 3]>, below: Option<[u8; 3]>) -> ReleaseSetting {
    ReleaseSetting {
        name: name.to_owned(),
        value: value.to_owned(),
        force: false,
        from,
        below,
        nets: Vec::new(),
    }
}

/// A run's directory with the prolog's files.
fn run_dir(settings: Vec<ReleaseSetting>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let env = NcclEnv { settings };
    let (text, left_out) = env.to_text();
    assert!(left_out.is_empty());
    // As the prolog does: a link to a file that only the job's user can open.
    fs::create_dir(dir.path().join("user")).unwrap();
    fs::write(dir.path().join("user/.nccl.env"), text).unwrap();
    std::os::unix::fs::symlink("user/.nccl.env", dir.path().join("nccl.env")).unwrap();
    dir
}

fn place(dir: &Path) -> (&'static str, &str) {
    ("RAILGATE_JOB_DIR", dir.to_str().unwrap())
}

#[test]
fn values_follow_the_release_in_both_versions_of_the_interface() {
    let dir = run_dir(vec![
        setting("NCCL_IB_HCA", "=mlx5_0:1:0", Some([2, 30, 7]), None),
        setting("NCCL_X", "old", None, Some([2, 30, 7])),
    ]);
    let at = [place(dir.path())];
    let asked = "get NCCL_IB_HCA; get NCCL_X; get NCCL_NOTHING; null";
    let old = "NCCL_IB_HCA=null\nNCCL_X=old\nNCCL_NOTHING=null\n";
    let new = "NCCL_IB_HCA==mlx5_0:1:0\nNCCL_X=null\nNCCL_NOTHING=null\n";
    assert_eq!(scene(&format!("v1 2.28.9; {asked}"), &at), old);
    assert_eq!(scene(&format!("v1 2.30.7; {asked}"), &at), new);
    assert_eq!(scene(&format!("silent 2.30.7; {asked}"), &at), new);
    let logged = "log 0x81 %s ENV/Plugin: railgate: for 2.30.7: NCCL_IB_HCA\n";
    assert_eq!(scene(&format!("v2 2.30.7; {asked}"), &at), format!("{logged}{new}"));
}

#[test]
fn a_value_of_the_user_wins_over_ours() {
    let mut forced = setting("NCCL_X", "forced", None, None);
    forced.force = true;
    let dir = run_dir(vec![setting("NCCL_IB_HCA", "=mlx5_0:1:0", None, None), forced]);
    let with = |variables: &[(&str, &str)]| {
        scene("v1 2.28.9; get NCCL_IB_HCA; get NCCL_X", &[&[place(dir.path())], variables].concat())
    };
    assert_eq!(with(&[("NCCL_IB_HCA", "mlx5_7"), ("NCCL_X", "mine")]), "NCCL_IB_HCA=mlx5_7\nNCCL_X=forced\n");
    assert_eq!(with(&[("NCCL_IB_HCA", "")]), "NCCL_IB_HCA=\nNCCL_X=forced\n");
    let ours = [("NCCL_IB_HCA", "=mlx5_0:1"), ("RAILGATE_SET_NCCL_IB_HCA", "=mlx5_0:1")];
    assert_eq!(with(&ours), "NCCL_IB_HCA==mlx5_0:1:0\nNCCL_X=forced\n");
    let changed = [("NCCL_IB_HCA", "=mlx5_1:1"), ("RAILGATE_SET_NCCL_IB_HCA", "=mlx5_0:1")];
    assert_eq!(with(&changed), "NCCL_IB_HCA==mlx5_1:1\nNCCL_X=forced\n");
    // Set by the program itself after NCCL has started.
    let later =
        scene("v1 2.28.9; get NCCL_IB_HCA; set NCCL_IB_HCA=late; get NCCL_IB_HCA", &[place(dir.path())]);
    assert_eq!(later, "NCCL_IB_HCA==mlx5_0:1:0\nNCCL_IB_HCA=late\n");
}

#[test]
fn a_value_for_one_network_plugin_is_not_returned_for_another() {
    let hca = ReleaseSetting {
        nets: vec![Net::Ib, Net::Sharp],
        ..setting("NCCL_IB_HCA", "=mlx5_0:1:0", None, None)
    };
    let dir = run_dir(vec![hca]);
    for (net, answer) in [("ib", "=mlx5_0:1:0"), ("sharp", "=mlx5_0:1:0"), ("ofi", "null"), ("", "null")] {
        let said = scene("v1 2.28.9; get NCCL_IB_HCA", &[place(dir.path()), ("RAILGATE_NET", net)]);
        assert_eq!(said, format!("NCCL_IB_HCA={answer}\n"), "{net}");
    }
}

#[test]
fn returned_strings_stay_valid_after_the_end() {
    let dir = run_dir(vec![setting("NCCL_X", "1", None, None)]);
    let said = scene("v1 2.28.9; get NCCL_X; end; held", &[place(dir.path())]);
    assert_eq!(said, "NCCL_X=1\nheld 1\n");
}

#[test]
fn two_nccl_releases_in_one_process_get_no_values_of_ours() {
    let dir = run_dir(vec![setting("NCCL_X", "1", None, None)]);
    let said = scene("v1 2.28.9; v1 2.28.9; get NCCL_X; v2 2.30.7; get NCCL_X; held", &[place(dir.path())]);
    let logged = "log 0x81 %s ENV/Plugin: railgate: for 2.28.9: NCCL_X\n";
    assert_eq!(said, format!("NCCL_X=1\n{logged}NCCL_X=null\nheld 1\nheld null\n"));
}

#[test]
fn a_missing_or_invalid_file_falls_back_to_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nccl.env");
    let asked = || scene("v1 2.28.9; get NCCL_X", &[place(dir.path()), ("NCCL_X", "mine")]);
    assert_eq!(asked(), "NCCL_X=mine\n");
    for content in ["", "railgate-nccl-env 1\nforce - - - NCCL_X=1\nodd\n", "\0\u{ff}", &"x".repeat(1 << 20)]
    {
        fs::write(&file, content).unwrap();
        assert_eq!(asked(), "NCCL_X=mine\n");
    }
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(asked(), "NCCL_X=mine\n");
    fs::remove_dir(&file).unwrap();
    // A FIFO without a writer: an open that waits would never return.
    let path = CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    assert_eq!(asked(), "NCCL_X=mine\n");
    for elsewhere in ["", "relative", "/nowhere"] {
        let said = scene("v1 2.28.9; get NCCL_X", &[("RAILGATE_JOB_DIR", elsewhere), ("NCCL_X", "mine")]);
        assert_eq!(said, "NCCL_X=mine\n");
    }
    // Called before `init`, as for any plugin.
    assert_eq!(scene("get NCCL_X", &[("NCCL_X", "mine")]), "NCCL_X=mine\n");
}
