//! Machine profiles: built-in ones, and those with which a site extends or replaces them.

mod record;

use std::path::{Path, PathBuf};

use railgate_fsutil::{read, trusted};
use railgate_model::{FabricProfile, GpuProfile, HostProfile, Profile, ProfileError, RailProfile};
use serde::Deserialize;

pub use record::{Recorded, record};

/// Maximum size of a profile. Real ones are one page of text.
const PROFILE_BYTES: u64 = 256 * 1024;

/// Maximum depth of `extends`, beyond which it is assumed to be circular.
const MAX_DEPTH: usize = 8;

macro_rules! builtin {
    ($($id:literal),* $(,)?) => {
        &[$(($id, include_str!(concat!("../../../profiles/", $id, ".toml")))),*]
    };
}

/// In the order in which they are listed.
const BUILTIN: &[(&str, &str)] = builtin![
    "h100-sxm", "h200-sxm", "h800-sxm", "h20", "a100-sxm", "a800-sxm", "b200", "l40s", "l20", "rtx4090",
    "rtx3090", "a6000", "generic", "cpu",
];

/// One profile file. Its keys are those of [`Profile`] and `extends`; missing keys come from the profile that it
/// extends.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read only to have toml refuse unknown keys with the place in this file")]
struct ProfileFile {
    id: Option<String>,
    title: Option<String>,
    extends: Option<String>,
    #[serde(default)]
    gpus: GpuProfile,
    #[serde(default)]
    fabric: FabricProfile,
    #[serde(default)]
    rails: RailProfile,
    #[serde(default)]
    host: HostProfile,
}

/// The sources of profiles: built-in ones have the lowest precedence, and each directory precedes the one before it.
struct Layers<'a> {
    dirs: &'a [PathBuf],
}

/// Returns the ids of the built-in profiles.
pub fn builtin_ids() -> Vec<&'static str> {
    BUILTIN.iter().map(|(id, _)| *id).collect()
}

/// Returns all ids: built-in ones, and those of files `<id>.toml` in `dirs`.
pub fn ids(dirs: &[PathBuf]) -> Vec<String> {
    let mut ids: Vec<String> = builtin_ids().into_iter().map(str::to_owned).collect();
    for dir in dirs {
        for name in read::names(dir).unwrap_or_default() {
            if let Some(id) = name.strip_suffix(".toml")
                && is_id(id)
                && !ids.iter().any(|known| known == id)
            {
                ids.push(id.to_owned());
            }
        }
    }
    ids
}

/// Returns the profile `id`: `<id>.toml` from the last of `dirs` that has one, otherwise the built-in one.
///
/// With `extends = "other"`, keys that the file lacks come from the other profile. A file that extends its own id means
/// the profile with that id and the next lower precedence. Tables are merged key by key, lists are replaced.
///
/// # Errors
/// [`ProfileError::Unknown`] lists the known ids; [`ProfileError::Invalid`] has file, line and caret.
pub fn load(id: &str, dirs: &[PathBuf]) -> Result<Profile, ProfileError> {
    let layers = Layers { dirs };
    let mut table = layers.table(id, dirs.len(), 0)?;
    table.insert("id".to_owned(), toml::Value::String(id.to_owned()));
    table.entry("title").or_insert_with(|| toml::Value::String(id.to_owned()));
    let profile: Profile = table.try_into().map_err(|error| invalid(id, "", &error))?;
    match profile.problems().first() {
        None => Ok(profile),
        Some(problem) => Err(ProfileError::Invalid(format!("machine profile '{id}': {problem}"))),
    }
}

/// Returns the profile for a GPU name (`nvmlDeviceGetName`), if one lists it.
///
/// Names must be equal, because a longer one is another product: `NVIDIA H200 NVL` is a PCIe card, and `NVIDIA H20` is
/// not a shortened `NVIDIA H200`. Profiles of the site take precedence over built-in ones.
///
/// # Errors
/// Returns an error if a file of the site is not a valid profile.
pub fn matching(gpu_name: &str, dirs: &[PathBuf]) -> Result<Option<Profile>, ProfileError> {
    let all = ids(dirs);
    let (builtin, site) = all.split_at(BUILTIN.len().min(all.len()));
    for id in site.iter().chain(builtin) {
        let profile = load(id, dirs)?;
        if profile.gpus.names.iter().any(|name| name.eq_ignore_ascii_case(gpu_name.trim())) {
            return Ok(Some(profile));
        }
    }
    Ok(None)
}

impl Layers<'_> {
    /// The merged table of `id`, from the lowest `layers` directories and the built-in profiles.
    fn table(&self, id: &str, layers: usize, depth: usize) -> Result<toml::Table, ProfileError> {
        if depth > MAX_DEPTH {
            return Err(ProfileError::Invalid(format!("machine profile '{id}': `extends` is circular")));
        }
        let (name, text, below) = self.find(id, layers)?;
        toml::from_str::<ProfileFile>(&text).map_err(|error| invalid(&name, &text, &error))?;
        let mut table: toml::Table = text.parse().map_err(|error| invalid(&name, &text, &error))?;
        if let Some(own) = table.get("id").and_then(toml::Value::as_str)
            && own != id
        {
            return Err(ProfileError::Invalid(format!("{name}: id = '{own}', but the file is named '{id}'")));
        }
        match table.remove("extends") {
            Some(toml::Value::String(base)) if base == id => {
                let base = below.map(|below| self.table(&base, below, depth + 1));
                match base {
                    Some(Ok(base)) => Ok(merged(base, table)),
                    None | Some(Err(ProfileError::Unknown { .. })) => Err(ProfileError::Invalid(format!(
                        "{name}: extends '{id}', but there is no profile below it"
                    ))),
                    Some(Err(error)) => Err(error),
                }
            }
            Some(toml::Value::String(base)) => {
                Ok(merged(self.table(&base, self.dirs.len(), depth + 1)?, table))
            }
            _ => Ok(table),
        }
    }

    /// Name and text of a profile, and the number of directories with lower precedence (`None` for a built-in one).
    fn find(&self, id: &str, layers: usize) -> Result<(String, String, Option<usize>), ProfileError> {
        // The id can come from a job's options, so it must never be used as a path.
        if is_id(id) {
            for (below, dir) in self.dirs.iter().enumerate().take(layers).rev() {
                let path: PathBuf = Path::new(dir).join(format!("{id}.toml"));
                // Root drains nodes because of a profile's values, so its files must be trusted. Other users only read
                // with it, and may use their own files.
                if nix::unistd::geteuid().is_root()
                    && let Err(why) = trusted(&path)
                    && !why.is_absent()
                {
                    return Err(ProfileError::Invalid(why.to_string()));
                }
                match read::whole(&path, PROFILE_BYTES) {
                    Ok(text) => return Ok((path.display().to_string(), text, Some(below))),
                    Err(error) if error.is_absent() => {}
                    Err(error) => return Err(ProfileError::Invalid(error.to_string())),
                }
            }
            if let Some((id, text)) = BUILTIN.iter().find(|(known, _)| *known == id) {
                return Ok((format!("built-in profile {id}"), (*text).to_owned(), None));
            }
        }
        let known = ids(self.dirs);
        let meant = railgate_text::did_you_mean(id, known.iter().map(String::as_str));
        let id = railgate_text::clip(id, 80);
        Err(ProfileError::Unknown { id, meant, known: known.join(", ") })
    }
}

fn is_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 64
        && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !id.starts_with('-')
}

fn merged(mut base: toml::Table, over: toml::Table) -> toml::Table {
    for (key, value) in over {
        let value = match (base.remove(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => {
                toml::Value::Table(merged(below, above))
            }
            (_, value) => value,
        };
        base.insert(key, value);
    }
    base
}

fn invalid(name: &str, text: &str, error: &toml::de::Error) -> ProfileError {
    ProfileError::Invalid(format!("{name}: {}", toml_error(error, text)))
}

/// Formats a TOML error in one line: `line 3, column 5: what is wrong`. The crate's own text has several lines and
/// quotes the file.
pub fn toml_error(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).filter(|_| !text.is_empty());
    let what = error.message();
    match before {
        None => what.to_owned(),
        Some(before) => {
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            format!("line {line}, column {column}: {what}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_builtin_profile_is_valid() {
        for id in builtin_ids() {
            let profile = load(id, &[]).unwrap();
            assert_eq!(profile.id, id);
            assert_eq!(
                profile.gpus.source.is_empty(),
                ["generic", "cpu"].contains(&id),
                "{id} says where its facts come from"
            );
            for name in &profile.gpus.names {
                assert_eq!(matching(name, &[]).unwrap().unwrap().id, id);
            }
        }
    }

    #[test]
    fn a_longer_gpu_name_does_not_match() {
        assert_eq!(matching("NVIDIA H200 NVL", &[]).unwrap(), None);
        assert_eq!(matching("NVIDIA H20", &[]).unwrap().unwrap().id, "h20");
        assert_eq!(matching("NVIDIA H200", &[]).unwrap().unwrap().id, "h200-sxm");
    }

    #[test]
    fn later_directories_take_precedence() {
        let (vendor, site) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dirs = [vendor.path().to_owned(), site.path().to_owned()];
        let write =
            |dir: &tempfile::TempDir, name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write(&vendor, "h100-sxm.toml", "extends = 'h100-sxm'\n[gpus]\nnvlinks_up = 12\ncount = 4\n");
        write(&site, "h100-sxm.toml", "extends = 'h100-sxm'\n[gpus]\ncount = 2\n");
        write(&site, "ours.toml", "extends = 'h100-sxm'\ntitle = 'ours'\n[fabric]\nexclude = ['mlx5_8']\n");
        let ours = load("ours", &dirs).unwrap();
        assert_eq!((ours.id.as_str(), ours.title.as_str()), ("ours", "ours"));
        assert_eq!((ours.gpus.count, ours.gpus.nvlinks_up, ours.gpus.pcie_gen), (Some(2), Some(12), Some(5)));
        assert_eq!(ours.fabric.exclude, ["mlx5_8"]);
        assert_eq!(ours.fabric.hcas, Some(8));
        assert!(ids(&dirs).contains(&"ours".to_owned()));
        // A profile of the site takes precedence.
        assert_eq!(matching("NVIDIA H100 80GB HBM3", &dirs).unwrap().unwrap().id, "ours");
    }

    #[test]
    fn errors_have_the_position_or_the_known_ids() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_owned()];
        let load = |text: &str| {
            fs::write(dir.path().join("ours.toml"), text).unwrap();
            load("ours", &dirs).unwrap_err().to_string()
        };
        let why = load("title = 'x'\n[gpus]\nnvlink_up = 4\n");
        for part in ["ours.toml: line 3, column 1: ", "`nvlink_up`", "`nvlinks_up`"] {
            assert!(why.contains(part), "{part} in {why}");
        }
        assert!(load("[gpus]\ncount = 'eight'\n").contains("line 2, column 9"));
        assert!(load("extends = 'ours'\n").contains("no profile below it"));
        assert!(load("id = 'theirs'\n").contains("theirs"));
        assert!(load("[gpus]\npcie_gen = 99\n").contains("gpus.pcie_gen = 99"));
        assert!(load("extends = 'h300'\n").contains("known: h100-sxm, h200-sxm"));
        fs::write(dir.path().join("a.toml"), "extends = 'b'\n").unwrap();
        fs::write(dir.path().join("b.toml"), "extends = 'a'\n").unwrap();
        assert!(super::load("a", &dirs).unwrap_err().to_string().contains("circular"));
    }

    #[test]
    fn root_uses_no_profile_that_others_can_write() {
        use std::os::unix::fs::{PermissionsExt, chown};
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().join("profiles")];
        let file = dirs[0].join("ours.toml");
        fs::create_dir(&dirs[0]).unwrap();
        fs::write(&file, "extends = 'h100-sxm'\n").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = || load("ours", &dirs).err().map(|why| why.to_string());
        mode(&dirs[0], 0o755);
        mode(&file, 0o644);
        assert_eq!(refused(), None);
        mode(&file, 0o666);
        assert!(refused().unwrap().contains("ours.toml: mode 0666: others may write it"));
        mode(&file, 0o644);
        chown(&file, Some(65_534), None).unwrap();
        assert!(refused().unwrap().contains("belongs to uid 65534, not root"));
        chown(&file, Some(0), None).unwrap();
        mode(&dirs[0], 0o777);
        assert!(refused().unwrap().contains("profiles: mode 0777"));
        // Another user could have removed a profile that overrides this one.
        assert!(load("h100-sxm", &dirs).is_err());
        assert!(matching("NVIDIA H100 80GB HBM3", &dirs).is_err());
    }

    #[test]
    fn an_id_is_never_used_as_a_path() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        fs::write(dir.path().join("out.toml"), "title = 'x'\n").unwrap();
        for id in ["../out", "", "in/../../out", "H100\u{1b}[2J", "-x"] {
            let why = load(id, &[dir.path().join("in")]).unwrap_err();
            assert!(matches!(&why, ProfileError::Unknown { .. }), "{why}");
            assert!(!why.to_string().contains('\u{1b}'));
        }
    }
}
