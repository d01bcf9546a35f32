//! Contents of the packages and their paths: one table for both formats.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::super::build;
use super::formats::Format;
use super::links;

/// Compiled files and their paths in the package.
const BUILT: [(&str, &str); 9] = [
    ("railgate", "usr/bin/railgate"),
    ("railgate-fleet", "usr/bin/railgate-fleet"),
    ("railgate-prolog", "usr/libexec/railgate/railgate-prolog"),
    ("railgate-epilog", "usr/libexec/railgate/railgate-epilog"),
    ("railgate-epilog-ctld", "usr/libexec/railgate/railgate-epilog-ctld"),
    ("railgate-gpu-selftest", "usr/libexec/railgate/railgate-gpu-selftest"),
    ("railgate-sampler", "usr/libexec/railgate/railgate-sampler"),
    ("libnccl-env-railgate.so", "usr/lib/railgate/libnccl-env-railgate.so"),
    ("libnccl-profiler-railgate.so", "usr/lib/railgate/libnccl-profiler-railgate.so"),
];

/// Files of the source tree (pattern) and their directories in the package.
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

/// Files that an admin edits and an upgrade keeps.
pub(super) const CONFIGURATION: &str = "etc/railgate";

/// Which of the two packages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Files {
    /// Everything except the RDMA self-test.
    Railgate,
    /// Only the RDMA self-test.
    RdmaSelftest,
}

/// Builds the file tree of one package in one format and returns its root.
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
    shared(source, &root)?;
    for page in matching(&generated.join("man1/*.1"))? {
        put(&page, &root.join("usr/share/man/man1").join(page.file_name().context("no name")?), 0o644)?;
    }
    for (from, to) in format.completions() {
        put(&generated.join(from), &root.join(to), 0o644)?;
    }
    Ok(root)
}

/// Copies the files of the source tree; links between pages are rewritten to the paths in the package.
fn shared(source: &Path, root: &Path) -> Result<()> {
    let mut places = BTreeMap::new();
    for (pattern, to) in SHARED {
        for file in matching(&source.join(pattern))? {
            let place = Path::new("/").join(to).join(file.file_name().context("no name")?);
            places.insert(file, place);
        }
    }
    for (file, place) in &places {
        let to = root.join(place.strip_prefix("/")?);
        put(file, &to, 0o644)?;
        if file.extension().is_some_and(|end| end == "md") {
            let text = fs::read_to_string(file)?;
            fs::write(&to, links::rewritten(&text, file, place, &places)?)?;
        }
    }
    Ok(())
}

fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        glob::glob(&pattern.to_string_lossy())?.collect::<std::result::Result<_, _>>()?;
    files.retain(|file| file.is_file());
    files.sort();
    ensure!(!files.is_empty(), "no file matches {}", pattern.display());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_packaged_pages_have_targets() {
        let place = tempfile::tempdir().unwrap();
        shared(build::workspace(), place.path()).unwrap();
        let pages = glob::glob(&place.path().join("usr/share/doc/**/*.md").to_string_lossy()).unwrap();
        let (mut links, mut dead) = (0, Vec::new());
        for page in pages.map(Result::unwrap) {
            for link in links::links(&fs::read_to_string(&page).unwrap()) {
                let file = link.split('#').next().unwrap_or_default();
                if file.is_empty() || file.contains("://") {
                    continue;
                }
                links += 1;
                if !page.parent().unwrap().join(file).is_file() {
                    dead.push(format!("{}: {link}", page.file_name().unwrap().display()));
                }
            }
        }
        assert!(links > 100, "only {links} links");
        assert!(dead.is_empty(), "{} dead links:\n{}", dead.len(), dead.join("\n"));
    }
}
