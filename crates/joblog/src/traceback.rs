//! Python tracebacks, assembled line by line from one process's output.

use std::sync::LazyLock;

use railgate_node_report::python_file::{is_own, name};
use regex::Regex;

/// A line of the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file's name without its directories: paths hold names of users.
    pub file: String,
    pub line: u32,
}

/// A traceback that is being read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Traceback {
    /// The innermost frame of the user's own code.
    pub(crate) place: Option<Place>,
    /// Another traceback began before this one ended: frames of several processes are mixed.
    pub(crate) mixed: bool,
    /// A frame is in a function that cleans up, or in a line that calls one.
    pub(crate) cleans_up: bool,
    /// Its innermost frame starts a program.
    pub(crate) runs_a_program: bool,
    /// Whether the outermost frame is where Python starts a program, a thread or a process: nothing caught the exception, unless code outside
    /// of all functions did. A traceback that a handler prints begins with the handler's own frame. `None` before the first frame, and in a box.
    pub(crate) uncaught: Option<bool>,
    /// Drawn in a box by `rich`.
    boxed: bool,
    lines: usize,
}

/// What a line is to an open traceback.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// It belongs to the traceback.
    Inside,
    /// It is the last line: `ValueError: bad sample`.
    Last,
    /// It does not belong to it.
    Foreign,
}

/// More lines than this belong to no traceback: CPython shortens deep recursion to some 1,000 frames of two or three lines.
const MOST_LINES: usize = 4_000;

static FRAME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"^[ |]*File "(?P<file>[^"]+)", line (?P<line>\d+)"#).ok());
static BOX_FRAME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[│|] *(?P<file>/\S+\.py):(?P<line>\d+) in ").ok());
static LAST: LazyLock<Option<Regex>> = LazyLock::new(|| {
    // A dotted name, or a single one in camel case or with a usual ending; `Epoch: 3` and `NOTE: x` are
    // another process's lines.
    let single = r"[A-Z]\w*[a-z]\w*[A-Z]\w*|[A-Z]{2,}[a-z]\w*|Exception|Error|\w*(?:error|exception|timeout|interrupt)";
    let dotted = r"(?:[A-Za-z_]\w*\.)+(?:_?[A-Z]\w*|\w*(?:error|exception|timeout|interrupt))";
    Regex::new(&format!(r"^(?:{dotted}|{single})(?:: .*|:)?$")).ok()
});

/// Whether a line of a frame names code that runs after an error: in a `finally` block, at the end of a `with` block, in a handler.
fn names_clean_up(text: &str) -> bool {
    const FUNCTIONS: [&str; 19] = [
        "__exit__",
        "__aexit__",
        "__del__",
        "close",
        "flush",
        "finish",
        "cleanup",
        "clean_up",
        "teardown",
        "tear_down",
        "shutdown",
        "finalize",
        "on_exception",
        "on_fit_end",
        "on_train_end",
        "rmtree",
        "_rmtree",
        "remove",
        "unlink",
    ];
    let line = text.trim_start_matches([' ', '|']);
    let name = match line.strip_prefix("File \"").and_then(|frame| frame.rsplit_once(", in ")) {
        Some((_, name)) => name,
        None => line.split_once('(').map_or("", |(called, _)| called),
    };
    let name = name.rsplit('.').next().unwrap_or(name);
    FUNCTIONS.contains(&name)
}

/// Whether the first line of a frame names code with which Python starts a program, a thread or a process.
fn starts_a_program(text: &str) -> bool {
    const FUNCTIONS: [&str; 4] = ["<module>", "_run_module_as_main", "_bootstrap", "_bootstrap_inner"];
    text.rsplit_once(", in ").is_some_and(|(_, name)| FUNCTIONS.contains(&name))
}

/// Whether a line begins a traceback, also one inside a message (`Original Traceback`) or a group.
pub(crate) fn begins(text: &str) -> bool {
    text.contains("Traceback (most recent call last)")
}

/// Whether a line is the first one of a frame.
pub(crate) fn is_frame(text: &str) -> bool {
    text.starts_with("  File \"") && FRAME.as_ref().is_some_and(|frame| frame.is_match(text))
}

/// Ray's last line of a local traceback: the remote process's follows without a header, with the error itself as its last line.
pub(crate) fn is_remote(text: &str) -> bool {
    text.starts_with("ray.exceptions.RayTaskError(")
}

impl Traceback {
    pub(crate) fn new(header: &str) -> Traceback {
        Traceback { boxed: header.contains('─'), ..Traceback::default() }
    }

    /// Few lines of it have come: one of another process may lie between them.
    pub(crate) fn is_young(&self) -> bool {
        self.lines < MOST_LINES
    }

    /// Takes the next line of the process.
    pub(crate) fn feed(&mut self, text: &str) -> Step {
        self.lines += 1;
        if self.lines > MOST_LINES {
            return Step::Foreign;
        }
        self.cleans_up = self.cleans_up || names_clean_up(text);
        let frames = if self.boxed { &BOX_FRAME } else { &FRAME };
        if let Some(found) = frames.as_ref().and_then(|frame| frame.captures(text)) {
            self.runs_a_program = text.ends_with(", in _execute_child");
            if !self.boxed {
                self.uncaught.get_or_insert_with(|| starts_a_program(text));
            }
            let file = found.name("file").map_or("", |file| file.as_str());
            if is_own(file) {
                let line = found.name("line").and_then(|line| line.as_str().parse().ok()).unwrap_or(0);
                self.place = Some(Place { file: name(file).to_owned(), line });
            }
            return Step::Inside;
        }
        let bare = text.trim_start_matches(['|', '+', ' ']);
        let indented = text.starts_with([' ', '│', '╭', '╰', '|', '+']) || text.is_empty();
        // Below an exception group a bar precedes each line, further to the right at each level.
        let behind_bar = text.trim_start_matches(' ').strip_prefix("| ");
        let is_grouped = behind_bar.is_some_and(|rest| !rest.starts_with(' '));
        if indented && !is_grouped {
            return Step::Inside;
        }
        if is_remote(bare) {
            return Step::Inside;
        }
        if LAST.as_ref().is_some_and(|last| last.is_match(bare)) { Step::Last } else { Step::Foreign }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> (Vec<Step>, Option<(String, u32)>) {
        let mut traceback = Traceback::new(lines[0]);
        let steps = lines[1..].iter().map(|line| traceback.feed(line)).collect();
        (steps, traceback.place.map(|place| (place.file, place.line)))
    }

    #[test]
    fn the_innermost_frame_of_own_code_is_kept() {
        let (steps, place) = read(&[
            "Traceback (most recent call last):",
            "  File \"/home/a/train.py\", line 88, in main",
            "    loss = model(batch)",
            "           ^^^^^^^^^^^^",
            "  File \"/opt/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 1511, in _call_impl",
            "    return forward_call(*args, **kwargs)",
            "ValueError: bad sample in shard 17",
        ]);
        assert_eq!(steps.last(), Some(&Step::Last));
        assert_eq!(place, Some(("train.py".to_owned(), 88)));
    }

    #[test]
    fn code_that_cleans_up_is_known_by_its_name() {
        let reads = |lines: &[&str]| {
            let mut traceback = Traceback::new("Traceback (most recent call last):");
            for line in lines {
                traceback.feed(line);
            }
            traceback.cleans_up
        };
        assert!(reads(&["  File \"/home/a/train.py\", line 171, in main", "    self.prefetcher.close()"]));
        assert!(reads(&[
            "  File \"/opt/lib/torch/serialization.py\", line 424, in __exit__",
            "    self.file_like.write_end_of_file()"
        ]));
        assert!(!reads(&[
            "  File \"/home/a/train.py\", line 88, in main",
            "    raise RuntimeError(f\"no {name}\")"
        ]));
    }

    #[test]
    fn a_box_of_rich_is_a_traceback() {
        let (steps, place) = read(&[
            "╭──────── Traceback (most recent call last) ────────╮",
            "│ /home/a/train.py:12 in <module>                   │",
            "│                                                   │",
            "│ ❱ 12 main()                                       │",
            "╰───────────────────────────────────────────────────╯",
            "KeyError: 'tokens'",
        ]);
        assert_eq!(steps.last(), Some(&Step::Last));
        assert_eq!(place, Some(("train.py".to_owned(), 12)));
    }

    #[test]
    fn the_last_line_is_an_exception_and_no_other_text() {
        for (line, step) in [
            ("ValueError: bad sample", Step::Last),
            ("KeyError", Step::Last),
            ("torch.OutOfMemoryError: CUDA out of memory.", Step::Last),
            ("socket.timeout: timed out", Step::Last),
            ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", Step::Last),
            ("    raise ValueError", Step::Inside),
            ("OSError: [Errno 5] Input/output error", Step::Last),
            ("step 12 loss 3.2", Step::Foreign),
            ("Epoch: 3", Step::Foreign),
            ("NOTE: 3", Step::Foreign),
        ] {
            assert_eq!(Traceback::new("Traceback (most recent call last):").feed(line), step, "{line}");
        }
    }
}
