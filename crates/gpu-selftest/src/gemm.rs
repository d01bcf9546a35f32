//! Matrix products in the tensor types of the card, every value compared.

use railgate_model::ValueCheck;

use crate::cuda::Context;
use crate::kernels::{Findings, Kernels, Plant, Shape, Type};
use crate::matrix::{Sum, digest, sums};
use crate::said::{Outcome, Said, wrong_values};

/// Tiles along a side, 4096 elements: some thousand blocks, so that every multiprocessor computes several tiles.
pub(crate) const TILES: u32 = 32;

/// Bits to flip, for tests: in an accumulator of the kernel, or in a result after it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    pub(crate) register: Option<Plant>,
    /// Word of the result and bit.
    pub(crate) memory: Option<(u64, u32)>,
}

/// Computes the product `times` times, and compares it each time.
pub(crate) fn test(
    context: &Context,
    kernels: &Kernels<'_>,
    of: Type,
    (shape, times): (Shape, u32),
    planted: Planted,
) -> Result<Outcome, String> {
    let stream = context.stream()?;
    let inputs = shape.input_elements() * of.bytes;
    let (a, b) = (context.buffer(inputs)?, context.buffer(inputs)?);
    let c = context.buffer(shape.sums() * of.sum.bytes())?;
    let expected = sums(shape.depth, of.most);
    let expected_there = context.buffer(4 * expected.len())?;
    expected_there.put(&expected)?;
    kernels.fill(&stream, of, shape, &a, &b)?;
    let findings = Findings::new(context)?;
    let side = usize::try_from(shape.side).unwrap_or(usize::MAX);
    let right = digest(&expected, side, side, of.sum);
    let (mut seconds, mut compared) = (0.0, 0);
    for _ in 0..times {
        // What an earlier product left must not pass for this one.
        c.clear()?;
        seconds += stream.timed(|| kernels.multiply(&stream, of, shape, [&a, &b, &c], planted.register))?;
        planted.memory.map_or(Ok(()), |(word, bit)| kernels.flip(&stream, &c, word, bit))?;
        findings.clear()?;
        kernels.check(&stream, of.sum, shape, &c, &expected_there, &findings)?;
        stream.wait()?;
        compared += u64::try_from(shape.sums()).unwrap_or(u64::MAX);
        let (wrong, found, first) = findings.read()?;
        if wrong > 0 {
            let first = wrong_values(&first, of.sum.bytes(), |at| {
                let (row, column) = shape.tile_of(at);
                let side = u64::from(shape.side);
                format!("tile {row},{column}, row {}, column {}", at / side, at % side)
            });
            let values = ValueCheck::Wrong { compared, wrong, first };
            return Ok(Outcome { values, ..Outcome::default() });
        }
        if found != right {
            return Err(format!(
                "every value was found right, but their digest is {found:016x} and not {right:016x}"
            ));
        }
    }
    let rate = shape.operations() * f64::from(times) / seconds / 1e12;
    let values = ValueCheck::Right { compared, digest: Some(format!("{right:016x}")) };
    Ok(Outcome { values, ..Outcome::default() }
        // Far below what the card can do: it shows that a card is slow, not how fast it is.
        .with("simple_kernel_tflops", rate))
}

/// Products of a type: those of fp64 take eight times as long as others.
pub(crate) fn products(of: Type, times: u32) -> u32 {
    if matches!(of.sum, Sum::F64) { times.div_ceil(8) } else { times }
}

/// The line of a type that the card does not have.
pub(crate) fn absent(of: Type) -> Said {
    Said::not_applicable(format!("gemm-{}", of.name), "this card does not have the type")
}
