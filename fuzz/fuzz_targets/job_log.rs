//! Any bytes as the log of a job, after lines of errors: the result is bounded and printable.

#![no_main]

use libfuzzer_sys::fuzz_target;
use railgate_joblog::{Log, first_error};

const BEFORE: &str = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/home/a/train.py\", line 88, in main\n";

fuzz_target!(|bytes: &[u8]| {
    let mixed = [BEFORE.as_bytes(), bytes].concat();
    let logs = [bytes, &mixed].map(|bytes| Log { bytes, rank: None, cut: bytes.len() % 2 == 0 });
    for logs in [&logs[..1], &logs[1..], &logs[..]] {
        let Some(first) = first_error(logs, 8).first else { continue };
        for text in [Some(&first.text), first.from.as_ref()].into_iter().flatten() {
            assert!(text.chars().count() <= 301 && !text.chars().any(char::is_control), "{text:?}");
        }
        assert!(first.log < logs.len() && first.ahead_s.is_none_or(|ahead| ahead.is_finite() && ahead >= 0.0));
    }
});
