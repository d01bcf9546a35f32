//! Notes that an earlier version of this program left: one file per job, named by its id.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use railgate_fsutil::nofollow;

/// Path and text of each note; the text of an unreadable one is empty, so that it is counted as unreadable.
pub(crate) fn old_notes(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut notes = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()) {
            let mut text = String::new();
            let file = nofollow::read(&entry.path());
            let _ = file.and_then(|file| file.take(64 << 10).read_to_string(&mut text));
            notes.push((entry.path(), text));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::Scene;

    #[test]
    fn only_regular_files_named_by_a_job_id_are_notes() {
        let scene = Scene::new("0", "0");
        let dir = scene.path("notes");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("7"), "a note").unwrap();
        fs::write(dir.join("7.tmp"), "half of one").unwrap();
        symlink(dir.join("7"), dir.join("8")).unwrap();
        let mut notes = old_notes(&dir);
        notes.sort();
        assert_eq!(notes, [(dir.join("7"), "a note".to_owned()), (dir.join("8"), String::new())]);
    }
}
