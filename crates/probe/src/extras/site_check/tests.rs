use std::os::unix::fs::symlink;

use super::*;

struct Checks(tempfile::TempDir);

impl Checks {
    fn new() -> Self {
        Checks(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.dir().join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        self.mode(name, 0o755);
        path
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.dir().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn listed(&self) -> Vec<(String, Option<String>)> {
        let why = |check: &SiteCheck| match &check.outcome {
            SiteOutcome::Said(_) => None,
            SiteOutcome::Refused(why) => Some(format!("refused: {why}")),
            SiteOutcome::NotRun(why) | SiteOutcome::Failed(why) => Some(why.clone()),
            SiteOutcome::Silent { .. } => Some("silent".to_owned()),
        };
        site_checks(self.dir()).iter().map(|check| (check.name.clone(), why(check))).collect()
    }
}

fn one(name: &str, why: Option<&str>) -> (String, Option<String>) {
    (name.to_owned(), why.map(str::to_owned))
}

#[test]
fn only_files_that_root_alone_can_change_are_run() {
    let checks = Checks::new();
    checks.script("Check_RAID.sh", "exit 0");
    checks.script("writable", "exit 0");
    checks.mode("writable", 0o775);
    checks.script("plain", "exit 0");
    checks.mode("plain", 0o644);
    checks.script("old.rpmsave", "exit 0");
    checks.script("what?", "exit 0");
    symlink("/bin/true", checks.dir().join("link")).unwrap();
    fs::create_dir(checks.dir().join("folder")).unwrap();
    assert_eq!(
        checks.listed(),
        [
            one("check-raid", None),
            one("folder", Some("refused: is not a regular file")),
            one("link", Some("refused: is not a regular file")),
            one("plain", Some("is not executable")),
            one("", Some("its name is not a valid id")),
            one("writable", Some("refused: mode 0775: others may write it (chmod go-w)")),
        ]
    );
}

#[test]
fn a_file_of_another_user_is_refused() {
    let checks = Checks::new();
    let path = checks.script("theirs", "exit 0");
    if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
        return;
    }
    assert_eq!(
        checks.listed(),
        [one("theirs", Some("refused: belongs to uid 65534, not root (chown root)"))]
    );
}

#[test]
fn a_directory_that_others_can_write_is_refused_also_through_a_link() {
    let checks = Checks::new();
    checks.script("raid", "exit 0");
    let link = checks.dir().join("link");
    let inner = checks.dir().join("inner");
    let below = inner.join("checks.d");
    fs::create_dir_all(&below).unwrap();
    for dir in [&inner, &below] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    symlink(&inner, &link).unwrap();
    assert_eq!(site_checks(&link.join("checks.d")), []);
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
    for dir in [&inner, &below, &link, &link.join("checks.d")] {
        let listed = site_checks(dir);
        assert!(
            matches!(&listed[..], [SiteCheck { outcome: SiteOutcome::Refused(why), .. }] if why.contains("0777"))
        );
    }
    assert_eq!(site_checks(&checks.dir().join("absent")), []);
}

#[test]
fn file_names_become_ids() {
    assert_eq!(id_of("check_fans.py"), Some("check-fans".to_owned()));
    assert_eq!(id_of("10-raid"), Some("10-raid".to_owned()));
    for bad in ["-x", "x-", "ü", "a b", ".sh", &"x".repeat(31)] {
        assert_eq!(id_of(bad), None, "{bad}");
    }
}
