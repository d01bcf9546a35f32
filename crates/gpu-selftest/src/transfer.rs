//! Copies between host and GPU, and from one GPU to another.

use railgate_model::ValueCheck;

use crate::cuda::{Context, Stream, Transfer};
use crate::kernels::{Findings, Kernels};
use crate::memory::gigabytes;
use crate::said::{Outcome, wrong_values};

/// Bytes of one copy.
const BYTES: usize = 256 << 20;
const SEED: u32 = 0x0C0F_FEE0;

fn rate(stream: &Stream<'_>, what: Transfer<'_>, times: u32) -> Result<f64, String> {
    stream.copy(what, BYTES)?;
    let seconds = stream.timed(|| (0..times).try_for_each(|_| stream.copy(what, BYTES)))?;
    Ok(gigabytes(BYTES) * f64::from(times) / seconds)
}

/// GB/s of page-locked memory to the GPU and back. The pattern goes out and comes back, and is compared on the GPU.
pub(crate) fn host(context: &Context, kernels: &Kernels<'_>, times: u32) -> Result<Outcome, String> {
    let there = context.buffer(BYTES)?;
    let here = context.pinned(BYTES)?;
    let stream = context.stream()?;
    kernels.write_pattern(&stream, &there, SEED, false)?;
    let from_device = rate(&stream, Transfer::ToHost(&there, &here), times)?;
    there.clear()?;
    let to_device = rate(&stream, Transfer::ToDevice(&here, &there), times)?;
    let findings = Findings::new(context)?;
    kernels.check_pattern(&stream, &there, SEED, false, &findings)?;
    stream.wait()?;
    Ok(Outcome { values: values(&findings)?, ..Outcome::default() }
        .with("host_to_device_gb_s", to_device)
        .with("device_to_host_gb_s", from_device))
}

/// GB/s from one GPU to another; compared there.
pub(crate) fn peer(
    (from, kernels_from): (&Context, &Kernels<'_>),
    (to, kernels_to): (&Context, &Kernels<'_>),
    times: u32,
) -> Result<Outcome, String> {
    let direct = from.reach(to)? && to.reach(from)?;
    from.enter()?;
    let source = from.buffer(BYTES)?;
    let stream = from.stream()?;
    kernels_from.write_pattern(&stream, &source, SEED, true)?;
    stream.wait()?;
    to.enter()?;
    let target = to.buffer(BYTES)?;
    target.clear()?;
    from.enter()?;
    let rate = rate(&stream, Transfer::Peer(&source, &target), times)?;
    to.enter()?;
    let findings = Findings::new(to)?;
    let there = to.stream()?;
    kernels_to.check_pattern(&there, &target, SEED, true, &findings)?;
    there.wait()?;
    let name = if direct { "peer_gb_s" } else { "through_host_gb_s" };
    Ok(Outcome { values: values(&findings)?, ..Outcome::default() }.with(name, rate))
}

fn values(findings: &Findings<'_>) -> Result<ValueCheck, String> {
    let compared = u64::try_from(BYTES / 8).unwrap_or(u64::MAX);
    let (wrong, _, first) = findings.read()?;
    Ok(match wrong {
        0 => ValueCheck::Right { compared, digest: None },
        wrong => {
            let first = wrong_values(&first, 8, |at| format!("byte {at:#x}"));
            ValueCheck::Wrong { compared, wrong, first }
        }
    })
}
