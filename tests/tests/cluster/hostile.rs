//! The hostile suite: what an attacker submits, what their jobs leave behind, and which names they occupy.
//!
//! `register.rs` lists every case by the input it attacks, and docs/security.md contains that list.

mod fields;
mod files;
mod job_dir;
mod kernel_log;
mod locks;
mod logs;
mod privacy;
mod processes;
mod register;
mod reports;
mod stage;
mod timing;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, SLURM_ROOT, slurm_release};
use railgate_tests::poll;

use crate::training::ALL_MAY_DRAIN;
use register::play;

const MINUTE: Duration = Duration::from_secs(60);

/// Release of the Slurm under test.
fn release() -> Result<(u32, u32)> {
    let root = std::env::var_os(SLURM_ROOT).unwrap_or_else(|| "/".into());
    slurm_release(Path::new(&root))
}

/// Gives Bob's commands a client configuration that loads a plugin of his own.
fn hostile_client(cluster: &Cluster, values: &[(&str, &str)]) -> Result<()> {
    let (year, month) = release()?;
    let release = format!("plugin_version: u32 = {};", (year << 16) | (month << 8));
    let source = include_str!("hostile/client.rs").replace("plugin_version: u32 = 0;", &release);
    let place = tempfile::tempdir()?;
    std::fs::write(place.path().join("client.rs"), source)?;
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition=2024", "-o", "client.so", "client.rs"])
        .current_dir(place.path())
        .output()
        .context("rustc")?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::copy(place.path().join("client.so"), cluster.path("ctl", "/shared/client.so")?)?;
    let mut plugstack = "optional /shared/client.so".to_owned();
    for (name, value) in values {
        cluster.write("ctl", &format!("/shared/value-{name}"), value)?;
        plugstack.push_str(&format!(" {name}=/shared/value-{name}"));
    }
    cluster.write("ctl", "/shared/plugstack.conf", &format!("{plugstack}\n"))?;
    let conf = cluster.read("ctl", "/etc/slurm/slurm.conf")?;
    cluster.write("ctl", "/shared/slurm.conf", &format!("{conf}PlugStackConfig=/shared/plugstack.conf\n"))
}

/// A log that contains only railgate's lines and no character that affects a terminal.
fn clean_log(cluster: &Cluster, machine: &str, path: &str) -> Result<String> {
    let log = cluster.read(machine, path)?;
    for line in log.lines() {
        let stamped = line.len() > 20 && line.starts_with("20") && line.as_bytes()[10] == b'T';
        assert!(stamped && !line.chars().any(char::is_control), "{machine}:{path}: {line:?}");
    }
    Ok(log)
}

/// Waits for a state with squeue, since `scontrol show job` cannot be parsed for such names and comments.
fn wait_state(cluster: &Cluster, id: u32, states: &[&str]) -> Result<()> {
    poll::until(MINUTE, &format!("job {id} to be {}", states.join(" or ")), || {
        let said = cluster.root().run(&["squeue", "-h", "-t", "all", "-o", "%T", "-j", &id.to_string()])?;
        Ok(states.contains(&said.stdout.trim()).then_some(()))
    })
}

fn harmless(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn submitted_text_is_never_interpreted() -> Result<()> {
    let builder = Builder::new(2)
        .slurm_conf("HealthCheckInterval", "0")
        .hardware_of("gn2", "h100-sxm:gpu-lost@3")
        .config("breaker = { max_percent = 100.0, partition_max_percent = 100.0 }")?;
    builder.test(|cluster| {
        let forged =
            "off\n2026-11-21T00:00:00.000000Z ERROR gn1: drained: forged\x1b[2J%s%n$(touch /tmp/owned)";
        let huge = "A".repeat(100_000);
        hostile_client(
            cluster,
            &[
                ("RAILGATE_GATE", forged),
                ("RAILGATE_PROFILE", "../../../etc/shadow"),
                ("RAILGATE_REQUEUE", &huge),
            ],
        )?;
        let bob = cluster.bob();
        cluster.alice().run(&["bash", "-c", "umask 077; echo dear > diary; mkdir own"])?.ok()?;
        bob.run(&["ln", "-s", "/home/rgalice/diary", "log"])?.ok()?;
        let hostile =
            ["SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME", "RAILGATE_SET"]
                .into_iter()
                .zip(["1", "0", "../../etc", "ctl", "PATH,LD_PRELOAD"])
                .fold(bob.clone().env("SLURM_CONF", "/shared/slurm.conf"), |session, (name, value)| {
                    session.env(name, value)
                });
        let name = "x\n   Requeue=0 Restarts=0 BatchFlag=0\n   StdOut=/home/rgalice/own/stolen\x1b[2J";
        let comment = "\x1b]0;%s%n`touch /tmp/owned`\nJobId=1 JobName=x\n   StdOut=/etc/railgate/disable";
        let words = ["--gres=gpu:8", "-J", name, "--comment", comment];

        // On an unfit node, with various gate options. The message to the owner is written with his rights only.
        let words_2 = [&words[..], &["-w", "gn2", "--no-requeue", "-o", "log"]].concat();
        let id = hostile.sbatch(&words_2, "true")?;
        // 26.05 repeats the sbatch line with its newlines in the job's record, so its fields cannot be told apart and
        // railgate does not act on such a job. Slurm ends it: slurmd kills it, or reports that it cannot be started,
        // whichever reaches slurmctld first.
        let plain = release()? < (26, 5);
        wait_state(cluster, id, if plain { &["CANCELLED"] } else { &["FAILED", "CANCELLED"] })?;
        let node = cluster.wait_node("gn2", "drained", MINUTE, |node| node.drained())?;
        assert!(node.reason().starts_with("railgate: gpu-lost@3: "), "{}", node.reason());
        assert!(node.reason().ends_with(&format!("[prolog job={id}]")), "{}", node.reason());
        assert_eq!(cluster.output("/home/rgalice/diary").as_deref(), Some("dear\n"));
        assert_eq!(cluster.alice().run(&["ls", "own"])?.ok()?, "");
        assert!(cluster.read("gn2", "/etc/railgate/disable").is_err());

        // On a fit node.
        let words_1 = [&words[..], &["-w", "gn1", "-o", "out"]].concat();
        let id = hostile.sbatch(&words_1, "srun printenv NCCL_IB_HCA > hcas; exit 3")?;
        wait_state(cluster, id, &["FAILED"])?;
        cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
        assert!(cluster.output("/home/rgbob/hcas").is_some_and(|list| list.contains("mlx5_7")));
        let asked = cluster.output("/home/rgbob/out").unwrap_or_default();
        let told = asked.contains("SPANK_RAILGATE_GATE") || !plain;
        assert!(told, "the invalid value is not reported: {asked:?}");
        harmless(&asked);
        for session in [cluster.bob(), cluster.root()] {
            let report = session.run(&["railgate", "report", &id.to_string()])?.ok()?;
            assert!(report.contains("gn1"), "{report}");
            harmless(&report);
        }
        for machine in ["gn1", "gn2"] {
            let log = clean_log(cluster, machine, "/var/log/railgate.log")?;
            assert!(log.contains("SPANK_RAILGATE_GATE") && !log.contains(&huge), "{log}");
        }
        clean_log(cluster, "ctl", "/var/lib/railgate/controller/epilog-ctld.log")?;
        for machine in ["ctl", "gn1", "gn2"] {
            assert!(cluster.read(machine, "/tmp/owned").is_err());
        }
        Ok(())
    })
}

/// Files that Bob's job leaves in the only directory where it may write. The test then measures the cost for the node.
const PLANT: &str = r#"
free() { df --output=avail "$1" | tail -n1; }
before=$(free /run/railgate)
cd "/run/railgate/jobs/$SLURM_JOB_ID/current/user" || exit 9
ln -s /etc/shadow env.1; ln -s / env.2; mkfifo env.0 env.3; mkdir -p env.4/a/b; truncate -s 1T env.5
: > $'env.6\n\e[2J'; echo nothing > env.7; ln env.7 env.8; mkfifo env.batch2
head -c 100000 /dev/urandom > env.9; ln -s /dev/zero env.10
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("env.11")' 2> /dev/null
srun -n1 true || exit 8
head -c 500M /dev/zero > full 2> /dev/null && exit 7
for n in {1..5000}; do : > "n$n" || break; done 2> /dev/null
[ -e n5000 ] && exit 6
setsid sleep 300 < full &
after=$(free /run/railgate)
[ $((before - after)) -lt 1024 ] || exit 5
for target in .. ../.. /run/railgate /var/lib/railgate /etc/railgate; do
    touch "$target/bob" 2> /dev/null && exit 4
    mv . "$target/moved" 2> /dev/null && exit 4
done
rm -f ../task.env ../report.json ../../current; ln -sfn /etc ../../current
[ -e ../task.env ] && [ "$(readlink ../../current)" != /etc ] || exit 3
exec 2> /dev/null
"#;

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn planted_files_are_not_followed_and_delay_no_job() -> Result<()> {
    Builder::new(1).slurm_conf("HealthCheckInterval", "0").test(|cluster| {
        let (alice, bob) = (cluster.alice(), cluster.bob());
        let done = |id: u32| -> Result<()> {
            cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
            assert!(cluster.read("gn1", &format!("/run/railgate/jobs/{id}/current/run.json")).is_err());
            Ok(())
        };
        let local = |id: u32| cluster.read("gn1", &format!("/var/lib/railgate/reports/test/{id}/0/gn1.json"));

        // Bob makes the directory before the cluster's first job: no data of Alice is written below it.
        bob.run(&[
            "bash",
            "-c",
            "mkdir -m 1777 /shared/railgate/test && mkdir -m 777 /shared/railgate/test/1",
        ])?
        .ok()?;
        let id = alice.sbatch(&["--gres=gpu:8"], "true")?;
        done(id)?;
        assert_eq!(bob.run(&["ls", "/shared/railgate/test/1"])?.ok()?, "");
        assert!(local(id)?.contains("gpus"));
        let report = alice.run(&["railgate", "report", &id.to_string()])?;
        assert!(report.both().contains("belongs to uid 5002"), "{report}");
        cluster.root().run(&["rm", "-r", "/shared/railgate/test"])?.ok()?;

        let id = bob.sbatch(&["--gres=gpu:8", "-o", "/dev/null"], PLANT)?;
        done(id)?;
        let there = cluster.root().on("gn1").run(&["ls", "/run/railgate/jobs"])?;
        assert_eq!(there.stdout, "", "{there}");
        let mounts =
            cluster.root().on("gn1").run(&["grep", "-c", "railgate/jobs", "/proc/self/mountinfo"])?;
        assert_eq!(mounts.stdout, "0\n", "{mounts}");
        let report = bob.run(&["railgate", "report", &id.to_string()])?.ok()?;
        harmless(&report);
        assert!(!report.contains("root:"), "{report}");

        // This time root made the cluster's directory, so no user can occupy names in it.
        assert_ne!(bob.run(&["mkdir", &format!("/shared/railgate/test/{}", id + 1)])?.code, 0);
        // With root squashing the directory is writable for all, and Bob can occupy the name of Alice's next job.
        cluster.root().run(&["chmod", "1777", "/shared/railgate/test"])?.ok()?;
        let squat = format!("mkdir -m 777 {0} {0}/0", id + 1);
        bob.clone().within("/shared/railgate/test").run(&["bash", "-c", &squat])?.ok()?;
        let id = alice.sbatch(&["--gres=gpu:8"], "true")?;
        done(id)?;
        assert!(local(id)?.contains("gpus"));
        assert_eq!(bob.run(&["ls", "-A", &format!("/shared/railgate/test/{id}/0")])?.ok()?, "");

        // In his own directory he only affects his own report.
        bob.run(&["bash", "-c", "mkdir there; echo mine > there/gn1.json"])?.ok()?;
        let mut id = id;
        for plant in [
            "ln -s /home/rgbob/there 0",
            "mkfifo 0",
            "mkdir 0; mkfifo 0/gn1.json",
            "mkdir 0; ln -s /home/rgbob/there/gn1.json 0/gn1.json",
            "mkdir -p 0/gn1.json/full",
            "chmod 0 .",
        ] {
            id += 1;
            let squat = format!("mkdir {id} && cd {id} && {plant}");
            bob.clone().within("/shared/railgate/test").run(&["bash", "-c", &squat])?.ok()?;
            assert_eq!(bob.sbatch(&["--gres=gpu:8", "-o", "/dev/null"], "true")?, id);
            done(id)?;
            assert_eq!(bob.run(&["cat", "there/gn1.json"])?.ok()?, "mine\n", "{plant}");
            assert_eq!(bob.run(&["ls", "-A", "there"])?.ok()?, "gn1.json\n", "{plant}");
            for session in [bob.clone(), cluster.root()] {
                harmless(&session.run(&["railgate", "report", &id.to_string()])?.both());
            }
        }
        assert!(!cluster.node("gn1")?.drained());
        clean_log(cluster, "gn1", "/var/log/railgate.log")?;
        Ok(())
    })
}

/// A configuration in which nothing prevents a drain, so that any reason for one would show. Slurm kills a hung hook after 60 s.
fn open_to_drains(nodes: usize, config: &str) -> Result<Builder> {
    let builder = Builder::new(nodes).config(ALL_MAY_DRAIN)?.config(config)?;
    Ok(builder.slurm_conf("HealthCheckInterval", "0").slurm_conf("PrologEpilogTimeout", "60"))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn kernel_log_text_of_users_drains_no_node() -> Result<()> {
    play(open_to_drains(1, kernel_log::STRICT)?, &[&kernel_log::INPUT])
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn processes_of_users_delay_no_job() -> Result<()> {
    play(open_to_drains(1, processes::WATCHFUL)?, &[&processes::INPUT, &privacy::INPUT])
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_directory_of_a_job_is_read_safely() -> Result<()> {
    play(open_to_drains(1, "")?, &[&job_dir::INPUT])
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn report_files_of_users_drain_no_node() -> Result<()> {
    play(open_to_drains(2, "")?, &[&reports::INPUT])
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn fields_and_environment_of_jobs_are_never_interpreted() -> Result<()> {
    play(open_to_drains(1, "")?, &[&fields::FIELDS, &fields::ENVIRONMENT])
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn occupied_names_and_bad_timing_stop_nothing() -> Result<()> {
    play(open_to_drains(2, "profile = 'h100-sxm'")?, &[&files::INPUT, &timing::INPUT])
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn logs_of_users_lead_nowhere() -> Result<()> {
    play(open_to_drains(1, "")?, &[&logs::INPUT])
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn locks_and_sockets_of_users_stop_nothing() -> Result<()> {
    play(open_to_drains(2, processes::WATCHFUL)?, &[&locks::INPUT])
}
