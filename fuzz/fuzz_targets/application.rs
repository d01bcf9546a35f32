//! Arbitrary bytes as a program's self-reported progress: lines, the helper's file, and a valid file with some bytes
//! replaced. The result must be bounded and contain only finite numbers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use railgate_node_report::application::read;

/// Size and header of the helper's file, version 1.
const SIZE: usize = 12_288;
const HEAD: &[u8] = b"RGAPPL\r\n\x01\0\0\0";

/// Each change takes ten bytes: the index of an 8-byte word, little-endian, and its new value.
fn bent(changes: &[u8]) -> Vec<u8> {
    let mut file = vec![0; SIZE];
    file[..HEAD.len()].copy_from_slice(HEAD);
    for change in changes.chunks_exact(10) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % (SIZE - 8);
        file[at..at + 8].copy_from_slice(&change[2..]);
    }
    file
}

fuzz_target!(|bytes: &[u8]| {
    let lines = [b"railgate-app 1\n", bytes].concat();
    for file in [bytes.to_vec(), lines, bent(bytes)] {
        let Ok(rank) = read("4711", &file) else { continue };
        let text = serde_json::to_string(&rank).expect("plain data");
        assert!(text.len() < 64 << 10, "{} bytes", text.len());
        // NaN and infinity serialize to null, which no reader accepts as a number.
        let back: railgate_node_report::application::RankApplication =
            serde_json::from_str(&text).expect("what was written is read");
        assert_eq!(back.steps, rank.steps);
        assert!(rank.events.len() <= 64, "{}", rank.events.len());
        if let Some(model) = rank.model {
            let _ = model.flops();
        }
    }
});
