//! `railgate-sampler JOB RUN`: runs beside a job on each of its nodes, from the prolog to the epilog.
//!
//! It is independent of slurmd, whose restart it survives, and of the job, which cannot signal it. It ends when
//! the epilog requests it, when its run's directory is removed or replaced, or when no step of the job has been
//! on the node for [`ALONE`]. It writes complete results after each probe, so killing it loses nothing. Reasons
//! for this design: `docs/decisions/0007-sampler.md`.

mod batch_script;
mod clock;
mod counters;
mod ending;
mod ends;
mod evidence;
mod fields;
mod file;
mod gpu_errors;
mod gpus;
mod guard;
mod host;
mod job_log;
mod live;
mod nodes;
mod outputs;
mod pauses;
mod probes;
mod rails;
mod run;
mod states;
mod work;
mod xids;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use railgate_child::{detach, drop_clean_pages, keep_no_chown};
use railgate_probe::{JobHere, dispatch, job_here};
use railgate_runner::guarded;

use batch_script::Watch;
use clock::Clock;
use counters::Counters;
use ends::Ends;
use guard::{Guarding, Seen};
use live::Live;
use outputs::Outputs;
use pauses::Pausing;
use probes::Probes;
use run::{Asked, Mine};
use work::Work;
use xids::Xids;

/// Interval of checks whether the run still exists.
const TICK: Duration = Duration::from_secs(10);
/// Interval of searches for the job's step daemons, which read all of /proc.
const SEARCH: Duration = Duration::from_secs(60);
/// Without `PrologFlags=Contain` a job may have no step for a while.
const ALONE: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    if let Some(code) = dispatch(
        &[
            railgate_runner::tasks(),
            vec![evidence::TASK, outputs::TASK, pauses::TASK, probes::TASK, states::TASK, work::TASK],
            live::TASKS.to_vec(),
            railgate_stacks::TASKS.to_vec(),
        ]
        .concat(),
    ) {
        return code;
    }
    let problems = detach();
    guarded("sampler", || {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let mine = match Mine::enter(&arguments) {
            Ok(Some(mine)) => mine,
            Ok(None) => return ExitCode::SUCCESS,
            Err(why) => {
                tracing::warn!("sampler: {why:#}");
                return ExitCode::FAILURE;
            }
        };
        for problem in problems {
            tracing::info!(job = mine.job, "sampler: {problem}");
        }
        if let Err(why) = keep_no_chown() {
            tracing::info!(job = mine.job, "sampler: capabilities: {why}");
        }
        let mut mine = mine;
        let why = stay(&mut mine);
        tracing::debug!(job = mine.job, "sampler: {why}");
        ExitCode::SUCCESS
    })
}

/// Samples until there is a reason to end, and returns the reason.
fn stay(mine: &mut Mine) -> &'static str {
    let mut probes = Probes::new(mine);
    let mut xids = Xids::new(mine);
    let mut counters = Counters::new(mine, Clock::default(), xids.wanted());
    counters.step(mine.job, false);
    xids.hear(mine, &mut counters);
    let mut live = Live::new(mine);
    let mut work = Work::new();
    let mut outputs = Outputs::new(mine);
    let mut ends = Ends::new();
    let mut pausing = Pausing::new(mine);
    let mut guarding = Guarding::new(mine);
    let mut watch = Watch::new(mine);
    let mut search = Instant::now() + watch.every(SEARCH);
    let mut seen = Instant::now();
    // What it needed only to start is not kept.
    let _ = drop_clean_pages();
    loop {
        let wait = probes.due().min(counters.due()).min(outputs.due()).min(ends.due()).min(TICK);
        let readable = counters.as_fd().into_iter().chain(pausing.as_fd()).chain(ends.fds());
        if mine.wait(wait, readable) == Asked::End {
            pausing.finish();
            ends.finish(mine);
            probes.tell(mine, &ends);
            counters.end(mine.job, mine.yielded());
            xids.hear(mine, &mut counters);
            pausing.end(mine);
            return "the epilog asked it to end";
        }
        if !mine.is_current() {
            return "the run's directory is gone";
        }
        counters.step(mine.job, mine.yielded());
        probes.probe_if_due(mine);
        let mut news = ends.step(mine);
        if let Some(found) = outputs.step(mine, || ends.programs()) {
            news.changed |= ends.add(mine.job, found);
        }
        if news.ended || guarding.awaits_start() {
            outputs.soon();
        }
        if news.changed {
            probes.tell(mine, &ends);
        }
        pausing.hear(mine);
        if let Some(sample) = counters.take_seen() {
            let seen = Seen {
                sample: &sample,
                gpus: counters.gpus(),
                ranks: ends.ranks().0,
                pausing: &pausing,
                outputs: &outputs,
                xids: xids.seen(),
            };
            if guarding.step(mine, &seen) {
                live.soon();
            }
            counters.hangs(guarding.hang());
        }
        live.say_if_due(mine);
        counters.told(mine, &mut work);
        xids.hear(mine, &mut counters);
        let now = Instant::now();
        if now >= search {
            search = now + watch.every(SEARCH);
            // An unknown state is no reason to end.
            let here = job_here(run::PROC.as_ref(), mine.job).unwrap_or(JobHere::Steps);
            if here != JobHere::Gone {
                seen = now;
            } else if now.duration_since(seen) >= ALONE {
                return "no step of the job is left, and no epilog has run";
            }
            watch.step(mine, here);
        }
    }
}
