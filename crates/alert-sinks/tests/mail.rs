//! Mail through a program that takes the place of `sendmail`.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::time::{Duration, Instant};

use railgate_alert_sinks::{Sink, Sinks};
use railgate_alerts::{AlertsConfig, Outcome, Priority};
use support::*;

fn config(program: &std::path::Path) -> AlertsConfig {
    let text = format!(
        "deadline = '2s'\n[sinks.it]\nkind = 'sendmail'\nfrom = 'railgate@example.org'\n\
         to = ['ops@example.org', 'root']\nsendmail = '{}'\n",
        program.display()
    );
    let config: AlertsConfig = toml::from_str(&text).unwrap();
    assert_eq!(config.problems(), Vec::<String>::new());
    config
}

fn send_with(script: &str) -> Outcome {
    let files = Files::new();
    send(&config(&files.program("sendmail", script)))
}

#[test]
fn text_of_users_adds_no_header_and_no_recipient() {
    let files = Files::new();
    let out = files.0.path().join("out");
    let script = format!("#!/bin/sh\nfor arg; do echo \"arg $arg\"; done >{0}\ncat >>{0}\n", out.display());
    let config = config(&files.program("sendmail", &script));
    let mut hostile =
        condition("node/a\nBcc: thief@example.net", Priority::P0, &["a\r\nBcc: thief@example.net"]);
    hostile.title =
        "x\r\nBcc: thief@example.net\r\n\r\n.\r\nMAIL FROM:<x> 漢字漢字漢字漢字漢字漢字漢字".to_owned();
    let (_, message) = message_of(&config, vec![hostile]);
    let sink = Sink::open(&config, "it", &config.sinks["it"]).unwrap();
    assert_eq!(sink.send(&message, NOON), Outcome::Accepted);
    let got = std::fs::read_to_string(out).unwrap();
    let (head, body) = got.split_once("\n\n").unwrap();
    let starts: Vec<&str> = head
        .lines()
        .map(|line| line.split_inclusive([':', ' ']).next().unwrap())
        .filter(|start| *start != " ")
        .collect();
    let wanted = [
        "arg ",
        "arg ",
        "arg ",
        "arg ",
        "arg ",
        "arg ",
        "From:",
        "To:",
        "Subject:",
        "Message-ID:",
        "Auto-Submitted:",
        "MIME-Version:",
        "Importance:",
        "Content-Type:",
        "Content-Transfer-Encoding:",
    ];
    assert_eq!(starts, wanted, "{head}");
    assert!(
        head.starts_with("arg -i\narg -f\narg railgate@example.org\narg --\narg ops@example.org\narg root\n")
    );
    assert!(!got.contains("thief"), "{got}");
    assert!(head.lines().all(|line| line.len() <= 78), "{head}");
    assert!(body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=\n".contains(&byte)), "{body}");
}

#[test]
fn exit_codes_have_the_meaning_of_sysexits() {
    assert_eq!(send_with("#!/bin/sh\nexec cat >/dev/null\n"), Outcome::Accepted);
    let Outcome::Rejected { problem } = send_with("#!/bin/sh\necho \"no \u{1b}user\" >&2\nexit 67\n") else {
        panic!("not rejected")
    };
    assert_eq!(problem, "sendmail: exit code 67: no ?user");
    for script in
        ["#!/bin/sh\nexit 75\n", "#!/bin/sh\nexit 1\n", "#!/bin/sh\nkill -9 $$\n", "#!/nonexistent\n"]
    {
        assert!(matches!(send_with(script), Outcome::Later { .. }), "{script}");
    }
}

#[test]
fn a_program_that_hangs_is_ended_with_what_it_started() {
    let files = Files::new();
    let pid = files.0.path().join("pid");
    let script = format!("#!/bin/sh\nsleep 1000 &\necho $! >{}\nwait\n", pid.display());
    let outcome = send(&config(&files.program("sendmail", &script)));
    assert!(matches!(outcome, Outcome::Later { problem, .. } if problem.contains("deadline")));
    let pid = std::fs::read_to_string(pid).unwrap();
    // SIGKILL takes effect when the process runs next. An orphan stays until its new parent has read its status.
    let is_gone = || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        state.is_err() || state.is_ok_and(|text| text.contains(") Z "))
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !is_gone() {
        assert!(Instant::now() < end, "the process runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_program_that_others_can_change_is_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    let program = files.program("sendmail", "#!/bin/sh\n");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).unwrap();
    let sinks = Sinks::open(&config(&program));
    let problem = sinks.problems().next().unwrap().to_string();
    assert!(problem.starts_with("alerts.sinks.it.sendmail: ") && problem.contains("0777"), "{problem}");
}
