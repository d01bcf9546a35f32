//! Files, processes and mounts on the machines, before and after.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::Cluster;

use super::site::{HEAD, NODES};

/// Paths that change without railgate: dpkg's lists and logs, and the state of Slurm and munge.
const OTHERS: [&str; 8] = [
    "/var/lib/dpkg",
    "/var/log/dpkg.log",
    "/var/cache",
    "/var/log/slurm",
    "/var/spool/slurm",
    "/run/slurm",
    "/run/munge",
    "/var/log/alternatives.log",
];

/// State of each machine and of the shared directories.
pub(super) struct Machines(BTreeMap<&'static str, Machine>);

#[derive(Default)]
struct Machine {
    /// Type, size and checksum of each file, by path.
    files: BTreeMap<String, String>,
    processes: Vec<String>,
    mounts: Vec<String>,
}

impl Machines {
    /// Reads the current state of all machines.
    pub(super) fn read(cluster: &Cluster) -> Result<Self> {
        let mut all = BTreeMap::new();
        for name in std::iter::once(HEAD).chain(NODES) {
            let mut machine = Machine::default();
            // The upper directory of the overlay: only files that differ from the common system.
            walk(&cluster.changes(name)?, "", &mut machine.files)?;
            for below in ["/run", "/etc/slurm", "/var/lib/railgate", "/shared/railgate"] {
                let place = cluster.path(name, below)?;
                if place.exists() {
                    walk(&place, below, &mut machine.files)?;
                }
            }
            machine.files.retain(|path, _| !OTHERS.iter().any(|other| path.starts_with(other)));
            let root = cluster.root().on(name);
            let ours = "for exe in /proc/[0-9]*/exe; do readlink $exe; done | grep /railgate || true";
            machine.processes = lines(&root.run(&["sh", "-c", ours])?.ok()?);
            machine.mounts = lines(&root.run(&["cut", "-d ", "-f5,6,9-", "/proc/self/mountinfo"])?.ok()?);
            all.insert(name, machine);
        }
        Ok(Machines(all))
    }

    /// Differences since `before`, one line each, for example `gn1: + /run/railgate`.
    pub(super) fn since(&self, before: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, now) in &self.0 {
            let Some(before) = before.0.get(name) else { continue };
            for (path, is) in &now.files {
                match before.files.get(path) {
                    None => found.push(format!("{name}: + {path}")),
                    Some(was) if was != is => found.push(format!("{name}: changed {path}")),
                    Some(_) => {}
                }
            }
            found.extend(
                before
                    .files
                    .keys()
                    .filter(|path| !now.files.contains_key(*path))
                    .map(|path| format!("{name}: - {path}")),
            );
            let more = |kind: &str, now: &[String], before: &[String]| -> Vec<String> {
                let new = now.iter().filter(|one| !before.contains(one));
                new.map(|one| format!("{name}: {kind} {one}")).collect()
            };
            found.extend(more("process", &now.processes, &before.processes));
            found.extend(more("mount", &now.mounts, &before.mounts));
        }
        found
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Lists files and links with a checksum, directories with their mode. Files that disappear meanwhile are left out.
fn walk(dir: &Path, name: &str, found: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let path = format!("{name}/{}", entry.file_name().to_string_lossy());
        let Ok(about) = entry.metadata() else { continue };
        let kind = about.file_type();
        let holds = if kind.is_dir() {
            // A directory is in the overlay also when only a file below it has changed.
            walk(&entry.path(), &path, found)?;
            continue;
        } else if kind.is_symlink() {
            fs::read_link(entry.path()).map(|to| to.display().to_string()).unwrap_or_default()
        } else if kind.is_file() {
            fs::read(entry.path()).map(|bytes| sum(&bytes)).unwrap_or_default()
        } else {
            String::new()
        };
        found.insert(path, format!("{:o} {}:{} {holds}", about.mode(), about.uid(), about.gid()));
    }
    // A directory of railgate counts even if it is empty.
    if name.contains("railgate") {
        let about = fs::metadata(dir)?;
        found.insert(format!("{name}/"), format!("{:o}", about.mode()));
    }
    Ok(())
}

/// Checksum that suffices to detect a change.
fn sum(bytes: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
