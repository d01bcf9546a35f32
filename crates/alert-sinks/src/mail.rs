//! E-mail through the site's `sendmail`, as a child without a shell.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use railgate_alerts::{Message, MessageKind, Outcome};
use railgate_text::printable_bytes;

use crate::answer::{later, rejected};

/// Longest text of a mail, bytes.
const TEXT: usize = 32 << 10;
/// Longest part of the program's own messages that is read, bytes.
const SHOWN: u64 = 300;
/// Characters of a line of Base64.
const LINE: usize = 76;
/// Bytes of one encoded word of a header, so that it has at most 75 characters (RFC 2047).
const WORD: usize = 42;
/// Interval between checks whether the program has ended.
const TICK: Duration = Duration::from_millis(10);

/// `sendmail`, and where it sends to.
#[derive(Clone, Debug)]
pub(crate) struct Mailer {
    pub(crate) program: PathBuf,
    pub(crate) from: String,
    pub(crate) to: Vec<String>,
    pub(crate) deadline: Duration,
}

impl Mailer {
    /// Sends a message.
    pub(crate) fn send(&self, message: &Message) -> Outcome {
        match self.try_send(message) {
            Ok(outcome) => outcome,
            Err(why) => later(format!("{}: {why}", self.program.display()), None),
        }
    }

    fn try_send(&self, message: &Message) -> std::io::Result<Outcome> {
        // Files in memory instead of pipes: no side can wait for the other one.
        let mut input = memory(c"mail")?;
        input.write_all(self.mail(message).as_bytes())?;
        input.seek(SeekFrom::Start(0))?;
        let mut output = memory(c"sendmail")?;
        let mut command = Command::new(&self.program);
        // Recipients are arguments, not read from the header.
        command.args(["-i", "-f", &self.from, "--"]).args(&self.to);
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("LANG", "C.UTF-8");
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(input))).stdout(Stdio::null());
        command.stderr(Stdio::from(OwnedFd::from(output.try_clone()?)));
        let mut child = command.spawn()?;
        let Some(status) = wait(&mut child, self.deadline)? else {
            return Ok(later("sendmail did not end within the deadline", None));
        };
        output.seek(SeekFrom::Start(0))?;
        let mut text = Vec::new();
        output.take(SHOWN).read_to_end(&mut text)?;
        Ok(outcome(status, &printable_bytes(text.trim_ascii())))
    }

    /// The mail. Of its header only the subject contains untrusted text, encoded. The body is Base64, so that no text in it is a
    /// command for a mail server.
    fn mail(&self, message: &Message) -> String {
        let domain = self.from.split_once('@').map_or("localhost", |(_, domain)| domain);
        let mut mail = format!("From: {}\nTo: {}\n", self.from, self.to.join(",\n "));
        mail.push_str(&format!("Subject: {}\n", header_text(&message.title(150))));
        mail.push_str(&format!("Message-ID: <{}@{domain}>\n", message.id));
        mail.push_str("Auto-Submitted: auto-generated\nMIME-Version: 1.0\n");
        if message.kind == MessageKind::Alerts && message.priority() == railgate_alerts::Priority::P0 {
            mail.push_str("Importance: high\n");
        }
        mail.push_str("Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\n");
        let body = BASE64_STANDARD.encode(message.text(TEXT));
        for line in body.as_bytes().chunks(LINE) {
            mail.push_str(&String::from_utf8_lossy(line));
            mail.push('\n');
        }
        mail
    }
}

/// A text as encoded words of RFC 2047, one on each line.
fn header_text(text: &str) -> String {
    let mut words: Vec<String> = vec![String::new()];
    for c in text.chars() {
        match words.last_mut() {
            Some(word) if word.len() + c.len_utf8() <= WORD => word.push(c),
            _ => words.push(c.to_string()),
        }
    }
    let words = words.iter().map(|word| format!("=?utf-8?B?{}?=", BASE64_STANDARD.encode(word)));
    words.collect::<Vec<_>>().join("\n ")
}

fn memory(name: &std::ffi::CStr) -> std::io::Result<File> {
    Ok(File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC)?))
}

/// Waits for the program. After the deadline it and all that it started in its process group are killed.
fn wait(child: &mut Child, deadline: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            if let Ok(pid) = i32::try_from(child.id()) {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(TICK);
    }
}

/// The exit codes of sysexits.h.
fn outcome(status: ExitStatus, text: &str) -> Outcome {
    match status.code() {
        Some(0) => Outcome::Accepted,
        // EX_USAGE, EX_DATAERR, EX_NOUSER, EX_NOHOST, EX_NOPERM
        Some(code @ (64 | 65 | 67 | 68 | 77)) => rejected(format!("sendmail: exit code {code}: {text}")),
        Some(code) => later(format!("sendmail: exit code {code}: {text}"), None),
        None => later(format!("sendmail was killed: {text}"), None),
    }
}

/// The program, if only root can change it.
pub(crate) fn program(path: &Path) -> Result<PathBuf, String> {
    // The path is not resolved: postfix and others select their function by the program's name.
    railgate_fsutil::trusted(path).map(|_| path.to_owned()).map_err(|why| why.to_string())
}
