use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::Outcome;
use super::parent::frame;
use super::start::{never_wait, start};

/// A child that sends messages over time: for work that needs one process and can hang in the kernel at any point.
///
/// The owner never waits for it. When this is dropped, the child is killed; a child that outlives that is left to init.
#[derive(Debug)]
pub struct Stream {
    child: Option<Child>,
    input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    unread: Vec<u8>,
    heard: Instant,
}

/// The result of reading from a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// No message is available.
    Nothing,
    /// One message.
    This(Vec<u8>),
    /// It ended, by itself or by a signal; the text is the reason, if it gave one.
    Ended(String),
}

impl Stream {
    /// Starts a task created with [`Task::stream`](super::Task::stream). `input` is one line. A child that sends no
    /// message for longer than `silence` ends by itself, even if its parent cannot end it.
    ///
    /// # Errors
    /// Returns an error if the process cannot be started.
    pub fn start(task: &str, input: &[u8], silence: Duration) -> io::Result<Self> {
        let own_end = silence.as_secs().clamp(1, 86_400);
        let mut child = start(task, own_end)?;
        let (mut to, output) = (child.stdin.take(), child.stdout.take());
        let mut stream =
            Stream { child: Some(child), input: None, output, unread: Vec::new(), heard: Instant::now() };
        stream.output.as_ref().map_or(Ok(()), never_wait)?;
        // The input fits in the pipe, so this does not block.
        match to.as_mut().map_or(Ok(()), |to| to.write_all(&[input, b"\n"].concat())) {
            // The child has already ended; its last messages can still be read.
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        stream.input = to;
        Ok(stream)
    }

    /// Returns a descriptor that is readable when a message is available.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(AsFd::as_fd)
    }

    /// Returns the time since the last message.
    pub fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Asks the child to send its last message and end.
    pub fn finish(&mut self) {
        self.input = None;
    }

    /// Returns the next message.
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
                // The last frame of every child is empty.
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
