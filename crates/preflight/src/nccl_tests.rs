//! What `all_reduce_perf` of nccl-tests prints, in each release from 2.0 to 2.19.

use std::collections::BTreeSet;
use std::fmt;

/// The result of `all_reduce_perf`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllReduce {
    /// The sizes, in the order in which they were measured.
    pub sizes: Vec<SizeResult>,
    /// Number of ranks that it lists; 0: it listed none.
    pub ranks: usize,
    /// Number of hosts of these ranks.
    pub hosts: usize,
    /// Version of the NCCL library, `2.28.9`, from nccl-tests 2.17.4 on.
    pub nccl: Option<String>,
    /// A rank was listed twice: several processes each ran a test of their own.
    repeated: bool,
}

/// The result of a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeResult {
    /// Size of the message, bytes.
    pub bytes: u64,
    /// Bus bandwidth out of place, GB/s (1e9).
    pub busbw_gb_s: f64,
    /// Values that were wrong, out of place and in place together; `None`: they were not compared.
    pub wrong: Option<u64>,
}

/// Why a result is not one of all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial {
    /// Each task ran a test of its own.
    Alone,
    /// The program was ended before it had listed all ranks.
    Cut,
}

/// Columns of a row.
struct Columns {
    busbw: usize,
    /// The columns of wrong values, out of place and in place.
    wrong: Vec<usize>,
    /// Up to 2.12 these columns have the largest error, not a count.
    has_counts: bool,
}

/// The columns where no heading is known: those of 2.13 and later.
const USUAL: &str = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong";

impl AllReduce {
    /// Parses the output. Lines that are not part of it are left out.
    pub fn parse(text: &str) -> AllReduce {
        let mut found = AllReduce::default();
        let (mut ranks, mut hosts) = (BTreeSet::new(), BTreeSet::new());
        let mut columns = Columns::of(USUAL);
        let mut errors_without_count = Vec::new();
        let mut out_of_bounds = None;
        for line in text.lines() {
            let Some(comment) = line.trim_start().strip_prefix('#') else {
                let Some((size, is_checked)) = columns.as_ref().and_then(|columns| columns.row(line)) else {
                    continue;
                };
                if is_checked && size.wrong.is_none() {
                    errors_without_count.push(found.sizes.len());
                }
                found.sizes.push(size);
                continue;
            };
            if let Some(heading) = Columns::of(comment) {
                columns = Some(heading);
            } else if let Some((rank, host)) = rank(comment) {
                found.repeated |= !ranks.insert(rank);
                hosts.insert(host);
            } else if let Some((_, code)) = comment.split_once("nccl-library=") {
                found.nccl = version(code);
            } else if let Some((_, count)) = comment.split_once("Out of bounds values :") {
                let count: Option<u64> = count.split_whitespace().next().and_then(|word| word.parse().ok());
                out_of_bounds = count.map(|count| count.saturating_add(out_of_bounds.unwrap_or(0)));
            }
        }
        // The sum over all sizes: each size is right if it is 0. Otherwise it is not known which one is wrong, and all have it.
        for place in errors_without_count {
            if let Some(size) = found.sizes.get_mut(place) {
                size.wrong = out_of_bounds;
            }
        }
        (found.ranks, found.hosts) = (ranks.len(), hosts.len());
        found
    }

    /// Returns why the result is not one of all these nodes together. `failed`: the program, or one of its tasks, ended with an error, and
    /// ranks that are not listed do not show that the others ran alone.
    pub fn partial(&self, nodes: usize, failed: bool) -> Option<Partial> {
        if self.ranks == 0 {
            return None;
        }
        match (self.repeated, self.hosts < nodes) {
            (true, _) => Some(Partial::Alone),
            (false, true) => Some(if failed { Partial::Cut } else { Partial::Alone }),
            (false, false) => None,
        }
    }
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Partial::Alone => {
                "each task ran alone: it is not built for MPI, or needs another --mpi of srun (SLURM_MPI_TYPE)"
            }
            Partial::Cut => "it was ended before it had listed all ranks",
        })
    }
}

impl Columns {
    /// Parses a heading.
    fn of(heading: &str) -> Option<Columns> {
        let words: Vec<&str> = heading.split_whitespace().collect();
        if words.first() != Some(&"size") {
            return None;
        }
        let places = |name: &str| {
            let all = words.iter().enumerate().filter(|(_, word)| **word == name);
            all.map(|(place, _)| place).collect::<Vec<_>>()
        };
        let has_counts = words.contains(&"#wrong");
        let wrong = places(if has_counts { "#wrong" } else { "error" });
        Some(Columns { busbw: *places("busbw").first()?, wrong, has_counts })
    }

    /// Parses a row. The second value tells whether its values were compared.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    fn row(&self, line: &str) -> Option<(SizeResult, bool)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bytes = words.first()?.parse().ok()?;
        let busbw_gb_s: f64 = words.get(self.busbw)?.parse().ok()?;
        // `N/A` where the check is off. Counts above 999,999 are written as 1e+06.
        let counts: Vec<f64> =
            self.wrong.iter().filter_map(|place| words.get(*place)?.parse().ok()).collect();
        let is_checked = !counts.is_empty() && counts.len() == self.wrong.len();
        let counted = is_checked && self.has_counts;
        let wrong =
            counted.then(|| counts.iter().map(|count| count.ceil() as u64).fold(0, u64::saturating_add));
        busbw_gb_s.is_finite().then_some((SizeResult { bytes, busbw_gb_s, wrong }, is_checked))
    }
}

/// Parses `  Rank  0 Group  0 Pid   1234 on        gn1 device  0 [0000:61:00] NVIDIA H200`. Up to 2.13.9 there are no groups.
fn rank(comment: &str) -> Option<(u64, &str)> {
    let mut words = comment.split_whitespace();
    let rank = (words.next() == Some("Rank")).then(|| words.next()?.parse().ok())??;
    let host = words.skip_while(|word| *word != "on").nth(1)?;
    Some((rank, host))
}

/// Makes `2.28.9` of 22809, and `2.8.4` of 2804: the code has another form up to 2.8.
fn version(code: &str) -> Option<String> {
    let code: u32 = code.split_whitespace().next()?.parse().ok()?;
    match code {
        1000..10_000 => Some(format!("{}.{}.{}", code / 1000, code / 100 % 10, code % 100)),
        10_000..1_000_000 => Some(format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)),
        _ => None,
    }
}
