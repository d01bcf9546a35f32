//! What is in the packages, and where it goes: one table for both formats.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::super::build;
use super::formats::Format;

/// Compiled: a file, and its place.
const BUILT: [(&str, &str); 7] = [
    ("railgate", "usr/bin/railgate"),
    ("railgate-prolog", "usr/libexec/railgate/railgate-prolog"),
    ("railgate-epilog", "usr/libexec/railgate/railgate-epilog"),
    ("railgate-epilog-ctld", "usr/libexec/railgate/railgate-epilog-ctld"),
    ("railgate-sampler", "usr/libexec/railgate/railgate-sampler"),
    ("libnccl-env-railgate.so", "usr/lib/railgate/libnccl-env-railgate.so"),
    ("libnccl-profiler-railgate.so", "usr/lib/railgate/libnccl-profiler-railgate.so"),
];

/// From the source: which files, into which directory.
const SHARED: [(&str, &str); 12] = [
    ("profiles/*.toml", "usr/share/railgate/profiles"),
    ("sbatch-templates/*.sbatch", "usr/share/railgate/sbatch-templates"),
    ("contrib/enroot/*", "usr/share/railgate/enroot"),
    ("contrib/grafana/*.json", "usr/share/railgate/grafana"),
    ("contrib/prometheus/*.yml", "usr/share/railgate/prometheus"),
    ("contrib/python/*.py", "usr/share/railgate/python"),
    ("docs/*.md", "usr/share/doc/railgate"),
    ("docs/decisions/*.md", "usr/share/doc/railgate/decisions"),
    ("CHANGELOG.md", "usr/share/doc/railgate"),
    ("README.md", "usr/share/doc/railgate"),
    ("contrib/packaging/slurm.conf", "usr/share/railgate"),
    ("contrib/packaging/railgate.toml", CONFIGURATION),
];

/// What an admin changes, and a package leaves alone.
pub(super) const CONFIGURATION: &str = "etc/railgate";

/// Which package.
#[derive(Clone, Copy, Debug)]
pub(super) enum Files {
    /// All but the self-test.
    Railgate,
    /// The self-test alone.
    RdmaSelftest,
}

/// Makes the tree of one package in one format, and returns its root.
pub(super) fn stage(
    dist: &Path,
    format: Format,
    files: Files,
    built: &Path,
    generated: &Path,
) -> Result<PathBuf> {
    let root = dist.join(format.name());
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let source = build::workspace();
    if let Files::RdmaSelftest = files {
        let name = "railgate-rdma-selftest";
        put(&built.join(name), &root.join("usr/libexec/railgate").join(name), 0o755)?;
        put(&source.join("LICENSE"), &root.join("usr/share/doc").join(name).join("copyright"), 0o644)?;
        return Ok(root);
    }
    for (from, to) in BUILT {
        put(&built.join(from), &root.join(to), 0o755)?;
    }
    for plugin in matching(&built.join("slurm-*/spank_railgate.so"))? {
        let to = root.join("usr/lib/railgate").join(plugin.strip_prefix(built)?);
        put(&plugin, &to, 0o755)?;
    }
    let link = "railgate-link-plugin";
    let packaging = source.join("contrib/packaging");
    put(&packaging.join(link), &root.join("usr/libexec/railgate").join(link), 0o755)?;
    put(&packaging.join("periodic.sh"), &root.join(CONFIGURATION).join("periodic.sh"), 0o755)?;
    put(&packaging.join("logrotate"), &root.join("etc/logrotate.d/railgate"), 0o644)?;
    put(&source.join("LICENSE"), &root.join("usr/share/doc/railgate/copyright"), 0o644)?;
    for (pattern, to) in SHARED {
        for file in matching(&source.join(pattern))? {
            put(&file, &root.join(to).join(file.file_name().context("no name")?), 0o644)?;
        }
    }
    for page in matching(&generated.join("man1/*.1"))? {
        put(&page, &root.join("usr/share/man/man1").join(page.file_name().context("no name")?), 0o644)?;
    }
    for (from, to) in format.completions() {
        put(&generated.join(from), &root.join(to), 0o644)?;
    }
    Ok(root)
}

fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        glob::glob(&pattern.to_string_lossy())?.collect::<std::result::Result<_, _>>()?;
    files.retain(|file| file.is_file());
    files.sort();
    ensure!(!files.is_empty(), "nothing is {}", pattern.display());
    Ok(files)
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}
