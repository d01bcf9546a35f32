//! What each rank of a job was doing at one moment: evidence of a hang.
//!
//! Names of functions and files come from the job's own memory, which its user controls. They prove nothing against a node. No
//! arguments, variables or environment are part of it.

mod gpus;
mod groups;
mod native;

use railgate_model::UnixMillis;
use railgate_text::shown;
use serde::{Deserialize, Serialize};

pub use gpus::{GpuGroup, GpuState, gpu_groups, gpu_text};
pub use groups::{Group, Groups, LineOf, RankLine, group, place, text};

/// Maximum number of ranks of a node.
pub const MOST_RANKS: usize = 256;
/// Maximum number of frames of a stack.
pub const MOST_FRAMES: usize = 64;
/// Maximum length of the name of a function, bytes.
const FUNCTION_BYTES: usize = 128;
/// Maximum length of a file's path, bytes.
const FILE_BYTES: usize = 256;
/// Maximum length of a reason, bytes.
const REASON_BYTES: usize = 200;
/// Maximum length of the name of a kernel function, bytes.
const KERNEL_BYTES: usize = 64;
const MOST_PROBLEMS: usize = 8;
/// Maximum number of sentences of RAS.
pub const MOST_RAS: usize = 16;
/// Maximum number of GPUs of a node.
const MOST_GPUS: usize = 64;

/// The stacks of a job's ranks on a node, while it hung: `<attempt>/<node>.stacks`.
///
/// Names of functions and files are the user's own business: only the job's owner can read the file, also with
/// `[report] access = "account"`. It is never part of a node report, and decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStacks {
    /// [`crate::REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// `SLURM_CLUSTER_NAME`.
    pub cluster: String,
    /// Job id.
    pub job: u32,
    /// The attempt.
    pub attempt: u32,
    /// Node name.
    pub node: String,
    /// What was found.
    pub stacks: Stacks,
}

/// The stacks of the ranks on one node, taken once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stacks {
    /// When it was begun.
    pub taken: UnixMillis,
    /// Time that it took, milliseconds.
    pub took_ms: u64,
    /// The processes, in the order of the request.
    pub ranks: Vec<RankStack>,
    /// Number of requested processes beyond [`MOST_RANKS`].
    pub left_out: u32,
    /// The job's GPUs on the node; at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuState>,
    /// The last collectives by PyTorch's flight recorder, if the site has armed it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recorded: Vec<Recorded>,
    /// What NCCL's RAS answered for all ranks of the job, one sentence each; at most 16. Only on the job's first node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ras: Vec<String>,
    /// What failed for more than one process; at most 8 lines.
    pub problems: Vec<String>,
}

/// What the process of a rank was doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankStack {
    /// The rank.
    pub rank: u32,
    /// Process id on the node.
    pub pid: u32,
    /// State of the main thread: `R`, `S`, `D`, `T`, `t`, `Z`; `None` if it was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// The kernel function in which the main thread waits; `None` if it runs, or if that was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Number of threads; 0 if it was not read.
    pub threads: u32,
    /// Frames of the main thread, innermost first, at most [`MOST_FRAMES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<Vec<Frame>>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Native stack of the main thread. For a Python program, only the frames inside the innermost Python function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeStack>,
    /// Why there is no native stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_why: Option<String>,
}

/// A native stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NativeStack {
    /// Innermost first, at most [`MOST_FRAMES`].
    pub frames: Vec<NativeFrame>,
    /// Why unwinding ended early; absent if the stack is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
}

/// A function in a native stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NativeFrame {
    /// Its name, without parameters; `None` if the file has no name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Path of its program or library; its end if it is longer than 256 bytes. Empty if the code is not from a file.
    pub object: String,
    /// Address of the call in that file, for `addr2line`. Address in the process if the code is not from a file.
    pub address: u64,
}

/// The operation of a rank that did not complete, by PyTorch's flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recorded {
    /// The rank.
    pub rank: u32,
    /// As the end of a sentence: `in all_reduce number 2 of group 1 (order at hangs.py:87)`.
    pub what: String,
}

/// A call in a Python stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Name of the function, with its class from Python 3.11 on: `DataLoader.__next__`.
    pub function: String,
    /// Path of the file; its end if it is longer than 256 bytes.
    pub file: String,
    /// Line in the file; 0 if it is not known.
    pub line: u32,
}

impl Stacks {
    /// Within the documented limits, and printable: for input that a user could have written.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let more = self.ranks.len().saturating_sub(MOST_RANKS);
        self.left_out = self.left_out.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        self.ranks.truncate(MOST_RANKS);
        self.ranks = self.ranks.into_iter().map(RankStack::bounded).collect();
        self.recorded.truncate(MOST_RANKS);
        self.recorded.iter_mut().for_each(|one| one.what = start(&one.what, REASON_BYTES));
        self.gpus.truncate(MOST_GPUS);
        self.gpus.iter_mut().for_each(GpuState::bound);
        self.ras.truncate(MOST_RAS);
        self.ras = self.ras.iter().map(|text| start(text, REASON_BYTES)).collect();
        self.problems.truncate(MOST_PROBLEMS);
        self.problems = self.problems.iter().map(|text| start(text, REASON_BYTES)).collect();
        self
    }
}

impl RankStack {
    /// Within the documented limits, and printable.
    #[must_use]
    pub fn bounded(self) -> Self {
        RankStack {
            state: self.state.filter(char::is_ascii_alphabetic),
            kernel: self.kernel.map(|name| start(&name, KERNEL_BYTES)),
            python: self.python.map(|frames| {
                frames
                    .into_iter()
                    .take(MOST_FRAMES)
                    .map(|one| Frame::new(&one.function, &one.file, one.line))
                    .collect()
            }),
            why: self.why.map(|why| start(&why, REASON_BYTES)),
            native: self.native.map(NativeStack::bounded),
            native_why: self.native_why.map(|why| start(&why, REASON_BYTES)),
            ..self
        }
    }
}

impl NativeStack {
    /// Within the documented limits, and printable.
    #[must_use]
    pub fn bounded(self) -> Self {
        let frame = |frame: NativeFrame| NativeFrame {
            function: frame.function.map(|name| start(&name, FUNCTION_BYTES)),
            object: end(&frame.object, FILE_BYTES),
            ..frame
        };
        NativeStack {
            frames: self.frames.into_iter().take(MOST_FRAMES).map(frame).collect(),
            cut: self.cut.map(|why| start(&why, REASON_BYTES)),
        }
    }
}

impl Frame {
    /// Within the documented limits, and printable.
    pub fn new(function: &str, file: &str, line: u32) -> Self {
        Frame { function: start(function, FUNCTION_BYTES), file: end(file, FILE_BYTES), line }
    }
}

/// The beginning of foreign text as one line of at most `most` bytes, with `…` for the rest.
fn start(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.chars().map(shown).collect();
    }
    let kept = text.char_indices().take_while(|(at, c)| at + c.len_utf8() + '…'.len_utf8() <= most);
    kept.map(|(_, c)| shown(c)).chain(['…']).collect()
}

/// The end of a path: the file's name and the directories next to it tell most.
fn end(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.chars().map(shown).collect();
    }
    let cut = text.len() + '…'.len_utf8() - most;
    let kept = text.char_indices().filter(|(at, _)| *at >= cut).map(|(_, c)| shown(c));
    std::iter::once('…').chain(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_printable_and_within_its_limits() {
        let long = "ä\x1b[31m".repeat(100);
        let frame = Frame::new(&long, &format!("/x/{long}/train.py"), 7);
        assert!(frame.function.len() <= FUNCTION_BYTES && frame.function.ends_with('…'), "{frame:?}");
        assert!(frame.file.len() <= FILE_BYTES && frame.file.starts_with('…'), "{frame:?}");
        assert!(frame.file.ends_with("/train.py"), "{frame:?}");
        assert_eq!(
            Frame::new("a\nb", "/x/\u{202e}y.py", 1),
            Frame { function: "a?b".into(), file: "/x/?y.py".into(), line: 1 }
        );
        let rank = RankStack {
            state: Some('\x1b'),
            kernel: Some("a\rb".into()),
            python: Some(vec![frame.clone(); 100]),
            why: Some("x".repeat(1000)),
            ..RankStack::default()
        };
        let all =
            Stacks { ranks: vec![rank; 300], problems: vec!["\n".into(); 20], ..Stacks::default() }.bounded();
        assert_eq!((all.ranks.len(), all.left_out, all.problems.len()), (MOST_RANKS, 44, MOST_PROBLEMS));
        let one = &all.ranks[0];
        assert_eq!((one.state, one.kernel.as_deref(), all.problems[0].as_str()), (None, Some("a?b"), "?"));
        assert_eq!(
            (one.python.as_ref().unwrap().len(), one.why.as_ref().unwrap().len()),
            (MOST_FRAMES, REASON_BYTES)
        );
        assert_eq!(all.clone().bounded(), all, "a second time changes nothing");
        let gpu = GpuState {
            power_w: Some(1e300),
            sm_percent: Some(-1.0),
            sm_clock_mhz: Some(1980.0),
            ..GpuState::default()
        };
        let all = Stacks { gpus: vec![gpu; 100], ..Stacks::default() }.bounded();
        let one = &all.gpus[0];
        assert_eq!(all.gpus.len(), MOST_GPUS);
        assert_eq!((one.power_w, one.sm_percent, one.sm_clock_mhz), (None, None, Some(1980.0)));
    }

    #[test]
    fn what_was_not_read_is_not_in_the_file() {
        let rank = RankStack { rank: 3, pid: 40, state: Some('D'), threads: 2, ..RankStack::default() };
        let text = serde_json::to_string(&rank).unwrap();
        assert_eq!(text, r#"{"rank":3,"pid":40,"state":"D","threads":2}"#);
        assert_eq!(serde_json::from_str::<RankStack>(&text).unwrap(), rank);
    }
}
