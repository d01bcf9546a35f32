//! `railgate check --list`: when each of the site's own checks runs, and whether its findings may drain.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

#[test]
fn the_list_shows_the_configuration_of_site_checks() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["raid", "fans", "old"] {
        let path = dir.path().join(name);
        std::fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = dir.path().join("railgate.toml");
    let run = |toml: &str, more: &[&str]| {
        let all = format!("[gate.checks.site]\ndirectory = \"{}\"\n{toml}", dir.path().display());
        std::fs::write(&config, all).unwrap();
        let mut railgate = Command::new(env!("CARGO_BIN_EXE_railgate"));
        let done =
            railgate.arg("--config").arg(&config).args(["check", "--list"]).args(more).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    // The configuration file is in the same directory, and is not a check.
    let rows = |toml: &str| -> Vec<String> {
        let listed = run(toml, &[]);
        let of_site =
            listed.lines().filter(|line| line.starts_with("site") && !line.contains("railgate.toml"));
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let phases = words[if words[0] == "site" { 3 } else { 4 }];
            let about = line.rsplit_once('/').map_or("", |(_, about)| about);
            format!("{} {phases} {about}", words[0])
        };
        of_site.map(row).collect()
    };
    assert_eq!(
        rows(""),
        [
            "site prolog,periodic ",
            "site-fans prolog,periodic fans reports; never drains",
            "site-old prolog,periodic old reports; never drains",
            "site-raid prolog,periodic raid reports; never drains",
        ]
    );
    let named = "[gate.checks.site.named.raid]\nworst = \"fail\"\nphases = [\"periodic\", \"epilog\"]\n\
                 [gate.checks.site.named.old]\nrun = false\n[gate.checks.site.named.licence]\nworst = \"fail\"\n";
    assert_eq!(
        rows(named),
        [
            "site prolog,epilog,periodic ",
            "site-fans prolog,periodic fans reports; never drains",
            "site-old - old: not run: no phases are configured in [gate.checks.site.named.old] or [gate.checks.site]",
            "site-raid periodic,epilog raid reports; may drain",
            "site-licence prolog,periodic licence: not run: not installed, though the configuration names it",
        ]
    );
    let off = rows("action = \"off\"\n");
    assert_eq!(off[..2], ["site - ", "site-fans - fans: not run: [gate.checks.site] action = \"off\""]);
    let json: Value = serde_json::from_str(&run(named, &["--format", "json"])).unwrap();
    let of =
        |rows: &Value, id: &str| rows.as_array().unwrap().iter().find(|row| row["id"] == id).unwrap().clone();
    assert_eq!(of(&json["checks"], "site")["phases"], serde_json::json!(["prolog", "epilog", "periodic"]));
    let raid = of(&json["site"], "site-raid");
    assert_eq!(
        (&raid["policy"], &raid["phases"]),
        (&"drain".into(), &serde_json::json!(["periodic", "epilog"]))
    );
    assert_eq!(of(&json["site"], "site-fans")["policy"], "report");
}
