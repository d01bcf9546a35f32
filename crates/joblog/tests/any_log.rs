//! Any text as a log: the result is bounded and printable, and the same for the same log.

use proptest::prelude::*;
use railgate_joblog::{Log, first_error};

/// Pieces of logs, so that half-finished tracebacks, labels and times meet.
const PIECES: [&str; 14] = [
    "Traceback (most recent call last):\n",
    "  + Exception Group Traceback (most recent call last):\n",
    "    | Traceback (most recent call last):\n",
    "  File \"/home/a/train.py\", line 88, in main\n",
    "    step()\n",
    "ValueError: bad sample\n",
    "  | ExceptionGroup: two (2 sub-exceptions)\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
    "Original Traceback (most recent call last):\n",
    "Fatal Python error: Segmentation fault\n",
    "[rank1]: ",
    "3: ",
    "[2026-11-23 16:42:10,123] ",
    "\u{1b}[31m",
];

proptest! {
    #[test]
    fn any_log_gives_a_bounded_printable_result(
        pieces in prop::collection::vec(prop_oneof![
            (0..PIECES.len()).prop_map(|at| PIECES[at].as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..40),
        ], 0..60),
        split in 0..60_usize,
        cut in any::<bool>(),
    ) {
        let of = |pieces: &[Vec<u8>]| pieces.concat();
        let (a, b) = pieces.split_at(split.min(pieces.len()));
        let (a, b) = (of(a), of(b));
        let logs = [Log { bytes: &a, rank: Some(1), cut }, Log { bytes: &b, rank: None, cut: false }];
        let found = first_error(&logs, 8);
        prop_assert_eq!(&found, &first_error(&logs, 8));
        if let Some(first) = found.first {
            for text in [Some(&first.text), first.from.as_ref()].into_iter().flatten() {
                prop_assert!(text.chars().count() <= 301, "{}", text.len());
                prop_assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
            }
            prop_assert!(first.log < 2 && first.line >= 1 && first.ranks >= 1);
        }
    }
}
