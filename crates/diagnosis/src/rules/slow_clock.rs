use std::collections::BTreeMap;

use railgate_node_report::usage::{GpuUsage, Throttled};

use crate::facts::{Facts, mean_of, median_of_others, sorted};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "slow-clock",
    about: "a GPU runs at a lower clock than the job's other GPUs of its model",
    class: Class::Hardware,
    evidence: "of each GPU the mean SM clock while busy, the reasons that held the clock down, the work of the tensor pipes
(activity times clock) and the power. A GPU is compared with the median of the job's other GPUs of the same model.",
    why: "ranks wait for each other in every step, so the whole job runs at the speed of its slowest GPU. The job loses as
much speed as that GPU.",
    look_alikes: "chips of one model, which need different power for the same clock: with the same work and at their power cap, one of
two healthy H200s ran at 1,753 MHz and the other at 1,869; GPUs of five clusters differed by 8 % on average (arXiv:2208.11035). So under a
power cap a difference below `capped_below_percent` is not reported. A GPU that has more work than the others: under a power cap its clock
is then lower (of three H200s the one with half of the batch kept its 1,980 MHz, and the two others ran at 1,670). Where the tensor pipes
are counted, such a GPU is not reported. Nor is one of several programs in a job, as in a sweep, unless heat or the power supply holds its
clock down. Where only its power is known, it is reported with low confidence. An idle GPU clocks down and is not reported either.",
    fix: "exclude the node and have its power supply and cooling checked",
    thresholds: Settings::KEYS,
    line: Line::Slow,
    over: Over::Training,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    below_percent: Number(6.0), 0.1 to 90.0, "%", "a GPU's clock is below the median of the others by at least this";
    capped_below_percent: Number(15.0), 0.1 to 90.0, "%", "by at least this where the power cap holds the clock down, or where the reasons cannot be read";
    busy_percent: Number(20.0), 0.0 to 100.0, "%", "a GPU with less activity is idle and not judged";
    more_work_percent: Number(10.0), 0.0 to 1000.0, "%", "a GPU that does this much more work than the others, or draws this much more power, may have a lower clock for that reason";
    reason_percent: Number(5.0), 0.0 to 100.0, "%", "a reason that held the clock down for more of the time than this is named";
}

/// In a job whose ranks wait for each other, one slow GPU slows all by its deficit.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Found> {
    let set = &facts.rules.slow_clock;
    let more_work = 1.0 + set.more_work_percent.share();
    let [clocks, work, power] = [clock, work, power].map(|figure| Alike::new(facts, figure));
    let mut found: Vec<Found> = Vec::new();
    for (unit, gpu) in facts.units.iter().filter_map(|unit| Some((unit, unit.gpu?))) {
        let Some((mhz, typical)) = clocks.beside_others(gpu) else { continue };
        let below = 1.0 - mhz / typical;
        // They are of the whole run: a long start-up makes none of them rare while the job trains.
        let judged_s = gpu.counters.sm_clock_mhz.known().map_or(f64::INFINITY, |clock| clock.over_s);
        let reason =
            gpu.throttled.known().and_then(|held| reason(held, set.reason_percent.share(), judged_s));
        let may_pay = gpu.throttled.known().is_none() || reason.is_some_and(|(name, _)| name == POWER_CAP);
        // Chips of one model need different power for the same clock.
        let least = if may_pay { &set.capped_below_percent } else { &set.below_percent };
        // An idle GPU may clock down: it is not slow.
        if below < least.share() || activity(gpu).is_none_or(|percent| percent < set.busy_percent.get()) {
            continue;
        }
        let more = |figure: &Alike<'_>| {
            let (own, typical) = figure.beside_others(gpu)?;
            (typical > 0.0).then_some(own / typical)
        };
        // Programs that do not wait for each other have different work, and clocks that the power cap allows for it.
        if !facts.ranks_depend && (may_pay || reason.is_none()) {
            continue;
        }
        let worked = more(&work);
        if may_pay && worked.is_some_and(|times| times > more_work) {
            continue;
        }
        let drew = more(&power).filter(|times| may_pay && worked.is_none() && *times > more_work);
        let reason =
            reason.map(|(name, percent)| format!(" ({name} {percent:.0} % of the time)")).unwrap_or_default();
        let mut what = format!(
            "{} runs at {mhz:.0} MHz, the others at {typical:.0} MHz{reason}{}",
            unit.name(),
            if facts.ranks_depend { ": every step waits for it" } else { "" }
        );
        let (mut confidence, mut fix) = ("high", None);
        if let Some(times) = drew {
            // A defective or badly cooled GPU also draws more.
            what += &format!("; or it has more work: it draws {:.0} % more power", 100.0 * (times - 1.0));
            (confidence, fix) =
                ("low", Some("give every rank the same work; if they have it, exclude the node"));
        }
        let costs = Some(below.clamp(0.0, 1.0));
        let one = Found { costs, fix, ..Found::new(confidence, unit.name(), what) };
        found.push(one);
    }
    found.sort_by(|a, b| b.costs.unwrap_or(0.0).total_cmp(&a.costs.unwrap_or(0.0)));
    found
}

pub(super) type Figure = fn(&GpuUsage) -> Option<f64>;

fn clock(gpu: &GpuUsage) -> Option<f64> {
    gpu.busy_clock_mhz.known().copied().or(mean_of(&gpu.counters.sm_clock_mhz).known().copied())
}

/// Tensor activity, if there is any. A slow GPU in lockstep with others does the same work.
pub(super) fn work(gpu: &GpuUsage) -> Option<f64> {
    let percent = mean_of(&gpu.counters.tensor_percent).known().copied().filter(|percent| *percent >= 1.0);
    Some(percent? * clock(gpu)?)
}

fn power(gpu: &GpuUsage) -> Option<f64> {
    mean_of(&gpu.counters.power_w).known().copied()
}

/// One figure of the job's GPUs by model, sorted once because a job can have thousands.
pub(super) struct Alike<'a> {
    figure: Figure,
    by_model: BTreeMap<&'a str, Vec<f64>>,
}

impl<'a> Alike<'a> {
    pub(super) fn new(facts: &Facts<'a>, figure: Figure) -> Self {
        let mut by_model: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for gpu in facts.units.iter().filter_map(|unit| unit.gpu) {
            by_model.entry(gpu.model.as_str()).or_default().extend(figure(gpu));
        }
        by_model.values_mut().for_each(|alike| *alike = sorted(std::mem::take(alike)));
        Alike { figure, by_model }
    }

    /// The GPU's own value and the median of the others.
    pub(super) fn beside_others(&self, gpu: &GpuUsage) -> Option<(f64, f64)> {
        let own = (self.figure)(gpu)?;
        Some((own, median_of_others(self.by_model.get(gpu.model.as_str())?, own)?))
    }
}

fn activity(gpu: &GpuUsage) -> Option<f64> {
    let spreads =
        [&gpu.counters.sm_percent, &gpu.counters.graphics_percent, &gpu.counters.any_kernel_percent];
    spreads.into_iter().find_map(|reading| reading.known()).map(|spread| spread.mean)
}

const POWER_CAP: &str = "power cap";

/// Cause of throttling and percent of the time. Causes below the share `least` of the time that is judged are ignored.
fn reason(throttled: &Throttled, least: f64, judged_s: f64) -> Option<(&'static str, f64)> {
    let over = Some(throttled.over_s).filter(|over| *over > 0.0)?;
    let (name, seconds) = [
        ("power brake", throttled.power_brake_s),
        ("hardware's thermal limit", throttled.hw_thermal_s),
        ("software's thermal limit", throttled.sw_thermal_s),
        ("hardware slowdown", throttled.hw_slowdown_s),
        (POWER_CAP, throttled.power_cap_s),
    ]
    .into_iter()
    .find(|(_, seconds)| *seconds > least * over.min(judged_s))?;
    Some((name, 100.0 * (seconds / over.min(judged_s)).min(1.0)))
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;
    use railgate_node_report::usage::{Spread, Throttled};

    use super::find;
    use crate::facts::{Facts, Outcome};
    use crate::simulator;

    /// Measured on three H200s, of which one had half of the batch: clock while busy, tensor activity in
    /// percent, W, and whether the power cap was in force.
    const HALF_A_BATCH: [(f64, f64, f64, bool); 3] =
        [(1681.1, 28.2, 409.2, true), (1980.0, 11.8, 315.4, false), (1667.1, 28.6, 410.2, true)];

    #[test]
    fn lower_clock_under_a_power_cap_with_more_work_is_not_slow() {
        let over_s = 100.0;
        let of = |rows: &[(f64, f64, f64, bool)], gpm: bool, thermal_s: Option<f64>| {
            let mut nodes = simulator::healthy();
            nodes.truncate(1);
            let gpus = &mut nodes[0].usage.as_mut().unwrap().gpus;
            gpus.truncate(rows.len());
            for (gpu, (mhz, tensor, watts, capped)) in gpus.iter_mut().zip(rows) {
                let flat = |mean| Reading::Known(Spread { mean, min: mean, max: mean, over_s });
                gpu.busy_clock_mhz = Reading::Known(*mhz);
                gpu.counters.tensor_percent = if gpm { flat(*tensor) } else { Reading::Unsupported };
                gpu.counters.power_w = flat(*watts);
                gpu.throttled = thermal_s.map_or(Reading::Unsupported, |hw_thermal_s| {
                    let power_cap_s = if *capped { over_s } else { 0.0 };
                    Reading::Known(Throttled { over_s, power_cap_s, hw_thermal_s, ..Throttled::default() })
                });
            }
            let found = find(&Facts::new(&nodes, nodes[0].end, Outcome::Good, None));
            found.into_iter().map(|one| one.confidence).collect::<Vec<_>>()
        };
        assert!(of(&HALF_A_BATCH, true, Some(0.0)).is_empty());
        // Two healthy H200s with the same work, both at their power cap.
        let chips = [(1752.6, 51.8, 691.7, true), (1868.9, 48.9, 691.3, true)];
        assert!(of(&chips, true, Some(0.0)).is_empty());
        assert!(of(&chips, true, None).is_empty());
        assert_eq!(of(&chips, true, Some(50.0)), ["high"]);
        // With two GPUs neither is an outlier.
        assert!(of(&HALF_A_BATCH[..2], true, Some(0.0)).is_empty());
        assert!(of(&HALF_A_BATCH[..2], true, None).is_empty());
        // Heat is not caused by more work, nor is a low clock without any reason.
        assert_eq!(of(&HALF_A_BATCH[..2], true, Some(50.0)), ["high"]);
        let mut uncapped = HALF_A_BATCH;
        uncapped[0].3 = false;
        assert_eq!(of(&uncapped[..2], true, Some(0.0)), ["high"]);
        // The chip itself may be the cause of its power draw.
        assert_eq!(of(&HALF_A_BATCH[..2], false, Some(0.0)), ["low"]);
        let mut as_much_done = HALF_A_BATCH;
        (as_much_done[1].1, as_much_done[1].2) = (28.2 * 1681.1 / 1980.0, 400.0);
        for gpm in [true, false] {
            assert_eq!(of(&as_much_done[..2], gpm, Some(0.0)), ["high"], "{gpm}");
        }
    }
}
