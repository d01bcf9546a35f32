//! `railgate doctor --uninstall`: where Slurm still starts railgate on this machine, and how to remove it.

use std::path::{Path, PathBuf};

use railgate_slurm::{Client, Env};
use railgate_text::{Lines, put};

use super::facts::{SlurmConf, plugstack_conf};
use super::files::Hook;
use super::plugstack::{Line, Plugstack};
use crate::{Site, exit};

/// A key of slurm.conf, railgate's program behind it, the value to assume if Slurm does not answer, and what Slurm
/// does when the program is missing.
const HOOKS: &[(&str, &str, &str, &str)] = &[
    ("Prolog", "railgate-prolog", "/etc/slurm/prolog.d/*", DRAINS),
    ("Epilog", "railgate-epilog", "/etc/slurm/epilog.d/*", DRAINS),
    ("EpilogSlurmctld", "railgate-epilog-ctld", "", "slurmctld logs an error at each job end"),
    ("HealthCheckProgram", "railgate", "", "slurmd logs an error at each health check"),
];
const DRAINS: &str = "a missing program drains the node";

/// A hook with which Slurm starts railgate.
struct Start {
    key: &'static str,
    /// The key's value: a path or a pattern.
    value: String,
    program: PathBuf,
    kind: Kind,
    /// Number of other programs that the key starts.
    others: usize,
    missing: &'static str,
}

/// How a program of a hook is related to railgate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A link to a file of the package.
    Link,
    /// A file of the package, or one in its configuration directory.
    Own,
    /// A script of the site that calls railgate.
    Script,
}

impl Kind {
    fn of(program: &Path, settings: &Path) -> Self {
        if program.is_symlink() {
            return Kind::Link;
        }
        let named = program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("railgate-"));
        if named || program.starts_with(settings) { Kind::Own } else { Kind::Script }
    }
}

/// Everything on this machine that starts railgate.
pub(crate) struct Hooked {
    node: String,
    starts: Vec<Start>,
    plugins: Vec<Line>,
    unread: Vec<String>,
}

/// Queries Slurm, and reads plugstack.conf.
pub(crate) fn find_hooks(site: &Site) -> Hooked {
    let config = site.config().unwrap_or_default();
    let conf = Client::new(&config.slurm, &Env::new()).config().map(SlurmConf).map_err(|why| why.to_string());
    hooked(&site.node, &site.places.etc, conf)
}

fn hooked(node: &str, settings: &Path, conf: Result<SlurmConf, String>) -> Hooked {
    let mut unread = Vec::new();
    let answered = conf.is_ok();
    let conf = conf.unwrap_or_else(|why| {
        unread.push(format!("Slurm does not answer ({why}); only the usual places were searched"));
        SlurmConf::default()
    });
    let mut starts = Vec::new();
    for (key, ours, usual, missing) in HOOKS {
        let value = if answered { conf.get(key).unwrap_or_default() } else { usual };
        let hook = Hook::resolve(value, ours);
        let (own, others): (Vec<_>, Vec<_>) = hook.programs.iter().partition(|program| program.ours);
        starts.extend(own.into_iter().map(|program| Start {
            key,
            value: value.to_owned(),
            program: program.path.clone(),
            kind: Kind::of(&program.path, settings),
            others: others.len(),
            missing,
        }));
    }
    let plugins = Plugstack::read(&plugstack_conf(&conf)).unwrap_or_else(|why| {
        unread.push(why);
        Plugstack::default()
    });
    let plugins = plugins.lines.into_iter().filter(|line| line.name() == "spank_railgate.so").collect();
    Hooked { node: node.to_owned(), starts, plugins, unread }
}

impl Hooked {
    /// Exit code: [`exit::UNFIT`] if a hook still starts railgate.
    pub(crate) fn code(&self) -> u8 {
        match (self.starts.is_empty() && self.plugins.is_empty(), self.unread.is_empty()) {
            (false, _) => exit::UNFIT,
            (true, false) => exit::UNKNOWN,
            (true, true) => exit::OK,
        }
    }

    /// Report with the steps to remove railgate.
    pub(crate) fn text(&self) -> Lines {
        let mut text = Lines::new();
        for why in &self.unread {
            put!(text, "not read: {why}");
        }
        if self.starts.is_empty() && self.plugins.is_empty() {
            put!(text, "{}: no hook of Slurm leads to railgate; the package can be removed", self.node);
            return text;
        }
        put!(text, "{}: Slurm still starts railgate", self.node);
        for start in &self.starts {
            put!(text, "  {}: {} ({})", start.key, start.program.display(), start.missing);
        }
        for line in &self.plugins {
            let missing = if line.required { "slurmd does not start without it" } else { MISSING_PLUGIN };
            put!(text, "  {}: {} ({missing})", line.at, line.plugin.display());
        }
        text.blank();
        put!(text, "Remove it in this order:");
        let steps = [
            (
                "In slurm.conf and the files it includes, then restart slurmctld and slurmd:",
                self.starts.iter().filter_map(Start::line_to_change).collect(),
            ),
            ("In these scripts:", self.starts.iter().filter_map(Start::script_to_change).collect()),
            ("Remove the links:", self.starts.iter().filter_map(Start::link_to_remove).collect()),
            (
                "In plugstack.conf, once no waiting script has an #SBATCH --railgate line:",
                self.plugins.iter().map(|line| format!("{}: delete the line", line.at)).collect(),
            ),
            ("On each machine, the package:", vec!["dpkg -r railgate      or rpm -e railgate".to_owned()]),
        ];
        let needed = steps.iter().filter(|(_, lines): &&(_, Vec<String>)| !lines.is_empty());
        for (number, (what, lines)) in (1..).zip(needed) {
            put!(text, "  {number}. {what}");
            lines.iter().for_each(|line| put!(text, "       {line}"));
        }
        text
    }
}

const MISSING_PLUGIN: &str = "without it sbatch refuses scripts with #SBATCH --railgate lines";

impl Start {
    /// A pattern without a match drains the node like a missing program.
    fn line_to_change(&self) -> Option<String> {
        let Start { key, value, others, program, .. } = self;
        if self.kind == Kind::Script {
            return None;
        }
        if *others == 0 {
            return Some(format!("delete {key}={value}"));
        }
        let named = value.split(',').any(|one| Path::new(one.trim()) == program);
        named.then(|| format!("take {} out of {key}={value}", program.display()))
    }

    fn script_to_change(&self) -> Option<String> {
        (self.kind == Kind::Script)
            .then(|| format!("{}: delete the call of railgate", self.program.display()))
    }

    fn link_to_remove(&self) -> Option<String> {
        (self.kind == Kind::Link).then(|| format!("rm {}", self.program.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const ETC: &str = "/etc/railgate";

    fn site(place: &Path, with_others: bool) -> SlurmConf {
        for (dir, program) in [("prolog.d", "railgate-prolog"), ("epilog.d", "railgate-epilog")] {
            fs::create_dir(place.join(dir)).unwrap();
            fs::write(place.join(program), "").unwrap();
            symlink(place.join(program), place.join(dir).join("95-railgate")).unwrap();
            if with_others {
                fs::write(place.join(dir).join("10-site"), "#!/bin/sh\n").unwrap();
            }
        }
        fs::write(place.join("railgate-epilog-ctld"), "").unwrap();
        fs::write(place.join("slurm.conf"), "").unwrap();
        fs::write(place.join("plugstack.conf"), "optional /usr/lib/railgate/spank_railgate.so\n").unwrap();
        let path = |name: &str| place.join(name).display().to_string();
        let conf = [
            ("SLURM_CONF", path("slurm.conf")),
            ("Prolog", path("prolog.d/*")),
            ("Epilog", path("epilog.d/*")),
            ("EpilogSlurmctld", path("railgate-epilog-ctld")),
        ];
        SlurmConf(conf.map(|(key, value)| (key.to_owned(), value)).into())
    }

    #[test]
    fn the_line_of_a_pattern_without_other_programs_is_removed_first() {
        let place = tempfile::tempdir().unwrap();
        let hooked = hooked("gn3", ETC.as_ref(), Ok(site(place.path(), false)));
        let at = place.path().display().to_string();
        let text = hooked.text().replace(&at, "");
        assert_eq!(hooked.code(), exit::UNFIT);
        assert_eq!(
            text,
            "gn3: Slurm still starts railgate\n  \
               Prolog: /prolog.d/95-railgate (a missing program drains the node)\n  \
               Epilog: /epilog.d/95-railgate (a missing program drains the node)\n  \
               EpilogSlurmctld: /railgate-epilog-ctld (slurmctld logs an error at each job end)\n  \
               /plugstack.conf:1: /usr/lib/railgate/spank_railgate.so (without it sbatch refuses scripts with #SBATCH --railgate lines)\n\n\
             Remove it in this order:\n  \
               1. In slurm.conf and the files it includes, then restart slurmctld and slurmd:\n       \
                    delete Prolog=/prolog.d/*\n       \
                    delete Epilog=/epilog.d/*\n       \
                    delete EpilogSlurmctld=/railgate-epilog-ctld\n  \
               2. Remove the links:\n       \
                    rm /prolog.d/95-railgate\n       \
                    rm /epilog.d/95-railgate\n  \
               3. In plugstack.conf, once no waiting script has an #SBATCH --railgate line:\n       \
                    /plugstack.conf:1: delete the line\n  \
               4. On each machine, the package:\n       \
                    dpkg -r railgate      or rpm -e railgate\n"
        );
    }

    #[test]
    fn the_line_of_a_directory_with_other_programs_stays() {
        let place = tempfile::tempdir().unwrap();
        let text = hooked("gn3", ETC.as_ref(), Ok(site(place.path(), true))).text();
        assert!(!text.contains("delete Prolog="), "{text}");
        assert!(text.contains("prolog.d/95-railgate\n") && !text.contains("10-site"), "{text}");
    }

    #[test]
    fn only_the_call_is_removed_from_a_script_of_the_site() {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("both.sh");
        fs::write(&script, "#!/bin/sh\n/usr/libexec/railgate/railgate-prolog && exec /site/prolog\n")
            .unwrap();
        let conf = SlurmConf([("Prolog".to_owned(), script.display().to_string())].into());
        let text = hooked("gn3", ETC.as_ref(), Ok(conf)).text();
        assert!(text.contains("both.sh: delete the call of railgate\n"), "{text}");
        assert!(!text.contains("delete Prolog=") && !text.contains("   rm "), "{text}");
    }

    #[test]
    fn a_link_to_a_package_that_is_gone_is_found() {
        let place = tempfile::tempdir().unwrap();
        let conf = site(place.path(), true);
        fs::remove_file(place.path().join("railgate-prolog")).unwrap();
        let text = hooked("gn3", ETC.as_ref(), Ok(conf)).text();
        assert!(text.contains("prolog.d/95-railgate (a missing program drains the node)"), "{text}");
    }

    #[test]
    fn no_hooks_and_no_answer_are_reported_differently() {
        let nothing = hooked("gn3", ETC.as_ref(), Ok(SlurmConf::default()));
        assert_eq!(nothing.code(), exit::OK);
        assert!(nothing.text().contains("the package can be removed"));
        let silent = hooked("gn3", ETC.as_ref(), Err("no answer".to_owned()));
        if silent.starts.is_empty() && silent.plugins.is_empty() {
            assert_eq!(silent.code(), exit::UNKNOWN);
        }
        assert!(
            silent.text().starts_with("not read: Slurm does not answer (no answer)"),
            "{}",
            silent.text()
        );
    }
}
