//! Logs of a job that lead elsewhere when its epilog searches them for the first error, or are no logs at all.

use anyhow::{Result, ensure};
use railgate_tests::cluster::{CONTROLLER, REPORTS};
use railgate_tests::poll;

use super::stage::{Case, Input, MINUTE, Stage};

pub(super) const INPUT: Input = Input { name: "logs", cases: CASES };

/// A traceback as Python prints it, with this last line.
fn traceback(last: &str) -> String {
    format!(
        "printf 'Traceback (most recent call last):\\n  File \"/home/rgbob/train.py\", line 88, in main\\n    step()\\n{last}\\n'"
    )
}

/// What the epilog recorded of a job's log; empty if it recorded nothing.
fn recorded(stage: &Stage<'_>, id: u32) -> Result<String> {
    let file = format!("{REPORTS}/test/{id}/0/{}.error", stage.node);
    Ok(std::fs::read_to_string(stage.cluster.path(CONTROLLER, &file)?).unwrap_or_default())
}

/// Waits until the sampler has noted where a job writes.
fn noted(stage: &Stage<'_>, id: u32) -> Result<()> {
    let file = format!("/run/railgate/jobs/{id}/current/outputs.json");
    poll::until(MINUTE, "the sampler to note the log", || {
        Ok((stage.root_there().run(&["test", "-s", &file])?.code == 0).then_some(()))
    })
}

const CASES: &[Case] = &[
    Case {
        id: "log-swapped",
        does: "replaces his log by a link to Alice's file, a FIFO, a directory, a device or another file before his job ends",
        run: |stage| {
            for swap in [
                "ln -s /home/rgalice/diary log",
                "mkfifo log",
                "mkdir log",
                "ln -s /dev/zero log",
                "echo 'ValueError: another' > log",
            ] {
                let script = format!(
                    "{}; : > began; until [ -e end ]; do sleep 0.05; done; mv log kept; {swap}; rm began end; exit 3",
                    traceback("ValueError: mine")
                );
                let id = stage.submit(&["-o", "log"], &script)?;
                poll::until(MINUTE, "the job to begin", || Ok(stage.cluster.output("/home/rgbob/began")))?;
                noted(stage, id)?;
                stage.bob().run(&["touch", "end"])?.ok()?;
                stage.ended(id, &["FAILED"])?;
                let found = recorded(stage, id)?;
                ensure!(found.contains("refused") && !found.contains("dear"), "{swap}: {found:?}");
                stage.bob().run(&["rm", "-rf", "log", "kept"])?.ok()?;
            }
            Ok(())
        },
    },
    Case {
        id: "log-of-alice",
        does: "writes into a file of Alice's that is writable for all, which holds an error of hers",
        run: |stage| {
            stage.alice().run(&["bash", "-c", "umask 0; mkdir open; chmod 711 ."])?.ok()?;
            let script = "until [ -e /home/rgalice/open/log ]; do sleep 0.05; done; exec >> /home/rgalice/open/log 2>&1 < /dev/null; \
                          : > began; until [ -e go ]; do sleep 0.1; done; rm began go; exit 3";
            let id = stage.submit(&["-o", "/dev/null"], script)?;
            stage.alice().run(&["bash", "-c", "umask 0; : > open/log"])?.ok()?;
            poll::until(MINUTE, "the job to begin", || Ok(stage.cluster.output("/home/rgbob/began")))?;
            // The sampler probes twice meanwhile.
            std::thread::sleep(std::time::Duration::from_millis(1500));
            stage
                .alice()
                .run(&["bash", "-c", "echo \"No space left on device: of-alice\" >> open/log"])?
                .ok()?;
            stage.bob().run(&["touch", "go"])?.ok()?;
            stage.ended(id, &["FAILED"])?;
            let found = recorded(stage, id)?;
            stage.alice().run(&["rm", "-r", "open"])?.ok()?;
            ensure!(!found.contains("of-alice"), "{found}");
            Ok(())
        },
    },
    Case {
        id: "log-huge-with-secrets",
        does: "writes a log of 10 GB without content, then an error with escape sequences, U+202E and a token",
        run: |stage| {
            let last =
                "ValueError: bad \\033[2J\\033]0;x\\007 \\xe2\\x80\\xae sample hf_AbCdEfGhIjKlMnOpQrStUvWx";
            let script = format!(
                "truncate -s 10G out.$SLURM_JOB_ID; {{ echo; {}; }} >> out.$SLURM_JOB_ID; until [ -e go ]; do sleep 0.1; done; rm go; exit 3",
                traceback(last)
            );
            let id = stage.submit(&[], &script)?;
            noted(stage, id)?;
            stage.bob().run(&["touch", "go"])?.ok()?;
            stage.ended(id, &["FAILED"])?;
            let found = recorded(stage, id)?;
            stage.bob().run(&["rm", "-f", &format!("out.{id}")])?.ok()?;
            let report = stage.bob().run(&["railgate", "report", &id.to_string()])?.stdout;
            for text in [&found, &report] {
                ensure!(text.contains("[masked]") && !text.contains("AbCdEf"), "{text}");
                ensure!(!text.chars().any(|c| c == '\u{202e}' || c.is_control() && c != '\n'), "{text:?}");
            }
            let open = stage.bob().run(&["railgate", "report", &id.to_string(), "--redact"])?.stdout;
            ensure!(!open.contains("ValueError") && !open.contains("masked"), "{open}");
            Ok(())
        },
    },
];
