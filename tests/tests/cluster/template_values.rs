//! sbatch accepts what `railgate template show --set` writes.

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster};

use crate::templates::filled;

/// Values for all options in the templates and for those that can be added. JOB stands for the id of a waiting job.
const GOOD: [(&str, &[&str]); 30] = [
    ("job-name", &["seven", "a b #7"]),
    ("output", &["%x-%j.out", "logs/%A_%a.log"]),
    ("nodes", &["1", "1-2"]),
    ("gres", &["gpu:1", "gpu"]),
    ("cpus-per-task", &["1"]),
    ("ntasks", &["1"]),
    ("ntasks-per-node", &["1"]),
    ("time", &["30", "90:00", "1:30:00", "1-0", "1-12:30", "1-00:00:00"]),
    ("array", &["1", "0-7", "1-100%16", "1,3,5-9:2"]),
    ("signal", &["USR1@60", "SIGUSR1", "B:USR1@300", "10@5"]),
    ("open-mode", &["append", "truncate"]),
    ("requeue", &[""]),
    ("exclusive", &["", "user"]),
    ("railgate-gate", &["quick", "full", "off"]),
    ("railgate-requeue", &["auto", "never", "3"]),
    ("railgate-profiler", &["on", "off"]),
    ("railgate-profile", &["debug"]),
    ("account", &["physics"]),
    ("constraint", &["fast", "fast&near", "fast|near"]),
    ("dependency", &["singleton", "afterok:JOB", "afterany:JOB,afternotok:JOB", "after:JOB?aftercorr:JOB"]),
    ("exclude", &["gn1", "gn[1,3]"]),
    ("licenses", &["matlab", "matlab:2"]),
    ("mail-type", &["END,FAIL", "ALL", "TIME_LIMIT_80"]),
    ("mail-user", &["alice@example.org"]),
    ("mem", &["500", "500M", "900000K"]),
    ("nodelist", &["gn2", "gn[2]"]),
    ("partition", &["main"]),
    ("qos", &["normal"]),
    ("reservation", &["ours"]),
    ("switches", &["1", "1@30:00"]),
];

/// Values that sbatch refuses or misunderstands.
const BAD: [&str; 24] = [
    "gres=",
    "gres=8",
    "gres=gpus:8",
    "gres=gpu:",
    "gres=gpu:h100:x",
    "nodes=",
    "nodes=four",
    "nodes=0",
    "cpus-per-task=0",
    "time=24h",
    "time=",
    "mem=lots",
    "signal=B:USR9@300",
    "open-mode=write",
    "requeue=yes",
    "dependency=48213",
    "mail-type=always",
    "switches=0",
    "partition=",
    "exclude=gn[1-",
    "railgate-gate=fast",
    "railgate-profile=",
    "job-name=it's",
    "AGAIN=maybe",
];

/// Keys of a template.
fn keys(cluster: &Cluster, name: &str) -> Result<Vec<String>> {
    let shown = cluster.alice().run(&["railgate", "template", "show", name, "--keys"])?.ok()?;
    let (table, added) = shown.split_once("\n\n").context("no keys that can be added")?;
    let of_template = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let added = added.split_once(": ").context("no list")?.1.trim().split(", ");
    Ok(of_template.chain(added).map(str::to_owned).collect())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn sbatch_accepts_the_values_that_railgate_fills_in() -> Result<()> {
    Builder::new(3).slurm_conf("Licenses", "matlab:4").test(|cluster| {
        let (alice, root) = (cluster.alice(), cluster.root());
        for node in cluster.nodes() {
            let features = "Features=fast,near";
            root.run(&["scontrol", "update", &format!("NodeName={node}"), features])?.ok()?;
        }
        let reservation =
            ["ReservationName=ours", "StartTime=now", "Duration=60", "Users=rgalice", "Nodes=gn3"];
        root.run(&[&["scontrol", "create"], &reservation[..]].concat())?.ok()?;
        let job = alice.sbatch(&["--hold"], "true")?.to_string();
        let mut refused = Vec::new();
        let list = alice.run(&["railgate", "template", "list"])?.ok()?;
        for name in list.lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
            for key in keys(cluster, name)? {
                let values = GOOD.iter().find(|(option, _)| *option == key).map(|(_, values)| *values);
                let small = key.starts_with(|c: char| c.is_ascii_lowercase());
                let values = match values {
                    Some(values) => values,
                    None if small => anyhow::bail!("{name}: no values for {key} here"),
                    None if key == "AGAIN" => &["no"],
                    None => &["8"],
                };
                // The forms of a value are the same in all templates.
                let most = if name == "torchrun-multinode" || key == "array" { values.len() } else { 1 };
                for value in &values[..most] {
                    let setting = format!("{key}={}", value.replace("JOB", &job));
                    let mut settings = vec![setting.as_str()];
                    if ["nodelist", "exclude", "reservation"].contains(&key.as_str()) {
                        settings.push("nodes=1");
                    }
                    let text = filled(cluster, name, &settings).with_context(|| setting.clone())?;
                    let said = cluster.alice().input(text.clone()).run(&["sbatch", "--test-only"])?;
                    if said.code != 0 {
                        refused.push(format!("{name}: {setting}: {said}"));
                    }
                }
            }
        }
        ensure!(refused.is_empty(), "{}", refused.join("\n"));
        for setting in BAD {
            let said =
                alice.run(&["railgate", "template", "show", "torchrun-multinode", "--set", setting])?;
            let key = setting.split('=').next().unwrap_or_default();
            let example = said.stderr.contains(&format!("as in {key}=")) || said.stderr.contains("by hand");
            ensure!(said.code == 2 && example, "{setting}: {said}");
        }
        Ok(())
    })
}
