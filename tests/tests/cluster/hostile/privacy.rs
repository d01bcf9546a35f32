//! Data of other users' jobs that a user can read.

use anyhow::{Result, ensure};
use railgate_tests::cluster::{CONTROLLER, REPORTS};
use railgate_tests::poll;

use super::processes::WATCHFUL;
use super::stage::{Case, Input, MINUTE, Stage};

pub(super) const INPUT: Input = Input { name: "what others can read", cases: CASES };

/// Text in Alice's environment, in her job's name and in her NCCL file.
const SECRET: &str = "NOBODYS_BUSINESS";

/// Prints the names of all files below these directories and the content of those that the caller may read.
fn reads(places: &str) -> [String; 3] {
    let look = format!(
        "find {places} 2> /dev/null; find {places} -type f -readable -exec cat {{}} + 2> /dev/null; true"
    );
    ["bash".to_owned(), "-c".to_owned(), look]
}

/// Bob reads while Alice's job runs, and again after its end.
fn while_alice_works(stage: &Stage<'_>, machine: &str, places: &str) -> Result<()> {
    let cluster = stage.cluster;
    let script = format!(
        "printf 'NCCL_DEBUG_FILE={SECRET}\\n' > .nccl.conf; export NCCL_DEBUG_FILE=/x/{SECRET}\n\
         srun -n1 sleep 300 & : > began; until [ -e end ]; do sleep 0.1; done; rm began end .nccl.conf; kill %1; exit 0"
    );
    let words = ["-N1", "-w", &stage.node, "--gres=gpu:4", "-J", SECRET, "-o", "/dev/null"];
    let job = stage.alice().sbatch(&words, &script)?;
    poll::until(MINUTE, "Alice's job to begin", || Ok(cluster.output("/home/rgalice/began")))?;
    let tasks = format!("/run/railgate/jobs/{job}/current/tasks.json");
    poll::until(MINUTE, "a reading of her sampler", || {
        Ok((stage.root_there().run(&["test", "-e", &tasks])?.code == 0).then_some(()))
    })?;
    let seen = stage.bob().on(machine).run(&reads(places))?.stdout;
    cluster.write(CONTROLLER, "/home/rgalice/end", "")?;
    stage.ended(job, &["COMPLETED"])?;
    let after = stage.bob().on(machine).run(&reads(places))?.stdout;
    for (when, text) in [("while it ran", seen), ("afterwards", after)] {
        let line = text.lines().find(|line| line.contains(SECRET));
        ensure!(line.is_none(), "Bob read of Alice's job {when}: {:.300}", line.unwrap_or_default());
    }
    Ok(())
}

const CASES: &[Case] = &[
    Case {
        id: "read-running-job",
        does: "reads everything below /run/railgate on the node of Alice's job",
        run: |stage| {
            ensure!(WATCHFUL.contains("task_look"), "the sampler must read tasks from the start");
            while_alice_works(stage, &stage.node, "/run/railgate")
        },
    },
    Case {
        id: "read-node-state",
        does: "reads everything below /var/lib/railgate and railgate's log on the node",
        run: |stage| {
            let log = stage.bob_there().run(&["cat", "/var/log/railgate.log"])?;
            ensure!(log.code != 0, "Bob reads the log");
            while_alice_works(stage, &stage.node, "/var/lib/railgate /var/log/railgate.log")
        },
    },
    Case {
        id: "read-controller-state",
        does: "reads everything below /var/lib/railgate on the controller, and the reports of all",
        run: |stage| while_alice_works(stage, CONTROLLER, &format!("/var/lib/railgate {REPORTS}")),
    },
    Case {
        id: "read-report-of-alice",
        does: "requests the report of Alice's job with every command",
        run: |stage| {
            for words in [
                &["report", "1"][..],
                &["report", "1", "--live"],
                &["report", "1", "--format", "json"],
                &["report", "1", "--dir", REPORTS],
                &["report", "1", "--format", "html"],
            ] {
                let said = stage.bob().run(&[&["railgate"], words].concat())?.both();
                ensure!(!said.contains("mlx5_") && !said.contains("H100"), "{}: {said}", words.join(" "));
            }
            Ok(())
        },
    },
];
