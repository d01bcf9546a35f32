//! Files of a job in `/run/railgate/jobs/<id>/current/user/`, railgate's only directory that it may write.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::stage::{Case, Input, Stage};

pub(super) const INPUT: Input = Input { name: "job's directory", cases: CASES };

/// Runs a script in the job's directory, before and after the first step of srun.
fn plant(stage: &Stage<'_>, script: &str) -> Result<()> {
    stage
        .bobs(&format!("cd /run/railgate/jobs/$SLURM_JOB_ID/current/user || exit 9\n{script}\nexit 0"))
        .map(drop)
}

/// The file with which an epilog asks for a full check of its node.
const ASKED: &str = "/var/lib/railgate/full-check-asked";

/// Forges results of a preflight.
fn preflight_marks(stage: &Stage<'_>) -> Result<()> {
    let (asks, words) =
        (["--railgate-gate=preflight"], "railgate: gpu-lost@0: off bus; reboot [epilog job=1]");
    let kinds = [
        ("ln -s /etc/shadow preflight", "not a regular file"),
        // Only the refusal to follow links prevents this one: the file is Bob's own, on the same file system.
        ("echo gpu-lost > own; ln -s own preflight", "not a regular file"),
        ("mkfifo preflight", "not a regular file"),
        ("truncate -s 1T preflight", "larger than 4096 bytes"),
    ];
    for (mark, why) in kinds {
        let (id, report) = with_mark(stage, &asks, mark, 1)?;
        ensure!(evidence(&report)?.is_none(), "{mark}: evidence: {report}");
        let log = stage.cluster.read(&stage.node, "/var/log/railgate.log")?;
        let logged = log.lines().any(|line| line.contains(&format!("job={id}")) && line.contains(why));
        ensure!(logged, "{mark}: the log has no line of job {id} with '{why}'");
        ensure!(!is_asked(stage), "{mark}: a full check is asked for");
    }
    let text = format!("printf '{words}\\e[2J\\u202e\\nx' > preflight");
    let (_, report) = with_mark(stage, &[], &text, 1)?;
    ensure!(evidence(&report)?.is_none(), "evidence of a job without the option: {report}");
    ensure!(!is_asked(stage), "a job without the option has asked for a full check");
    // A script that ran and ended otherwise was not kept from starting.
    let (_, report) = with_mark(stage, &asks, &text, 2)?;
    ensure!(evidence(&report)?.is_some(), "no evidence of a job that ended with 2: {report}");
    ensure!(!is_asked(stage), "a job that ended with 2 has asked for a full check");
    let (id, report) = with_mark(stage, &asks, &text, 1)?;
    let what = evidence(&report)?.with_context(|| format!("no evidence: {report}"))?;
    // Later readers of the report print it as well.
    let is_plain = what.chars().all(|c| !c.is_control() && c != '\u{202e}');
    ensure!(is_plain && what.starts_with(words) && !what.ends_with('x'), "not one printable line: {what:?}");
    let log = stage.cluster.read(&stage.node, "/var/log/railgate.log")?;
    let named = format!("the job's preflight names this node: {words}");
    ensure!(
        log.lines().any(|line| line.contains(&named) && line.contains(&format!("job={id}"))),
        "no line of job {id}"
    );
    let output = stage.output(id);
    ensure!(!output.contains("hardware fault"), "a forged result is shown as a fault: {output}");
    ensure!(output.contains("not confirmed by root"), "{output}");
    ensure!(is_asked(stage), "no full check is asked for");
    ensure!(!stage.cluster.node(&stage.node)?.drained(), "a forged result drains");
    // The next case begins without it.
    stage.root_there().run(&["rm", ASKED])?.ok()?;
    Ok(())
}

/// Runs a job of Bob that leaves a mark and fails with this code. Returns its ID and its report as JSON.
fn with_mark(stage: &Stage<'_>, options: &[&str], mark: &str, code: u8) -> Result<(u32, String)> {
    let script = format!("cd /run/railgate/jobs/$SLURM_JOB_ID/current/user || exit 9\n{mark}\nexit {code}");
    let id = stage.bobs_with(options, &script, &["FAILED"])?;
    let report = ["railgate", "report", &id.to_string(), "--format", "json"];
    let report = stage.cluster.root().run(&report)?.ok()?;
    ensure!(!report.contains("root:"), "{mark}: the report of job {id} shows another file: {report}");
    Ok((id, report))
}

/// What a report has as evidence of a preflight.
fn evidence(report: &str) -> Result<Option<String>> {
    let report: Value = serde_json::from_str(report)?;
    let all = report["attempts"][0]["nodes"][0]["evidence"].as_array().context("no evidence")?;
    let own = all.iter().find(|item| item["finding"]["check"] == "preflight");
    Ok(own.map(|item| item["finding"]["what"].as_str().unwrap_or_default().to_owned()))
}

fn is_asked(stage: &Stage<'_>) -> bool {
    stage.cluster.read(&stage.node, ASKED).is_ok()
}

const CASES: &[Case] = &[
    Case {
        id: "user-links",
        does: "symbolic links for every name that railgate reads there, to /etc/shadow, to directories and to endless files",
        run: |stage| {
            plant(
                stage,
                "for n in 0 1 batch 7; do ln -sf /etc/shadow env.$n; done; ln -s / env.8; ln -s /dev/zero env.9\n\
                 ln -s /etc ranks; ln -s /home/rgalice app; ln -sf /etc/shadow nccl.env; ln -s /etc/shadow report.json; ln -s /etc/shadow launch.json; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-fifos",
        does: "FIFOs without reader or writer for the same names",
        run: |stage| {
            plant(
                stage,
                "rm -f nccl.env; mkfifo env.0 env.1 env.7 nccl.env launch.json; mkdir ranks app; mkfifo ranks/1 ranks/mode app/1; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-directories-for-files",
        does: "directories in place of files and files in place of directories",
        run: |stage| {
            plant(
                stage,
                "rm -f nccl.env; mkdir -p env.0/a env.1/b nccl.env/c launch.json; echo x > ranks; echo x > app; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-preflight-marks",
        does: "forged results of a preflight: a link to /etc/shadow and to another file there, a FIFO, 1 TB without content, text with escape sequences and a whole reason, and without the option",
        run: preflight_marks,
    },
    Case {
        id: "user-sockets",
        does: "sockets in place of files, one of which is listened on and never answers",
        run: |stage| {
            plant(
                stage,
                "python3 -c 'import socket, time\ns = [socket.socket(socket.AF_UNIX) for n in range(3)]\n\
                 [t.bind(\"env.%d\" % n) or t.listen(1) for n, t in enumerate(s)]\nopen(\"ready\", \"w\"); time.sleep(30)' &\n\
                 until [ -e ready ]; do sleep 0.05; done; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-sparse-files",
        does: "files of 1 TB without content, as step notes, rank files and application reports",
        run: |stage| {
            plant(
                stage,
                "mkdir ranks app; truncate -s 1T env.0 env.1 ranks/1 app/1 nccl.env launch.json; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-hard-links",
        does: "one file under many names",
        run: |stage| {
            plant(
                stage,
                "mkdir ranks app; echo x > env.0; for n in {1..200}; do ln env.0 env.$n; ln env.0 app/$n; done",
            )
        },
    },
    Case {
        id: "user-full",
        does: "fills all bytes and all inodes of it; the rest of the node's /run stays usable",
        run: |stage| {
            plant(
                stage,
                "free() { df --output=avail /run/railgate | tail -n1; }; before=$(free)\nhead -c 500M /dev/zero > full 2> /dev/null && exit 7\n\
                 for n in {1..5000}; do : > n$n || break; done 2> /dev/null; [ -e n5000 ] && exit 6\n\
                 [ $((before - $(free))) -lt 1024 ] || exit 5; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-names",
        does: "names with newlines, escape sequences, U+202E, bytes that are no UTF-8, 255 bytes, and railgate's temporary names",
        run: |stage| {
            plant(
                stage,
                "mkdir app ranks; long=$(printf 'x%.0s' {1..255})\nfor at in . app ranks; do for n in $'env.1\\n\\e[2J' $'env.\\u202e' $'env.\\xff\\xfe' $'\\u009b31m' $long run.tmp1 -rf; do\n\
                 echo 'railgate-app 1 rank=1 t=1' > \"$at/$n\"; done; done; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-deep-tree",
        does: "1,000 nested directories",
        run: |stage| {
            plant(
                stage,
                "python3 -c 'import os\nfor n in range(1000): os.mkdir(\"d\"); os.chdir(\"d\")'\nsrun -n1 true",
            )
        },
    },
    Case {
        id: "user-modes",
        does: "removes all permissions of the directory and its files, and makes it writable for all",
        run: |stage| {
            plant(
                stage,
                "mkdir app; echo x > env.0; chmod 0 env.0 app; srun -n1 true; chmod 0 .; srun -n1 true; chmod 7777 .; chmod 0 .",
            )
        },
    },
    Case {
        id: "user-escape",
        does: "tries to create, move, replace and remove files beside and above it",
        run: |stage| {
            plant(
                stage,
                "for to in .. ../.. /run/railgate /run/railgate/jobs /var/lib/railgate /etc/railgate; do\n\
                 touch $to/bob && exit 4; mv . $to/moved && exit 4; mkdir $to/bob && exit 4; ln -s /etc $to/link && exit 4; done\n\
                 rm -f ../task.env ../report.json ../run.json ../../current; ln -sfn /etc ../../current; mv ../run.json ../x\n\
                 [ -e ../task.env ] && [ \"$(readlink ../../current)\" != /etc ] || exit 3; umount . && exit 2; exit 0",
            )
        },
    },
    Case {
        id: "user-step-notes-forged",
        does: "forges the plugin's notes of steps: values with control characters, 100,000 lines, names of others",
        run: |stage| {
            plant(
                stage,
                "printf 'railgate NCCL_IB_HCA=\\e[2J\\u202e\\nuser PATH=/x\\n' > env.5; yes 'railgate NCCL_DEBUG=x' | head -c 500000 > env.6\n\
                 head -c 400000 /dev/urandom > env.7; for n in {10..400}; do echo 'user A=b' > env.$n; done; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-rank-files-forged",
        does: "forges the profiler's rank files: right size and magic with random counters, all ones, too short, too many",
        run: |stage| {
            plant(
                stage,
                "mkdir -p ranks; python3 -c 'import os, struct\n\
                 size = 8 * (64 + 128 * 32 + 2048 * 2 + 2048 * 10)\nhead = b\"RAILRANK\" + struct.pack(\"<Q\", 2)\n\
                 open(\"ranks/random\", \"wb\").write(head + os.urandom(size - 16))\nopen(\"ranks/ones\", \"wb\").write(head + b\"\\xff\" * (size - 16))\n\
                 open(\"ranks/zero\", \"wb\").write(head + bytes(size - 16)); open(\"ranks/short\", \"wb\").write(head)\n\
                 for n in range(300): open(\"ranks/%d\" % n, \"wb\").write(head + os.urandom(2000))\n\
                 import shutil\n[shutil.copy(\"ranks/random\", \"ranks/\" + n) for n in [\"a.1\", \"gn1.1\"]]'\nsrun -n1 true",
            )
        },
    },
    Case {
        id: "user-rank-files-while-polled",
        does: "truncates, grows, replaces and refills the profiler's rank files many times a second while the sampler polls them",
        run: |stage| {
            plant(
                stage,
                "mkdir -p ranks; srun -n1 python3 -c 'import os, struct, time\n\
                 size = 8 * (64 + 128 * 32 + 2048 * 2 + 2048 * 10)\n\
                 def whole(ops): return struct.pack(\"<8sQ6Q\", b\"RAILRANK\", 2, 0, 0, 0, 0, 0, 1) + bytes(448) + struct.pack(\"<3Q5QQ\", 1, 7, 2 << 32, *[0] * 5, ops) + os.urandom(size - 584)\n\
                 end = time.time() + 8\nops = 0\n\
                 while time.time() < end:\n  ops += 1\n  name = \"ranks/%d.%x\" % (ops % 90, ops % 90)\n  \
                 with open(name, \"wb\") as file: file.write(whole(ops)); file.flush(); file.truncate([size, 100, 0, 1 << 40][ops % 4])\n  \
                 if ops % 7 == 0: os.replace(name, \"ranks/1.1\")\n  if ops % 11 == 0: os.symlink(\"/etc/shadow\", \"ranks/x%x.ffff\" % ops)\n  \
                 time.sleep(0.01)'",
            )
        },
    },
    Case {
        id: "user-application-reports-forged",
        does: "forges application reports: NaN, infinities, 10^308 steps, negative times, control characters, 1,000 ranks",
        run: |stage| {
            plant(
                stage,
                "mkdir -p app; cd app; for v in nan inf -inf 1e308 -1 99999999999999999999 0x10 '' $'\\e[2J' $'\\u202e'; do\n\
                 printf 'railgate-app 1 rank=%s world=%s t=%s\\nmodel convention=%s flops_per_sample=%s dtype=%s\\nstep n=%s samples=%s t=%s\\nnan t=%s\\nend t=%s\\n' \"$v\" \"$v\" \"$v\" \"$v\" \"$v\" \"$v\" \"$v\" \"$v\" \"$v\" \"$v\" \"$v\" > \"v$RANDOM\"; done\n\
                 python3 -c 'import os, struct\nhead = b\"RGAPPL\\r\\n\" + struct.pack(\"<II\", 1, 12288)\n\
                 for n, fill in enumerate([b\"\\xff\", b\"\\x7f\", bytes(1)]): open(\"b%d\" % n, \"wb\").write(head + fill * (12288 - 16))\n\
                 for n in range(4): open(\"r%d\" % n, \"wb\").write(head + os.urandom(12288 - 16))\n\
                 open(\"j\", \"wb\").write(head + bytes(4080) + struct.pack(\"<I\", 4294967295) + bytes(8184))'\n\
                 for n in {1..1000}; do echo \"railgate-app 1 rank=$n t=1\" > $n; done; srun -n1 true",
            )
        },
    },
    Case {
        id: "user-nccl-conf",
        does: "`.nccl.conf` and NCCL_CONF_FILE as a FIFO, an endless file, a link to a secret, and with control characters",
        run: |stage| {
            let id = stage.bobs(
                "cd; for make in 'mkfifo .nccl.conf' 'ln -s /dev/zero .nccl.conf' 'ln -s /etc/shadow .nccl.conf' 'mkdir .nccl.conf' \
                 'truncate -s 1T .nccl.conf'; do rm -rf .nccl.conf; $make; srun -n1 true || exit 3; NCCL_CONF_FILE=$PWD/.nccl.conf srun -n1 true || exit 4; done\n\
                 rm -rf .nccl.conf; printf 'NCCL_IB_HCA=\\e[2J\\nNCCL_DEBUG=\\u202e\\nNCCL_X=%s\\n' $(head -c 90000 /dev/zero | tr '\\0' x) > .nccl.conf\n\
                 srun -n1 true || exit 5; rm .nccl.conf",
            )?;
            ensure!(!stage.output(id).contains("root:"), "{}", stage.output(id));
            Ok(())
        },
    },
];
