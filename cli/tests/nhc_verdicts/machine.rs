//! Machines that both NHC and railgate check: a mount namespace with other files in /proc, /sys, /etc and /usr/sbin.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Path and content of each file of a machine.
pub(crate) type Files = BTreeMap<String, String>;

/// The machines of `states.txt`, by name.
pub(crate) fn machines() -> BTreeMap<String, Files> {
    let mut machines: BTreeMap<String, Files> = BTreeMap::new();
    let (mut name, mut path) = (String::new(), None);
    for line in include_str!("../nhc/states.txt").lines() {
        if let Some(new) = line.strip_prefix("== ") {
            let good = machines.get("good").cloned().unwrap_or_default();
            (name, path) = (new.to_owned(), None);
            machines.insert(name.clone(), good);
        } else if let Some(files) = machines.get_mut(&name) {
            if let Some(new) = line.strip_prefix("-- ") {
                files.insert(new.to_owned(), String::new());
                path = Some(new.to_owned());
            } else if let Some(gone) = line.strip_prefix("-d ") {
                files.retain(|path, _| !Path::new(path).starts_with(gone));
            } else if let Some(text) = path.as_ref().and_then(|path| files.get_mut(path)) {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    machines
}

/// A thread in its own mount namespace, which starts programs there.
pub(crate) struct Machine {
    commands: Sender<Command>,
    outputs: Receiver<Output>,
}

impl Machine {
    /// Creates the machine below `place`, with NHC from a checkout.
    pub(crate) fn start(place: &Path, files: &Files, nhc: &Path) -> Machine {
        let (commands, wanted) = channel::<Command>();
        let (done, outputs) = channel();
        let (place, files, nhc) = (place.to_owned(), files.clone(), nhc.to_owned());
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                .unwrap();
            build(&place, &files, &nhc);
            while let Ok(mut command) = wanted.recv() {
                done.send(command.output().unwrap()).unwrap();
            }
        });
        Machine { commands, outputs }
    }

    /// Runs a program and waits for it.
    pub(crate) fn run(&self, command: &mut Command) -> Output {
        let mut inside = Command::new(command.get_program());
        inside.args(command.get_args());
        self.commands.send(inside).unwrap();
        self.outputs.recv().unwrap()
    }
}

fn build(place: &Path, files: &Files, nhc: &Path) {
    let tmpfs = |at: &Path| {
        fs::create_dir_all(at).unwrap();
        mount(Some("none"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    };
    tmpfs(place);
    for top in ["/etc", "/usr/sbin"] {
        let [upper, work] = ["upper", "work"].map(|sort| place.join(sort).join(&top[1..]));
        fs::create_dir_all(&upper).unwrap();
        fs::create_dir_all(&work).unwrap();
        let options = format!("lowerdir={top},upperdir={},workdir={}", upper.display(), work.display());
        mount(Some("none"), top, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
    }
    // Also where NHC creates mount points, and where it keeps its own files.
    for top in ["/sys/class", "/srv", "/home", "/run"] {
        tmpfs(Path::new(top));
    }
    // The test machine itself cannot be changed, not even through a link in an overlaid directory.
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(None::<&str>, "/", None::<&str>, read_only, None::<&str>).unwrap();
    for (index, (path, text)) in files.iter().enumerate() {
        let path = Path::new(path);
        if !path.starts_with("/proc") {
            write(path, text);
            continue;
        }
        let from = place.join(index.to_string());
        // /proc/net is a link: it is replaced by one to another directory.
        match path.parent().filter(|parent| parent.is_symlink()) {
            Some(parent) => {
                write(&from.join(path.file_name().unwrap()), text);
                let link = from.with_extension("link");
                std::os::unix::fs::symlink(&from, &link).unwrap();
                bind(&link, parent);
            }
            None => {
                write(&from, text);
                bind(&from, path);
            }
        }
    }
    write(Path::new("/usr/sbin/nhc"), &fs::read_to_string(nhc.join("nhc")).unwrap());
    for script in fs::read_dir(nhc.join("scripts")).unwrap().map(|file| file.unwrap().path()) {
        let to = Path::new("/etc/nhc/scripts").join(script.file_name().unwrap());
        write(&to, &fs::read_to_string(script).unwrap());
    }
}

/// Replaces a file: `/usr/sbin/lsmod` is a link to a program elsewhere, which stays unchanged.
fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    if path.symlink_metadata().is_ok() {
        fs::remove_file(path).unwrap();
    }
    fs::write(path, text).unwrap();
    let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Works with links too: `/proc/mounts` is one, different in each process.
fn bind(from: &Path, to: &Path) {
    let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
    let open = |path| fs::OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
    let name = |file: &fs::File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let (from, to) = (open(from), open(to));
    mount(Some(&name(&from)), &name(&to), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}
