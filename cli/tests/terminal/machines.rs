//! Data of a machine: snapshots, sysfs, /proc, the kernel log, profiles, the site's own checks.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::stage::{MARK, Stage, hostile, places, spoiled};

/// The commands that read a snapshot.
const OF_A_SNAPSHOT: [&[&str]; 9] = [
    &["check"],
    &["check", "--format", "json"],
    &["rails"],
    &["rails", "--format", "json"],
    &["rails", "--format", "env", "--explain"],
    &["rails", "--format", "xml"],
    &["profile", "record", "--id", "mine"],
    &["rma", "gn1"],
    &["rma", "gn1", "--format", "json"],
];

/// Makes every text of a snapshot hostile, one at a time, and keeps those with which the file is still valid.
pub(crate) fn snapshots(stage: &mut Stage) {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/snapshots/h200-x4-vm-full.json");
    stage.write("real.json", std::fs::read(real).unwrap());
    let faults = "h100-sxm:gpu-lost@3,ib-port-down@mlx5_5,gpu-xid-63@1";
    for source in
        [["--simulate", faults], ["--simulate", "h100-sxm:nvml-missing"], ["--snapshot", "real.json"]]
    {
        let mut all = stage.run(&[&["snapshot"][..], &source].concat()).json();
        let mut kept = 0;
        for place in places(&all) {
            let one = spoiled(&all, &place);
            stage.write("one.json", serde_json::to_vec(&one).unwrap());
            let ran = stage.run(&["check", "--snapshot", "one.json"]);
            if ran.code != Some(2) {
                (all, kept) = (one, kept + 1);
            } else if !ran.err.starts_with("railgate: one.json: ") {
                stage.problem(format!("{place}: {}", ran.err));
            }
        }
        if kept < 20 {
            stage.problem(format!("{source:?}: only {kept} texts are read"));
        }
        stage.write("all.json", serde_json::to_vec(&all).unwrap());
        for words in OF_A_SNAPSHOT {
            stage.run(&[words, &["--snapshot", "all.json"]].concat());
        }
        stage.shows(&["check", "--snapshot", "all.json"]);
        stage.shows(&["rma", "gn1", "--snapshot", "all.json"]);
        let again = stage.shows(&["snapshot", "--snapshot", "all.json"]).json();
        if again["node"] != all["node"] || again["gpus"] != all["gpus"] {
            stage.problem(format!("{source:?}: a value of the snapshot is not the same in JSON"));
        }
        stage.run(&["snapshot", "--snapshot", "all.json", "--out", "again.json"]);
        stage.run(&["rma", "gn1", "--snapshot", "all.json", "--out", &hostile()]);
    }
    keys(stage);
    let text = hostile();
    for bad in [text.clone(), format!("{{\"{text}\": 1}}"), "{\"schema\": 99}".to_owned(), String::new()] {
        stage.write(&text, bad);
        for words in OF_A_SNAPSHOT {
            stage.shows(&[words, &["--snapshot", &text]].concat());
        }
    }
}

/// Hostile field names: one extra field in each object.
fn keys(stage: &mut Stage) {
    fn more(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(more),
            Value::Object(map) => {
                map.values_mut().for_each(more);
                if map.len() > 1
                    && let Some(one) = map.values().next().cloned()
                {
                    map.insert(hostile(), one);
                }
            }
            _ => {}
        }
    }
    let mut all = stage.run(&["snapshot", "--simulate", "h100-sxm"]).json();
    more(&mut all);
    stage.write("one.json", serde_json::to_vec(&all).unwrap());
    for words in OF_A_SNAPSHOT {
        stage.run(&[words, &["--snapshot", "one.json"]].concat());
    }
    let schema = format!("\"{}schema\":", hostile().escape_default());
    stage.write("one.json", serde_json::to_string(&all).unwrap().replacen("\"schema\":", &schema, 1));
    stage.run(&["check", "--snapshot", "one.json"]);
}

/// The node's name begins the first line; faults and checks come from the command line and from files.
pub(crate) fn check(stage: &mut Stage) {
    let text = hostile();
    let mut named = stage.run(&["snapshot", "--simulate", "h100-sxm:gpu-lost@3"]).json();
    named["node"] = Value::String(text.clone());
    stage.write("named.json", serde_json::to_vec(&named).unwrap());
    stage.shows_both(&["check", "--snapshot", "named.json"], true);
    stage.shows_both(&["check", "--simulate", &format!("h100-sxm:{text}")], false);
    stage.shows_both(&["check", "--simulate", &text], false);
    // The site's own checks: file names that are no id, and their output.
    stage.write(format!("checks.d/{text}"), "");
    stage.write("checks.d/said", format!("#!/bin/sh\ncat <<'END'\n{text}\nEND\ncat \"$0\" >&2\nexit 2\n"));
    stage.write(
        "checks.d/json",
        format!(
            "#!/bin/sh\ncat <<'END'\n{}\nEND\nexit 2\n",
            serde_json::json!({ "severity": "fail", "part": text, "what": text, "fix": text })
        ),
    );
    for name in ["said", "json"] {
        std::fs::set_permissions(stage.path(format!("checks.d/{name}")), PermissionsExt::from_mode(0o755))
            .unwrap();
    }
    // A file is trusted if only root can change it and its parent directories.
    let config = std::fs::read_to_string(stage.path("railgate.toml")).unwrap();
    stage.write(
        "railgate.toml",
        format!("{config}[gate.checks.site]\ndirectory = '/etc/railgate/checks.d'\n"),
    );
    std::fs::rename(stage.path("checks.d"), stage.path("etc/checks.d")).unwrap();
    stage.shows_both(&["check", "--list"], true);
    let ran = stage.run(&["check"]);
    if !ran.out.contains("site-said") {
        stage.problem(format!("the site's checks were not run: {ran:?}"));
    }
    stage.run(&["check", "--format", "json"]);
}

/// Names of devices, their attributes, the kernel log and processes, read from the machine.
pub(crate) fn live(stage: &mut Stage) {
    let text = hostile();
    let hca = format!("sys/class/infiniband/{text}");
    for attribute in ["node_guid", "fw_ver", "hca_type", "board_id", "node_desc"] {
        stage.write(format!("{hca}/{attribute}"), &text);
    }
    for attribute in ["state", "phys_state", "rate", "link_layer", "lid", "sm_lid"] {
        stage.write(format!("{hca}/ports/1/{attribute}"), &text);
    }
    for name in ["net", "nvme", "hwmon", "ptp"] {
        stage.write(format!("sys/class/{name}/{text}/name"), &text);
        stage.write(format!("sys/class/{name}/{text}/state"), &text);
    }
    stage.write(format!("sys/bus/pci/devices/{text}/class"), &text);
    stage.write("proc/sys/kernel/hostname", &text);
    stage.write("proc/sys/kernel/osrelease", &text);
    stage.write("proc/sys/kernel/random/boot_id", &text);
    stage.write("proc/cpuinfo", format!("processor\t: 0\nvendor_id\t: {text}\n"));
    stage.write("proc/cmdline", &text);
    stage.write("proc/modules", format!("{text} 1 0 - Live 0\n"));
    stage.write("proc/77/stat", format!("77 ({text}) D 1 77 77 0 -1 64 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0\n"));
    stage.write("proc/77/status", format!("Name:\t{text}\nUid:\t0\t0\t0\t0\n"));
    let flat = text.replace('\n', " ");
    let records =
        ["NVRM: Xid (PCI:0000:1b:00): 79, ", "EXT4-fs error (device sda1): ", "nvidia-nvswitch0: SXid "];
    let records =
        records.iter().zip(1..).map(|(head, seq)| format!("3,{seq},{seq}000,-;{head}{flat}\n {text}\n"));
    stage.write("kmsg", records.collect::<String>());
    stage.shows(&["snapshot"]);
    for words in [
        &["check"][..],
        &["check", "--phase", "prolog"],
        &["rails"],
        &["rma", "gn1"],
        &["profile", "record", "--id", "mine"],
    ] {
        stage.run(words);
        if words[0] != "profile" {
            stage.run(&[words, &["--format", "json"]].concat());
        }
    }
    stage.run(&["snapshot", "--out", &text]);
}

/// The site's machine types.
pub(crate) fn profiles(stage: &mut Stage) {
    let text = hostile();
    let title = railgate_text::toml_text(&toml::Value::from(text.clone()).to_string());
    stage.write("etc/profiles/mine.toml", format!("extends = 'h100-sxm'\ntitle = {title}\n"));
    stage.shows_both(&["simulate", "--list"], true);
    stage.run(&["check", "--simulate", "mine"]);
    let mut shown = 0;
    for bad in [
        format!("{text} = 1\n"),
        format!("title = '{text}\n"),
        format!("\"{MARK}\\u202e\" = 1\n"),
        format!("extends = {title}\n"),
        format!("id = {title}\n"),
        format!("[gpus]\ncount = {title}\n"),
    ] {
        stage.write("etc/profiles/mine.toml", bad);
        stage.run(&["simulate", "--list"]);
        stage.run(&["simulate", "--list", "--format", "json"]);
        let ran = stage.run(&["check", "--simulate", "mine"]);
        shown += usize::from(ran.err.contains(MARK));
        stage.write("mine.toml", "profile = 'mine'\n");
        stage.run(&["--config", "mine.toml", "config", "check"]);
    }
    // Results of a self-test of another model than the node's.
    let line = serde_json::json!({
        "gpu": "0000:61:00.0", "model": text, "test": "gemm-rate-bf16", "seconds": 0.1, "values": "none", "measured": {},
    });
    stage.write(&text, format!("{line}\n"));
    stage.shows(&["profile", "record", "--id", "mine", "--simulate", "h100-sxm", "--self-test", &text]);
    if shown < 3 {
        stage.problem(format!("only {shown} wrong profiles are quoted"));
    }
}
