//! Lines of a log made into events: an error each.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder};

use crate::line::{self, Line, Moment, Numbered};
use crate::rule::{Class, Kind, Rule};
use crate::rules;
use crate::steps::{Progress, reported};
use crate::traceback::{self, Place, Step, Traceback};
use crate::{Log, launcher, mask};

/// An error in a log.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) rule: &'static Rule,
    pub(crate) text: String,
    pub(crate) from: Option<String>,
    pub(crate) place: Option<Place>,
    /// The label of its lines; the whole log is one stream where there is none.
    pub(crate) stream: usize,
    pub(crate) rank: Option<u32>,
    pub(crate) when: Option<Moment>,
    /// The last moment that its stream wrote before it: tracebacks have none of their own.
    pub(crate) after: Option<Moment>,
    pub(crate) line: usize,
    /// Ordinary lines of its stream before it.
    pub(crate) ordinary: usize,
    /// How often its stream had reported a further step before it.
    pub(crate) steps: usize,
    /// The same for all streams of the log together.
    pub(crate) steps_of_all: usize,
    /// Its own line, or the one before or after its traceback, reports that the program continued without the part that failed.
    pub(crate) survived: bool,
    /// Of a traceback whose frames are all of one process: whether nothing caught the exception ([`Traceback::uncaught`]).
    pub(crate) uncaught: Option<bool>,
}

/// A log that was read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) events: Vec<Event>,
    /// Ordinary lines of each stream.
    pub(crate) ordinary: Vec<usize>,
    /// How often each stream reported a further step.
    pub(crate) steps: Vec<usize>,
    /// The same for all streams together.
    pub(crate) steps_of_all: usize,
    pub(crate) is_labelled: Vec<bool>,
}

/// The output of one process, or of all where lines have no label.
#[derive(Debug, Default)]
struct Stream {
    /// Number of its lines so far. Lines of other processes are not counted.
    lines: usize,
    open: Option<Open>,
    /// The event that a chained traceback continues.
    chained: Option<Chained>,
    /// An event that waits for the stack of Python's fault handler.
    crashed: Option<usize>,
    /// An event whose message continues with the traceback of a data loader's worker.
    nested: Option<usize>,
    /// An exception group whose first exception follows.
    group: Option<usize>,
    /// The last line said that Python ignores the exception that follows.
    ignores: bool,
    /// An error of NCCL whose own message is the line of the stream with this number.
    quotes: Option<(usize, usize)>,
    last: Option<usize>,
    /// The number of its last line which reports that the program continues without a part that failed.
    survives: Option<usize>,
    /// The number of the last line of its last traceback, or of the head of a message.
    closed: Option<usize>,
    /// An error whose message begins on the next line.
    continues: Option<usize>,
    moment: Option<Moment>,
    ordinary: usize,
    progress: Progress,
}

/// A traceback that is being read.
#[derive(Debug)]
struct Open {
    traceback: Traceback,
    /// The line of its header.
    begun: usize,
    /// Headers without a last line so far: above 1 in the output of several processes without labels.
    headers: usize,
    /// Python ignored the exception: raised in a destructor, or when the interpreter ends.
    is_ignored: bool,
    /// False for a syntax error of the script itself, and where the header is lost.
    has_header: bool,
    /// The line before it reports that the program continues without the part that failed.
    survived: bool,
}

/// The most events that are kept of a log: of 512 ranks each writes some.
const MOST_EVENTS: usize = 50_000;
/// The most labels that are told apart.
const MOST_STREAMS: usize = 20_000;

/// Shorter lines match no row: a log of millions of them is read in the same time as any other.
const SHORTEST: usize = 5;

pub(crate) fn read(log: &Log<'_>) -> Read {
    let numbered = Numbered::of(log.bytes);
    let mut reader = Reader { rank: log.rank, progress: Progress::of_many(), ..Reader::default() };
    for bytes in log.bytes.split(|&byte| byte == b'\n') {
        reader.lines += 1;
        // A hole in a file reads as zeros.
        if bytes.iter().all(|&byte| byte == 0) {
            reader.empty();
            continue;
        }
        if bytes.len() < SHORTEST {
            reader.short();
            continue;
        }
        let line = line::read(bytes, numbered);
        reader.take(&line);
    }
    Read {
        events: reader.events,
        ordinary: reader.streams.iter().map(|stream| stream.ordinary).collect(),
        steps: reader.streams.iter().map(|stream| stream.progress.steps).collect(),
        steps_of_all: reader.progress.steps,
        is_labelled: (0..reader.streams.len()).map(|stream| stream > 0).collect(),
    }
}

#[derive(Default)]
struct Reader {
    /// The first stream is that of lines without a label.
    streams: Vec<Stream>,
    labels: HashMap<String, usize>,
    events: Vec<Event>,
    rank: Option<u32>,
    lines: usize,
    /// Of all streams together.
    progress: Progress,
}

/// An event that a chained traceback continues.
#[derive(Clone, Copy, Debug)]
struct Chained {
    event: usize,
    /// It was raised while the first exception was handled, and not from it.
    meanwhile: bool,
}

/// Between a container's error and its reason.
const REASON: &str = "; reason: ";

const MEANWHILE: &str = "During handling of the above exception, another exception occurred";
const FROM: &str = "The above exception was the direct cause of the following exception";

impl Chained {
    /// Whether the first of two exceptions is the cause, by their rows. `cleans_up`: the second one was raised by code that cleans up.
    fn first_is_the_cause(self, first: &Rule, second: &Rule, cleans_up: bool) -> bool {
        // Python ignored the first exception, and with it those that were raised from it.
        if first.id == rules::IGNORED || first.kind < second.kind {
            return true;
        }
        let resource = |rule: &Rule| matches!(rule.class, Class::Memory | Class::Storage | Class::Node);
        let is_other = resource(first) && !resource(second);
        self.meanwhile && first.kind == Kind::Cause && (cleans_up || is_other)
    }
}

/// Words of a program that continues without the part that failed.
static SURVIVES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    // "Use X instead" is advice of a message, not what the program does.
    let words = r"falling back|fall back|fallback|skipping|skipped|ignoring|ignored|will retry|(?:^|- |\|)retrying|(?:,| and) retrying|caught, |pruning|pruned|will use |continuing without |using \S+(?: \S+)? instead";
    RegexBuilder::new(words).case_insensitive(true).unicode(false).build().ok()
});

/// Whether a message may continue on the next lines, with a stack below.
fn has_a_stack(rule: &Rule) -> bool {
    [rules::PROGRAM_ERROR, rules::ERROR_LINE, rules::ABORTED].contains(&rule.id)
}

/// Whether a line is only the head of a message.
fn says_more_below(text: &str) -> bool {
    text.ends_with(':') || text.starts_with("Error using ")
}

/// Whether a line stands above, between or below the frames of a stack in Julia, Rust or R.
fn is_around_a_stack(text: &str) -> bool {
    const LINES: [&str; 5] =
        ["Stacktrace:", "stack backtrace:", "in expression starting at ", "note: run with ", "Calls: "];
    LINES.iter().any(|line| text.starts_with(line))
}

/// Whether a line is a message in the banner that NVIDIA's containers print before their program starts.
fn is_banner(text: &str) -> bool {
    text.trim_start().starts_with("[[ ") && text.trim_end().ends_with(" ]]")
}

fn says_it_survived(text: &str) -> bool {
    SURVIVES.as_ref().is_some_and(|words| words.is_match(text.as_bytes()))
}

impl Reader {
    /// An empty line stands between two others.
    fn empty(&mut self) {
        if let Some(stream) = self.streams.first_mut() {
            stream.lines += 1;
        }
    }

    /// A line that is too short to be an error.
    fn short(&mut self) {
        let at = self.stream(None);
        if let Some(stream) = self.streams.get_mut(at) {
            stream.lines += 1;
            stream.ordinary += 1;
        }
    }

    fn take(&mut self, line: &Line) {
        let at = self.stream(line.label.as_deref());
        let text = line.text.as_str();
        if let Some(stream) = self.streams.get_mut(at) {
            stream.lines += 1;
            stream.moment = line.when.filter(|_| !text.is_empty()).or(stream.moment);
        }
        if text.is_empty() {
            return;
        }
        if traceback::begins(text) {
            self.open(at, text);
            return;
        }
        if self.continued(at, text) {
            return;
        }
        if let Some(mut open) = self.streams.get_mut(at).and_then(|stream| stream.open.take()) {
            match open.traceback.feed(text) {
                Step::Inside => self.put_back(at, open),
                Step::Last => self.close(at, open, line),
                Step::Foreign if line.label.is_none() && open.has_header && open.traceback.is_young() => {
                    // A line of another process: the traceback may continue after it.
                    self.put_back(at, open);
                    self.single(at, line);
                }
                // Frames without an exception: a program printed its stack.
                Step::Foreign => self.single(at, line),
            }
            return;
        }
        let meanwhile = text.contains(MEANWHILE);
        if meanwhile || text.contains(FROM) {
            if let Some(stream) = self.streams.get_mut(at) {
                stream.chained = stream.last.map(|event| Chained { event, meanwhile });
            }
            return;
        }
        if self.fault_handler(at, text) {
            return;
        }
        if traceback::is_frame(text) {
            self.open_without_header(at, text);
            return;
        }
        if traceback::is_remote(text) {
            self.open(at, text);
            return;
        }
        self.single(at, line);
    }

    fn stream(&mut self, label: Option<&str>) -> usize {
        if self.streams.is_empty() {
            self.streams.push(Stream::default());
        }
        let Some(label) = label else { return 0 };
        if let Some(&at) = self.labels.get(label) {
            return at;
        }
        if self.streams.len() >= MOST_STREAMS {
            return 0;
        }
        self.streams.push(Stream::default());
        self.labels.insert(label.to_owned(), self.streams.len() - 1);
        self.streams.len() - 1
    }

    /// A line which reports that the program continues without a part that failed: it belongs to the traceback directly before it, else to the one
    /// directly after it.
    fn survives(&mut self, at: usize, text: &str) {
        let Some(stream) = self.streams.get_mut(at) else { return };
        if !says_it_survived(text) {
            return;
        }
        let behind = stream.last.filter(|_| stream.closed == Some(stream.lines - 1));
        if let Some(event) = behind.and_then(|last| self.events.get_mut(last)) {
            event.survived = true;
        } else if !text.ends_with("(ignored)") {
            // `KeyError('index') (ignored)` reports an error of its own.
            stream.survives = Some(stream.lines);
        }
    }

    fn put_back(&mut self, at: usize, open: Open) {
        if let Some(stream) = self.streams.get_mut(at) {
            stream.open = Some(open);
        }
    }

    fn open(&mut self, at: usize, text: &str) {
        let Some(stream) = self.streams.get_mut(at) else { return };
        stream.continues = None;
        let is_ignored = std::mem::take(&mut stream.ignores);
        let traceback = Traceback::new(text);
        let survived = stream.survives == Some(stream.lines - 1);
        let mut open =
            Open { traceback, begun: self.lines, headers: 1, is_ignored, has_header: true, survived };
        if text.contains("Original Traceback") {
            stream.nested = stream.last;
        } else if text.trim_start_matches(' ').starts_with("| ") && stream.group.is_some() {
            stream.nested = stream.group.take();
        } else if let Some(before) = stream.open.take().filter(|open| open.has_header) {
            // Two processes without labels: their frames cannot be told apart.
            open.traceback.mixed = true;
            open.is_ignored = false;
            open.begun = before.begun;
            open.headers = before.headers + 1;
        }
        stream.open = Some(open);
    }

    /// A frame begins a traceback: that of a syntax error, or one whose header was not read.
    fn open_without_header(&mut self, at: usize, text: &str) {
        let mut traceback = Traceback::new("");
        traceback.feed(text);
        if let Some(stream) = self.streams.get_mut(at) {
            stream.continues = None;
        }
        let begun = self.lines;
        let open =
            Open { traceback, begun, headers: 1, is_ignored: false, has_header: false, survived: false };
        self.put_back(at, open);
    }

    /// The message of an exception whose last line was `RuntimeError:`, or ended with `raised:`.
    fn continued(&mut self, at: usize, text: &str) -> bool {
        /// Empty lines may lie between.
        const FAR: usize = 3;
        let Some(stream) = self.streams.get_mut(at) else { return false };
        let is_near = stream.closed.is_some_and(|closed| stream.lines <= closed + FAR);
        let continues = stream.continues.take().filter(|_| is_near);
        let Some(event) = continues.and_then(|event| self.events.get_mut(event)) else { return false };
        let message = text.trim_start();
        let rule = rules::of(message);
        let is_another = |rule: &Rule| match rule.kind {
            Kind::Consequence => true,
            Kind::Exit => rule.id != rules::ERROR_LINE,
            Kind::Cause | Kind::Detail => false,
        };
        let is_of_a_stack = traceback::is_frame(text) || is_around_a_stack(text);
        if is_of_a_stack || text.contains(MEANWHILE) || text.contains(FROM) || rule.is_some_and(is_another) {
            return false;
        }
        if says_it_survived(message) {
            event.survived = true;
            return true;
        }
        event.text = format!("{} {message}", event.text);
        event.rule = rule.filter(|rule| rule.kind == Kind::Cause).unwrap_or(event.rule);
        stream.closed = Some(stream.lines);
        true
    }

    /// A traceback's last line has come.
    fn close(&mut self, at: usize, open: Open, line: &Line) {
        let text = line.text.trim_start_matches(['|', '+', ' ']).to_owned();
        let place = open.traceback.place.clone().filter(|_| !open.traceback.mixed);
        let runs_a_program = open.traceback.runs_a_program;
        let (begun, survived, cleans_up) = (open.begun, open.survived, open.traceback.cleans_up);
        let uncaught = open.traceback.uncaught.filter(|_| open.has_header && !open.traceback.mixed);
        if open.headers > 1 {
            let mut traceback = open.traceback;
            traceback.mixed = true;
            self.put_back(at, Open { traceback, headers: open.headers - 1, is_ignored: false, ..open });
        }
        if let Some(rule) = rules::rule(rules::IGNORED).filter(|_| open.is_ignored) {
            self.push(at, rule, &text, place, line, begun);
            return;
        }
        // A message of a program may read like a shell's.
        let is_of_shell =
            |rule: &Rule| [rules::SHELL_COMMAND, rules::SHELL_COMMAND_MISSING].contains(&rule.id);
        let rule = match rules::of(&text) {
            // A program that is started by its name, not a file that is opened.
            Some(rule) if rule.id == rules::FILE_MISSING && runs_a_program => {
                rules::rule(rules::LACKING_COMMAND)
            }
            other => other,
        };
        let rule =
            rule.filter(|rule| rule.kind != Kind::Detail && !is_of_shell(rule)).unwrap_or(rules::EXCEPTION);
        let Some(stream) = self.streams.get_mut(at) else { return };
        let (chained, nested) = (stream.chained.take(), stream.nested.take());
        stream.closed = Some(stream.lines);
        let goes_on = rule.kind == Kind::Cause && text.ends_with(':');
        if let Some(event) = nested.and_then(|nested| self.events.get_mut(nested)) {
            // The worker's own error is more precise than the wrapper's.
            event.place = place.or(event.place.take());
            event.text = text;
            event.rule = rule;
            return;
        }
        if let Some(chained) = chained
            && let Some(event) = self.events.get_mut(chained.event)
        {
            event.uncaught = uncaught;
            if chained.first_is_the_cause(event.rule, rule, cleans_up) {
                // Where the first was raised outside the user's own code, the second one tells what the program did.
                event.place = event.place.take().or(place);
            } else {
                stream.continues = Some(chained.event).filter(|_| goes_on);
                let was = std::mem::replace(&mut event.text, text);
                event.from.get_or_insert(was);
                event.rule = rule;
                event.place = place.or(event.place.take());
            }
            return;
        }
        let event = self.push(at, rule, &text, place, line, begun);
        if let Some(event) = event.and_then(|event| self.events.get_mut(event)) {
            (event.survived, event.uncaught) = (survived, uncaught);
        }
        if let Some(stream) = self.streams.get_mut(at) {
            stream.continues = event.filter(|_| goes_on);
        }
        let is_group = text.split(':').next().is_some_and(|name| name.ends_with("ExceptionGroup"));
        if let Some(stream) = self.streams.get_mut(at) {
            stream.group = event.filter(|_| is_group);
        }
    }

    /// Frames below `Fatal Python error`, the innermost first.
    fn fault_handler(&mut self, at: usize, text: &str) -> bool {
        let Some(stream) = self.streams.get_mut(at) else { return false };
        let Some(event) = stream.crashed else { return false };
        if text.starts_with("Current thread ") || text.starts_with("Thread 0x") {
            return true;
        }
        let mut frames = Traceback::default();
        if !text.starts_with("  File ") || frames.feed(text) != Step::Inside {
            stream.crashed = None;
            return false;
        }
        if let Some(event) = self.events.get_mut(event)
            && event.place.is_none()
        {
            event.place = frames.place;
        }
        true
    }

    /// A line that stands alone.
    fn single(&mut self, at: usize, line: &Line) {
        let text = rules::quoted(&line.text);
        let rule = rules::of(text);
        if self.of_nccl(at, text, rule)
            || self.of_cpp(at, text)
            || self.of_container(at, text)
            || self.of_julia(at, text)
        {
            return;
        }
        if let Some(stream) = self.streams.get_mut(at) {
            // Python 3.14 writes "Exception ignored while calling deallocator".
            stream.ignores = text.contains("Exception ignored in")
                || text.contains("Exception ignored while")
                || text.contains("Error in atexit._run_exitfuncs");
        }
        match rule {
            Some(rule) if rule.kind == Kind::Detail => self.survives(at, text),
            Some(rule) => {
                let begun = self.lines;
                let rule = self.of_abort(at, rule);
                let event = self.push(at, rule, text, None, line, begun);
                if let Some(event) = event.and_then(|event| self.events.get_mut(event)) {
                    event.survived |= says_it_survived(text) || is_banner(text);
                }
                if let Some(stream) = self.streams.get_mut(at).filter(|_| has_a_stack(rule)) {
                    stream.closed = Some(stream.lines);
                    stream.continues = event.filter(|_| says_more_below(text));
                }
                if line.text.starts_with("Fatal Python error")
                    && let Some(stream) = self.streams.get_mut(at)
                {
                    stream.crashed = event;
                }
            }
            None => {
                self.survives(at, text);
                let step = reported(&line.text);
                step.into_iter().for_each(|step| self.progress.add(step));
                if let Some(stream) = self.streams.get_mut(at) {
                    stream.ordinary += 1;
                    step.into_iter().for_each(|step| stream.progress.add(step));
                    let is_frame = text.starts_with([' ', '\t']);
                    if (is_frame || is_around_a_stack(text)) && stream.closed == Some(stream.lines - 1) {
                        stream.closed = Some(stream.lines);
                    }
                }
            }
        }
    }

    /// Lines below PyTorch's `NCCL error in: …`: the meaning of the code, `Last error:`, and NCCL's own message, which is more precise.
    fn of_nccl(&mut self, at: usize, text: &str, rule: Option<&'static Rule>) -> bool {
        const GENERAL: &str = rules::NCCL_ERROR;
        const REMOTE: &str = rules::NCCL_REMOTE;
        let Some(stream) = self.streams.get_mut(at) else { return false };
        let last = stream.last.filter(|last| {
            let event = self.events.get(*last);
            event.is_some_and(|event| {
                [GENERAL, REMOTE].contains(&event.rule.id) && event.ordinary == stream.ordinary
            })
        });
        let quoting = stream.quotes.take().filter(|(_, line)| *line == stream.lines).map(|(event, _)| event);
        if text == "Last error:" {
            stream.quotes = last.map(|last| (last, stream.lines + 1));
            return true;
        }
        // NCCL may have no message; the next line is another one then.
        let Some(rule) = rule.filter(|rule| rule.id != rules::IGNORED) else { return false };
        if let Some(event) = quoting.and_then(|quoting| self.events.get_mut(quoting)) {
            if rule.kind == Kind::Cause {
                let exception = event.text.split_once(": ").filter(|(name, _)| !name.contains(' '));
                event.text = exception.map_or_else(|| text.to_owned(), |(name, _)| format!("{name}: {text}"));
            }
            if matches!(rule.kind, Kind::Cause | Kind::Consequence) {
                event.rule = rule;
                return true;
            }
        }
        rule.id == GENERAL && last.is_some() && text.starts_with("nccl")
    }

    /// `what():  message` behind `terminate called after throwing an instance of 'std::runtime_error'`.
    fn of_cpp(&mut self, at: usize, text: &str) -> bool {
        const CALLED: &str = "terminate called after throwing an instance of '";
        let Some(message) = text.trim_start().strip_prefix("what():").map(str::trim) else { return false };
        let last = self.streams.get(at).and_then(|stream| stream.last);
        let Some(event) = last.and_then(|last| self.events.get_mut(last)) else { return false };
        let Some(name) = event.text.strip_prefix(CALLED).and_then(|rest| rest.split('\'').next()) else {
            return false;
        };
        // Another row may know the message.
        let is_known = |rule: &Rule| matches!(rule.kind, Kind::Cause | Kind::Consequence);
        if event.rule.kind != Kind::Exit || message.is_empty() || rules::of(message).is_some_and(is_known) {
            return false;
        }
        event.text = format!("uncaught C++ exception: {name}: {message}");
        event.rule = rules::of(&event.text).unwrap_or(event.rule);
        true
    }

    /// `nested task error: BoundsError: …` below `ERROR: LoadError: TaskFailedException` and its stack.
    fn of_julia(&mut self, at: usize, text: &str) -> bool {
        let Some(nested) = text.trim_start().strip_prefix("nested task error: ") else { return false };
        let last = self.streams.get(at).and_then(|stream| stream.last);
        let event = last.and_then(|last| self.events.get_mut(last));
        let Some(event) = event.filter(|event| event.text.ends_with("TaskFailedException")) else {
            return false;
        };
        event.text = format!("{}: {nested}", event.text);
        true
    }

    /// Lines of pyxis, enroot and Docker below the first one about a container that did not start: one of them has the reason.
    fn of_container(&mut self, at: usize, text: &str) -> bool {
        let Some(stream) = self.streams.get(at) else { return false };
        let Some(event) = stream.last.and_then(|last| self.events.get_mut(last)) else { return false };
        if event.rule.id != rules::CONTAINER || event.ordinary != stream.ordinary {
            return false;
        }
        let reason = match text.split_once("pyxis: ") {
            Some((_, line)) => line.strip_prefix("    ").unwrap_or_default().trim(),
            None if text.starts_with("nvidia-container-cli: ") => text,
            None => return false,
        };
        let is_known = event.text.contains(REASON);
        let is_other = ["[INFO]", "[WARN]"].iter().any(|level| reason.starts_with(level));
        if is_known || is_other || reason.is_empty() {
            return true;
        }
        event.text = format!("{}{REASON}{reason}", event.text);
        if let Some(rule) =
            rules::of(reason).filter(|rule| rule.kind == Kind::Cause && rule.class != Class::Data)
        {
            event.rule = rule;
        }
        true
    }

    /// An abort behind a consequence follows from it: a watchdog that ends its process.
    fn of_abort(&self, at: usize, rule: &'static Rule) -> &'static Rule {
        /// Ordinary lines that may lie between.
        const BETWEEN: usize = 30;
        let Some(stream) = self.streams.get(at).filter(|_| rule.id == rules::TERMINATE) else { return rule };
        match stream.last.and_then(|last| self.events.get(last)) {
            Some(last)
                if last.rule.kind == Kind::Consequence && stream.ordinary <= last.ordinary + BETWEEN =>
            {
                last.rule
            }
            _ => rule,
        }
    }

    fn push(
        &mut self,
        at: usize,
        rule: &'static Rule,
        text: &str,
        place: Option<Place>,
        line: &Line,
        begun: usize,
    ) -> Option<usize> {
        let stream = self.streams.get_mut(at)?;
        // Room for what comes after a flood of lines that a program calls errors.
        let most = if rule.id == rules::ERROR_LINE { MOST_EVENTS / 2 } else { MOST_EVENTS };
        if self.events.len() >= most {
            return None;
        }
        stream.last = Some(self.events.len());
        self.events.push(Event {
            rule,
            text: text.to_owned(),
            from: None,
            place,
            stream: at,
            rank: line.rank.or(self.rank).or_else(|| rank_in(&line.text)),
            when: line.when,
            after: stream.moment,
            line: begun,
            ordinary: stream.ordinary,
            steps: stream.progress.steps,
            steps_of_all: self.progress.steps,
            survived: false,
            uncaught: None,
        });
        stream.last
    }
}

/// The rank that a message names as its own: `[Rank 3]`, `PG 0 Rank 3`, `[0] NCCL` names a GPU and is none.
fn rank_in(text: &str) -> Option<u32> {
    let at = text
        .find("[Rank ")
        .map(|at| at + "[Rank ".len())
        .or_else(|| text.find(" Rank ").map(|at| at + " Rank ".len()))?;
    let digits: String = text.get(at..)?.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A message as it is shown: a launcher's in plain words, credentials masked, in one line; one that is cut ends with `…`.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 300;
    if let Some(plain) = launcher::plain(text) {
        return plain;
    }
    let masked = mask::mask(text.trim());
    let masked = masked.trim();
    let kept = if masked.chars().count() > MOST { MOST - 1 } else { MOST };
    railgate_text::shorten(masked, kept)
}
