use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

/// Maximum number of single pauses that are kept: the longest ones.
const MOST_PAUSES: usize = 32;
/// Maximum number of sums.
const MOST_SUMS: usize = 32;
/// Maximum number of ranks behind that are listed; if so many are, no single one is the cause.
const MOST_BEHIND: usize = 8;
/// Longest name of an operation.
const MOST_NAME: usize = 32;

/// Times in which the node's ranks enqueued no operation for longer than usual, from the counts of NCCL's profiler
/// plugin, read while the job ran. Nothing is timed for it, so it also shows rare waits of which no call was timed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pauses {
    /// All pauses, summed by communicator and ranks behind.
    pub sums: Vec<PauseSum>,
    /// The longest pauses, in order of time.
    pub longest: Vec<Pause>,
    /// Maximum number of processes left out at once: the counts of processes with messages between ranks, or with CUDA
    /// graphs, do not show who waits.
    pub left_out: u32,
}

/// Pauses with the same ranks behind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PauseSum {
    /// [`super::Communicator::hash`].
    pub communicator: String,
    /// [`Pause::behind`].
    pub behind: Vec<u32>,
    /// Number of pauses.
    pub pauses: u64,
    /// Their length, seconds.
    pub seconds: f64,
    /// Sum of [`Pause::lost_s`].
    pub lost_s: f64,
}

/// A time in which ranks enqueued no operation. A precision of 0.1 s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// Last operation before the pause.
    pub start: UnixMillis,
    /// Time to the next operation, seconds.
    pub seconds: f64,
    /// The same, less the usual time between two operations of the rank.
    pub lost_s: f64,
    /// The largest communicator in which ranks were behind: [`super::Communicator::hash`].
    pub communicator: String,
    /// Ranks of that communicator that ended the pause and had enqueued fewer operations than others of the node, which
    /// stood still meanwhile. Empty if none had: the node waited for another one, or paused as a whole.
    pub behind: Vec<u32>,
    /// Fewest operations that a rank of the node had enqueued.
    pub fewest: u64,
    /// Most operations.
    pub most: u64,
    /// A rank with `most` operations.
    pub ahead: u32,
    /// The last operation of that rank: `AllReduce`.
    pub op: String,
    /// Its number among operations of the same name; `None` if not known.
    pub seq: Option<u64>,
}

impl Pause {
    /// End of the pause.
    pub fn end(&self) -> UnixMillis {
        let seconds = std::time::Duration::try_from_secs_f64(self.seconds).unwrap_or_default();
        self.start.saturating_add(u64::try_from(seconds.as_millis()).unwrap_or(0))
    }
}

impl Pauses {
    /// Adds a pause. When there are too many, sums of further ranks and the shortest pauses are dropped.
    pub fn add(&mut self, mut pause: Pause) {
        pause.behind.truncate(MOST_BEHIND);
        pause.op.truncate(pause.op.floor_char_boundary(MOST_NAME));
        let same = |sum: &&mut PauseSum| sum.communicator == pause.communicator && sum.behind == pause.behind;
        let room = self.sums.len() < MOST_SUMS;
        match self.sums.iter_mut().find(same) {
            Some(sum) => {
                sum.pauses += 1;
                sum.seconds += pause.seconds;
                sum.lost_s += pause.lost_s;
            }
            None if room => self.sums.push(PauseSum {
                communicator: pause.communicator.clone(),
                behind: pause.behind.clone(),
                pauses: 1,
                seconds: pause.seconds,
                lost_s: pause.lost_s,
            }),
            None => {}
        }
        self.longest.push(pause);
        if self.longest.len() > MOST_PAUSES {
            let length = |at: &usize| self.longest.get(*at).map_or(0.0, |pause| pause.lost_s);
            let shortest = (0..self.longest.len()).min_by(|a, b| length(a).total_cmp(&length(b)));
            self.longest.remove(shortest.unwrap_or(0));
        }
    }

    /// Removes what was found in a communicator.
    pub fn forget(&mut self, communicator: &str) {
        self.sums.retain(|sum| sum.communicator != communicator);
        self.longest.retain(|pause| pause.communicator != communicator);
    }

    /// Whether there is anything to report.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty() && self.left_out == 0
    }

    /// The same within the limits, for a list that another process wrote.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.sums.truncate(MOST_SUMS);
        self.longest.truncate(MOST_PAUSES);
        let names = self.longest.iter_mut().flat_map(|pause| [&mut pause.communicator, &mut pause.op]);
        names
            .chain(self.sums.iter_mut().map(|sum| &mut sum.communicator))
            .for_each(|name| name.truncate(name.floor_char_boundary(MOST_NAME)));
        let lists = self.longest.iter_mut().map(|pause| &mut pause.behind);
        lists
            .chain(self.sums.iter_mut().map(|sum| &mut sum.behind))
            .for_each(|list| list.truncate(MOST_BEHIND));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(start: u64, lost_s: f64, rank: u32) -> Pause {
        Pause { start, seconds: lost_s + 0.1, lost_s, behind: vec![rank], ..Pause::default() }
    }

    #[test]
    fn the_longest_are_kept_and_all_are_summed() {
        let mut pauses = Pauses::default();
        (0..40_u32).for_each(|n| pauses.add(pause(u64::from(n), if n == 7 { 0.4 } else { f64::from(n) }, 3)));
        assert_eq!(pauses.longest.len(), MOST_PAUSES);
        assert!(pauses.longest.iter().all(|one| one.lost_s >= 8.0), "{pauses:?}");
        assert!(pauses.longest.is_sorted_by_key(|one| one.start));
        let [sum] = &pauses.sums[..] else { panic!("{pauses:?}") };
        assert_eq!((sum.pauses, &sum.behind[..]), (40, &[3][..]));
        assert!((sum.seconds - sum.lost_s - 4.0).abs() < 1e-9, "{sum:?}");
        (0..100).for_each(|rank| pauses.add(pause(1, 0.1, rank)));
        assert_eq!(pauses.sums.len(), MOST_SUMS);
        pauses.forget("");
        assert!(pauses.is_empty());
    }

    #[test]
    fn lists_of_another_process_are_cut() {
        let long = Pause { behind: vec![1; 99], op: "é".repeat(99), ..Pause::default() };
        let sum = PauseSum { communicator: "x".repeat(1 << 20), behind: vec![1; 99], ..PauseSum::default() };
        let pauses = Pauses { sums: vec![sum; 99], longest: vec![long; 99], left_out: 0 }.bounded();
        assert!(serde_json::to_vec(&pauses).unwrap().len() < 20_000);
    }

    /// Parts of earlier releases, and readers of earlier releases.
    #[test]
    fn reports_with_and_without_it_are_read() {
        let old: super::super::Communication = serde_json::from_str("{}").unwrap();
        assert_eq!((&old.pauses, serde_json::to_string(&old).unwrap().contains("pauses")), (&None, false));
        let new: Pauses =
            serde_json::from_str(r#"{"longest":[{"start":5,"seconds":1.5,"later":1}]}"#).unwrap();
        assert_eq!(new.longest.first().map(Pause::end), Some(1505));
        let odd = Pause { seconds: f64::NAN, ..Pause::default() };
        assert_eq!(odd.end(), 0);
    }
}
