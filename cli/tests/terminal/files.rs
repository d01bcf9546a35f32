//! Files written by an admin or another program: configuration, NHC, fabrics, topologies, job templates.

use serde_json::{Value, json};

use crate::stage::{MARK, Stage, hostile};

/// The hostile text as a value in TOML notation.
fn value() -> String {
    railgate_text::toml_text(&toml::Value::from(hostile()).to_string())
}

pub(crate) fn config(stage: &mut Stage) {
    let (text, value) = (hostile(), value());
    let base = std::fs::read_to_string(stage.path("railgate.toml")).unwrap();
    let shown = stage.run(&["config", "show", "--format", "json"]).json();
    let values = shown["values"].as_object().unwrap();
    let mut taken = 0;
    for (key, default) in values {
        // Only keys that accept text.
        let one = match &default["value"] {
            Value::String(_) => toml::Value::from(hostile()),
            Value::Array(_) => toml::Value::Array(vec![hostile().into()]),
            _ => continue,
        };
        stage.write("one.toml", format!("{key} = {one}\n"));
        let ran = stage.run(&["--config", "one.toml", "config", "show", "--origin"]);
        if ran.code == Some(0) {
            taken += 1;
            // The shown configuration is valid and equal to the input.
            let read: toml::Table = ran.out.parse().unwrap_or_default();
            let read = toml::Value::Table(read);
            let found = key.split('.').try_fold(&read, |at, key| at.get(key));
            // A directory of checks is shown as its path relative to the file.
            let beside = |path: &str| path.ends_with(&format!("/{}", hostile()));
            if found != Some(&one) && !found.and_then(toml::Value::as_str).is_some_and(beside) {
                stage.problem(format!("{key}: not the same value in TOML: {}", ran.out));
            }
            stage.shows(&["--config", "one.toml", "config", "show", "--format", "json"]);
            stage.run(&["--config", "one.toml", "config", "check"]);
        }
    }
    if taken < 5 {
        stage.problem(format!("only {taken} keys take any text"));
    }
    for bad in [
        format!("{value} = 1\n"),
        format!("[gate]\nmode = {value}\n"),
        format!("profile = {value}\n"),
        format!("profile = 'h100-sxm' {text}\n"),
        format!("[[node]]\nnames = {value}\n"),
        format!("[[node]]\nnames = 'gn9'\nprofile = {value}\n"),
        format!("\tprofile = 1 # {text}\n"),
        text.clone(),
    ] {
        stage.write(&text, &bad);
        for words in
            [&["config", "check"][..], &["config", "show"], &["check", "--simulate", "h100-sxm"], &["nodes"]]
        {
            stage.run(&[&["--config", text.as_str()], words].concat());
        }
    }
    stage.write(&text, &base);
    stage.shows(&["--config", &text, "config", "check", "--node", &text]);
    stage.shows(&["config", "check", "--node", &text]);
    stage.run(&["config", "show", "--node", &text, "--format", "json"]);
    // Environment for tasks.
    stage.write("env.toml", format!("[rails]\nset.NCCL_DEBUG_FILE = {value}\n[rails.profiles.{value}]\n"));
    for format in ["env", "json", "table"] {
        stage.run(&["--config", "env.toml", "rails", "--simulate", "h100-sxm", "--format", format]);
    }
    stage.shows(&["--config", "env.toml", "rails", "--simulate", "h100-sxm", "--profile", &text]);
}

pub(crate) fn import(stage: &mut Stage) {
    let text = hostile();
    let flat = text.replace('\n', " ");
    for conf in [
        format!(
            "* || check_ps_service -S {flat}\n* || check_fs_mount_rw -f /{flat}\n{flat} || check_hw_ib 200\n"
        ),
        format!("* || {flat} a b\n* || export {flat}={flat}\n# {flat}\n"),
        format!("* || check_hw_ib {flat} {flat}\n"),
        format!("{text}\n"),
        format!("* | {text}\n"),
    ] {
        stage.write(&text, &conf);
        stage.shows(&["import", "nhc", &text]);
        let made = format!("made-{text}");
        stage.run(&["import", "nhc", &text, "--out", &made]);
        stage.run(&["--config", &format!("{made}/railgate.toml"), "config", "check"]);
        stage.run(&["--config", &format!("{made}/railgate.toml"), "config", "show", "--origin"]);
        let _ = std::fs::remove_dir_all(stage.path(made));
    }
    stage.write("nhc.conf", "* || check_hw_ib 200\n");
}

/// All output formats of `fabric`.
const SHOW: [&str; 5] = ["table", "json", "topology-tree", "topology-block", "topology-yaml"];

pub(crate) fn fabric(stage: &mut Stage) {
    let text = hostile();
    let flat = text.replace('\n', " ");
    // A node or a switch sets its own name, which may contain quotes and line breaks.
    for (node, switch) in [
        ("gn1 mlx5_0".to_owned(), flat.clone()),
        (flat.clone(), "leaf".to_owned()),
        (text.clone(), text.clone()),
    ] {
        let file = format!(
            "vendid=0x0\nswitchguid=0x20000f(20000f)\nSwitch\t64 \"S-000000000020000f\"\t\t# \"{switch}\" base port 0 lid 0 lmc 0\n\
             [1]\t\"H-000000000010020e\"[1](10020f) \t\t# \"{node}\" lid 0 4xNDR\n\n\
             vendid=0x0\ncaguid=0x10020e\nCa\t1 \"H-000000000010020e\"\t\t# \"{node}\"\n\
             [1](10020f) \t\"S-000000000020000f\"[1]\t\t# lid 0 lmc 0 \"{switch}\" lid 0 4xNDR\n"
        );
        stage.write(&text, &file);
        for format in SHOW {
            stage.run(&["fabric", "--file", &text, "--format", format]);
            stage.run(&["fabric", "--file", &text, "--format", format, "--nodes", "gn1"]);
        }
    }
    stage.write("bad", format!("Switch {flat}\n[x] {flat}\n"));
    stage.shows(&["fabric", "--file", "bad"]);
    stage.program("ibnetdiscover", &format!("cat <<'END' >&2\n{text}\nEND\nexit 1"));
    let program = stage.path("bin/ibnetdiscover").to_str().unwrap().to_owned();
    stage.shows(&["fabric", "--ibnetdiscover", &program]);

    let interface = json!({ "mlx5_0": {
        "chassis": { &text: { "id": { "type": "mac", "value": &text } } },
        "port": { "id": { "type": "ifname", "value": &text }, "descr": &text },
    } });
    let page = json!({ "lldp": { "interface": [interface] } }).to_string();
    for (name, content) in
        [("gn1.json", page.as_str()), (&format!("{text}.json"), &page), ("gn2.json", &text)]
    {
        stage.write(name, content);
        stage.run(&["fabric", "--lldp", name]);
        stage.run(&["fabric", "--lldp", name, "--format", "json"]);
    }
    stage.shows(&["fabric", "--lldp", &format!("{text}.json")]);

    let word = text.replace(['\n', '\t', ' '], "");
    for (table, shown) in [
        (format!("gn1 mlx5_0 {word} {word}\n"), true),
        (format!("gn1 {word}:{word} {word}\n"), true),
        (text.clone(), false),
    ] {
        stage.write("cables", &table);
        for format in ["table", "json"] {
            let ran = stage.run(&["fabric", "--table", "cables", "--format", format]);
            if shown && !ran.out.contains(MARK) && !ran.err.contains(MARK) {
                stage.problem(format!("{table:?} is not shown: {ran:?}"));
            }
        }
    }
    let value = value();
    stage.write("cables", "gn1 mlx5_0 leaf1\n");
    for bad in [format!("{value} = 1\n"), format!("[[rail]]\nhca = {value}\nrail = 'x'\n"), text.clone()] {
        stage.write(&text, bad);
        stage.shows(&["fabric", "--table", "cables", "--wiring", &text]);
    }
}

pub(crate) fn topology(stage: &mut Stage) {
    let text = hostile();
    let attribute = text.replace('"', "");
    let made = stage.run(&["rails", "--simulate", "h200-sxm", "--format", "xml"]).out;
    let mut shown = 0;
    for xml in [
        made.replace("0000:1b:00.0", &attribute),
        made.replace("mlx5_0", &attribute),
        made.replacen("<cpu ", &format!("<{attribute} x=\"1\"/><cpu "), 1),
        made.replacen("<cpu ", &format!("<cpu {attribute}=\"{attribute}\" "), 1),
        made.replacen("version=\"1\"", &format!("version=\"{attribute}\""), 1),
        made.replacen("<system", &format!("{attribute}<system"), 1),
        text.clone(),
        String::new(),
    ] {
        stage.write(&text, &xml);
        for format in ["table", "json"] {
            let ran = stage.run(&["rails", "--check", &text, "--simulate", "h200-sxm", "--format", format]);
            shown += usize::from(ran.out.contains(MARK) || ran.err.contains(MARK));
        }
        stage.run(&["rails", "--check", &text, "--simulate", "h200-sxm", "--nccl", "2.28.9"]);
    }
    if shown < 12 {
        stage.problem(format!("only {shown} of 16 hostile topology files are quoted"));
    }
    stage.shows(&["rails", "--check", "absent", "--snapshot", &text]);
    stage.shows(&["rails", "--simulate", "h200-sxm", "--gpus", &text]);
}

pub(crate) fn templates(stage: &mut Stage) {
    let text = hostile();
    let flat = text.replace('\n', " ");
    // A name is shown escaped; a script with such characters is refused, since it would differ from what is shown.
    stage
        .write(format!("etc/sbatch-templates/{text}.sbatch"), "#!/bin/bash\n# What for\n#SBATCH --nodes=2\n");
    stage.shows_both(&["template", "list"], true);
    stage.run(&["template", "show", &text]);
    stage.shows(&["template", "show", "none"]);
    for set in [text.clone(), format!("nodes={text}"), format!("{text}={text}"), format!("{flat}=2")] {
        stage.shows(&["template", "show", "jax", "--set", &set]);
    }
    stage.shows(&["template", "show", "jax", "--out", &text]);
    for bad in [
        format!("#!/bin/bash\n# {text}\n"),
        format!("#!/bin/bash\n#SBATCH --{flat}={flat}\nX=\"${{X:-{flat}}}\"\n"),
    ] {
        stage.write("etc/sbatch-templates/bad.sbatch", bad);
        for words in
            [&["template", "list"][..], &["template", "show", "bad"], &["template", "show", "bad", "--keys"]]
        {
            let ran = stage.run(words);
            if !ran.err.contains("bad.sbatch:2: ") {
                stage.problem(format!("{words:?}: not refused: {ran:?}"));
            }
        }
    }
}
