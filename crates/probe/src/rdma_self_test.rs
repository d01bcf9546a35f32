//! The RDMA self-test. It is a separate program, because it links libibverbs, and runs in a child with a deadline.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use railgate_child::program::{Ended, KEPT_BYTES, Run, run_program};
use railgate_model::{Part, SelfTested};

use crate::answer;
use crate::calls::program_deadline;

pub(crate) const TASK: &str = "node-rdma-self-test";

/// Runs `program` on these devices. Returns after at most the deadline plus the time to kill the child.
pub(crate) fn rdma_self_test(
    program: &Path,
    devices: &[String],
    deadline: Duration,
) -> Part<Vec<SelfTested>> {
    let input = Run {
        path: program.to_owned(),
        arguments: devices.to_vec(),
        environment: BTreeMap::from([("LC_ALL".to_owned(), "C".to_owned())]),
        deadline_ms: u64::try_from(program_deadline(deadline).as_millis()).unwrap_or(u64::MAX),
        kept_bytes: KEPT_BYTES,
    };
    answer::asked(TASK, &input, deadline)
}

pub(crate) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let input: Run = serde_json::from_slice(input).map_err(|why| format!("input: {why}"))?;
    let program = input.path.display().to_string();
    match run_program(&input) {
        Ended::Exited { code: 0, out, .. } => {
            let said = said(&out).map_err(|why| format!("{program}: {why}"))?;
            serde_json::to_vec(&said).map_err(|why| format!("reply: {why}"))
        }
        Ended::Exited { code, err, .. } => {
            let first = err.lines().next().unwrap_or("no message");
            Err(format!("{program}: exit code {code}: {first}"))
        }
        Ended::Killed { signal, .. } => Err(format!("{program}: killed by signal {signal}")),
        Ended::Failed(why) => Err(format!("{program}: {why}")),
        Ended::Silent { stuck, .. } => {
            let how = if stuck { ", stuck in the kernel" } else { "" };
            Err(format!("{program}: no answer in {} ms{how}", input.deadline_ms))
        }
    }
}

/// Parses one line of JSON per device.
fn said(out: &str) -> Result<Vec<SelfTested>, String> {
    out.lines().map(|line| serde_json::from_str(line).map_err(|why| format!("'{line}': {why}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_output_is_one_device() {
        let out = "{\"device\":\"mlx5_0\",\"gbps\":190.5,\"bytes\":8,\"error\":null}\n\
                   {\"device\":\"mlx5_1\",\"gbps\":null,\"bytes\":0,\"error\":\"open: no\"}\n";
        let said = said(out).unwrap();
        assert_eq!((said[0].gbps, said[1].error.as_deref()), (Some(190.5), Some("open: no")));
        assert!(super::said("segmentation fault").is_err());
        assert!(super::said("").unwrap().is_empty());
    }
}
