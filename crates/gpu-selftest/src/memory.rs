//! The memory of a GPU: how fast it is, and whether it keeps what is written.

use railgate_model::ValueCheck;

use crate::cuda::{Context, Transfer};
use crate::kernels::{Findings, Kernels};
use crate::said::{Outcome, wrong_values};

/// Each of two buffers for the bandwidth: much more than any cache, at most this many bytes.
const COPIED: usize = 4 << 30;
/// Share of the free memory that the pattern fills, percent: the driver needs some of the rest.
const FILLED_PERCENT: usize = 92;
const SEED: u32 = 0x7A11_6A7E;

/// An error if something else holds almost all memory: results of the rest would say little about the card.
pub(crate) fn is_free(context: &Context) -> Result<(), String> {
    let (free, total) = context.memory()?;
    if free >= total / 10 {
        return Ok(());
    }
    Err(format!("only {:.1} of {:.1} GB of its memory are free", gigabytes(free), gigabytes(total)))
}

/// GB/s of copies inside the memory, read and written bytes together: by the driver, as frameworks copy, and by a kernel of 16 bytes for
/// each thread. What the driver copied is compared. Also GB/s of a fill by the driver.
pub(crate) fn bandwidth(context: &Context, kernels: &Kernels<'_>, times: u32) -> Result<Outcome, String> {
    let bytes = COPIED.min(context.free_bytes()? / 3) & !0xFFFF;
    let (from, to) = (context.buffer(bytes)?, context.buffer(bytes)?);
    let stream = context.stream()?;
    kernels.write_pattern(&stream, &from, SEED, false)?;
    kernels.copy(&stream, &from, &to)?;
    stream.wait()?;
    let by_kernel = stream.fastest(times, || kernels.copy(&stream, &from, &to))?;
    // What the kernel copied must not pass for this one.
    to.clear()?;
    let copy = || stream.copy(Transfer::Within(&from, &to), bytes);
    copy()?;
    stream.wait()?;
    let by_driver = stream.fastest(times, copy)?;
    let findings = Findings::new(context)?;
    kernels.check_pattern(&stream, &to, SEED, false, &findings)?;
    stream.wait()?;
    let values = findings.of_bytes(bytes)?;
    let fill = stream.fastest(times, || stream.fill(&to, SEED))?;
    Ok(Outcome { values, ..Outcome::default() }
        .with("copy_gb_s", 2.0 * gigabytes(bytes) / by_driver)
        .with("kernel_copy_gb_s", 2.0 * gigabytes(bytes) / by_kernel)
        .with("fill_gb_s", gigabytes(bytes) / fill))
}

/// Fills almost all free memory with a pattern and its inverse, and reads it back.
pub(crate) fn pattern(
    context: &Context,
    kernels: &Kernels<'_>,
    times: u32,
    planted: Option<(u64, u32)>,
) -> Result<Outcome, String> {
    let bytes = (context.free_bytes()? / 100 * FILLED_PERCENT) & !0xFFFF;
    let all = context.buffer(bytes)?;
    let stream = context.stream()?;
    let findings = Findings::new(context)?;
    // The driver loads a kernel when it first runs.
    let little = context.buffer(1 << 16)?;
    kernels.write_pattern(&stream, &little, SEED, false)?;
    kernels.check_pattern(&stream, &little, SEED, false, &findings)?;
    let (mut write_s, mut read_s, mut compared) = (f64::INFINITY, f64::INFINITY, 0);
    for pass in 0..times {
        for invert in [false, true] {
            let seed = SEED.wrapping_add(pass);
            write_s = write_s.min(stream.timed(|| kernels.write_pattern(&stream, &all, seed, invert))?);
            planted.map_or(Ok(()), |(word, bit)| kernels.flip(&stream, &all, word, bit))?;
            let check = || kernels.check_pattern(&stream, &all, seed, invert, &findings);
            read_s = read_s.min(stream.timed(check)?);
            compared += u64::try_from(bytes / 8).unwrap_or(u64::MAX);
            let (wrong, _, first) = findings.read()?;
            if wrong > 0 {
                let first = wrong_values(&first, 8, |at| format!("byte {at:#x}"));
                return Ok(Outcome {
                    values: ValueCheck::Wrong { compared, wrong, first },
                    ..Outcome::default()
                });
            }
        }
    }
    let (_, total) = context.memory()?;
    let part = (bytes < total / 2)
        .then(|| format!("only {:.1} of {:.1} GB were free and filled", gigabytes(bytes), gigabytes(total)));
    let values = ValueCheck::Right { compared, digest: None };
    let outcome = Outcome { values, unknown: part, ..Outcome::default() };
    Ok(outcome
        .with("filled_gb", gigabytes(bytes))
        .with("write_gb_s", gigabytes(bytes) / write_s)
        .with("read_gb_s", gigabytes(bytes) / read_s))
}

pub(crate) fn gigabytes(bytes: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure with few digits")]
    let bytes = bytes as f64;
    bytes / 1e9
}
