use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::Outcome;
use super::parent::frame;
use super::start::{never_wait, start};

/// A child that speaks again and again: what must stay in one process, and may hang in the kernel at any word.
///
/// Its holder never waits for it. Dropped, it is killed; one that outlives that is left to init.
#[derive(Debug)]
pub struct Stream {
    child: Option<Child>,
    input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    unread: Vec<u8>,
    heard: Instant,
}

/// What a child had to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing now.
    Nothing,
    /// This.
    This(Vec<u8>),
    /// It ended, by itself or by a signal; the reason, where it gave one.
    Ended(String),
}

impl Stream {
    /// Starts a task made by [`Task::stream`](super::Task::stream). `input` is one line. A child that is silent for
    /// longer than `silence` ends by itself, also if no process is left to end it.
    ///
    /// # Errors
    /// The system has no room for a process.
    pub fn start(task: &str, input: &[u8], silence: Duration) -> io::Result<Self> {
        let own_end = silence.as_secs().clamp(1, 86_400);
        let mut child = start(task, own_end)?;
        let (mut to, output) = (child.stdin.take(), child.stdout.take());
        let mut stream =
            Stream { child: Some(child), input: None, output, unread: Vec::new(), heard: Instant::now() };
        stream.output.as_ref().map_or(Ok(()), never_wait)?;
        // A pipe has room for it: this does not wait, whatever the child does.
        match to.as_mut().map_or(Ok(()), |to| to.write_all(&[input, b"\n"].concat())) {
            // It has ended already; what it said of that is still to be heard.
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        stream.input = to;
        Ok(stream)
    }

    /// Has something to read when it has something to say.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(AsFd::as_fd)
    }

    /// For how long it has said nothing.
    pub fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Asks it to say its last word and end.
    pub fn finish(&mut self) {
        self.input = None;
    }

    /// What it has said, one thing at a time.
    pub fn listen(&mut self) -> Said {
        let mut chunk = [0; 16 * 1024];
        loop {
            match self.next_frame() {
                Ok(Some(said)) => return said,
                Ok(None) => {}
                Err(why) => return self.ended(&why),
            }
            let Some(output) = &mut self.output else { return Said::Ended(String::new()) };
            match output.read(&mut chunk) {
                Ok(0) => {
                    self.output = None;
                    return self.ended("");
                }
                Ok(count) => self.unread.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Said::Nothing,
                Err(why) => return self.ended(&why.to_string()),
            }
        }
    }

    fn next_frame(&mut self) -> Result<Option<Said>, String> {
        let Some(outcome) = frame(&self.unread)? else { return Ok(None) };
        let head = self.unread.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        Ok(match outcome {
            Outcome::Done(said) => {
                self.unread.drain(..head + said.len());
                self.heard = Instant::now();
                // The last frame of every child is an empty one.
                (!said.is_empty()).then_some(Said::This(said))
            }
            Outcome::Failed(why) => return Err(why),
            Outcome::Silent | Outcome::Stuck => None,
        })
    }

    fn ended(&mut self, why: &str) -> Said {
        self.output = None;
        if !why.is_empty() {
            return Said::Ended(why.to_owned());
        }
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        let failed = status.filter(|status| !status.success());
        Said::Ended(failed.map(|status| status.to_string()).unwrap_or_default())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        if let Ok(pid) = i32::try_from(child.id()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = std::thread::Builder::new().name("reaper".to_owned()).spawn(move || child.wait());
    }
}
