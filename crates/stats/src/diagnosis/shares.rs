use railgate_node::Reading;

use super::Shares;
use super::facts::{Facts, Unit, busy, mean_of};
use crate::plain::float;

/// Percent of a GPU's time, by what is known of it. Sources, from the surest: the program's own clock (checkpoint,
/// input), NCCL's own times, GPM's activities.
pub(super) fn shares(facts: &Facts<'_>) -> Reading<Shares> {
    let of_units: Vec<Shares> = facts.units.iter().filter_map(|unit| of_unit(facts, unit)).collect();
    let Some(first) = of_units.first() else {
        return Reading::Failed("no GPU has activities that tell compute from waiting (GPM)".to_owned());
    };
    let count = float(u64::try_from(of_units.len()).unwrap_or(1));
    let mean = |of: fn(&Shares) -> f64| of_units.iter().map(of).sum::<f64>() / count;
    let mean_known = |of: fn(&Shares) -> &Reading<f64>| {
        let known: Vec<f64> = of_units.iter().filter_map(|shares| of(shares).known().copied()).collect();
        match known.is_empty() {
            true => of(first).clone(),
            false => {
                Reading::Known(known.iter().sum::<f64>() / float(u64::try_from(known.len()).unwrap_or(1)))
            }
        }
    };
    Reading::Known(Shares {
        compute: mean(|shares| shares.compute),
        comm_wait: mean_known(|shares| &shares.comm_wait),
        comm_wire: mean_known(|shares| &shares.comm_wire),
        memory: mean(|shares| shares.memory),
        input: mean_known(|shares| &shares.input),
        launch: mean(|shares| shares.launch),
        idle: mean(|shares| shares.idle),
        checkpoint: mean_known(|shares| &shares.checkpoint),
        throttled: mean_known(|shares| &shares.throttled),
        confidence: first.confidence.clone(),
    })
}

fn of_unit(facts: &Facts<'_>, unit: &Unit<'_>) -> Option<Shares> {
    let gpu = unit.gpu?;
    let (sm, dram) = (*mean_of(&gpu.sm_percent).known()?, *mean_of(&gpu.dram_percent).known()?);
    let tensor = *mean_of(&gpu.tensor_percent).known()?;
    let busy = busy(gpu).known().copied().unwrap_or(sm).clamp(0.0, 100.0);
    let whole = unit.usage.map(|usage| usage.coverage.sampled_s).filter(|seconds| *seconds > 0.0)?;
    let percent = |seconds: f64| (100.0 * seconds / whole).clamp(0.0, 100.0);
    let no_word = || Reading::Failed("the program does not report".to_owned());
    let checkpoint = unit.app.map_or_else(no_word, |rank| Reading::Known(percent(rank.checkpoint_s)));
    let input = match unit.app {
        None => no_word(),
        Some(rank) => rank.input_s.map_or_else(
            || Reading::Failed("the program does not say when it waits for input".to_owned()),
            |seconds| Reading::Known(percent(seconds)),
        ),
    };
    let known = |reading: &Reading<f64>| reading.known().copied().unwrap_or(0.0);
    // What stands idle goes to checkpoint and input first, the rest stays idle.
    let mut gone = 100.0 - busy;
    let checkpoint = checkpoint.map(|share| share.min(gone));
    gone -= known(&checkpoint);
    let input = input.map(|share| share.min(gone));
    let idle = gone - known(&input);
    // What is busy: kernels that keep SMs at work, kernels that wait. Waiting in NCCL keeps few SMs.
    let (mut wait, mut wire) = match unit.comm {
        Some(comm) if comm.is_partial() => {
            let why = || Reading::Failed("many of NCCL's calls have no time".to_owned());
            (why(), why())
        }
        Some(comm) => (Reading::Known(percent(comm.wait_s)), Reading::Known(percent(comm.wire_s))),
        None => {
            let why = || Reading::Failed("NCCL's profiler plugin was not loaded".to_owned());
            (why(), why())
        }
    };
    let comm = known(&wait) + known(&wire);
    // Overlap cannot be seen: at most what the SMs leave is exposed.
    let most = busy * (1.0 - tensor.max(dram).min(100.0) / 100.0);
    if comm > most && comm > 0.0 {
        let scale = most / comm;
        (wait, wire) = (wait.map(|share| share * scale), wire.map(|share| share * scale));
    }
    let mut rest = (busy - known(&wait) - known(&wire)).max(0.0);
    let launch =
        if sm < 0.5 * busy && tensor < 20.0 && dram < 30.0 { rest - rest * sm / busy.max(1.0) } else { 0.0 };
    rest -= launch;
    let of_memory = if dram > tensor { (dram - tensor).min(rest) } else { 0.0 };
    let throttled = gpu.throttled.clone().map(|throttled| {
        let held = throttled.hw_slowdown_s.max(throttled.hw_thermal_s).max(throttled.power_brake_s);
        let held = held.max(throttled.sw_thermal_s);
        if throttled.over_s > 0.0 { (100.0 * held / throttled.over_s).min(100.0) } else { 0.0 }
    });
    let sources = usize::from(unit.app.is_some()) + usize::from(unit.comm.is_some());
    let partial = unit.comm.is_some_and(|comm| comm.is_partial());
    let gaps =
        unit.usage.is_some_and(|usage| usage.coverage.missing_s > 0.2 * (whole + usage.coverage.missing_s));
    let confidence = match (gaps || partial, sources, facts.units.len()) {
        (true, _, _) | (false, 0, _) => "low",
        (false, 2, _) => "high",
        // One GPU has nobody to talk to.
        (false, 1, 1) => "high",
        _ => "medium",
    };
    Some(Shares {
        compute: rest - of_memory,
        comm_wait: wait,
        comm_wire: wire,
        memory: of_memory,
        input,
        launch,
        idle,
        checkpoint,
        throttled,
        confidence: confidence.to_owned(),
    })
}
