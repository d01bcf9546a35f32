//! The kernels of kernels/selftest.cu, each with its arguments' types and lengths checked.
#![expect(unsafe_code, reason = "starting a kernel is the driver's C interface")]

use std::ffi::c_void;

use cudarc::driver::sys::CUfunction;
use railgate_model::ValueCheck;

use crate::cuda::{Buffer, Context, Module, Stream, launch};
use crate::matrix::{PERIOD, SALT_A, SALT_B, Sum};
use crate::said::wrong_values;

const PTX: &str = include_str!("../kernels/selftest.ptx");
const PTX_FP8: &str = include_str!("../kernels/selftest-fp8.ptx");
/// Side of the square that one block computes.
const TILE: u32 = 128;
const THREADS: u32 = 256;
/// Wrong values that a check keeps; as in selftest.cu.
pub(crate) const WRONG_KEPT: usize = 64;

/// Type of the inputs of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    /// As in the names of kernels.
    pub(crate) name: &'static str,
    /// Bytes of an element.
    pub(crate) bytes: usize,
    pub(crate) sum: Sum,
    /// Largest element: partial sums stay exact.
    pub(crate) most: u32,
    /// Compute capability from which on a card has it.
    pub(crate) since: u32,
}

/// Tensor types, from the one that training uses most.
pub(crate) const TYPES: [Type; 6] = [
    Type { name: "bf16", bytes: 2, sum: Sum::F32, most: 2, since: 80 },
    Type { name: "fp16", bytes: 2, sum: Sum::F32, most: 2, since: 80 },
    Type { name: "tf32", bytes: 4, sum: Sum::F32, most: 2, since: 80 },
    Type { name: "fp8", bytes: 1, sum: Sum::F32, most: 1, since: 89 },
    Type { name: "int8", bytes: 1, sum: Sum::I32, most: 2, since: 80 },
    Type { name: "fp64", bytes: 8, sum: Sum::F64, most: 2, since: 80 },
];

/// Flips a bit of one accumulator, for tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plant {
    /// Number of the warp in the grid.
    pub(crate) warp: u32,
    pub(crate) bit: u32,
}

impl Plant {
    const NONE: Plant = Plant { warp: u32::MAX, bit: 0 };
}

/// Compiled for one device.
#[derive(Debug)]
pub(crate) struct Kernels<'c> {
    module: Module<'c>,
    fp8: Option<Module<'c>>,
    /// Blocks that fill the device, for kernels that loop over their data.
    blocks: u32,
}

/// A side of a square product and its depth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) side: u32,
    pub(crate) depth: u32,
}

impl Shape {
    /// Side and depth are multiples of a tile.
    pub(crate) const fn new(tiles: u32) -> Self {
        Shape { side: TILE * tiles, depth: TILE * tiles }
    }

    pub(crate) fn input_elements(self) -> usize {
        size(self.side) * size(self.depth)
    }

    pub(crate) fn sums(self) -> usize {
        size(self.side) * size(self.side)
    }

    /// Multiplications and additions.
    pub(crate) fn operations(self) -> f64 {
        2.0 * f64::from(self.side) * f64::from(self.side) * f64::from(self.depth)
    }

    /// The tile of an element of the product: row and column of tiles.
    pub(crate) fn tile_of(self, element: u64) -> (u64, u64) {
        let side = u64::from(self.side);
        (element / side / u64::from(TILE), element % side / u64::from(TILE))
    }
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn place<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

impl<'c> Kernels<'c> {
    pub(crate) fn compile(
        context: &'c Context,
        capability: u32,
        multiprocessors: u32,
    ) -> Result<Self, String> {
        let fp8 = if capability >= 89 { Some(context.module(PTX_FP8)?) } else { None };
        Ok(Kernels { module: context.module(PTX)?, fp8, blocks: 8 * multiprocessors.max(1) })
    }

    fn function(&self, name: &str) -> Result<CUfunction, String> {
        match (&self.fp8, name.ends_with("fp8")) {
            (Some(module), true) => module.function(name),
            (None, true) => Err("this card has no fp8".to_owned()),
            (_, false) => self.module.function(name),
        }
    }

    /// Writes the inputs of a product.
    pub(crate) fn fill(
        &self,
        stream: &Stream<'_>,
        of: Type,
        shape: Shape,
        a: &Buffer<'_>,
        b: &Buffer<'_>,
    ) -> Result<(), String> {
        let function = self.function(&format!("fill_{}", of.name))?;
        for (buffer, salt) in [(a, SALT_A), (b, SALT_B)] {
            buffer.holds(shape.input_elements() * of.bytes)?;
            let (mut to, mut rows, mut depth, mut salt, mut most) =
                (buffer.at(), shape.side, shape.depth, salt, of.most);
            let mut arguments =
                [place(&mut to), place(&mut rows), place(&mut depth), place(&mut salt), place(&mut most)];
            // SAFETY: (T*, unsigned, unsigned, unsigned, int) of rows x depth elements, which the buffer holds.
            unsafe { launch(function, ((self.blocks, 1), THREADS), stream, &mut arguments) }?;
        }
        Ok(())
    }

    /// Multiplies: `c` gets the sums of rows of `a` and rows of `b`.
    pub(crate) fn multiply(
        &self,
        stream: &Stream<'_>,
        of: Type,
        shape: Shape,
        [a, b, c]: [&Buffer<'_>; 3],
        plant: Option<Plant>,
    ) -> Result<(), String> {
        let function = self.function(&format!("gemm_{}", of.name))?;
        a.holds(shape.input_elements() * of.bytes)?;
        b.holds(shape.input_elements() * of.bytes)?;
        c.holds(shape.sums() * of.sum.bytes())?;
        let Plant { mut warp, mut bit } = plant.unwrap_or(Plant::NONE);
        let (mut a, mut b, mut c, mut columns, mut depth) = (a.at(), b.at(), c.at(), shape.side, shape.depth);
        let mut arguments = [
            place(&mut a),
            place(&mut b),
            place(&mut c),
            place(&mut columns),
            place(&mut depth),
            place(&mut warp),
            place(&mut bit),
        ];
        let tiles = shape.side / TILE;
        // SAFETY: (T*, T*, ACC*, unsigned x 4); side and depth are multiples of the tile, and the buffers hold them.
        unsafe { launch(function, ((tiles, tiles), THREADS), stream, &mut arguments) }
    }

    /// Compares a product with `expected` (the sums of [`crate::matrix::sums`]); `found` and `wrong` as [`Findings`] makes them.
    pub(crate) fn check(
        &self,
        stream: &Stream<'_>,
        of: Sum,
        shape: Shape,
        c: &Buffer<'_>,
        expected: &Buffer<'_>,
        findings: &Findings<'_>,
    ) -> Result<(), String> {
        let name = match of {
            Sum::F32 => "check_f32",
            Sum::I32 => "check_i32",
            Sum::F64 => "check_f64",
        };
        let function = self.function(name)?;
        c.holds(shape.sums() * of.bytes())?;
        expected.holds(4 * PERIOD * PERIOD)?;
        let (mut c, mut expected, mut rows, mut columns) = (c.at(), expected.at(), shape.side, shape.side);
        let (mut found, mut wrong) = (findings.found.at(), findings.wrong.at());
        let mut arguments = [
            place(&mut c),
            place(&mut expected),
            place(&mut rows),
            place(&mut columns),
            place(&mut found),
            place(&mut wrong),
        ];
        // SAFETY: (ACC*, int*, unsigned, unsigned, u64*, Wrong*), as long as checked here and in Findings.
        unsafe { launch(function, ((self.blocks, 1), THREADS), stream, &mut arguments) }
    }

    /// Fills a buffer with the pattern of `seed`, each word inverted if asked for.
    pub(crate) fn write_pattern(
        &self,
        stream: &Stream<'_>,
        to: &Buffer<'_>,
        seed: u32,
        invert: bool,
    ) -> Result<(), String> {
        let function = self.function("pattern_write")?;
        let (mut at, mut count, mut seed, mut invert) =
            (to.at(), blocks_of_16(to), seed, if invert { u32::MAX } else { 0 });
        let mut arguments = [place(&mut at), place(&mut count), place(&mut seed), place(&mut invert)];
        // SAFETY: (uint4*, u64, unsigned, unsigned); count is that of the buffer.
        unsafe { launch(function, ((self.blocks, 1), THREADS), stream, &mut arguments) }
    }

    /// Compares a buffer with the pattern.
    pub(crate) fn check_pattern(
        &self,
        stream: &Stream<'_>,
        from: &Buffer<'_>,
        seed: u32,
        invert: bool,
        findings: &Findings<'_>,
    ) -> Result<(), String> {
        let function = self.function("pattern_check")?;
        let (mut at, mut count, mut seed, mut invert) =
            (from.at(), blocks_of_16(from), seed, if invert { u32::MAX } else { 0 });
        let (mut found, mut wrong) = (findings.found.at(), findings.wrong.at());
        let mut arguments = [
            place(&mut at),
            place(&mut count),
            place(&mut seed),
            place(&mut invert),
            place(&mut found),
            place(&mut wrong),
        ];
        // SAFETY: (uint4*, u64, unsigned, unsigned, u64*, Wrong*); count is that of the buffer.
        unsafe { launch(function, ((self.blocks, 1), THREADS), stream, &mut arguments) }
    }

    /// Copies inside the device.
    pub(crate) fn copy(&self, stream: &Stream<'_>, from: &Buffer<'_>, to: &Buffer<'_>) -> Result<(), String> {
        let function = self.function("copy")?;
        to.holds(from.bytes())?;
        let (mut source, mut target, mut count) = (from.at(), to.at(), blocks_of_16(from));
        let mut arguments = [place(&mut source), place(&mut target), place(&mut count)];
        // SAFETY: (uint4*, uint4*, u64); both buffers are that long.
        unsafe { launch(function, ((self.blocks, 1), THREADS), stream, &mut arguments) }
    }

    /// Flips one bit of the word at `word`, for tests.
    pub(crate) fn flip(
        &self,
        stream: &Stream<'_>,
        of: &Buffer<'_>,
        word: u64,
        bit: u32,
    ) -> Result<(), String> {
        let function = self.function("flip")?;
        of.holds(usize::try_from(word).unwrap_or(usize::MAX).saturating_add(1).saturating_mul(4))?;
        let (mut at, mut bit) = (of.at() + 4 * word, bit % 32);
        let mut arguments = [place(&mut at), place(&mut bit)];
        // SAFETY: (unsigned*, unsigned); the word lies in the buffer.
        unsafe { launch(function, ((1, 1), 1), stream, &mut arguments) }
    }

    /// Counts cycles of each multiprocessor for so many nanoseconds, beside other kernels: `to` gets cycles and nanoseconds of each.
    pub(crate) fn clocks(
        &self,
        stream: &Stream<'_>,
        to: &Buffer<'_>,
        nanoseconds: u64,
    ) -> Result<(), String> {
        self.module.leaves_shared_memory("clocks")?;
        let function = self.function("clocks")?;
        let blocks = self.blocks / 8;
        to.holds(16 * size(blocks))?;
        let (mut at, mut nanoseconds) = (to.at(), nanoseconds);
        let mut arguments = [place(&mut at), place(&mut nanoseconds)];
        // SAFETY: (u64*, u64); the buffer has two words for each block.
        unsafe { launch(function, ((blocks, 1), 1), stream, &mut arguments) }
    }

    /// Reads the cycle counter and the timer of each of so many multiprocessors.
    fn clock_now(&self, stream: &Stream<'_>, to: &Buffer<'_>, count: u32) -> Result<(), String> {
        let function = self.function("clock_now")?;
        to.holds(16 * size(count))?;
        let (mut at, mut number) = (to.at(), count);
        let mut arguments = [place(&mut at), place(&mut number)];
        // More blocks than fit at once, so that each multiprocessor gets one.
        let blocks = 8 * count.max(1);
        // SAFETY: (u64*, unsigned); the buffer has two words for each of so many multiprocessors.
        unsafe { launch(function, ((blocks, 1), 32), stream, &mut arguments) }
    }
}

/// The cycle counters of all multiprocessors, at the beginning and the end of some work.
#[derive(Debug)]
pub(crate) struct Cycles<'c> {
    first: Buffer<'c>,
    last: Buffer<'c>,
    count: u32,
}

impl<'c> Cycles<'c> {
    pub(crate) fn new(context: &'c Context, multiprocessors: u32) -> Result<Self, String> {
        let bytes = 16 * size(multiprocessors);
        let cycles =
            Cycles { first: context.buffer(bytes)?, last: context.buffer(bytes)?, count: multiprocessors };
        // Zero: not read.
        cycles.first.clear()?;
        cycles.last.clear()?;
        Ok(cycles)
    }

    /// Runs work that ends in this stream, with a reading before and after it.
    pub(crate) fn around<T>(
        &self,
        kernels: &Kernels<'_>,
        stream: &Stream<'_>,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        kernels.clock_now(stream, &self.first, self.count)?;
        let done = work()?;
        kernels.clock_now(stream, &self.last, self.count)?;
        stream.wait()?;
        Ok(done)
    }

    /// MHz of each multiprocessor that was read twice.
    pub(crate) fn megahertz(&self) -> Result<Vec<f64>, String> {
        let words = 2 * size(self.count);
        let (first, last) = (self.first.get::<u64>(words)?, self.last.get::<u64>(words)?);
        Ok(first.chunks_exact(2).zip(last.chunks_exact(2)).filter_map(megahertz).collect())
    }
}

/// `None` if one of the readings is missing, or a counter did not go on.
fn megahertz((first, last): (&[u64], &[u64])) -> Option<f64> {
    let ([first_cycles, began], [last_cycles, ended]) = (first, last) else { return None };
    let cycles = last_cycles.checked_sub(*first_cycles).filter(|_| *first_cycles > 0)?;
    let nanoseconds = ended.checked_sub(*began).filter(|passed| *began > 0 && *passed > 0)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    (cycles > 0).then(|| cycles as f64 / nanoseconds as f64 * 1000.0)
}

fn blocks_of_16(buffer: &Buffer<'_>) -> u64 {
    u64::try_from(buffer.bytes() / 16).unwrap_or(u64::MAX)
}

/// What a check found, on the device.
#[derive(Debug)]
pub(crate) struct Findings<'c> {
    found: Buffer<'c>,
    wrong: Buffer<'c>,
}

/// A value that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongWord {
    pub(crate) at: u64,
    pub(crate) got: u64,
    pub(crate) want: u64,
}

impl<'c> Findings<'c> {
    pub(crate) fn new(context: &'c Context) -> Result<Self, String> {
        let findings = Findings { found: context.buffer(16)?, wrong: context.buffer(24 * WRONG_KEPT)? };
        findings.clear()?;
        Ok(findings)
    }

    pub(crate) fn clear(&self) -> Result<(), String> {
        self.found.clear()?;
        self.wrong.clear()
    }

    /// Number of wrong values, the digest, and the first wrong ones that were kept, in order of their place.
    pub(crate) fn read(&self) -> Result<(u64, u64, Vec<WrongWord>), String> {
        let [count, digest] = self.found.get::<u64>(2)?.try_into().unwrap_or([0, 0]);
        let kept = usize::try_from(count).unwrap_or(usize::MAX).min(WRONG_KEPT);
        let words = if kept == 0 { Vec::new() } else { self.wrong.get::<u64>(3 * kept)? };
        let mut wrong: Vec<WrongWord> = words
            .chunks_exact(3)
            .filter_map(|one| match one {
                [at, got, want] => Some(WrongWord { at: *at, got: *got, want: *want }),
                _ => None,
            })
            .collect();
        wrong.sort_unstable_by_key(|one| one.at);
        Ok((count, digest, wrong))
    }

    /// What a comparison of so many bytes with the pattern found.
    pub(crate) fn of_bytes(&self, bytes: usize) -> Result<ValueCheck, String> {
        let compared = u64::try_from(bytes / 8).unwrap_or(u64::MAX);
        let (wrong, _, first) = self.read()?;
        Ok(match wrong {
            0 => ValueCheck::Right { compared, digest: None },
            wrong => {
                let first = wrong_values(&first, 8, |at| format!("byte {at:#x}"));
                ValueCheck::Wrong { compared, wrong, first }
            }
        })
    }
}
