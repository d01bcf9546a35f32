//! Time to search 16 MiB, printed and not judged: `docs/performance.md` has the figures.
#![expect(clippy::disallowed_types, reason = "the crate needs no clock, its measurement does")]

use std::time::Instant;

use railgate_joblog::{Log, first_error};

const MANY: [&str; 16] = [
    "loss",
    "is",
    "NCCL WARN",
    "NET/IB : ",
    "Got completion from peer",
    "error",
    "pyxis:",
    "failed",
    "srun: error:",
    "Unable",
    "coordination service",
    "barrier",
    "rendezvous '",
    "OOM when allocating tensor",
    "gloo/transport/tcp/",
    "closed",
];

/// Lines of words in a random order: what a user could write to make the search slow.
fn shuffled(words: &[&str], bytes: usize) -> String {
    let (mut text, mut random) = (String::new(), 1_u64);
    while text.len() < bytes {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = usize::try_from(random >> 33).unwrap_or(0) % words.len();
        text.push_str(words[word]);
        text.push(if random >> 60 == 0 { '\n' } else { ' ' });
    }
    text
}

#[test]
#[ignore = "a measurement: cargo test --release -p railgate-joblog --test speed -- --ignored --nocapture"]
fn time_to_search_16_mib() {
    let step = |n: usize| {
        let (second, rank) = (n % 60, n % 8);
        format!(
            "[2026-11-23 16:42:{second:02},123] rank {rank} step {n}/100000 loss 2.1 512 ms/step lr 1e-4\n"
        )
    };
    let nccl =
        |n: usize| format!("gn4:2211:{n} [1] NCCL INFO Channel 00/08 : 0[0] -> 1[1] via P2P/CUMEM/read\n");
    let traceback = "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 88, in main\n    step()\nValueError: bad\n";
    for (name, mut text) in [
        ("steps with times", (0..220_000).map(step).collect::<String>()),
        ("NCCL INFO", (0..260_000).map(nccl).collect()),
        ("tracebacks alone", traceback.repeat(160_000)),
        ("errors that are ignored", "OSError: [Errno 5] bad file, skipping\n".repeat(440_000)),
        ("lines of one byte", "x\n".repeat(8 << 20)),
        ("one line", "x".repeat(16 << 20)),
        ("words of one rule", shuffled(&["loss", "grad", "is", "are", "finite", "x"], 16 << 20)),
        ("words of many rules, 1 MiB only", shuffled(&MANY, 1 << 20)),
    ] {
        text.truncate(16 << 20);
        let begun = Instant::now();
        let found = first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], 8);
        let error = found.first.map(|first| first.text);
        println!("{name}: {} MiB in {:.2} s, {error:?}", text.len() >> 20, begun.elapsed().as_secs_f64());
    }
}
