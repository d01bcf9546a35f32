use railgate_model::Reading;
use railgate_node_report::NodeReport;
use railgate_node_report::plain::{byte_rate, clock, span};
use railgate_node_report::usage::{QuietTime, RailUsage};

use crate::facts::Facts;
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "degraded-rail",
    about: "a rail carried traffic, then nothing, while the other rails of its node carried traffic",
    class: Class::Unknown,
    evidence: "the sampler's rates of each rail's port. A rail is quiet while it carries at most 1 % of the median of the node's other
rails, and these carry traffic. The longest quiet time counts, if the rail carried traffic before it. The confidence is high if the
port's own counter shows that its link went down during the run. Times are exact to a sample (5 s), or to a minute for what is more
than an hour old. Ports count for the whole node: on a shared node this includes the traffic of other jobs.",
    why: "with NCCL's own failover a job survives a failed port and continues with less bandwidth. A link that failed still needs repair,
and a second failure ends the job.",
    look_alikes: "a program that uses fewer rails from some point on: if this is so on more than half of three or more nodes, only rails
whose link went down are reported. The traffic of another job of the node that ended. In a job of two nodes both ends of a failed link
are quiet: that whose link went down comes first.",
    fix: "check the port, its cable and its switch port on both ends before the next job; a restart of the job uses all rails again",
    thresholds: Settings::KEYS,
    line: Line::Rails,
    over: Over::AllTime,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    lasts: Time(120), 0 to 604800, "time", "the rail was quiet for at least this sampled time";
    carried: Time(60), 0 to 604800, "time", "before, it carried traffic for at least this sampled time";
    used_mb_s: Number(100.0), 0.0 to 1000000.0, "MB/s", "before, it carried at least this much, and so did the median of the other rails while it was quiet";
    others_percent: Number(25.0), 0.0 to 100.0, "%", "while it was quiet, the median of the others was at least this much of what it carried before: less may be a checkpoint over one rail";
}

fn find(facts: &Facts<'_>) -> Vec<Found> {
    let mut found: Vec<(bool, Found)> = Vec::new();
    for node in facts.nodes {
        for rail in node.usage.iter().flat_map(|usage| &usage.rails) {
            let Some((number, quiet)) = rail.rail.zip(stopped(facts, rail)) else { continue };
            let part = format!("{} r{number} ({})", node.node, rail.hca);
            let until = match quiet.end {
                Some(end) => format!(" to {}", minute(end)),
                None => String::new(),
            };
            let downed = downed(node, rail);
            let link = match downed {
                Some(1) => "; its link went down once".to_owned(),
                Some(times) => format!("; its link went down {times} times"),
                None => String::new(),
            };
            let what = format!(
                "{} ran degraded on rail {number} ({}) from {}{until} UTC: no traffic for {}, {} before; the other rails carried {}{link}",
                node.node,
                rail.hca,
                minute(quiet.start),
                span(quiet.seconds),
                byte_rate(quiet.before_bytes_s),
                byte_rate(quiet.others_bytes_s),
            );
            let confidence = if downed.is_some() { "high" } else { "medium" };
            // What it cost is not known, and it did not end the job.
            let one =
                Found { costs: Some(0.0), since: Some(quiet.start), ..Found::new(confidence, part, what) };
            found.push((downed.is_none(), one));
        }
    }
    // A failed port leaves the ports of its partners with the traffic of others, but a program stops on all of its nodes.
    let judged = facts.nodes.iter().filter(|node| node.usage.is_some()).count();
    let quiet = |node: &&NodeReport| {
        node.usage.iter().flat_map(|usage| &usage.rails).any(|rail| stopped(facts, rail).is_some())
    };
    if judged > 2 && 2 * facts.nodes.iter().filter(quiet).count() > judged {
        found.retain(|(partner, _)| !partner);
    }
    // The end that lost its link comes before the end that lost its partner.
    found.sort_by_key(|(partner, _)| *partner);
    found.into_iter().map(|(_, one)| one).collect()
}

/// The time in which a rail was quiet, if the thresholds call it degraded.
pub(super) fn stopped(facts: &Facts<'_>, rail: &RailUsage) -> Option<QuietTime> {
    let set = &facts.rules.degraded_rail;
    let used = 1e6 * set.used_mb_s.get();
    let quiet = rail.quiet.known()?.longest?;
    let carried = quiet.before_s > 0.0 && quiet.before_s >= set.carried.seconds();
    let others = used.max(set.others_percent.share() * quiet.before_bytes_s);
    let rates = quiet.before_bytes_s >= used && quiet.others_bytes_s >= others;
    (carried && rates && quiet.seconds >= set.lasts.seconds()).then_some(quiet)
}

/// How often the port's link went down during the run, if it did.
fn downed(node: &NodeReport, rail: &RailUsage) -> Option<u64> {
    let port = node.ports.iter().find(|port| port.hca == rail.hca && port.port == rail.port)?;
    match port.link_downed.delta {
        Reading::Known(times) if times > 0 => Some(times),
        _ => None,
    }
}

/// Hours and minutes of a time of day.
fn minute(time: railgate_model::UnixMillis) -> String {
    clock(time).chars().take(5).collect()
}
