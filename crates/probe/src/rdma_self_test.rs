//! The RDMA self-test: `railgate-rdma-selftest`, the only program that links libibverbs.

use std::path::Path;
use std::time::Duration;

use railgate_child::program::Run;
use railgate_model::{Part, SelfTested};

use crate::answer;
use crate::calls::with_json;
use crate::self_test::{End, printed, results, run_of};

pub(crate) const TASK: &str = "node-rdma-self-test";

/// Runs `program` on these devices. Returns after at most the deadline plus the time to kill the child.
pub(crate) fn rdma_self_test(
    program: &Path,
    devices: &[String],
    deadline: Duration,
) -> Part<Vec<SelfTested>> {
    answer::asked(TASK, &run_of(program, devices.to_vec(), deadline), deadline)
}

pub(crate) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |input: Run| {
        let of_program = |why: String| format!("{}: {why}", input.path.display());
        let printed = printed(&input).map_err(of_program)?;
        if printed.end != End::Code(0) {
            return Err(of_program(printed.how));
        }
        // A line that cannot be read may be the only one about a device that failed.
        let (devices, problem) = results::<SelfTested>(&printed.out);
        problem.map_or(Ok(devices), |why| Err(of_program(why)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_output_is_one_device() {
        let out = "{\"device\":\"mlx5_0\",\"gbps\":190.5,\"bytes\":8,\"error\":null}\n\
                   {\"device\":\"mlx5_1\",\"gbps\":null,\"bytes\":0,\"error\":\"open: no\"}\n";
        let (devices, problem) = results::<SelfTested>(out);
        assert_eq!((devices[0].gbps, devices[1].error.as_deref()), (Some(190.5), Some("open: no")));
        assert_eq!(problem, None);
    }
}
