//! Names in world-writable directories, and files that the site left writable: root must only trust files of root.

use std::os::unix::fs::chown;

use anyhow::{Result, ensure};

use super::stage::{Case, Input, Stage};

pub(super) const INPUT: Input = Input { name: "squatted names and the site's files", cases: CASES };

const PROFILE: &str = include_str!("../../../../profiles/h100-sxm.toml");
const PROFILES: &str = "/etc/railgate/profiles";

/// A profile with half of the GPUs, under which every node would be unfit.
fn false_profile() -> Result<String> {
    let wrong = PROFILE.replacen("count = 8", "count = 16", 1);
    ensure!(wrong != PROFILE, "the profile has no 'count = 8'");
    Ok(wrong)
}

/// Installs a site profile with this owner and mode, in a directory of this mode: jobs run, and no node is judged by it.
fn profile(stage: &Stage<'_>, owner: u32, mode: &str, dir_mode: &str) -> Result<()> {
    let root = stage.root_there();
    let file = format!("{PROFILES}/h100-sxm.toml");
    stage.cluster.write(&stage.node, &file, &false_profile()?)?;
    chown(stage.cluster.path(&stage.node, &file)?, Some(owner), Some(owner))?;
    root.run(&["chmod", mode, &file])?.ok()?;
    root.run(&["chmod", dir_mode, PROFILES])?.ok()?;
    let ran = stage.bobs("true");
    let periodic = root.run(&["/etc/railgate/periodic.sh"])?;
    let node = stage.cluster.node(&stage.node)?;
    root.run(&["rm", "-r", PROFILES])?.ok()?;
    ensure!(!node.drained(), "node drained by a user's profile: {}", node.reason());
    ensure!(periodic.code != 1, "a user's profile was followed: {periodic}");
    ran.map(drop)
}

const CASES: &[Case] = &[
    Case {
        id: "squat-tmp",
        does: "takes every name of railgate's in /tmp, /var/tmp and /dev/shm: directories, links to root's files, FIFOs, sockets",
        run: |stage| {
            let plant = "for d in /tmp /var/tmp /dev/shm; do cd $d; mkdir -m 777 railgate; ln -s /etc/railgate/disable railgate.log; mkfifo railgate.sock railgate.lock\n\
                         ln -s /etc/shadow railgate-$SLURM_JOB_ID; ln -s /etc/railgate/disable railgate.toml; mkdir railgate-child; ln -s / .railgate; done; exit 0";
            stage.bobs(plant)?;
            Ok(())
        },
    },
    Case {
        id: "squat-home",
        does: "has .railgate, .config/railgate, railgate.toml, checks.d and slurm.conf in his home and working directory",
        run: |stage| {
            let plant = "mkdir -p .config/railgate checks.d profiles; for f in railgate.toml .config/railgate/railgate.toml slurm.conf; do printf '[gate]\\nmode = \"report\"\\n' > $f; done\n\
                         printf '#!/bin/sh\\ntouch /tmp/owned\\nexit 1\\n' > checks.d/x; chmod 755 checks.d/x; cp checks.d/x .railgate";
            stage.bobs_with(&["--chdir=/home/rgbob"], &format!("{plant}; exit 3"), &["FAILED"]).map(drop)
        },
    },
    Case {
        id: "squat-metrics",
        does: "creates metrics files with railgate's names in world-writable directories",
        run: |stage| {
            let plant = "for d in /tmp /dev/shm; do mkdir -p $d/metrics; for n in railgate railgate-rails railgate-job-1; do ln -sf /etc/railgate/disable $d/metrics/$n.prom; done; done";
            stage.bobs(plant).map(drop)
        },
    },
    Case {
        id: "setuid-copy",
        does: "makes setuid copies of railgate's programs and runs them as hooks, with the environment of one",
        run: |stage| {
            let id = stage.bobs(
                "for p in /usr/bin/railgate /usr/libexec/railgate/*; do cp $p copy; chmod 6777 copy; for at in copy $p; do\n\
                 SLURM_JOB_ID=1 SLURM_JOB_UID=0 SLURM_JOB_GID=0 SLURM_JOB_NODELIST=gn1 SLURMD_NODENAME=gn1 SLURM_CLUSTER_NAME=test timeout 20 ./$at < /dev/null; \n\
                 timeout 20 $at check --phase periodic --drain < /dev/null; timeout 20 $at readmit gn1; timeout 20 $at pause --for 1h; done; done; rm copy; exit 0",
            )?;
            let paused = stage.root_there().run(&["ls", "/var/lib/railgate"])?.ok()?;
            ensure!(!paused.contains("pause"), "Bob paused the node: {}", stage.output(id));
            Ok(())
        },
    },
    Case {
        id: "site-profile-of-another",
        does: "a profile in /etc/railgate/profiles that belongs to another user, mode 0666, with half of the GPUs",
        run: |stage| profile(stage, 65534, "666", "755"),
    },
    Case {
        id: "site-profile-directory-open",
        does: "the same profile, owned by root, in a world-writable directory",
        run: |stage| profile(stage, 0, "644", "777"),
    },
    Case {
        id: "site-check-open",
        does: "a world-writable program in /etc/railgate/checks.d, and one that belongs to another user",
        run: |stage| {
            let evil = "#!/bin/sh\ntouch /tmp/owned\necho evil; exit 1\n";
            for name in ["open", "bobs"] {
                stage.cluster.write(&stage.node, &format!("/etc/railgate/checks.d/{name}"), evil)?;
            }
            let root = stage.root_there();
            root.run(&["chmod", "777", "/etc/railgate/checks.d/open"])?.ok()?;
            root.run(&["chown", "rgbob", "/etc/railgate/checks.d/bobs"])?.ok()?;
            let ran = stage.bobs("true");
            let periodic = root.run(&["/etc/railgate/periodic.sh"])?;
            let owned = stage.cluster.read(&stage.node, "/tmp/owned").is_ok();
            root.run(&["rm", "-r", "/etc/railgate/checks.d"])?.ok()?;
            ensure!(!owned && periodic.code != 1, "a user's program ran as a check: {periodic}");
            ran.map(drop)
        },
    },
    Case {
        id: "site-configuration-open",
        does: "writes a railgate.toml that the site left writable: it is refused, and nothing is done under it",
        run: |stage| {
            let root = stage.root_there();
            let (path, kept) = (
                "/etc/railgate/railgate.toml",
                stage.cluster.read(&stage.node, "/etc/railgate/railgate.toml")?,
            );
            root.run(&["chmod", "666", path])?.ok()?;
            let wrong = format!("{kept}\n[log]\nfile = '/tmp/owned'\n");
            stage.bob_there().input(wrong).run(&["tee", path])?.ok()?;
            let ran = stage.bobs("true");
            root.run(&["chmod", "644", path])?.ok()?;
            stage.cluster.write(&stage.node, path, &kept)?;
            ran?;
            ensure!(
                stage.cluster.read(&stage.node, "/tmp/owned").is_err(),
                "a user's configuration was followed"
            );
            Ok(())
        },
    },
];
