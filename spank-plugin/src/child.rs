//! A program that the plugin starts and waits for, with a deadline.

use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time in which srun ends its step after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits for the leader of a process group. At the deadline the group is ended, and the error states that.
pub(crate) fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus, String> {
    let until = Instant::now() + deadline;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < until => sleep(INTERVAL),
            Ok(None) => {
                end(child);
                return Err(format!("has not ended after {} s", deadline.as_secs()));
            }
            Err(why) => {
                end(child);
                return Err(why.to_string());
            }
        }
    }
}

/// Ends the program and what it has started, for example srun, so that no task is left.
fn end(child: &mut Child) {
    let signal = |number| {
        let Ok(group) = i32::try_from(child.id()) else { return };
        // SAFETY: it is the group of a child that has not been waited for, so the number belongs to no other group.
        unsafe { libc::kill(-group, number) };
    };
    signal(libc::SIGTERM);
    sleep(GRACE);
    signal(libc::SIGKILL);
    // A process that the kernel does not let go must not keep the script from starting, or the step from ending.
    let until = Instant::now() + GRACE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        sleep(INTERVAL);
    }
}
