//! The GPU self-test: `railgate-gpu-selftest`, the only program that lets GPUs compute.

use std::path::Path;
use std::time::Duration;

use railgate_child::program::Run;
use railgate_model::{GpuSelfTest, GpuSelfTested, Part, PciAddress, SelfTestLength, ValueCheck};

use crate::answer;
use crate::calls::{program_deadline, with_json};
use crate::self_test::{End, Printed, printed, results, run_of};

pub(crate) const TASK: &str = "node-gpu-self-test";

/// Exit code of the program: a value was wrong.
const WRONG: i32 = 1;
/// Exit code of the program: no GPU could be tested.
const NO_GPU: i32 = 3;
/// Time from the program's own deadline, at which it names the GPUs that did not answer, to its being killed.
const MARGIN: Duration = Duration::from_secs(2);

/// Runs `program` on these GPUs; `how`: its length, and whether it also tests GPUs that other processes use. Returns after at most the deadline plus the time to kill the child. What the program printed
/// before it was killed or crashed counts.
pub(crate) fn gpu_self_test(
    program: &Path,
    gpus: &[PciAddress],
    how: (SelfTestLength, bool),
    deadline: Duration,
) -> Part<GpuSelfTest> {
    // Without an address, the program would test each GPU that it finds.
    if gpus.is_empty() {
        return Part::Read { data: GpuSelfTest::default(), took_ms: 0.0 };
    }
    let input = run_of(program, arguments(gpus, how, deadline), deadline);
    let mut part: Part<GpuSelfTest> = answer::asked(TASK, &input, deadline);
    if let Part::Read { data, .. } = &mut part {
        data.asked = gpus.to_vec();
    }
    part
}

fn arguments(gpus: &[PciAddress], (length, shared): (SelfTestLength, bool), child: Duration) -> Vec<String> {
    let own = program_deadline(child).saturating_sub(MARGIN).as_secs().max(1);
    let mut arguments = vec!["--length".to_owned(), length.as_str().to_owned()];
    arguments.extend(["--deadline".to_owned(), own.to_string()]);
    arguments.extend(shared.then(|| "--shared".to_owned()));
    arguments.extend(gpus.iter().flat_map(|gpu| ["--gpu".to_owned(), gpu.to_string()]));
    arguments
}

pub(crate) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    with_json(input, |input: Run| {
        printed(&input).and_then(read).map_err(|why| format!("{}: {why}", input.path.display()))
    })
}

/// The results, and why some may be missing. Without any result, only what concerns the GPUs is one: that the driver does not
/// answer, or shows none.
fn read(printed: Printed) -> Result<GpuSelfTest, String> {
    let Printed { out, end, how } = printed;
    let (tests, problem) = results::<GpuSelfTested>(&out);
    let incomplete = match end {
        End::Code(0 | WRONG) => None,
        End::Code(NO_GPU) | End::Deadline => Some(how),
        End::Code(_) | End::Crash if tests.is_empty() => return Err(how),
        End::Code(_) | End::Crash => Some(how),
    };
    let is_wrong = |test: &GpuSelfTested| matches!(test.values, ValueCheck::Wrong { .. });
    let hidden = end == End::Code(WRONG) && !tests.iter().any(is_wrong);
    let hidden = hidden.then(|| "exit code 1, but no result has a wrong value".to_owned());
    Ok(GpuSelfTest { asked: Vec::new(), tests, incomplete: incomplete.or(problem).or(hidden) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(end: End, how: &str, out: &str) -> Result<GpuSelfTest, String> {
        read(Printed { out: out.to_owned(), end, how: how.to_owned() })
    }

    const RIGHT: &str = r#"{"gpu":"0000:61:00.0","model":"NVIDIA H200","test":"host-copy","seconds":0.5,"values":{"right":{"compared":4}},"measured":{"host_to_device_gb_s":55.0}}"#;
    const WRONG_LINE: &str = r#"{"gpu":"0000:61:00.0","model":"NVIDIA H200","test":"gemm-bf16","seconds":0.5,"values":{"wrong":{"compared":4,"wrong":1,"first":[]}},"measured":{}}"#;

    #[test]
    fn each_line_of_output_is_one_result() {
        let read = of(End::Code(0), "exit code 0: no message", &format!("{RIGHT}\n{RIGHT}\n")).unwrap();
        assert_eq!((read.tests.len(), read.incomplete), (2, None));
        assert_eq!(read.tests[0].measured["host_to_device_gb_s"], 55.0);
        assert_eq!(of(End::Code(1), "exit code 1: no message", WRONG_LINE).unwrap().incomplete, None);
    }

    #[test]
    fn results_before_a_crash_or_the_deadline_count() {
        for (end, how) in [
            (End::Deadline, "no answer in 9 ms"),
            (End::Crash, "killed by signal 11"),
            (End::Code(101), "exit code 101"),
        ] {
            let cut = of(end, how, &format!("{WRONG_LINE}\n{}", &RIGHT[..40])).unwrap();
            assert_eq!((cut.tests.len(), cut.incomplete.as_deref()), (1, Some(how)));
        }
    }

    #[test]
    fn without_a_result_only_the_gpus_can_be_the_reason() {
        assert_eq!(
            of(End::Deadline, "no answer in 9 ms", "").unwrap().incomplete.as_deref(),
            Some("no answer in 9 ms")
        );
        let none = of(End::Code(3), "exit code 3: error: cuInit: no device", "").unwrap();
        assert_eq!(none.incomplete.as_deref(), Some("exit code 3: error: cuInit: no device"));
        for (end, how) in [
            (End::Code(2), "exit code 2: usage"),
            (End::Code(127), "exit code 127"),
            (End::Crash, "killed by signal 4"),
        ] {
            assert_eq!(of(end, how, ""), Err(how.to_owned()));
        }
    }

    #[test]
    fn output_that_hides_a_result_is_incomplete() {
        let garbage = of(End::Code(0), "exit code 0: no message", &format!("hello\n{RIGHT}\n")).unwrap();
        assert_eq!(garbage.tests.len(), 1);
        assert_eq!(garbage.incomplete.as_deref(), Some("'hello': expected value at line 1 column 1"));
        let hidden = of(End::Code(1), "exit code 1: no message", RIGHT).unwrap();
        assert_eq!(hidden.incomplete.as_deref(), Some("exit code 1, but no result has a wrong value"));
        let huge = RIGHT.replace("55.0", "1e999");
        assert!(
            of(End::Code(0), "", &huge).unwrap().incomplete.is_some(),
            "not a number that could be compared"
        );
    }

    #[test]
    fn the_program_ends_before_it_is_killed() {
        let gpus = ["0000:61:00.0", "0000:9b:00.0"].map(|gpu| gpu.parse().unwrap());
        let words = |seconds| {
            arguments(&gpus, (SelfTestLength::Quick, false), Duration::from_secs(seconds)).join(" ")
        };
        assert_eq!(words(28), "--length quick --deadline 23 --gpu 0000:61:00.0 --gpu 0000:9b:00.0");
        assert!(words(1).contains("--deadline 1 "));
        let shared = arguments(&gpus, (SelfTestLength::Full, true), Duration::from_secs(28)).join(" ");
        assert!(shared.starts_with("--length full --deadline 23 --shared --gpu "), "{shared}");
        assert!(matches!(
            gpu_self_test(Path::new("/no/such"), &[], (SelfTestLength::Quick, false), Duration::ZERO),
            Part::Read { data, .. } if data == GpuSelfTest::default()
        ));
    }
}
