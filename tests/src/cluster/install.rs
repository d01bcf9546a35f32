//! Installs railgate on a cluster's machines as `docs/install.md` describes.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::conf::{SlurmConf, merge};
use super::layout::put;

/// Where a node sees the folder of its simulated hardware.
pub const HARDWARE: &str = "/opt/railgate-test";

/// The shared directory of job reports.
pub const REPORTS: &str = "/shared/railgate";

/// Built files: name in the target directory, path on a machine.
const FILES: [(&str, &str); 8] = [
    ("railgate", "usr/bin/railgate"),
    ("railgate-fleet", "usr/bin/railgate-fleet"),
    ("railgate-prolog", "usr/libexec/railgate/railgate-prolog"),
    ("railgate-epilog", "usr/libexec/railgate/railgate-epilog"),
    ("railgate-sampler", "usr/libexec/railgate/railgate-sampler"),
    ("railgate-epilog-ctld", "usr/libexec/railgate/railgate-epilog-ctld"),
    ("libnccl_env_railgate.so", "usr/lib/railgate/libnccl-env-railgate.so"),
    ("libnccl_profiler_railgate.so", "usr/lib/railgate/libnccl-profiler-railgate.so"),
];

/// The Slurm release that the plugin is built for by default.
const PLUGIN_RELEASE: (u32, u32) = (22, 5);

/// Directory in which the plugin for `release` is built: beside the programs, or a target folder of its own
/// (`target/slurm-24.11/debug`), so that builds for two releases do not replace each other.
pub fn plugin_target(programs: &Path, release: (u32, u32)) -> PathBuf {
    let own = format!("slurm-{}.{:02}", release.0, release.1);
    match (programs.parent(), programs.file_name()) {
        (Some(target), Some(profile)) if release != PLUGIN_RELEASE => target.join(own).join(profile),
        _ => programs.to_owned(),
    }
}

/// Sets railgate's keys in slurm.conf.
pub(super) fn slurm_conf(conf: &mut SlurmConf) {
    for (key, value) in [
        ("Prolog", "/etc/slurm/prolog.d/*"),
        ("Epilog", "/etc/slurm/epilog.d/*"),
        ("EpilogSlurmctld", "/usr/libexec/railgate/railgate-epilog-ctld"),
        ("HealthCheckProgram", "/etc/railgate/periodic.sh"),
        // Off: otherwise the periodic check could drain a bad node before the test's job runs on it.
        ("HealthCheckInterval", "0"),
        ("HealthCheckNodeState", "ANY"),
    ] {
        conf.set(key, value);
    }
}

/// Writes the files that all machines see: below `common`, which is a layer of every root, and below `slurm_etc`, their /etc/slurm.
pub(super) fn files(built: &Path, plugin: &Path, common: &Path, slurm_etc: &Path) -> Result<()> {
    let programs = FILES.map(|(from, to)| (built.join(from), to));
    for (from, to) in programs.into_iter().chain([(plugin.to_owned(), "usr/lib/railgate/spank_railgate.so")])
    {
        let to = common.join(to);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(&from, &to)
            .with_context(|| format!("{} is not built (cargo xtask test builds it)", from.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    for name in ["prolog", "epilog"] {
        let dir = slurm_etc.join(format!("{name}.d"));
        fs::create_dir_all(&dir)?;
        symlink(format!("/usr/libexec/railgate/railgate-{name}"), dir.join("95-railgate"))?;
    }
    put(&slurm_etc.join("plugstack.conf"), "optional /usr/lib/railgate/spank_railgate.so\n", 0o644)?;
    let periodic = "#!/bin/sh\nexec /usr/bin/railgate check --phase periodic --drain\n";
    put(&common.join("etc/railgate/periodic.sh"), periodic, 0o755)
}

/// The text of one machine's railgate.toml: the common settings, then those of the test, then those of the machine. A report that is stored
/// later than its deadline, 5 s by default, stays on its node: too soon for a machine that six clusters use.
pub(super) fn configuration(source: Option<&toml::Table>, over: &[&toml::Table]) -> Result<String> {
    let mut config: toml::Table = toml::from_str(&format!(
        "[gate]\nmode = 'enforce'\n[report]\ndir = '{REPORTS}'\ndeadline = '60s'\n"
    ))?;
    if let Some(source) = source {
        let mut table = toml::Table::new();
        table.insert("source".to_owned(), toml::Value::Table(source.clone()));
        merge(&mut config, table);
    }
    for table in over {
        merge(&mut config, (*table).clone());
    }
    Ok(toml::to_string(&config)?)
}

/// The release of the Slurm below a root directory, for example `(22, 5)`.
///
/// # Errors
/// slurmd is missing, or its version cannot be parsed.
pub fn slurm_release(root: &Path) -> Result<(u32, u32)> {
    let mut command = if root == Path::new("/") {
        Command::new("/usr/sbin/slurmd")
    } else {
        let mut command = Command::new("chroot");
        command.arg(root).arg("/usr/sbin/slurmd");
        command
    };
    let output = command.arg("-V").output().context("asking slurmd for its version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `slurm-wlm 22.05.8`
    let version = text.split_whitespace().next_back().unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(year), Some(month)) => Ok((year, month)),
        _ => bail!("slurmd -V below {} printed '{}'", root.display(), text.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The installation page for admins and the test clusters must not drift apart.
    #[test]
    fn a_test_cluster_is_installed_as_the_page_describes() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/install.md");
        let page = fs::read_to_string(page).unwrap();
        let mut conf = SlurmConf::new("t", "ctl");
        slurm_conf(&mut conf);
        let conf = conf.text(&[], 2);
        let here = |key: &str| {
            let line = conf.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
            line.unwrap_or_else(|| panic!("the test cluster has no {key}"))
        };
        let (_, section) = page.split_once("## 3. slurm.conf").unwrap();
        let block = section.split("```").nth(1).unwrap();
        let mut seen = 0;
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            let (key, value) = line.split('#').next().unwrap().trim().split_once('=').unwrap();
            seen += 1;
            match key {
                // The page sets an interval; in a cluster the check is off until a test turns it on, then in every state.
                "HealthCheckInterval" | "HealthCheckNodeState" => {}
                "SchedulerParameters" => {
                    assert!(here(key).split(',').any(|have| have == value), "{line}");
                }
                _ => assert_eq!(here(key), value, "{line}"),
            }
        }
        assert!(seen >= 10, "{seen}");

        let etc = tempfile::tempdir().unwrap();
        let built = tempfile::tempdir().unwrap();
        for (from, _) in FILES {
            fs::write(built.path().join(from), "").unwrap();
        }
        let plugin = built.path().join("libspank_railgate.so");
        fs::write(&plugin, "").unwrap();
        let (common, slurm_etc) = (etc.path().join("common"), etc.path().join("slurm"));
        files(built.path(), &plugin, &common, &slurm_etc).unwrap();
        for file in ["plugstack.conf", "../common/etc/railgate/periodic.sh"] {
            let text = fs::read_to_string(slurm_etc.join(file)).unwrap();
            assert!(page.contains(&text), "{file} is missing in the page:\n{text}");
        }
        for name in ["prolog", "epilog"] {
            let link = slurm_etc.join(format!("{name}.d/95-railgate"));
            let line =
                format!("ln -s {} /etc/slurm/{name}.d/95-railgate", fs::read_link(link).unwrap().display());
            assert!(page.contains(&line), "{line}");
        }
        for (name, to) in FILES {
            let dir = Path::new("/").join(to).parent().unwrap().display().to_string();
            assert!(page.contains(&format!("`{dir}/")) && page.contains(name), "{name} in {dir}");
        }
    }
}
