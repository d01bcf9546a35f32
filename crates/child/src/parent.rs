use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::start::{never_wait, start};
use super::{Call, Ended, GRACE, MAX_REPLY, Outcome};

/// Interval between checks of a killed child, because no descriptor signals its end.
const TICK: Duration = Duration::from_millis(5);

pub(super) fn run_all(calls: Vec<Call>) -> Vec<Ended> {
    let start = Instant::now();
    let mut running: Vec<Running> = calls.into_iter().map(|call| Running::start(call, start)).collect();
    while running.iter().any(|child| child.ended.is_none()) {
        wait(&running);
        for child in &mut running {
            child.step();
        }
    }
    running.into_iter().map(Running::into_ended).collect()
}

/// Sleeps until a pipe is ready or the next deadline has passed.
fn wait(running: &[Running]) {
    let mut fds = Vec::new();
    let mut timeout = Duration::from_secs(60);
    for child in running.iter().filter(|child| child.ended.is_none()) {
        timeout = timeout.min(child.patience());
        if child.waits_for_exit() {
            continue;
        }
        if let Some(result) = &child.result {
            fds.push(PollFd::new(result.as_fd(), PollFlags::POLLIN));
        }
        if let Some(input) = &child.input {
            fds.push(PollFd::new(input.as_fd(), PollFlags::POLLOUT));
        }
    }
    // Rounded up, so that less than a millisecond does not cause a busy loop.
    let timeout = PollTimeout::try_from(timeout + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(_) => std::thread::sleep(TICK),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Runs, until this deadline.
    Working(Instant),
    /// Its reply ended early; it has until this moment to report its exit status.
    Ending(Instant),
    /// Was killed; it has until this moment to end.
    Killed(Instant),
}

/// A child and its reply so far.
#[derive(Debug)]
struct Running {
    task: String,
    started: Instant,
    child: Option<Child>,
    input: Option<ChildStdin>,
    unsent: Vec<u8>,
    sent: usize,
    result: Option<ChildStdout>,
    reply: Vec<u8>,
    stage: Stage,
    ended: Option<Ended>,
}

impl Running {
    fn start(call: Call, start: Instant) -> Self {
        let mut running = Running {
            task: call.task,
            started: Instant::now(),
            child: None,
            input: None,
            unsent: call.input,
            sent: 0,
            result: None,
            reply: Vec::new(),
            stage: Stage::Working(start + call.deadline),
            ended: None,
        };
        if let Err(why) = running.spawn(call.deadline) {
            running.end(Outcome::Failed(format!("child {}: starting /proc/self/exe: {why}", running.task)));
        }
        running
    }

    fn spawn(&mut self, deadline: Duration) -> io::Result<()> {
        let own_end = (deadline + 2 * GRACE).as_secs().saturating_add(1).min(u64::from(u32::MAX));
        let mut child = start(&self.task, own_end)?;
        self.input = child.stdin.take();
        self.result = child.stdout.take();
        self.child = Some(child);
        self.input.as_ref().map_or(Ok(()), never_wait)?;
        self.result.as_ref().map_or(Ok(()), never_wait)
    }

    fn waits_for_exit(&self) -> bool {
        !matches!(self.stage, Stage::Working(_))
    }

    fn patience(&self) -> Duration {
        match self.stage {
            Stage::Working(until) => until.saturating_duration_since(Instant::now()),
            Stage::Ending(_) | Stage::Killed(_) => TICK,
        }
    }

    fn step(&mut self) {
        if self.ended.is_some() {
            return;
        }
        match self.stage {
            Stage::Working(until) => {
                self.send();
                self.receive();
                if self.ended.is_none() && self.stage == Stage::Working(until) && Instant::now() >= until {
                    self.kill();
                    self.stage = Stage::Killed(Instant::now() + GRACE);
                }
            }
            Stage::Ending(until) => {
                if let Some(how) = self.exit_text() {
                    self.end(Outcome::Failed(format!("child {}: no reply: {how}", self.task)));
                } else if Instant::now() >= until {
                    self.end(Outcome::Failed(format!("child {}: closed its reply and stayed", self.task)));
                }
            }
            Stage::Killed(until) => {
                if self.exit_text().is_some() {
                    self.end(Outcome::Silent);
                } else if Instant::now() >= until {
                    self.end(Outcome::Stuck);
                }
            }
        }
    }

    fn send(&mut self) {
        let Some(input) = &mut self.input else { return };
        loop {
            let rest = self.unsent.get(self.sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            match input.write(rest) {
                Ok(count) => self.sent += count,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return,
                // A child that does not read its input can still reply.
                Err(_) => break,
            }
        }
        self.input = None;
    }

    fn receive(&mut self) {
        let mut chunk = [0; 16 * 1024];
        while self.ended.is_none() {
            let Some(result) = &mut self.result else { return };
            match result.read(&mut chunk) {
                Ok(0) => {
                    self.result = None;
                    self.stage = Stage::Ending(Instant::now() + GRACE);
                    return;
                }
                Ok(count) => {
                    self.reply.extend_from_slice(chunk.get(..count).unwrap_or_default());
                    match frame(&self.reply) {
                        Ok(Some(outcome)) => self.end(outcome),
                        Ok(None) => {}
                        Err(why) => self.end(Outcome::Failed(format!("child {}: {why}", self.task))),
                    }
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return,
                Err(why) => self.end(Outcome::Failed(format!("child {}: reading: {why}", self.task))),
            }
        }
    }

    fn exit_text(&mut self) -> Option<String> {
        match self.child.as_mut()?.try_wait() {
            Ok(status) => status.map(|status| status.to_string()),
            Err(why) => Some(why.to_string()),
        }
    }

    /// Kills the whole process group, including processes that the child started.
    fn kill(&mut self) {
        let Some(child) = &mut self.child else { return };
        if let Ok(pid) = i32::try_from(child.id()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.ended = Some(Ended { outcome, took: self.started.elapsed() });
        self.input = None;
        self.result = None;
    }

    fn into_ended(mut self) -> Ended {
        // Until the child is reaped, its pid certainly identifies its group. The group can contain processes that it
        // started, even if it has ended itself.
        let collected = !matches!(self.stage, Stage::Working(_)) && self.exit_text().is_some();
        if !collected {
            self.kill();
        }
        if self.exit_text().is_none()
            && let Some(mut child) = self.child.take()
        {
            // Reaped by a thread, or by init after this process has ended. If no thread can be started, init does it.
            let _ = std::thread::Builder::new().name("reaper".to_owned()).spawn(move || child.wait());
        }
        let task = self.task;
        self.ended.unwrap_or_else(|| Ended {
            outcome: Outcome::Failed(format!("child {task}: lost")),
            took: self.started.elapsed(),
        })
    }
}

/// Parses `ok LENGTH\n` or `error LENGTH\n` with the payload; `None` while it is incomplete. The length marks the end
/// of the reply, because a thread that hangs in the kernel keeps the pipe open.
pub(super) fn frame(reply: &[u8]) -> Result<Option<Outcome>, String> {
    const LONGEST_HEAD: usize = 32;
    let Some(end) = reply.iter().take(LONGEST_HEAD).position(|byte| *byte == b'\n') else {
        return if reply.len() < LONGEST_HEAD { Ok(None) } else { Err("reply without a head".to_owned()) };
    };
    let (head, payload) = reply.split_at(end);
    let payload = payload.get(1..).unwrap_or_default();
    let head = String::from_utf8_lossy(head);
    let (word, length) = head.split_once(' ').ok_or_else(|| format!("reply with the head '{head}'"))?;
    let length: usize = length.parse().map_err(|_| format!("reply with the head '{head}'"))?;
    if length > MAX_REPLY {
        return Err(format!("reply of {length} bytes (at most {MAX_REPLY})"));
    }
    let Some(payload) = payload.get(..length) else {
        return Ok(None);
    };
    match word {
        "ok" => Ok(Some(Outcome::Done(payload.to_vec()))),
        "error" => Ok(Some(Outcome::Failed(String::from_utf8_lossy(payload).into_owned()))),
        _ => Err(format!("reply with the head '{head}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_ends_at_its_length() {
        assert_eq!(frame(b""), Ok(None));
        assert_eq!(frame(b"ok 5"), Ok(None));
        assert_eq!(frame(b"ok 5\nab"), Ok(None));
        assert_eq!(frame(b"ok 2\nab"), Ok(Some(Outcome::Done(b"ab".to_vec()))));
        assert_eq!(frame(b"ok 0\n"), Ok(Some(Outcome::Done(Vec::new()))));
        assert_eq!(frame(b"error 3\nbad"), Ok(Some(Outcome::Failed("bad".to_owned()))));
    }

    #[test]
    fn an_invalid_frame_is_an_error() {
        assert!(frame(&[b'x'; 40]).is_err());
        assert!(frame(b"ok many\n").is_err());
        assert!(frame(b"fine 0\n").is_err());
        assert!(frame(b"ok\n").is_err());
        assert!(frame(format!("ok {}\n", MAX_REPLY + 1).as_bytes()).is_err());
    }
}
