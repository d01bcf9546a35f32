//! Puts railgate on a cluster's machines, the way `docs/install.md` tells an admin to.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::conf::{SlurmConf, merge};
use super::layout::put;

/// Where a node sees its simulated hardware.
pub(super) const HARDWARE: &str = "/opt/railgate-test";

/// The shared directory of job reports.
pub const REPORTS: &str = "/shared/railgate";

/// What is built, and where it goes.
const FILES: [(&str, &str); 5] = [
    ("railgate", "usr/bin/railgate"),
    ("railgate-prolog", "usr/libexec/railgate/railgate-prolog"),
    ("railgate-epilog", "usr/libexec/railgate/railgate-epilog"),
    ("railgate-epilog-ctld", "usr/libexec/railgate/railgate-epilog-ctld"),
    ("libspank_railgate.so", "usr/lib/railgate/spank_railgate.so"),
];

/// slurm.conf's part.
pub(super) fn slurm_conf(conf: &mut SlurmConf) {
    for (key, value) in [
        ("Prolog", "/etc/slurm/prolog.d/*"),
        ("Epilog", "/etc/slurm/epilog.d/*"),
        ("EpilogSlurmctld", "/usr/libexec/railgate/railgate-epilog-ctld"),
        ("HealthCheckProgram", "/etc/railgate/periodic.sh"),
        ("HealthCheckInterval", "20"),
        ("HealthCheckNodeState", "ANY"),
    ] {
        conf.set(key, value);
    }
}

/// Files that all machines see: below `common` of every root, and `slurm_etc` as /etc/slurm.
pub(super) fn files(built: &Path, common: &Path, slurm_etc: &Path) -> Result<()> {
    for (from, to) in FILES {
        let (from, to) = (built.join(from), common.join(to));
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

/// railgate.toml of one machine: what every test has, the test's own, the machine's own, each over the last.
pub(super) fn configuration(source: Option<&toml::Table>, over: &[&toml::Table]) -> Result<String> {
    let mut config: toml::Table =
        toml::from_str(&format!("[gate]\nmode = 'enforce'\n[report]\ndir = '{REPORTS}'\n"))?;
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
