//! Parser for plugstack.conf with its includes.

use std::fs;
use std::path::{Path, PathBuf};

/// Deepest include; also ends a file that includes itself.
const DEPTH: u32 = 8;

/// Slurm's plugin stack, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plugstack {
    pub(crate) lines: Vec<Line>,
}

/// One plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Position in the file: `plugstack.conf:3`.
    pub(crate) at: String,
    pub(crate) required: bool,
    /// Path of the plugin; Slurm resolves a relative one in PluginDir.
    pub(crate) plugin: PathBuf,
}

impl Line {
    /// File name: `spank_pyxis.so`.
    pub(crate) fn name(&self) -> String {
        self.plugin.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

impl Plugstack {
    /// Reads a file with its includes. A missing file gives an empty stack.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let mut stack = Plugstack::default();
        stack.add(path, DEPTH)?;
        Ok(stack)
    }

    fn add(&mut self, path: &Path, depth: u32) -> Result<(), String> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(why) => return Err(format!("{}: {why}", path.display())),
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let (Some(kind), Some(what)) = (words.next(), words.next()) else { continue };
            match kind {
                "include" if depth > 0 => {
                    let pattern = path.parent().unwrap_or(Path::new("/")).join(what);
                    let found = glob::glob(&pattern.to_string_lossy()).map_err(|why| why.to_string())?;
                    for file in found.flatten() {
                        self.add(&file, depth - 1)?;
                    }
                }
                "required" | "optional" => self.lines.push(Line {
                    at: format!("{}:{}", path.display(), number + 1),
                    required: kind == "required",
                    plugin: PathBuf::from(what),
                }),
                _ => {}
            }
        }
        Ok(())
    }

    /// The line of railgate's plugin, and the number of plugins before it.
    pub(crate) fn ours(&self) -> Option<(usize, &Line)> {
        self.lines.iter().enumerate().find(|(_, line)| line.name().contains("railgate"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn included_files_are_read_in_order() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("plugstack.conf");
        let below = place.path().join("plugstack.conf.d");
        fs::create_dir(&below).unwrap();
        fs::write(&top, "# all\ninclude plugstack.conf.d/*.conf\nrequired last.so arg\n").unwrap();
        fs::write(below.join("a.conf"), "optional /usr/lib/railgate/spank_railgate.so # ours\n").unwrap();
        fs::write(below.join("b.conf"), "include b.conf\noptional spank_pyxis.so\n").unwrap();
        let stack = Plugstack::read(&top).unwrap();
        let names: Vec<String> = stack.lines.iter().map(Line::name).collect();
        assert_eq!((names[0].as_str(), names.last().unwrap().as_str()), ("spank_railgate.so", "last.so"));
        assert_eq!(stack.ours().unwrap().0, 0);
        assert!(stack.lines.last().unwrap().required);
        assert!(stack.lines.last().unwrap().at.ends_with("plugstack.conf:3"));
        assert_eq!(Plugstack::read(Path::new("/nowhere")).unwrap(), Plugstack::default());
    }
}
