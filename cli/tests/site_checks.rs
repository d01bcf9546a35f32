//! The site's own checks: when each one runs, whether its findings may drain, and what a check run makes of them.

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

#[test]
fn a_site_check_is_listed_explained_and_run() {
    let dir = tempfile::tempdir().unwrap();
    let install = |name: &str, body: &str, mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    install("raid.sh", "echo \"RAID CRITICAL - md0 degraded in the $RAILGATE_PHASE\"; exit 2", 0o755);
    install("theirs", "exit 0", 0o757);
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("railgate.toml");
    let table = format!(
        "[gate.checks.site]\ndirectory = \"{}\"\n[gate.checks.site.named.licence]\ndeadline = \"1s\"\n",
        dir.path().display()
    );
    std::fs::write(&config, table).unwrap();
    let run = |words: &[&str]| {
        let mut railgate = Command::new(env!("CARGO_BIN_EXE_railgate"));
        railgate.arg("--config").arg(&config).args(words).output().unwrap()
    };
    let said = |words: &[&str]| {
        let done = run(words);
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let listed = said(&["check", "--list"]);
    let line =
        |start: &str| listed.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    assert!(
        line("site-raid ").contains("prolog,periodic")
            && line("site-raid ").ends_with("raid.sh reports; never drains"),
        "{listed}"
    );
    assert!(
        line("site-theirs ").ends_with("/theirs: not run: mode 0757: others may write it (chmod go-w)"),
        "{listed}"
    );
    assert!(said(&["explain", "site-raid@md0"]).contains("docs/site-checks.md"));
    // This machine may have no GPU; the site's checks run nevertheless.
    let looked = run(&["check", "--format", "json"]);
    let looked: Value = serde_json::from_slice(&looked.stdout).unwrap();
    let found: Vec<String> = looked["verdict"]["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["check"].as_str().unwrap().starts_with("site"))
        .map(|finding| {
            format!("{} {}: {}", finding["severity"], finding["check"], finding["what"]).replace('"', "")
        })
        .collect();
    assert!(found.contains(&"warn site-raid: md0 degraded in the periodic".to_owned()), "{found:?}");
    assert!(
        found.contains(&"warn site-theirs: not run: mode 0757: others may write it (chmod go-w)".to_owned()),
        "{found:?}"
    );
    assert!(
        found.iter().any(|line| line.starts_with("unknown site-licence: no such check in ")),
        "{found:?}"
    );
}
