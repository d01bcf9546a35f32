//! Steps of a training that a log reports: a process that continues to report them had survived an error.

/// Words in front of the number of a step.
struct Unit {
    words: &'static [&'static str],
    /// The word may be the end of another one: `global_step`. Not `iter` of `filter`.
    is_suffix: bool,
    /// What is further than nothing: a clean-up that names the last epoch is no progress if none was reported before.
    from: Option<f64>,
    /// Its numbers begin again in each epoch.
    begins_again: bool,
}

/// Each has numbers of its own: an epoch after a step is not a step back.
const UNITS: [Unit; 3] = [
    Unit {
        words: &["step", "Step", "iteration", "Iteration"],
        is_suffix: true,
        from: Some(0.0),
        begins_again: true,
    },
    Unit { words: &["iter", "Iter"], is_suffix: false, from: None, begins_again: true },
    Unit { words: &["epoch", "Epoch"], is_suffix: false, from: None, begins_again: false },
];

/// Further steps that were reported.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) steps: usize,
    /// The last number of each unit.
    reported: [Option<f64>; UNITS.len()],
    /// Of several processes, whose reports are not in order: only a number above all others counts.
    of_many: bool,
}

impl Progress {
    pub(crate) fn of_many() -> Progress {
        Progress { of_many: true, ..Progress::default() }
    }

    pub(crate) fn add(&mut self, (unit, number): (usize, f64)) {
        let (Some(unit), Some(last)) = (UNITS.get(unit), self.reported.get_mut(unit)) else { return };
        let before = last.or(unit.from);
        self.steps += usize::from(before.is_some_and(|before| number > before));
        // A history of epochs after the last one is no progress.
        let begins_again = unit.begins_again && !self.of_many;
        *last = Some(if begins_again { number } else { before.map_or(number, |before| number.max(before)) });
    }
}

/// The step that a line reports: the unit, and its number.
pub(crate) fn reported(text: &str) -> Option<(usize, f64)> {
    UNITS.iter().enumerate().find_map(|(at, unit)| Some((at, unit.number(text)?)))
}

impl Unit {
    /// The number of `step 12`, `step: 12/500`, `iteration     12`, `'epoch': 0.12` in a line.
    fn number(&self, text: &str) -> Option<f64> {
        self.words.iter().find_map(|word| {
            let (before, after) = text.split_once(word)?;
            if !self.is_suffix && before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                return None;
            }
            let number = after.trim_start_matches([' ', ':', '=', '[', '#', '\'', '"']);
            let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
            number.get(..end)?.trim_end_matches('.').parse().ok()
        })
    }
}
