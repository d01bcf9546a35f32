//! Arbitrary bytes as a file of samples, and records with valid checksums and arbitrary content: no panic, only
//! finite numbers, and unknown values stay unknown.

#![no_main]

use libfuzzer_sys::fuzz_target;
use railgate_node_report::usage::format::{Head, HeadGpu, HeadRail, Record, Records};
use railgate_node_report::usage::{joined, moment, summarize, timeline};

/// The format's checksum: CRC-32 of kind and payload.
fn sum(kind: u8, payload: &[u8]) -> u32 {
    let step = |mut sum: u32, byte: &u8| {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
        }
        sum
    };
    !std::iter::once(&kind).chain(payload).fold(!0, step)
}

fn framed(kind: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&sum(kind, payload).to_le_bytes());
    out.extend_from_slice(payload);
}

/// A valid header of this build, then records of arbitrary content.
fn stream(bytes: &[u8]) -> Vec<u8> {
    let mut head = Head::new("n1", 7, 0);
    head.gpus = vec![HeadGpu { model: "NVIDIA H200".to_owned(), ..HeadGpu::default() }; 2];
    head.rails = vec![HeadRail::default()];
    let mut out = Vec::new();
    Record::Head(head).write(&mut out).expect("a small head");
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (payload, after) = after.split_at((usize::from(*length) * 4).min(after.len()));
        let kind = b"SMMSSNEH"[usize::from(*length) % 8];
        framed(kind, payload, &mut out);
        rest = after;
    }
    out
}

fuzz_target!(|bytes: &[u8]| {
    for stream in [bytes.to_vec(), stream(bytes)] {
        let count = Records::new(&stream).count();
        assert!(count <= stream.len());
        let (half, other) = stream.split_at(stream.len() / 2);
        for streams in [vec![&stream[..]], vec![half, other], vec![&stream[..], &stream[..]]] {
            for end in [0, 1_800_000_000_000, u64::MAX] {
                let Some(usage) = summarize(&streams, end, &Default::default()) else { continue };
                let coverage = &usage.coverage;
                for seconds in
                    [coverage.sampled_s, coverage.suspended_s, coverage.yielded_s, coverage.missing_s]
                {
                    assert!(seconds.is_finite() && seconds >= 0.0, "{coverage:?}");
                }
                let text = serde_json::to_string(&usage).expect("plain data");
                // NaN and infinity serialize to null, which no reader accepts as a number.
                let back: railgate_node_report::Usage =
                    serde_json::from_str(&text).expect("what was written is read");
                assert_eq!(back.gpus.len(), usage.gpus.len());
            }
            let _ = moment(&streams, "", 1e9);
            let whole = joined(&streams, 1 << 20).unwrap_or_default();
            assert!(whole.len() <= 1 << 20);
        }
        let _ = timeline(&stream);
    }
});
