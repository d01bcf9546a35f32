//! Files that root executes or trusts, and the programs behind Slurm's hooks.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use railgate_fsutil::trusted;

/// A script is searched for railgate's programs only up to here, bytes.
const SCRIPT: u64 = 64 << 10;

/// Programs on this machine behind a hook of slurm.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hook {
    /// The value in slurm.conf; empty if unset.
    pub(crate) value: String,
    /// Programs that Slurm runs for it.
    pub(crate) programs: Vec<Program>,
}

/// A program that Slurm runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// It is a program of railgate, or a script that names one.
    pub(crate) ours: bool,
    /// Why it cannot run, or must not be trusted.
    pub(crate) trouble: Option<String>,
}

impl Hook {
    /// Resolves `value` of slurm.conf, a path or a pattern. `ours`: name of railgate's program.
    pub(crate) fn resolve(value: &str, ours: &str) -> Self {
        let mut programs = Vec::new();
        for pattern in value.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()) {
            let found: Vec<PathBuf> =
                glob::glob(pattern).map(|paths| paths.flatten().collect()).unwrap_or_default();
            programs.extend(found.iter().map(|path| Program::inspect(path, ours)));
        }
        Hook { value: value.to_owned(), programs }
    }

    /// The program of railgate, if any.
    pub(crate) fn ours(&self) -> Option<&Program> {
        self.programs.iter().find(|program| program.ours)
    }

    /// Whether only programs of the site were found. Programs on other machines are unknown.
    pub(crate) fn of_site_alone(&self) -> bool {
        !self.programs.is_empty() && self.ours().is_none()
    }

    /// Whether Slurm still starts this program, directly or from one of these scripts.
    pub(crate) fn runs(&self, program: &str) -> bool {
        let real = fs::canonicalize(program).ok();
        self.programs
            .iter()
            .filter_map(|one| fs::canonicalize(&one.path).ok())
            .any(|one| real.as_ref() == Some(&one) || is_script_with(&one, program))
    }

    /// How to add railgate's program and keep the site's own: a link in the site's directory, or one directory with a
    /// link to each program; links that exist are left out. `name` is `prolog` or `epilog`, `key` its key in
    /// slurm.conf.
    pub(crate) fn with_ours(&self, key: &str, name: &str) -> String {
        let program = format!("/usr/libexec/railgate/railgate-{name}");
        let link = |to: &str, dir: &Path, name: &str| {
            let at = dir.join(name);
            let there = fs::read_link(&at).is_ok_and(|target| target == Path::new(to));
            (!there).then(|| format!("ln -s {to} {}", at.display()))
        };
        let common = PathBuf::from(format!("/etc/slurm/{name}.d"));
        let dir = self.directory().unwrap_or(&common);
        let mut steps = Vec::new();
        if self.directory().is_none() {
            for path in self.value.split(',').map(str::trim).filter(|value| !value.is_empty()) {
                let file = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
                steps.extend(link(path, dir, &format!("50-{file}")));
            }
        }
        steps.extend(link(&program, dir, "95-railgate"));
        if self.directory().is_none() {
            steps.push(format!("{key}={}/*", dir.display()));
        }
        steps.join("; ")
    }

    /// The directory of a pattern such as `/etc/slurm/prolog.d/*`, in which Slurm runs every program.
    pub(crate) fn directory(&self) -> Option<&Path> {
        let value = Path::new(&self.value);
        value.file_name().filter(|name| name.to_string_lossy().contains(['*', '?', '['])).and(value.parent())
    }

    /// Whether the sampler can run: the one beside railgate's prolog or, if a script calls the prolog, the one in the
    /// packages' directory.
    pub(crate) fn sampler(&self) -> Result<(), String> {
        let real = self.ours().and_then(|program| fs::canonicalize(&program.path).ok());
        let prolog = real.filter(|real| real.file_name().is_some_and(|name| name == "railgate-prolog"));
        let prolog = prolog.unwrap_or_else(|| PathBuf::from("/usr/libexec/railgate/railgate-prolog"));
        let sampler = prolog.with_file_name("railgate-sampler");
        let trouble = match fs::canonicalize(&sampler) {
            Err(why) => Some(why.to_string()),
            Ok(real) => not_runnable(&real).or_else(|| untrusted(&real)),
        };
        trouble.map_or(Ok(()), |trouble| Err(format!("{}: {trouble}", sampler.display())))
    }
}

impl Program {
    fn inspect(path: &Path, ours: &str) -> Self {
        let real = fs::canonicalize(path);
        let trouble = match &real {
            Err(why) => Some(why.to_string()),
            Ok(real) => not_runnable(real).or_else(|| untrusted(real)),
        };
        let named = |real: &Path| real.file_name().is_some_and(|name| name == ours);
        let is_ours = match &real {
            Ok(real) => named(real) || is_script_with(real, ours),
            // The package was removed, but its link was not.
            Err(_) => fs::read_link(path).is_ok_and(|target| named(&target)),
        };
        Program { path: path.to_owned(), ours: is_ours, trouble }
    }
}

fn not_runnable(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    (meta.permissions().mode() & 0o111 == 0).then(|| "not executable".to_owned())
}

/// Why users other than root could change or replace a file; `None` if they cannot.
pub(crate) fn untrusted(path: &Path) -> Option<String> {
    trusted(path).err().map(|why| why.to_string())
}

fn is_script_with(path: &Path, ours: &str) -> bool {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SCRIPT).read_to_end(&mut text));
    read.is_ok() && text.starts_with(b"#!") && String::from_utf8_lossy(&text).contains(ours)
}

/// The Slurm release for which a plugin file was built, from its `plugin_version`.
///
/// # Errors
/// The file cannot be read, or is not a plugin.
pub(crate) fn plugin_release(path: &Path) -> Result<(u32, u32), String> {
    use object::{Object, ObjectSection, ObjectSymbol};
    let said = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let data = fs::read(path).map_err(|why| said(&why))?;
    let file = object::File::parse(&*data).map_err(|why| said(&why))?;
    let number = file
        .dynamic_symbols()
        .find(|symbol| symbol.name() == Ok("plugin_version"))
        .and_then(|symbol| {
            let section = file.section_by_index(symbol.section_index()?).ok()?;
            let bytes = section.data_range(symbol.address(), 4).ok()??;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        })
        .ok_or_else(|| said(&"no Slurm plugin"))?;
    Ok((number >> 16, number >> 8 & 0xff))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn put(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn hooks_are_found_by_name_link_and_script() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("prolog.d");
        fs::create_dir(&dir).unwrap();
        let program = place.path().join("railgate-prolog");
        put(&program, "", 0o755);
        let pattern = format!("{}/*", dir.display());
        assert_eq!(Hook::resolve(&pattern, "railgate-prolog").programs, []);
        put(&dir.join("10-site"), "#!/bin/sh\nexit 0\n", 0o755);
        assert_eq!(Hook::resolve(&pattern, "railgate-prolog").ours(), None);
        symlink(&program, dir.join("95-railgate")).unwrap();
        let hook = Hook::resolve(&pattern, "railgate-prolog");
        assert_eq!((hook.programs.len(), hook.ours().is_some()), (2, true));
        let script = place.path().join("both.sh");
        put(&script, "#!/bin/sh\n/usr/libexec/railgate/railgate-prolog && site\n", 0o755);
        assert!(Hook::resolve(&script.display().to_string(), "railgate-prolog").ours().is_some());
        assert!(
            hook.sampler()
                .unwrap_err()
                .starts_with(&place.path().join("railgate-sampler: No such").display().to_string())
        );
        let sampler = place.path().join("railgate-sampler");
        put(&sampler, "", 0o644);
        assert!(hook.sampler().unwrap_err().ends_with("not executable"));
        put(&sampler, "", 0o755);
        if fs::metadata(&sampler).unwrap().uid() == 0 {
            assert_eq!(hook.sampler(), Ok(()));
        }
        put(&script, "#!/bin/sh\n", 0o644);
        let hook = Hook::resolve(&script.display().to_string(), "railgate-prolog");
        assert_eq!(hook.programs[0].trouble.as_deref(), Some("not executable"));
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x");
        put(&file, "", 0o666);
        let said = untrusted(&file).unwrap();
        assert!(said.contains("others may write it"), "{said}");
        put(&file, "", 0o644);
        assert_eq!(untrusted(&file), None, "the sticky /tmp above it is fine");
    }

    #[test]
    fn a_file_without_plugin_version_is_no_plugin() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.so");
        fs::write(&file, "not ELF").unwrap();
        assert!(plugin_release(&file).is_err());
        assert!(plugin_release(Path::new("/proc/self/exe")).unwrap_err().contains("no Slurm plugin"));
    }
}
