//! The shared report directory, in which the directories of jobs belong to their users.

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::REPORTS;

use super::stage::{Case, Input, MINUTE, Stage, clean};

pub(super) const INPUT: Input = Input { name: "report directory", cases: CASES };

/// A script that runs in Bob's report directory during the job. `$DIR` is the directory of the job, `$NOW` that of the attempt.
fn in_report(script: &str) -> String {
    format!(
        "export DIR={REPORTS}/test/$SLURM_JOB_ID; export NOW=$DIR/${{SLURM_RESTART_COUNT:-0}}; cd $NOW || exit 9\nset +e\n{script}\n"
    )
}

/// The cluster's directory is writable for all, as root-squashed NFS requires, and Bob occupies the name of his next job.
fn squat(stage: &Stage<'_>, plant: &str) -> Result<()> {
    let id = stage.bobs("true")? + 1;
    let root = stage.cluster.root();
    root.run(&["chmod", "1777", &format!("{REPORTS}/test")])?.ok()?;
    let script = format!("mkdir {id} && cd {id} && {plant}");
    stage.bob().within(&format!("{REPORTS}/test")).run(&["bash", "-c", &script])?.ok()?;
    let result = stage.bobs("true").and_then(|next| {
        ensure!(next == id, "job {next}, not {id}");
        Ok(())
    });
    root.run(&["chmod", "755", &format!("{REPORTS}/test")])?.ok()?;
    // His epilog could not write there, so its report is kept on the node.
    result
}

/// The node report that a job with a faulty node would have, as far as a user can forge it.
const FORGED: &str = r#"python3 - <<'END'
import json, os
now, job = os.environ["NOW"], int(os.environ["SLURM_JOB_ID"])
part = json.load(open(now + "/gn1.json")) if os.path.exists(now + "/gn1.json") else {}
fault = {"check": "gpu-lost", "part": "3", "severity": "fail", "class": "node", "what": "0000:61:00.0 off bus, Xid 79" + "\u001b[2J\u202e" + "x" * 100000, "fix": "reboot", "evidence": []}
part["epilog"] = dict(part.get("prolog") or {}, verdict={"phase": "epilog", "fitness": "unfit", "action": "drain", "findings": [fault] * 20, "deciding": 0})
part["evidence"] = [{"finding": fault, "own": True, "time": 1, "certain": True}] * 40
part["end"] = 1
part["node"] = "gn1"
for name in ["gn1", "gn2", "ctl", "gn1.live", "..", "gn1\n\u001b[2J"]:
    for of in [now, now + "/../7", now + "/../0"]:
        try:
            os.makedirs(of, exist_ok=True)
            open(of + "/" + name + ".json", "w").write(json.dumps(part))
        except OSError as why:
            print(why)
END
"#;

const CASES: &[Case] = &[
    Case {
        id: "report-part-forged",
        does: "forges the parts of his job on this node and others: it was drained, the GPU is lost, with 6 MB of evidence",
        run: |stage| {
            let id =
                stage.bobs_with(&[], &in_report(&format!("{FORGED}chmod 555 .; exit 3")), &["FAILED"])?;
            stage.bob().run(&["chmod", "-R", "u+rwX", &format!("{REPORTS}/test/{id}")])?;
            Ok(())
        },
    },
    Case {
        id: "report-decision-forged",
        does: "forges the controller's decision: as a FIFO, as a link to Alice's file, as text",
        run: |stage| {
            for plant in [
                "mkfifo decision.json",
                "ln -s /home/rgalice/diary decision.json",
                "echo '{\"job\": 1}' > decision.json",
            ] {
                stage.bobs_with(&[], &in_report(&format!("{plant}; exit 3")), &["FAILED"])?;
            }
            Ok(())
        },
    },
    Case {
        id: "report-end-forged",
        does: "forges the record of how Slurm ended his job: as a FIFO, as a link to Alice's file, as text about her job",
        run: |stage| {
            for plant in [
                "mkfifo slurm-end.json",
                "ln -s /home/rgalice/diary slurm-end.json",
                "echo '{\"schema\": 1, \"cluster\": \"test\", \"job\": 1, \"attempt\": 0, \"slurm\": {\"state\": \"FAILED\"}}' > slurm-end.json",
            ] {
                stage.bobs_with(&[], &in_report(&format!("{plant}; exit 3")), &["FAILED"])?;
            }
            Ok(())
        },
    },
    Case {
        id: "report-swapped-while-it-runs",
        does: "replaces his job's report directory by a link to Alice's while the job runs",
        run: |stage| {
            let first = stage.cluster.output(&format!("{REPORTS}/test/1/0/gn1.json")).is_some();
            ensure!(first, "Alice's first report");
            stage
                .bobs(&in_report(&format!(
                    "cd /; mv $DIR/0 $DIR/moved; ln -s {REPORTS}/test/1/0 $DIR/0; ls $DIR/0; exit 0"
                )))
                .map(drop)
        },
    },
    Case {
        id: "report-files-swapped",
        does: "puts links to Alice's files, FIFOs and directories at the names of the node's files",
        run: |stage| {
            stage
                .bobs(&in_report(
                    "rm -f gn1.json gn1.live; ln -s /home/rgalice/diary gn1.json; mkfifo gn1.live; mkdir gn1.samples\n\
                     ln -s /home/rgalice/diary gn1.jsontmp; ln -s /etc/railgate/railgate.toml gn1.tmp",
                ))
                .map(drop)
        },
    },
    Case {
        id: "report-many-large-parts",
        does: "4,000 sparse files of 8 MiB as parts of nodes, and fails: prolog, epilog and controller read none of them for long",
        run: |stage| {
            let plant =
                "truncate -s 8M n{1..4000}.json n{1..4000}.live gn1.json gn2.json; chmod 555 .; exit 3";
            let id = stage.bobs_with(&[], &in_report(plant), &["FAILED"])?;
            // Not its files: the controller's decision is not Bob's.
            stage.bob().run(&["chmod", "u+rwx", &format!("{REPORTS}/test/{id}/0")])?.ok()?;
            stage.bob().run(&["rm", "-r", &format!("{REPORTS}/test/{id}/0")])?.ok().map(drop)
        },
    },
    Case {
        id: "report-large-parts-then-requeue",
        does: "12,000 such parts, then requeues the job, so that its next prolog meets them",
        run: |stage| {
            let plant = in_report(
                "[ ${SLURM_RESTART_COUNT:-0} = 0 ] || exit 0\ntruncate -s 8M n{1..12000}.json\n\
                 scontrol requeue $SLURM_JOB_ID; sleep 60",
            );
            let id = stage.bobs_with(&["--requeue"], &plant, &["COMPLETED"])?;
            stage.bob().run(&["rm", "-r", &format!("{REPORTS}/test/{id}/0")])?.ok().map(drop)
        },
    },
    Case {
        id: "report-forged-parts-of-many-nodes",
        does: "64 valid parts of 8 MiB that name themselves gn1, and fails: the controller's memory and time stay bounded",
        run: |stage| {
            let plant = "python3 - <<'END'\nimport json\npart = json.load(open('gn1.json'))\npart['end'] = 1\n\
                part['evidence'] = [{'finding': {'check': 'gpu-lost', 'part': str(n), 'severity': 'fail', 'class': 'node', 'what': 'x' * 40, 'fix': '', 'evidence': []}, 'own': True} for n in range(40000)]\n\
                text = json.dumps(part)[:8000000]\nfor n in range(64): open('n%d.json' % n, 'w').write(text)\nEND\nexit 3";
            let id = stage.bobs_with(&[], &in_report(plant), &["FAILED"])?;
            stage.bob().run(&["rm", "-r", &format!("{REPORTS}/test/{id}")])?;
            Ok(())
        },
    },
    Case {
        id: "report-names",
        does: "names of attempts and parts with newlines, escape sequences, numbers beyond 32 bits, dots and slashes",
        run: |stage| {
            stage
                .bobs(&in_report(
                    "cd ..; mkdir 00 -1 4294967296 99999999999999999999 $'1\\n\\e[2J' ... '0 ' $'\\u202e'\n\
                     for d in *; do echo '{}' > \"$d/\"$'gn1\\n\\e[2J.json'; echo '{}' > \"$d/\"$'\\u202egn1.json'; echo '{}' > \"$d/.json\"; done; exit 0",
                ))
                .map(drop)
        },
    },
    Case {
        id: "report-squat-link",
        does: "makes the directory of his next job a link to one of Alice's",
        run: |stage| {
            squat(stage, &format!("cd .. && rmdir $OLDPWD && ln -s {REPORTS}/test/1 $(basename $OLDPWD)"))
        },
    },
    Case {
        id: "report-squat-file",
        does: "makes the attempt of his next job a file, and its parts FIFOs",
        run: |stage| {
            squat(stage, "echo x > 0")?;
            squat(stage, "mkdir 0; mkfifo 0/gn1.json 0/gn1.live 0/decision.json")
        },
    },
    Case {
        id: "report-squat-alice",
        does: "occupies the directories of the next 20 jobs before the site gives the report directory to SlurmUser; Alice's job whose node fails is requeued",
        run: |stage| {
            let id = stage.bobs("true")?;
            let root = stage.cluster.root();
            let own = |owner: &str, above: &str, cluster: &str| -> Result<()> {
                let set = format!(
                    "chown {owner} {REPORTS} {REPORTS}/test; chmod {above} {REPORTS}; chmod {cluster} {REPORTS}/test"
                );
                root.run(&["sh", "-c", &set])?.ok().map(drop)
            };
            own("root", "1777", "1777")?;
            let script = format!("for n in {{{}..{}}}; do mkdir -m 777 $n $n/0 $n/1; done", id + 1, id + 20);
            stage.bob().within(&format!("{REPORTS}/test")).run(&["bash", "-c", &script])?.ok()?;
            own("slurm", "755", "755")?;
            // The node is drained by another owner already, so the drain reason cannot hold the evidence.
            let worked = dies_of_its_node(stage, "ticket 4711");
            let clear = format!(
                "cd {REPORTS}/test && rm -rf .new *.foreign.*; for n in {{{}..{}}}; do [ \"$(stat -c %U $n)\" != rgbob ] || rm -rf $n; done",
                id + 1,
                id + 20
            );
            root.run(&["bash", "-c", &clear])?;
            own("root", "1777", "755")?;
            let job = worked?;
            let text = stage.alice().run(&["railgate", "report", &job.to_string()])?;
            ensure!(text.code == 0, "{text}");
            Ok(())
        },
    },
    Case {
        id: "report-prune",
        does: "dates his report back by years and fills it with links to Alice's files before root prunes",
        run: |stage| {
            let id = stage.bobs("true")?;
            let plant = format!(
                "cd {REPORTS}/test/{id} && ln -s {REPORTS}/test/1 link && ln -s /home/rgalice up && ln -s /etc 0/etc && \
                 mkdir -p 0/deep/er && ln -s / 0/deep/er/root && find . -exec touch -h -d 1999-01-01 {{}} +"
            );
            stage.bob().run(&["bash", "-c", &plant])?.ok()?;
            let pruned = stage.root_there().run(&["railgate", "report", "--prune"])?;
            // Exit code 3: files that are not railgate's remain.
            ensure!([0, 3].contains(&pruned.code) && pruned.both().lines().all(clean), "{pruned}");
            Ok(())
        },
    },
    Case {
        id: "report-times",
        does: "dates his report into the year 2200, then into 1970",
        run: |stage| {
            for date in ["2200-01-01", "1970-01-01"] {
                stage.bobs(&in_report(&format!("touch -d {date} . .. gn1.json; exit 0")))?;
            }
            Ok(())
        },
    },
    Case {
        id: "report-not-writable",
        does: "removes all permissions of his job's report directory and of its attempt while the job runs",
        run: |stage| {
            let id = stage.bobs(&in_report("chmod 0 . ..; exit 0"))?;
            stage.bob().run(&["chmod", "700", &format!("{REPORTS}/test/{id}")])?.ok().map(drop)
        },
    },
];

/// A job of Alice loses a GPU on gn1, which an admin is draining, and is requeued to gn2.
fn dies_of_its_node(stage: &Stage<'_>, admins: &str) -> Result<u32> {
    let (cluster, root) = (stage.cluster, stage.cluster.root());
    let job = stage.alice_begins_on("gn1")?;
    root.run(&["scontrol", "update", "nodename=gn1", "state=drain", &format!("reason={admins}")])?.ok()?;
    cluster.hardware("gn1")?.inject("gpu-lost@3")?;
    stage.alice_ends()?;
    let ended = cluster.wait_job(job, &["COMPLETED"], MINUTE);
    cluster.hardware("gn1")?.heal()?;
    // The node is repaired and readmitted, so that earlier findings are settled.
    root.clone().on("gn1").run(&["railgate", "readmit", "gn1"])?;
    root.run(&["scontrol", "update", "nodename=gn1", "state=resume"])?.ok()?;
    cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
    let restarts = ended.context("Alice's job was not requeued")?.restarts();
    ensure!(restarts == 1, "{restarts} restarts");
    Ok(job)
}
