//! Reports as lines of text, for programs not written in Python: docs/application-reports.md.

use super::file::{bounded_start, class_of, millis, times};
use super::{AppEvent, AppEventKind, Convention, Model, RankApplication};

pub(super) const HEAD: &[u8] = b"railgate-app 1";

const MOST_EVENTS: usize = 64;
/// Longest accepted step, checkpoint or wait: a year.
const MOST_SECONDS: f64 = 3.2e7;

/// Parses a rank's lines. Unknown lines are skipped, since the last one may be incomplete.
pub(super) fn read(name: &str, bytes: &[u8]) -> Result<RankApplication, String> {
    let text = String::from_utf8_lossy(bytes);
    let mut rank = RankApplication { file: name.to_owned(), ..RankApplication::default() };
    let mut state = State { classes: vec![0; 384], ..State::default() };
    // A line counts once its newline is written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let mut words = line.split_ascii_whitespace();
        let verb = words.next().unwrap_or_default();
        let fields: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
        let flag = line.split_ascii_whitespace().nth(1).unwrap_or_default();
        state.line(&mut rank, verb, flag, &fields);
    }
    if rank.started == 0 {
        return Err("no line has a time (t=SECONDS, of the Unix clock)".to_owned());
    }
    rank.starts = rank.starts.max(1);
    if state.timed > 0 {
        rank.step_s = Some(times(&state.classes, state.timed, state.total, state.min, state.max));
    }
    Ok(rank)
}

#[derive(Default)]
struct State {
    classes: Vec<u64>,
    timed: u64,
    total: f64,
    min: f64,
    max: f64,
    last: Option<f64>,
    begun: Option<f64>,
    saving: Option<f64>,
    saved: f64,
}

fn number(fields: &[(&str, &str)], name: &str) -> Option<f64> {
    let value: f64 = fields.iter().find(|(key, _)| *key == name)?.1.parse().ok()?;
    (value.is_finite() && (0.0..=1e30).contains(&value)).then_some(value)
}

fn whole<T: std::str::FromStr>(fields: &[(&str, &str)], name: &str) -> Option<T> {
    fields.iter().find(|(key, _)| *key == name)?.1.parse().ok()
}

impl State {
    fn line(&mut self, rank: &mut RankApplication, verb: &str, flag: &str, fields: &[(&str, &str)]) {
        let at = number(fields, "t");
        if let Some(time) = at.and_then(millis) {
            if rank.started == 0 {
                rank.started = time;
            }
            rank.last_seen = rank.last_seen.max(time);
        }
        let event = |rank: &mut RankApplication, what| {
            let step = rank.last_number.unwrap_or(rank.steps);
            let time = rank.last_seen;
            if rank.events.len() < MOST_EVENTS {
                rank.events.push(AppEvent { time, step, what, loss: None });
            } else {
                rank.more_events += 1;
            }
        };
        match verb {
            "railgate-app" => {
                rank.starts = rank.starts.saturating_add(1);
                rank.rank = whole(fields, "rank").or(rank.rank);
                rank.local_rank = whole(fields, "local_rank").or(rank.local_rank);
                rank.world = whole(fields, "world").or(rank.world);
                rank.start_number = whole(fields, "start").map_or(rank.start_number, bounded_start);
                (self.last, self.begun, self.saving, self.saved) = (None, at, None, 0.0);
                event(rank, AppEventKind::Start);
            }
            "model" => rank.model = Some(model(fields)),
            "step" => self.step(rank, at, fields),
            "checkpoint" if flag == "begin" => {
                self.saving = at;
                rank.in_checkpoint = true;
            }
            "checkpoint" => {
                let took = number(fields, "seconds").or_else(|| Some(at? - self.saving.take()?));
                if let Some(took) = took.filter(|took| (0.0..=MOST_SECONDS).contains(took)) {
                    rank.checkpoints += 1;
                    rank.checkpoint_s += took;
                    self.saved += took;
                    rank.checkpoint_number = whole(fields, "n").or(rank.last_number);
                }
                rank.in_checkpoint = false;
            }
            "input" => {
                if let Some(took) = number(fields, "seconds").filter(|took| *took <= MOST_SECONDS) {
                    *rank.input_s.get_or_insert(0.0) += took;
                }
            }
            "nan" => event(rank, AppEventKind::Nan),
            "spike" => event(rank, AppEventKind::Spike),
            "end" => event(rank, AppEventKind::End),
            _ => {}
        }
    }

    fn step(&mut self, rank: &mut RankApplication, at: Option<f64>, fields: &[(&str, &str)]) {
        let between = || Some(at? - self.last? - self.saved);
        let took = number(fields, "seconds").or_else(between);
        let took = took.map(|took| took.max(0.0)).filter(|took| *took <= MOST_SECONDS);
        let (tokens, samples) = (number(fields, "tokens"), number(fields, "samples"));
        let add = |sum: &mut Option<f64>, more: Option<f64>| {
            if let Some(more) = more {
                *sum.get_or_insert(0.0) += more;
            }
        };
        add(&mut rank.tokens, tokens);
        add(&mut rank.samples, samples);
        let n = whole::<u64>(fields, "n");
        let again = matches!((n, rank.last_number), (Some(n), Some(last)) if n <= last);
        rank.redone += u64::from(again);
        if let Some(n) = n {
            rank.first_number.get_or_insert(n);
            rank.last_number = rank.last_number.max(Some(n));
        }
        match took {
            Some(took) => {
                add(&mut rank.timed_tokens, tokens);
                add(&mut rank.timed_samples, samples);
                if again {
                    rank.redone_s += took;
                }
                self.min = if self.timed == 0 { took } else { self.min.min(took) };
                self.max = self.max.max(took);
                self.total += took;
                self.timed += 1;
                if let Some(class) = self.classes.get_mut(class_of(took)) {
                    *class += 1;
                }
            }
            None => {
                let since = at.zip(self.begun).map(|(at, begun)| at - begun - self.saved);
                rank.start_up_s += since.unwrap_or(0.0).clamp(0.0, MOST_SECONDS);
            }
        }
        rank.steps += 1;
        self.saved = 0.0;
        if at.is_some() {
            self.last = at;
        }
        if let Some(time) = at.and_then(millis) {
            rank.first_step.get_or_insert(time);
            rank.last_step = Some(time);
        }
    }
}

fn model(fields: &[(&str, &str)]) -> Model {
    let text = |name: &str| {
        let value = fields.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| *value);
        value.chars().take(100).collect::<String>()
    };
    let value = |name: &str| number(fields, name);
    Model {
        name: text("name"),
        convention: match text("convention").as_str() {
            "causal" => Convention::Causal,
            "megatron" => Convention::Megatron,
            "explicit" => Convention::Explicit,
            _ => Convention::Palm,
        },
        params: value("params"),
        active_params: value("active_params"),
        layers: value("layers"),
        heads: value("heads"),
        head_dim: value("head_dim"),
        hidden: value("hidden"),
        seq_len: value("seq_len"),
        vocab: value("vocab"),
        flops_per_token: value("flops_per_token"),
        flops_per_sample: value("flops_per_sample"),
        dtype: text("dtype"),
        global: text("tokens") == "global",
        gpus: value("gpus"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_from_a_shell_script_are_parsed() {
        let text = "railgate-app 1 rank=2 world=4 t=1800000000\n\
                    model params=1e9 layers=2 heads=4 head_dim=8 seq_len=16 dtype=bf16 tokens=global\n\
                    step n=10 tokens=100 t=1800000005\n\
                    step n=11 tokens=100 t=1800000007\n\
                    checkpoint begin t=1800000007\n\
                    checkpoint end t=1800000010\n\
                    step n=12 tokens=100 t=1800000012\n\
                    nan t=1800000012\n\
                    railgate-app 1 rank=2 start=1 t=1800000100\n\
                    step n=12 tokens=100 seconds=4 t=1800000110\n\
                    step n=13 tok";
        let rank = super::super::read("x", text.as_bytes()).unwrap();
        assert_eq!((rank.rank, rank.world, rank.starts, rank.steps), (Some(2), Some(4), 2, 4));
        assert_eq!(rank.start_number, 1);
        assert_eq!((rank.tokens, rank.timed_tokens), (Some(400.0), Some(300.0)));
        assert_eq!((rank.first_number, rank.last_number, rank.redone), (Some(10), Some(12), 1));
        assert_eq!((rank.checkpoints, rank.checkpoint_s, rank.checkpoint_number), (1, 3.0, Some(11)));
        let times = rank.step_s.unwrap();
        assert_eq!((times.count, times.min, times.max, times.total), (3, 2.0, 4.0, 8.0));
        assert!((times.p50 - 2.0).abs() < 0.1 && (rank.redone_s - 4.0).abs() < 1e-9, "{times:?}");
        assert_eq!(rank.start_up_s, 5.0);
        assert_eq!(rank.events[1].what, AppEventKind::Nan);
        assert!(rank.model.unwrap().global);
    }

    proptest! {
        #[test]
        fn no_lines_panic(text in "(step|model|checkpoint (begin|end)|input|nan|railgate-app 1| |t=|n=|seconds=|-?[0-9e.]{0,9}|\n|\\PC){0,40}") {
            let _ = super::super::read("x", format!("railgate-app 1 t=1800000000\n{text}\n").as_bytes());
        }
    }
}
