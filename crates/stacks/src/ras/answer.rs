//! NCCL's answer in sentences.

use std::collections::{BTreeMap, BTreeSet};

use railgate_node_report::stacks::MOST_RAS;
use serde::Deserialize;

/// Most ranks named in a sentence.
const MOST_NAMED: usize = 3;

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    communicators: Vec<Communicator>,
}

#[derive(Debug, Deserialize)]
struct Communicator {
    #[serde(default)]
    hash: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    ranks: Vec<Rank>,
    #[serde(default)]
    missing_ranks: Vec<Rank>,
}

#[derive(Debug, Deserialize)]
struct Rank {
    rank: u64,
    #[serde(default)]
    host: String,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    status: Status,
    #[serde(default)]
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    async_error: u64,
    abort_flag: bool,
    considered_dead: bool,
}

/// What the answer says about ranks that differ from the others.
pub(super) fn sentences(text: &str) -> Result<Vec<String>, String> {
    let text = repaired(text);
    let answer: Answer = serde_json::from_str(&text).map_err(|why| format!("the answer of RAS: {why}"))?;
    let mut found = Vec::new();
    for of in &answer.communicators {
        found.extend(missing(of));
        found.extend(errors(of));
        found.extend(counts(of));
    }
    if found.is_empty() {
        let ranks: BTreeSet<(&str, u64)> = answer
            .communicators
            .iter()
            .flat_map(|of| of.ranks.iter().map(|rank| (rank.host.as_str(), rank.pid)))
            .collect();
        found.push(match answer.communicators.len() {
            0 => "there is no communicator".to_owned(),
            some => format!(
                "in each of {some} communicators all ranks have called the same collectives as often ({} processes)",
                ranks.len()
            ),
        });
    }
    let more = found.len().saturating_sub(MOST_RAS);
    if more > 0 {
        found.truncate(MOST_RAS - 1);
        found.push(format!("and {} more sentences", more + 1));
    }
    Ok(found)
}

/// NCCL 2.28.9 omits a comma in front of the status of a rank that does not answer. Its JSON has one value in each line.
fn repaired(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut all = String::with_capacity(text.len());
    while let Some(line) = lines.next() {
        let line = line.trim();
        all.push_str(line);
        let open = line.is_empty() || line.ends_with(['{', '[', ',', ':']);
        let value_follows = lines.peek().is_some_and(|next| next.trim().starts_with(['"', '{']));
        if !open && value_follows {
            all.push(',');
        }
        all.push('\n');
    }
    all
}

fn missing(of: &Communicator) -> Option<String> {
    if of.missing_ranks.is_empty() {
        return None;
    }
    let dead = of.missing_ranks.iter().all(|rank| rank.status.considered_dead);
    let what = match (dead, of.missing_ranks.len()) {
        (true, 1) => "is dead",
        (true, _) => "are dead",
        (false, 1) => "does not answer",
        (false, _) => "do not answer",
    };
    Some(format!("{} {what}", ranks(of, &of.missing_ranks.iter().collect::<Vec<_>>())))
}

fn errors(of: &Communicator) -> Option<String> {
    let with: Vec<&Rank> =
        of.ranks.iter().filter(|rank| rank.status.async_error != 0 || rank.status.abort_flag).collect();
    let first = with.first()?;
    let what = match first.status.async_error {
        0 => "aborted".to_owned(),
        error => format!("reported NCCL error {error}"),
    };
    Some(format!("{} {what}", ranks(of, &with)))
}

/// Ranks that have called a collective less often than others. In a healthy job ranks differ by one or two at any moment.
fn counts(of: &Communicator) -> Vec<String> {
    let names: BTreeSet<&String> = of.ranks.iter().flat_map(|rank| rank.collective_counts.keys()).collect();
    let of_name = |name: &String| {
        let count = |rank: &Rank| rank.collective_counts.get(name).copied().unwrap_or(0);
        let fewest = of.ranks.iter().map(count).min()?;
        let most = of.ranks.iter().map(count).max().filter(|most| *most > fewest)?;
        let behind: Vec<&Rank> = of.ranks.iter().filter(|rank| count(rank) == fewest).collect();
        let have = if behind.len() == 1 { "has" } else { "have" };
        let times = |count: u64| if count == 1 { "1 time".to_owned() } else { format!("{count} times") };
        Some(format!("{} {have} called {name} {}, others {}", ranks(of, &behind), times(fewest), times(most)))
    };
    names.into_iter().filter_map(of_name).collect()
}

/// `rank 1 of the 2 in communicator 85ff6a75e0b5c5be (process 5256 on 192.0.2.2)`
fn ranks(of: &Communicator, ranks: &[&Rank]) -> String {
    let numbers: Vec<String> = ranks.iter().take(MOST_NAMED).map(|rank| rank.rank.to_string()).collect();
    let hash = of.hash.trim_start_matches("0x");
    let place = match ranks {
        [one] => format!(" (process {} on {})", one.pid, one.host),
        _ => String::new(),
    };
    let who = match (ranks.len(), numbers.join(", ")) {
        (1, number) => format!("rank {number}"),
        (many, numbers) if many <= MOST_NAMED => format!("ranks {numbers}"),
        (many, numbers) => format!("ranks {numbers} and {} more", many - MOST_NAMED),
    };
    format!("{who} of the {} in communicator {hash}{place}", of.size)
}
