//! A file system that never answers: a process that accesses it sleeps in the kernel and ignores SIGKILL, as on a mount of a
//! dead file server.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::Cluster;
use super::inner::{Namespaces, text};
use super::sandbox::Guard;

/// Such a file system. Dropping it wakes the processes that wait for it, with an error.
#[derive(Debug)]
pub struct Mute(#[expect(dead_code, reason = "it works by being dropped")] Guard);

impl Cluster {
    /// Mounts such a file system on a node.
    ///
    /// # Errors
    /// The kernel has no FUSE, or mounting failed.
    pub fn mute_mount(&self, node: &str, place: &str) -> Result<Mute> {
        let machines = self.machines();
        let (_, pid) = machines.iter().find(|(name, _)| name == node).with_context(|| node.to_owned())?;
        Guard::start("@mute", &[pid.to_string().into(), place.into()]).map(Mute)
    }
}

/// FUSE_INIT of linux/fuse.h.
const INIT: u32 = 26;

/// `@mute PID DIRECTORY`: mounts the file system in the mount namespace of PID until standard input is closed.
pub(super) fn mute(arguments: &[OsString]) -> Result<ExitCode> {
    let pid = text(arguments.first(), "the process")?;
    let directory = text(arguments.get(1), "the directory")?;
    let mut device =
        OpenOptions::new().read(true).write(true).open("/dev/fuse").context("/dev/fuse (modprobe fuse)")?;
    Namespaces::of(&pid, &["mnt"])?.enter()?;
    std::fs::create_dir_all(&directory)?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    mount(Some("mute"), Path::new(&directory), Some("fuse"), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("mounting on {directory}"))?;
    greet(&mut device)?;
    let mut taker = device.try_clone()?;
    // Requests are read but not answered: a process can withdraw a request only until it has been read.
    std::thread::spawn(move || {
        let mut question = vec![0; 1 << 18];
        while taker.read(&mut question).is_ok() {}
    });
    println!("ready");
    let mut nothing = [0_u8; 64];
    while matches!(std::io::stdin().read(&mut nothing), Ok(1..)) {}
    umount2(Path::new(&directory), MntFlags::MNT_DETACH).context("unmounting")?;
    // When this process ends, its end of the device is closed, and all waiting processes get an error.
    Ok(ExitCode::SUCCESS)
}

/// Answers FUSE_INIT, which the kernel sends first and waits for.
fn greet(device: &mut File) -> Result<()> {
    let mut question = vec![0; 1 << 18];
    let length = device.read(&mut question)?;
    let word =
        |at: usize| question.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    ensure!(length >= 48 && word(4) == Some(INIT), "not an introduction");
    // Length, error, the request's number; then version 7.31, read-ahead size, and no optional features.
    let mut answer = 80_u32.to_ne_bytes().to_vec();
    answer.extend([0; 4]);
    answer.extend_from_slice(&question[8..16]);
    for word in [7_u32, 31, 0, 0, 0, 4096, 1] {
        answer.extend(word.to_ne_bytes());
    }
    answer.resize(80, 0);
    device.write_all(&answer).context("answering the kernel")
}
