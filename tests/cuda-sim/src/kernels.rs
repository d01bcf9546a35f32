//! The kernels, by their names.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::state::{NOT_FOUND, bytes, current, scenario};

const PERIOD: u32 = 61;
const WRONG_KEPT: u64 = 64;

/// Arguments of a launch, each widened to 64 bits by the caller's knowledge of the kernel.
pub(crate) struct Arguments<'a> {
    pub(crate) read: &'a dyn Fn(usize, bool) -> u64,
}

impl Arguments<'_> {
    fn wide(&self, place: usize) -> u64 {
        (self.read)(place, true)
    }

    fn number(&self, place: usize) -> u32 {
        u32::try_from((self.read)(place, false)).unwrap_or_default()
    }

    fn address(&self, place: usize) -> usize {
        usize::try_from(self.wide(place)).unwrap_or_default()
    }
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

pub(crate) fn is_known(name: &str) -> bool {
    ["fill_", "gemm_", "check_", "pattern_"].iter().any(|begin| name.starts_with(begin))
        || matches!(name, "copy" | "flip" | "clocks" | "clock_now")
}

pub(crate) fn run(name: &str, blocks: u32, of: &Arguments<'_>) -> Result<(), u32> {
    match name.split_once('_') {
        Some(("fill", of_type)) => fill(of_type, of),
        Some(("gemm", of_type)) => gemm(name, of_type, of),
        Some(("check", sum)) => check(sum, of),
        Some(("pattern", "write")) => pattern_write(of),
        Some(("pattern", "check")) => pattern_check(of),
        _ if name == "copy" => copy(of),
        _ if name == "flip" => flip(of.address(0), of.number(1)),
        _ if name == "clocks" => clocks(blocks, of),
        _ if name == "clock_now" => clock_now(of),
        _ => Err(NOT_FOUND),
    }
}

fn mixed(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Bits of the integers -2 to 2 in a type, and their bytes.
fn code(of_type: &str) -> ([u64; 5], usize) {
    match of_type {
        "bf16" => ([0xC000, 0xBF80, 0, 0x3F80, 0x4000], 2),
        "fp16" => ([0xC000, 0xBC00, 0, 0x3C00, 0x4000], 2),
        "tf32" => ([0xC000_0000, 0xBF80_0000, 0, 0x3F80_0000, 0x4000_0000], 4),
        "fp8" => ([0xC0, 0xB8, 0, 0x38, 0x40], 1),
        "int8" => ([0xFE, 0xFF, 0, 1, 2], 1),
        _ => ([0xC000 << 48, 0xBFF0 << 48, 0, 0x3FF0 << 48, 0x4000 << 48], 8),
    }
}

fn fill(of_type: &str, of: &Arguments<'_>) -> Result<(), u32> {
    let (rows, depth, salt, most) = (of.number(1), of.number(2), of.number(3), of.number(4));
    let (codes, width) = code(of_type);
    let to = bytes(of.address(0), size(rows) * size(depth) * width)?;
    for (at, element) in to.chunks_exact_mut(width).enumerate() {
        let (row, k) = (at / size(depth), at % size(depth));
        let (row, k) =
            (u32::try_from(row).unwrap_or_default() % PERIOD, u32::try_from(k).unwrap_or_default());
        let place =
            row.wrapping_mul(0x9e37_79b1).wrapping_add(k.wrapping_mul(0x85eb_ca77)).wrapping_add(salt);
        let value = mixed(place) % (2 * most + 1) + 2 - most;
        let bits = codes.get(size(value)).copied().unwrap_or_default().to_le_bytes();
        element.copy_from_slice(bits.get(..width).unwrap_or_default());
    }
    Ok(())
}

fn integers(of_type: &str, at: usize, depth: u32) -> Result<Vec<Vec<i32>>, u32> {
    let (codes, width) = code(of_type);
    (0..size(PERIOD))
        .map(|row| {
            let line = bytes(at + row * size(depth) * width, size(depth) * width)?;
            let one = |element: &[u8]| {
                let mut wide = [0; 8];
                wide.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
                let place = codes.iter().position(|code| *code == u64::from_le_bytes(wide));
                place.and_then(|place| i32::try_from(place).ok()).map_or(1000, |place| place - 2)
            };
            Ok(line.chunks_exact(width).map(one).collect())
        })
        .collect()
}

fn encoded(sum: &str, value: i32) -> ([u8; 8], usize) {
    let mut bits = [0; 8];
    #[allow(clippy::cast_precision_loss, reason = "sums are small")]
    match sum {
        "i32" => bits.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from),
        "f64" => bits = f64::from(value).to_le_bytes(),
        _ => bits.iter_mut().zip((value as f32).to_le_bytes()).for_each(|(to, from)| *to = from),
    }
    (bits, if sum == "f64" { 8 } else { 4 })
}

/// The rows of the inputs repeat, so few sums are the whole product.
fn gemm(name: &str, of_type: &str, of: &Arguments<'_>) -> Result<(), u32> {
    let (columns, depth) = (of.number(3), of.number(4));
    let (a, b) = (integers(of_type, of.address(0), depth)?, integers(of_type, of.address(1), depth)?);
    let sum = match of_type {
        "int8" => "i32",
        "fp64" => "f64",
        _ => "f32",
    };
    let sums: Vec<Vec<([u8; 8], usize)>> = a
        .iter()
        .map(|left| {
            b.iter().map(|right| encoded(sum, left.iter().zip(right).map(|(x, y)| x * y).sum())).collect()
        })
        .collect();
    let width = if sum == "f64" { 8 } else { 4 };
    let columns = size(columns);
    let to = bytes(of.address(2), columns * columns * width)?;
    for (line, row) in to.chunks_exact_mut(columns * width).zip(sums.iter().cycle()) {
        for (element, (bits, width)) in line.chunks_exact_mut(width).zip(row.iter().cycle()) {
            element.copy_from_slice(bits.get(..*width).unwrap_or_default());
        }
    }
    planted(name, of.address(2))?;
    // The first element of each warp's part is its first accumulator.
    let (warp, bit) = (of.number(5), of.number(6));
    if warp != u32::MAX {
        let tiles = columns / 128;
        let (block, warp) = (size(warp) / 8, size(warp) % 8);
        let (row, column) = (block / tiles * 128 + warp / 4 * 64, block % tiles * 128 + warp % 4 * 32);
        flip(of.address(2) + width * (row * columns + column), bit)?;
    }
    Ok(())
}

fn check(sum: &str, of: &Arguments<'_>) -> Result<(), u32> {
    let (rows, columns) = (size(of.number(2)), size(of.number(3)));
    let width = if sum == "f64" { 8 } else { 4 };
    let table = bytes(of.address(1), 4 * size(PERIOD * PERIOD))?;
    let expected: Vec<u64> = table
        .chunks_exact(4)
        .map(|one| {
            let value = i32::from_le_bytes(one.try_into().unwrap_or_default());
            u64::from_le_bytes(encoded(sum, value).0)
        })
        .collect();
    let c = bytes(of.address(0), rows * columns * width)?;
    let (mut digest, mut found) = (0_u64, Found::of(of, 4)?);
    for (at, element) in c.chunks_exact(width).enumerate() {
        let mut wide = [0; 8];
        wide.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
        let got = u64::from_le_bytes(wide);
        let (row, column) = (at / columns % size(PERIOD), at % columns % size(PERIOD));
        let at = u64::try_from(at).unwrap_or_default();
        let x = got.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * at + 1);
        digest = digest.wrapping_add(x ^ (x >> 29));
        found.compare(at, got, expected.get(row * size(PERIOD) + column).copied().unwrap_or_default());
    }
    found.finish(Some(digest))
}

/// Counters and places of wrong values.
struct Found {
    counters: usize,
    wrong: usize,
    count: u64,
    kept: Vec<u64>,
}

impl Found {
    fn of(of: &Arguments<'_>, place: usize) -> Result<Self, u32> {
        Ok(Found { counters: of.address(place), wrong: of.address(place + 1), count: 0, kept: Vec::new() })
    }

    fn compare(&mut self, at: u64, got: u64, want: u64) {
        if got != want {
            if self.count < WRONG_KEPT {
                self.kept.extend([at, got, want]);
            }
            self.count += 1;
        }
    }

    fn finish(self, digest: Option<u64>) -> Result<(), u32> {
        let add = |place: usize, value: u64| -> Result<(), u32> {
            let word = bytes(self.counters + 8 * place, 8)?;
            let before = u64::from_le_bytes((&*word).try_into().unwrap_or_default());
            word.copy_from_slice(&before.wrapping_add(value).to_le_bytes());
            Ok(())
        };
        add(0, self.count)?;
        digest.map_or(Ok(()), |digest| add(1, digest))?;
        let to = bytes(self.wrong, 8 * self.kept.len())?;
        to.chunks_exact_mut(8).zip(&self.kept).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        Ok(())
    }
}

fn pattern(at: u64, seed: u32, invert: u32) -> [u64; 2] {
    let [low_half, high_half] =
        [at & 0xFFFF_FFFF, at >> 32].map(|half| u32::try_from(half).unwrap_or_default());
    let low = mixed(low_half ^ seed);
    let high = mixed(high_half.wrapping_add(low));
    let pair = |low: u32, high: u32| u64::from(high ^ invert) << 32 | u64::from(low ^ invert);
    [pair(low, !low), pair(high ^ 0x5555_5555, low ^ high)]
}

fn pattern_write(of: &Arguments<'_>) -> Result<(), u32> {
    let (seed, invert) = (of.number(2), of.number(3));
    let to = bytes(of.address(0), 16 * usize::try_from(of.wide(1)).unwrap_or_default())?;
    for (at, block) in to.chunks_exact_mut(16).enumerate() {
        let words = pattern(u64::try_from(at).unwrap_or_default(), seed, invert);
        block.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    }
    Ok(())
}

fn pattern_check(of: &Arguments<'_>) -> Result<(), u32> {
    let (seed, invert) = (of.number(2), of.number(3));
    let from = bytes(of.address(0), 16 * usize::try_from(of.wide(1)).unwrap_or_default())?;
    let mut found = Found::of(of, 4)?;
    for (at, block) in from.chunks_exact(16).enumerate() {
        let at = u64::try_from(at).unwrap_or_default();
        for (half, (got, want)) in block.chunks_exact(8).zip(pattern(at, seed, invert)).enumerate() {
            let got = u64::from_le_bytes(got.try_into().unwrap_or_default());
            found.compare(16 * at + 8 * u64::try_from(half).unwrap_or_default(), got, want);
        }
    }
    found.finish(None)
}

fn copy(of: &Arguments<'_>) -> Result<(), u32> {
    let length = 16 * usize::try_from(of.wide(2)).unwrap_or_default();
    let from = bytes(of.address(0), length)?;
    bytes(of.address(1), length)?.copy_from_slice(from);
    Ok(())
}

/// The wrong bits that the scenario has for a kernel or copy, whose result is at this address.
pub(crate) fn planted(name: &str, at: usize) -> Result<(), u32> {
    let here = scenario().wrong.iter().filter(|one| one.kernel == name && one.device == current());
    here.into_iter().try_for_each(|wrong| flip(at + 4 * wrong.word, wrong.bit))
}

fn flip(at: usize, bit: u32) -> Result<(), u32> {
    let word = bytes(at, 4)?;
    let before = u32::from_le_bytes((&*word).try_into().unwrap_or_default());
    word.copy_from_slice(&(before ^ 1 << (bit % 32)).to_le_bytes());
    Ok(())
}

/// The counters of all multiprocessors at this moment, at 1,755 MHz: a card at its power limit.
fn clock_now(of: &Arguments<'_>) -> Result<(), u32> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or_default();
    let cycles = u64::try_from(u128::from(now) * 1755 / 1000).unwrap_or_default();
    let to = bytes(of.address(0), 16 * size(of.number(1)))?;
    to.chunks_exact_mut(8)
        .zip([cycles, now].into_iter().cycle())
        .for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    Ok(())
}

/// 1,980 MHz, as a card that is not slowed down.
fn clocks(blocks: u32, of: &Arguments<'_>) -> Result<(), u32> {
    let nanoseconds = of.wide(1);
    let to = bytes(of.address(0), 16 * size(blocks))?;
    for block in to.chunks_exact_mut(16) {
        let words = [nanoseconds * 198 / 100, nanoseconds];
        block.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    }
    Ok(())
}
