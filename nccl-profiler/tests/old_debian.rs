//! The library as shipped, in a container of an older Debian: Debian 11 has glibc 2.31.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests stand outside of test functions")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use railgate_rankfile::{BYTES, RankFile};

/// Builds for an older C library than that of this machine, as `cargo xtask dist` does.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.23.0", "ziglang==0.15.1"];
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Directory below it with the loaded library and its output.
const PLACE: &str = "railgate-load";

/// Loads every table, and makes a communicator with ten collectives.
const LOADS: &str = r#"
import ctypes as c, os, platform, struct
os.environ["RAILGATE_JOB_DIR"] = "/railgate-load"
plugin = c.CDLL("/railgate-load/libnccl-profiler-railgate.so")
for version in (4, 5, 6, 7):
    table = (c.c_void_p * 6).in_dll(plugin, "ncclProfiler_v%d" % version)
out, integer, handle = c.POINTER(c.c_void_p), c.POINTER(c.c_int), c.c_void_p()
init = c.CFUNCTYPE(c.c_int, out, c.c_uint64, integer, c.c_char_p, c.c_int, c.c_int, c.c_int, c.c_void_p)(table[1])
start = c.CFUNCTYPE(c.c_int, c.c_void_p, out, c.c_char_p)(table[2])
context, mask = c.c_void_p(), c.c_int()
init(c.byref(context), 7, c.byref(mask), b"dp", 1, 2, 1, None)
names = [c.create_string_buffer(name) for name in (b"AllReduce", b"ncclFloat32", b"RING", b"SIMPLE")]
func, datatype, ring, simple = map(c.addressof, names)
for number in range(10):
    coll = struct.pack("QQi4xQQQQQi4xQBB6xQQQ24x", 2, 0, 1, number, func, 0, 0, 256, 0, datatype, 4, 16, ring, simple, 0)
    start(context, c.byref(handle), coll)
print(platform.libc_ver()[1])
"#;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Created if it does not exist yet.
fn root() -> PathBuf {
    let root = Path::new("/var/cache/railgate/debian-11");
    if !root.join("usr/bin/python3").exists() {
        let fresh = root.with_extension(format!("new{}", std::process::id()));
        fs::create_dir_all(root.parent().unwrap()).unwrap();
        let include = "--include=python3-minimal,libpython3-stdlib";
        run(Command::new("debootstrap").args(["--variant=minbase", include, "bullseye"]).arg(&fresh));
        fs::rename(fresh, root).unwrap();
    }
    root.to_owned()
}

fn shipped() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("old-debian");
    let tools = target.join("tools");
    if !tools.join("bin/cargo-zigbuild").exists() {
        run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&tools));
        run(Command::new(tools.join("bin/pip")).args(["install", "-q"]).args(ZIG));
    }
    let path = std::env::var_os("PATH").unwrap();
    let places = std::iter::once(tools.join("bin")).chain(std::env::split_paths(&path));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["zigbuild", "--release", "--quiet", "-p", "nccl-profiler-railgate", "--target"]);
    command.arg(format!("{TARGET}.2.17")).arg("--target-dir").arg(&target);
    run(command.env("PATH", std::env::join_paths(places).unwrap()).current_dir(env!("CARGO_MANIFEST_DIR")));
    target.join(TARGET).join("release/libnccl_profiler_railgate.so")
}

#[test]
#[ignore = "needs root, debootstrap and a few minutes: cargo test -p nccl-profiler-railgate --test old_debian -- --ignored"]
fn the_library_loads_and_counts_with_an_older_c_library() {
    let (library, root) = (shipped(), root());
    let text = run(Command::new("objdump").arg("-T").arg(&library));
    let needed = text.split_whitespace().filter_map(|word| {
        let (major, minor) = word.trim_matches(['(', ')']).strip_prefix("GLIBC_")?.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.split('.').next()?.parse::<u32>().ok()?))
    });
    let newest = needed.max().unwrap();
    assert!(newest <= (2, 17), "glibc {newest:?}");

    let place = root.join(PLACE);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(place.join("user")).unwrap();
    fs::copy(library, place.join("libnccl-profiler-railgate.so")).unwrap();
    let said = run(Command::new("chroot").arg(&root).args(["/usr/bin/python3", "-c", LOADS]));
    assert_eq!(said.trim(), "2.31");
    let files: Vec<PathBuf> =
        fs::read_dir(place.join("user/ranks")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let bytes = fs::read(file).unwrap();
    fs::remove_dir_all(&place).unwrap();
    assert_eq!(bytes.len(), BYTES);
    let file = RankFile::parse(&bytes).unwrap();
    assert_eq!((file.api, file.cells[0].calls, file.cells[0].bytes), (7, 10, 10 * 1024), "{file:?}");
}
