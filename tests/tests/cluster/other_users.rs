//! What one user can read and change of another user's job on the same node, and which files root trusts.

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use crate::training::{MINUTE, end, one_line, samplers, started, submit, submit_as};

/// A task that reads the files left for it, prints them, and waits.
const READS: &str = "\
echo attempt 0
export NCCL_ALGO=alices_value
srun bash -c 'cat $RAILGATE_JOB_DIR/nccl.env >releases; cat $NCCL_TOPO_FILE >topology; echo $NCCL_IB_HCA >hcas
    echo note >$RAILGATE_JOB_DIR/user/note && cat $RAILGATE_JOB_DIR/user/note >noted
    export LD_PRELOAD=/shared/libnccl.so.2; exec sleep 600' &
until [ -s end.$SLURM_JOB_ID ]; do sleep 0.1; done
exit 0
";

const CONFIG: &str = "
[stats]
task_look = '1s'
sample = '1s'
[report]
live = '10s'
[rails]
topology_file = 'always'
[[rails.rules]]
why = 'an example'
set = { NCCL_EXAMPLE = '1' }
nccl = '>=2.29.2,<2.30.7'
";

fn sh(cluster: &Cluster, node: &str, script: &str) -> Result<String> {
    cluster.root().on(node).run(&["bash", "-ec", script])?.ok()
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_user_cannot_read_the_job_of_another_user() -> Result<()> {
    Builder::new(1).config(CONFIG)?.test(|cluster| {
        let library = "for lib in /lib/x86_64-linux-gnu/libutil.so.1 /lib/x86_64-linux-gnu/libdl.so.2; \
                       do [ -e $lib ] && cp $lib /shared/libnccl.so.2 && exit 0; done; exit 1";
        sh(cluster, "gn1", library)?;
        // A job that started under the previous release and whose epilog is still to run.
        let old = "umask 022; mkdir -p /run/railgate/jobs/4711/0-2000000000; cd /run/railgate/jobs/4711
            ln -s 0-2000000000 current; cd current
            for file in run.json report.json before.json gpus.json task.env tasks.json nccl.env topology.xml; do
                echo old >$file
            done; chmod 755 /run/railgate/jobs";
        sh(cluster, "gn1", old)?;

        let words = ["-w", "gn1", "--gres=gpu:4", "-J", "alices-name", "--railgate-profile=debug"];
        let id = submit_as(&cluster.alice(), &words, READS)?;
        started(cluster, id)?;
        let run = format!("/run/railgate/jobs/{id}/current");
        poll::until(MINUTE, "the sampler to have read the tasks", || {
            let tasks = cluster.read("gn1", &format!("{run}/tasks.json"));
            let live = cluster.alice().run(&["railgate", "report", &id.to_string()])?;
            let seen = tasks.is_ok_and(|tasks| tasks.contains("alices_value"));
            // The last file that the task writes; its launcher is seen before it.
            let noted = cluster.output("/home/rgalice/noted").is_some_and(|text| text == "note\n");
            Ok((seen && noted && live.code == 0).then_some(()))
        })?;

        // Alice's tasks can read their files.
        let output = |file: &str| {
            cluster.output(&format!("/home/rgalice/{file}")).with_context(|| format!("no {file}"))
        };
        assert!(output("releases")?.starts_with("railgate-nccl-env 1\n"));
        assert!(output("topology")?.contains("<system"), "{}", output("topology")?);
        assert!(output("hcas")?.contains("mlx5_"));
        assert_eq!(output("noted")?, "note\n");

        // Bob can read none of the files, neither by listing nor by name.
        let all = sh(cluster, "gn1", &format!("find -L /run/railgate/jobs/{id} -xdev -not -type l; find {run}/user/"))?;
        for name in ["run.json", "report.json", "before.json", "gpus.json", "task.env", "tasks.json", "yield.sock"] {
            assert!(all.contains(&format!("/{name}\n")), "{name} in {all}");
        }
        let (alice, bob) = (cluster.alice().on("gn1"), cluster.bob().on("gn1"));
        let attack = "while read -r path; do
                if [ -d \"$path\" ]; then ls \"$path\" >/dev/null 2>&1 && echo \"$path\"
                elif [ -r \"$path\" ] || [ -w \"$path\" ]; then echo \"$path\"; fi
            done; find /run/railgate/jobs -type f -readable 2>/dev/null; true";
        let got = bob.clone().input(all.clone()).run(&["bash", "-c", attack])?.ok()?;
        assert_eq!(got, "", "what Bob can read or write");
        let old = "cd /run/railgate/jobs/4711/current; for f in *.json task.env; do [ -r $f ] && echo $f; done; true";
        let old = bob.run(&["bash", "-c", old])?;
        assert_eq!(old.stdout, "", "of the job that began under the release before");
        let old = "cd /run/railgate/jobs/4711/current; cat nccl.env topology.xml";
        assert_eq!(bob.run(&["bash", "-c", old])?.ok()?, "old\nold\n", "its tasks still read these");

        // Alice cannot change the files that root reads.
        let script = format!("cd {run}; for f in *.json task.env samples.*; do [ -r $f ] || [ -w $f ] && echo $f; done; true");
        assert_eq!(alice.run(&["bash", "-c", &script])?.stdout, "");

        // Only the owner and root can read the report of the running job.
        for session in [cluster.alice(), cluster.root()] {
            let report = session.run(&["railgate", "report", &id.to_string()])?.ok()?;
            assert!(report.contains("alices-name") || report.contains("gn1"), "{report}");
        }
        let refused = cluster.bob().run(&["railgate", "report", &id.to_string()])?;
        assert!(refused.code != 0 && !refused.both().contains("alices"), "{refused}");
        assert!(one_line(&refused.both()).contains("its report is for them and for root"), "{refused}");

        end(cluster, id, 0)?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
        let report = cluster.alice().run(&["railgate", "report", &id.to_string()])?.ok()?;
        assert!(report.contains("NCCL_ALGO"), "{report}");
        Ok(())
    })
}

/// Connects as fast as possible from several processes and keeps the connections open.
const FLOOD: &str = "
import os, socket, sys, time
path, seconds = sys.argv[1], float(sys.argv[2])
for _ in range(3):
    if os.fork() == 0:
        break
end, held, refused = time.monotonic() + seconds, [], 0
while time.monotonic() < end:
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    try:
        peer.connect(path)
        held.append(peer)
    except PermissionError:
        refused += 1
        break
    except OSError:
        pass
    if len(held) > 200:
        held.clear()
sys.exit(7 if refused else 0)
";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_flood_of_connections_does_not_stop_samplers() -> Result<()> {
    Builder::new(1).config("[stats]\nsample = '1s'\n")?.test(|cluster| {
        let ours = |user, gpus: u32| -> Result<u32> {
            let id = submit(user, &["-w", "gn1", &format!("--gres=gpu:{gpus}"), "-c1"])?;
            started(cluster, id)?;
            Ok(id)
        };
        let (of_alice, of_bob) = (ours(&cluster.alice(), 2)?, ours(&cluster.bob(), 2)?);
        let socket = |id: u32| format!("/run/railgate/jobs/{id}/current/yield.sock");
        let size = |id: u32| -> Result<u64> {
            let script = format!("cat /run/railgate/jobs/{id}/current/samples.* | wc -c");
            Ok(sh(cluster, "gn1", &script)?.trim().parse()?)
        };
        for id in [of_alice, of_bob] {
            poll::until(MINUTE, "the sampler's socket", || {
                Ok(cluster.path("gn1", &socket(id))?.exists().then_some(()))
            })?;
        }

        // Bob cannot connect to the sampler of Alice's job.
        let words = ["python3", "-c", FLOOD, &socket(of_alice), "0.2"];
        let refused = cluster.bob().on("gn1").run(&words)?;
        assert_eq!(refused.code, 7, "{refused}");
        assert!(
            cluster
                .bob()
                .on("gn1")
                .run(&["railgate", "yield", "--job", &of_alice.to_string(), "--", "true"])?
                .both()
                .contains("Permission denied")
        );

        // While Alice floods her own sampler, both samplers continue, and hers accepts only a few connections.
        let socket = socket(of_alice);
        let words = ["python3", "-c", FLOOD, &socket, "60"];
        let mut flood = cluster.alice().on("gn1").spawn(&words)?;
        let before = (size(of_alice)?, size(of_bob)?);
        poll::until(MINUTE / 2, "both samplers to go on", || {
            let now = (size(of_alice)?, size(of_bob)?);
            Ok((now.0 > before.0 + 500 && now.1 > before.1 + 500).then_some(()))
        })?;
        assert!(flood.running()?, "{}", flood.output()?);
        let pid = samplers(cluster, "gn1", Some(of_alice))?.remove(0);
        let open: usize = sh(cluster, "gn1", &format!("ls /proc/{pid}/fd | wc -l"))?.trim().parse()?;
        assert!(open < 64, "{open} descriptors");
        drop(flood);
        for id in [of_alice, of_bob] {
            end(cluster, id, 0)?;
            cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn root_trusts_no_file_that_others_can_write() -> Result<()> {
    Builder::new(1).config("profile = 'ours'\n")?.test(|cluster| {
        let profile = "/etc/railgate/profiles/ours.toml";
        sh(cluster, "gn1", "mkdir -p -m 755 /etc/railgate/profiles")?;
        // The profile expects nine GPUs, so the gate's finding shows whether the profile was used.
        cluster.write("gn1", profile, "extends = 'h100-sxm'\n[gpus]\ncount = 9\n")?;
        let run = |what: &str| -> Result<String> {
            sh(cluster, "gn1", "truncate -s 0 /var/log/railgate.log 2>/dev/null || true")?;
            let id = cluster.alice().sbatch(&["--gres=gpu:8", "-w", "gn1", "--no-requeue"], "true")?;
            cluster.wait_job(id, &["COMPLETED"], MINUTE).context(what.to_owned())?;
            cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
            assert!(!cluster.node("gn1")?.drained(), "{what}");
            cluster.read("gn1", "/var/log/railgate.log")
        };
        let doctor = || -> Result<String> {
            Ok(one_line(&cluster.root().on("gn1").run(&["railgate", "doctor"])?.both()))
        };
        for (change, says) in [
            ("chmod 666 ours.toml", "/etc/railgate/profiles/ours.toml: mode 0666"),
            ("chown 5002 ours.toml", "/etc/railgate/profiles/ours.toml: belongs to uid 5002"),
            ("chmod 777 .", "/etc/railgate/profiles: mode 0777"),
            ("mkdir /tmp/b; cp ours.toml /tmp/b; chown 5002 /tmp/b; ln -sf /tmp/b/ours.toml ours.toml", "/tmp/b: belongs to uid 5002"),
        ] {
            sh(cluster, "gn1", &format!("cd /etc/railgate/profiles; cp -p ours.toml /root/kept; {change}"))?;
            let log = run(change)?;
            assert!(log.contains(says), "{change}: {log}");
            let said = doctor()?;
            assert!(said.contains(says), "{change}: {said}");
            sh(cluster, "gn1", "cd /etc/railgate/profiles; rm -f ours.toml; cp -p /root/kept ours.toml; chown 0:0 . ours.toml; chmod 755 .; chmod 644 ours.toml")?;
        }
        for (change, says) in [
            ("chmod 777 /etc/railgate", "/etc/railgate: mode 0777"),
            ("chown 5002 /etc/railgate", "/etc/railgate: belongs to uid 5002"),
            ("chmod 664 /etc/railgate/railgate.toml", "/etc/railgate/railgate.toml: mode 0664"),
        ] {
            sh(cluster, "gn1", change)?;
            let log = run(change)?;
            assert!(log.contains(says), "{change}: {log}");
            let said = doctor()?;
            assert!(said.contains(says), "{change}: {said}");
            sh(cluster, "gn1", "chown 0:0 /etc/railgate; chmod 755 /etc/railgate; chmod 644 /etc/railgate/railgate.toml")?;
        }
        // With correct owner and mode the file is used.
        let log = run("nothing")?;
        assert!(log.contains("8 of 9 GPUs"), "{log}");
        Ok(())
    })
}
