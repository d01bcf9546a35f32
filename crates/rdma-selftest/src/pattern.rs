//! The data of a transfer, and its comparison.

use std::sync::atomic::{AtomicU64, Ordering};

use railgate_pair::Wrong;

/// Size of one block, 8-byte words: 1 MiB. Tests on emulated processors: 128 KiB.
pub(crate) const BLOCK: usize = if cfg!(feature = "small") { 16 * 1024 } else { 128 * 1024 };
/// Number of blocks in the memory that is sent from, and in the memory that is received in.
pub(crate) const BLOCKS: usize = 16;

/// The word at a place. It depends on the block, so that a block in the place of another is found, and on the seed, so that data
/// of an earlier transfer is. Finalizer of SplitMix64: words that follow one another differ in about half of their bits.
fn word(seed: u64, block: usize, place: usize) -> u64 {
    let number = (block as u64) << 32 | place as u64;
    let mut mixed = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Fills the memory with the pattern.
pub(crate) fn fill(memory: &[AtomicU64], seed: u64) {
    for (block, words) in memory.chunks(BLOCK).enumerate() {
        for (place, cell) in words.iter().enumerate() {
            cell.store(word(seed, block, place), Ordering::Relaxed);
        }
    }
    #[cfg(feature = "plant")]
    plant(memory);
}

/// Compares the first `blocks` blocks with the pattern.
pub(crate) fn compare(memory: &[AtomicU64], seed: u64, blocks: usize) -> Wrong {
    let mut wrong = Wrong::default();
    for (block, words) in memory.chunks(BLOCK).take(blocks).enumerate() {
        for (place, cell) in words.iter().enumerate() {
            if cell.load(Ordering::Relaxed) != word(seed, block, place) {
                wrong.words += 1;
                wrong.first.get_or_insert((block * BLOCK + place) as u64 * 8);
            }
        }
    }
    wrong
}

/// Flips one bit of the word whose index is in RAILGATE_PLANT.
#[cfg(feature = "plant")]
fn plant(memory: &[AtomicU64]) {
    let index = std::env::var("RAILGATE_PLANT").ok().and_then(|text| text.parse::<usize>().ok());
    if let Some(cell) = index.and_then(|index| memory.get(index)) {
        cell.fetch_xor(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(blocks: usize, seed: u64) -> Vec<AtomicU64> {
        let memory: Vec<_> = (0..blocks * BLOCK).map(|_| AtomicU64::new(0)).collect();
        fill(&memory, seed);
        memory
    }

    #[test]
    fn one_flipped_bit_is_found_at_its_word() {
        let memory = filled(3, 5);
        assert_eq!(compare(&memory, 5, 3), Wrong::default());
        memory[2 * BLOCK + 77].fetch_xor(1 << 63, Ordering::Relaxed);
        assert_eq!(compare(&memory, 5, 2), Wrong::default());
        let first = Some((2 * BLOCK as u64 + 77) * 8);
        assert_eq!(compare(&memory, 5, 3), Wrong { words: 1, first });
        memory[2 * BLOCK + 78].store(0, Ordering::Relaxed);
        assert_eq!(compare(&memory, 5, 3), Wrong { words: 2, first });
    }

    #[test]
    fn data_of_an_earlier_transfer_or_of_another_block_is_wrong() {
        let memory = filled(2, 5);
        let all = Wrong { words: 2 * BLOCK as u64, first: Some(0) };
        assert_eq!(compare(&memory, 6, 2), all);
        let (one, two) = memory.split_at(BLOCK);
        for (a, b) in one.iter().zip(two) {
            b.store(a.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let second = Wrong { words: BLOCK as u64, first: Some(BLOCK as u64 * 8) };
        assert_eq!(compare(&memory, 5, 2), second);
    }
}
