//! The matrices of the value check, as the kernels make them, and what their product must be.
//!
//! Elements are small integers, so that every partial sum is exact in every type and in any order. Rows of both inputs repeat after
//! [`PERIOD`] rows, so that few sums describe the whole product; the period is prime, so that each row of a tile, and each lane
//! of a warp, meets all of them.

use std::num::Wrapping;

/// Rows after which the inputs repeat; as in kernels/selftest.cu.
pub(crate) const PERIOD: usize = 61;
/// Distinguishes the inputs.
pub(crate) const SALT_A: u32 = 0x5EED_0001;
pub(crate) const SALT_B: u32 = 0x5EED_0002;

fn mixed(x: Wrapping<u32>) -> Wrapping<u32> {
    let x = x ^ (x >> 16);
    let x = x * Wrapping(0x7FEB_352D);
    let x = x ^ (x >> 15);
    let x = x * Wrapping(0x846C_A68B);
    x ^ (x >> 16)
}

/// An element of an input, within -`most` to `most`.
fn element(row: u32, k: u32, salt: u32, most: u32) -> i32 {
    let place = Wrapping(row) * Wrapping(0x9E37_79B1) + Wrapping(k) * Wrapping(0x85EB_CA77) + Wrapping(salt);
    let within = mixed(place).0 % (2 * most + 1);
    i32::try_from(within).unwrap_or_default() - i32::try_from(most).unwrap_or_default()
}

fn input(depth: u32, salt: u32, most: u32) -> Vec<Vec<i32>> {
    (0..PERIOD)
        .map(|row| {
            let row = u32::try_from(row).unwrap_or_default();
            (0..depth).map(|k| element(row, k, salt, most)).collect()
        })
        .collect()
}

/// The sums of rows `i` of A and `j` of B, at `i * PERIOD + j`. The product has them at every row and column that leave these
/// remainders.
pub(crate) fn sums(depth: u32, most: u32) -> Vec<i32> {
    let (a, b) = (input(depth, SALT_A, most), input(depth, SALT_B, most));
    a.iter()
        .flat_map(|left| {
            b.iter().map(move |right| left.iter().zip(right).map(|(one, other)| one * other).sum())
        })
        .collect()
}

/// Type of the elements of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    F32,
    I32,
    F64,
}

impl Sum {
    /// Bytes of one element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Sum::F32 | Sum::I32 => 4,
            Sum::F64 => 8,
        }
    }

    fn bits(self, sum: i32) -> u64 {
        match self {
            Sum::F32 => {
                #[expect(clippy::cast_precision_loss, reason = "sums are below 2^24")]
                let value = sum as f32;
                u64::from(value.to_bits())
            }
            Sum::I32 => u64::from(sum.cast_unsigned()),
            Sum::F64 => f64::from(sum).to_bits(),
        }
    }
}

/// The digest of a right product: the same on every card, of any library and in any order.
pub(crate) fn digest(sums: &[i32], rows: usize, columns: usize, of: Sum) -> u64 {
    let bits: Vec<u64> = sums.iter().map(|sum| of.bits(*sum)).collect();
    let mut digest = Wrapping(0_u64);
    for row in 0..rows {
        let first = row % PERIOD * PERIOD;
        let line = bits.get(first..first + PERIOD).unwrap_or_default();
        for (column, bits) in line.iter().cycle().take(columns).enumerate() {
            digest += weighed(*bits, row * columns + column);
        }
    }
    digest.0
}

fn weighed(bits: u64, at: usize) -> Wrapping<u64> {
    let at = Wrapping(u64::try_from(at).unwrap_or_default());
    let x = (Wrapping(bits) + Wrapping(0x9E37_79B9_7F4A_7C15)) * (at * Wrapping(2) + Wrapping(1));
    x ^ (x >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_small_and_differ() {
        let rows = input(4096, SALT_A, 2);
        assert_eq!(rows.len(), PERIOD);
        let mut counts = [0_usize; 5];
        for value in rows.iter().flatten() {
            counts[usize::try_from(value + 2).unwrap()] += 1;
        }
        let all = PERIOD * 4096;
        assert!(counts.iter().all(|count| (count * 5).abs_diff(all) < all / 50), "{counts:?}");
        for (place, row) in rows.iter().enumerate() {
            assert!(rows.iter().skip(place + 1).all(|other| other != row));
        }
        assert_ne!(rows, input(4096, SALT_B, 2));
    }

    /// Exact in single precision, and in the 14 bits with which Hopper adds products of fp8.
    #[test]
    fn sums_stay_exact() {
        assert!(sums(4096, 2).iter().all(|sum| sum.abs() < 1 << 24));
        let least_exact = 4096 * 2 * 2;
        assert!(least_exact < 1 << 24);
        assert!(sums(4096, 1).iter().all(|sum| sum.abs() < 1 << 13));
    }

    #[test]
    fn a_digest_depends_on_every_bit_and_on_no_order() {
        let sums = sums(64, 2);
        let right = digest(&sums, 128, 192, Sum::F32);
        assert_eq!(right, digest(&sums, 128, 192, Sum::F32));
        assert_ne!(right, digest(&sums, 128, 192, Sum::I32));
        let mut wrong = sums.clone();
        wrong[5 * PERIOD + 7] += 1;
        assert_ne!(right, digest(&wrong, 128, 192, Sum::F32));
        let naive: Wrapping<u64> = (0..128 * 192)
            .rev()
            .map(|at| weighed(Sum::F32.bits(sums[at / 192 % PERIOD * PERIOD + at % 192 % PERIOD]), at))
            .sum();
        assert_eq!(right, naive.0);
    }
}
