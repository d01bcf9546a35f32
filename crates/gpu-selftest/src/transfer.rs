//! Copies between host and GPU, and from one GPU to another.

use crate::cuda::{Context, Stream, Transfer};
use crate::kernels::{Findings, Kernels};
use crate::memory::gigabytes;
use crate::said::Outcome;

/// Largest copy, bytes.
pub(crate) const MOST: usize = 256 << 20;
const SEED: u32 = 0x0C0F_FEE0;

/// Bytes of one copy: [`MOST`], if a quarter of the free memory is as large.
fn size(context: &Context) -> Result<usize, String> {
    Ok(MOST.min(context.free_bytes()? / 4) & !0xFFFF)
}

fn rate(stream: &Stream<'_>, what: Transfer<'_>, bytes: usize, times: u32) -> Result<f64, String> {
    stream.copy(what, bytes)?;
    let seconds = stream.fastest(times, || stream.copy(what, bytes))?;
    Ok(gigabytes(bytes) / seconds)
}

/// GB/s of page-locked memory to the GPU and back. The pattern goes out and comes back, and is compared on the GPU.
pub(crate) fn host(
    context: &Context,
    kernels: &Kernels<'_>,
    most: usize,
    times: u32,
) -> Result<Outcome, String> {
    let bytes = size(context)?.min(most);
    let there = context.buffer(bytes)?;
    let here = context.pinned(bytes)?;
    let stream = context.stream()?;
    kernels.write_pattern(&stream, &there, SEED, false)?;
    let from_device = rate(&stream, Transfer::ToHost(&there, &here), bytes, times)?;
    there.clear()?;
    let to_device = rate(&stream, Transfer::ToDevice(&here, &there), bytes, times)?;
    let findings = Findings::new(context)?;
    kernels.check_pattern(&stream, &there, SEED, false, &findings)?;
    stream.wait()?;
    Ok(Outcome { values: findings.of_bytes(bytes)?, ..Outcome::default() }
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
    to.enter()?;
    let room = size(to)?;
    from.enter()?;
    let bytes = size(from)?.min(room);
    let source = from.buffer(bytes)?;
    let stream = from.stream()?;
    kernels_from.write_pattern(&stream, &source, SEED, true)?;
    stream.wait()?;
    to.enter()?;
    let target = to.buffer(bytes)?;
    target.clear()?;
    from.enter()?;
    let rate = rate(&stream, Transfer::Peer(&source, &target), bytes, times)?;
    to.enter()?;
    let findings = Findings::new(to)?;
    let there = to.stream()?;
    kernels_to.check_pattern(&there, &target, SEED, true, &findings)?;
    there.wait()?;
    let name = if direct { "peer_gb_s" } else { "through_host_gb_s" };
    Ok(Outcome { values: findings.of_bytes(bytes)?, ..Outcome::default() }.with(name, rate))
}
