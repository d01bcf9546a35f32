//! The start of the templates' scripts, without Slurm: `railgate template batch`, and the case that it is missing.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The same line in every template; the part after `||` applies if railgate was removed.
const BEGIN: &str = "\neval \"$(railgate template batch || \
                     echo \"trap '' USR1; TASK='eval \\\"\\$1\\\"'; run() { \\\"\\$@\\\"; }; launch() { \\\"\\$@\\\"; }\")\"\n";

fn script(path: &Path, text: &str) -> Output {
    let places = format!("{}:/usr/bin:/bin", path.display());
    let job = [("SLURM_JOB_ID", "7"), ("SLURM_ARRAY_JOB_ID", "5"), ("SLURM_ARRAY_TASK_ID", "2")];
    let mut command = Command::new("/bin/bash");
    command.args(["-c", &format!("set -euo pipefail{BEGIN}{text}")]).envs(job).env("PATH", places);
    command.output().unwrap()
}

/// A stand-in for squeue that runs `body`.
fn squeue(bin: &Path, body: &str) {
    let path = bin.join("squeue");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_template_begins_with_the_same_line() {
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sbatch-templates");
    let files = std::fs::read_dir(templates).unwrap().map(|entry| entry.unwrap().path());
    let scripts: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "sbatch")).collect();
    assert_eq!(scripts.len(), 11);
    for path in scripts {
        assert!(std::fs::read_to_string(&path).unwrap().contains(BEGIN), "{}", path.display());
    }
}

#[test]
fn a_script_prints_the_outcome_of_its_program() {
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_railgate"), bin.path().join("railgate")).unwrap();
    squeue(bin.path(), "echo RUNNING 0 None");
    for (program, code, says) in [
        ("true", 0, "the program ended with exit code 0"),
        ("exit 3", 3, "the program ended with exit code 3"),
        ("exit 255", 255, "the program ended with exit code 255"),
        ("kill -KILL $$", 137, "the program was killed by SIGKILL"),
        ("false; true", 0, "the program ended with exit code 0"),
    ] {
        let said = script(bin.path(), &format!("run bash -c \"$TASK\" task '{program}'"));
        assert_eq!(said.status.code(), Some(code), "{program}");
        assert_eq!(text(&said.stdout), format!("railgate: {says}. See: railgate report 5_2\n"), "{program}");
        assert_eq!(text(&said.stderr), "", "{program}");
    }
    let said = script(bin.path(), "cd /nowhere");
    assert_eq!(text(&said.stdout), "railgate: the script ended with exit code 1. See: railgate report 5_2\n");
}

/// Slurm signals the steps first. A program that saves on SIGTERM and ends with exit code 0 can have ended before the signal reaches the
/// script.
#[test]
fn a_script_prints_why_slurm_ended_the_job_before_it_received_the_signal() {
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_railgate"), bin.path().join("railgate")).unwrap();
    for (answer, program, says) in [
        ("echo COMPLETING 0 None", "true", "cancelled"),
        ("echo COMPLETING 0 TimeLimit", "true", "stopped at the time limit; not requeued"),
        ("echo COMPLETING 1 None", "true", "requeued or preempted; the job goes back into the queue"),
        ("echo COMPLETING 0 None", "exit 3", "cancelled"),
        ("exit 1", "true", "the program ended with exit code 0"),
        ("exit 1", "exit 3", "the program ended with exit code 3"),
    ] {
        // The second question, whether the job was preempted.
        squeue(bin.path(), &format!("case \"$*\" in *PREEMPTED*) ;; *) {answer} ;; esac"));
        let said = script(bin.path(), &format!("run bash -c \"$TASK\" task '{program}'"));
        let line = format!("railgate: {says}. See: railgate report 5_2\n");
        assert_eq!(text(&said.stdout), line, "{answer}; {program}");
        assert_eq!(text(&said.stderr), "", "{answer}; {program}");
    }
}

#[test]
fn without_railgate_the_program_still_runs() {
    let nowhere = tempfile::tempdir().unwrap();
    let said = script(nowhere.path(), "kill -USR1 $$; run launch bash -c \"$TASK\" task 'echo ran; exit 3'");
    assert_eq!((said.status.code(), text(&said.stdout)), (Some(3), "ran\n".to_owned()));
    assert!(text(&said.stderr).contains("railgate: "), "{}", text(&said.stderr));
}

/// Slurm may signal every process of a task, and the task's shell passes the signal on, so that the second signal can arrive at the
/// moment at which the program ends. bash then forgets the exit code: about one task in forty ended with 255 before the code
/// also went through a pipe.
#[test]
fn a_task_returns_the_exit_code_of_its_program_while_signals_arrive() {
    let task = Command::new(env!("CARGO_BIN_EXE_railgate")).args(["template", "task"]).output().unwrap();
    let task = &text(&task.stdout);
    // `exit` would reset the handler before the process ends, and the second signal would kill it.
    let program = "perl -MPOSIX -e '$| = 1; $SIG{USR1} = sub { POSIX::_exit(7) }; print \"at work\\n\"; sleep 60 while 1'";
    let run = || {
        let mut command = Command::new("/bin/bash");
        command.args(["-c", task, "task", program]).process_group(0).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let group = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGUSR1).unwrap();
        (line, child.wait().unwrap().code())
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| assert_eq!(run(), ("at work\n".to_owned(), Some(7)))));
        }
    });
}
