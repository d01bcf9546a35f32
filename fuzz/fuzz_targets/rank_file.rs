//! Arbitrary bytes as a file of NCCL's profiler plugin, and a valid file with some words replaced: the result is
//! bounded, contains only finite numbers, and is rendered without a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use railgate_rankfile::{BYTES, MAGIC, RankFile, VERSION};
use railgate_node_report::comm::gather;

/// Each change takes ten bytes: the index of a word, little-endian, and its new value.
fn bent(changes: &[u8]) -> Vec<u8> {
    let mut file = vec![0; BYTES];
    file[..8].copy_from_slice(&MAGIC.to_le_bytes());
    file[8..16].copy_from_slice(&VERSION.to_le_bytes());
    for change in changes.chunks_exact(10) {
        let word = usize::from(u16::from_le_bytes([change[0], change[1]])) % (BYTES / 8);
        file[word * 8..word * 8 + 8].copy_from_slice(&change[2..]);
    }
    file
}

fuzz_target!(|bytes: &[u8]| {
    let _ = RankFile::parse(bytes);
    let Ok(file) = RankFile::parse(&bent(bytes)) else { return };
    for cell in &file.cells {
        assert!(cell.timed <= cell.calls && cell.spaced <= cell.timed, "{cell:?}");
        assert!(file.comms.iter().any(|comm| comm.index == cell.key.comm), "{cell:?}");
    }
    for comm in &file.comms {
        assert!(comm.rank < comm.ranks && !comm.name.chars().any(char::is_control), "{comm:?}");
    }
    let found = gather(&[file.clone(), file], Vec::new());
    let text = serde_json::to_string(&found).expect("plain data");
    let back: railgate_node_report::Communication = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(back.collectives.len(), found.collectives.len());
    for row in &found.collectives {
        let figures = [row.busbw_gb_s, row.busbw_back_to_back_gb_s, row.error_percent, row.min_s, row.max_s];
        assert!(figures.into_iter().flatten().all(f64::is_finite), "{row:?}");
    }
    assert!(text.len() < 8 << 20, "{} bytes", text.len());
});
