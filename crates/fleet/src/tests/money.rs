//! Productive time, goodput, time to failure, checkpoints.

use super::*;
use crate::{
    Advice, Bounds, FaultCounts, Loss, Progress, Share, by_size, checkpoint_interval, costs, goodput,
    lost_by_cause,
};

fn ettr(story: &Story, job: u32) -> Bounds {
    let costs = costs(&story.history(), &Settings::default());
    costs.iter().find(|cost| cost.job == job).unwrap().ettr.unwrap()
}

fn near(got: Bounds, low: f64, high: f64) {
    assert!((got.low - low).abs() < 1e-9 && (got.high - high).abs() < 1e-9, "{got:?}, not {low} to {high}");
}

/// A job of ten hours that waited for two.
fn ten_hours(outcome: Outcome) -> Story {
    let mut story = Story::new();
    let start = T + 2 * HOUR;
    let attempt = attempt(1, 0..2, start, Some((start + 10 * HOUR, outcome)));
    story.add(T + 12 * HOUR, What::JobEnded(Attempt { queued: T, ..attempt }));
    story
}

fn progress() -> Progress {
    let start = T + 2 * HOUR;
    Progress {
        job: 1,
        attempt: 0,
        start_up_s: 360.0,
        last_step: start + 10 * HOUR - MINUTE,
        checkpoint_s: 720.0,
        redone_s: 0.0,
        saved: Some(start + 8 * HOUR),
    }
}

#[test]
fn slurm_alone_gives_bounds() {
    // 9.5 h after the longest start, a tenth of it for checkpoints.
    near(ettr(&ten_hours(Outcome::Completed), 1), 9.5 * 0.9 / 12.0, 10.0 / 12.0);
    for outcome in [Outcome::Failed, Outcome::NodeFail, Outcome::Timeout, Outcome::Cancelled] {
        near(ettr(&ten_hours(outcome), 1), 0.0, 10.0 / 12.0);
    }
}

#[test]
fn what_the_program_reports_narrows_them() {
    let mut story = ten_hours(Outcome::Completed);
    story.add_from(Source::User, T + DAY, What::Progress(progress()));
    let steps = 10.0 - 1.0 / 60.0 - 0.1 - 0.2;
    near(ettr(&story, 1), steps / 12.0, (10.0 - 0.3) / 12.0);
    // What followed the last checkpoint is lost.
    let mut story = ten_hours(Outcome::Failed);
    story.add_from(Source::User, T + DAY, What::Progress(progress()));
    near(ettr(&story, 1), (8.0 - 0.3) / 12.0, (8.0 - 0.3) / 12.0);
    let mut story = ten_hours(Outcome::Failed);
    story.add_from(Source::User, T + DAY, What::Progress(Progress { saved: None, ..progress() }));
    near(ettr(&story, 1), 0.0, (10.0 - 0.3) / 12.0);
}

#[test]
fn impossible_reports_are_ignored() {
    let good = progress();
    for bad in [
        Progress { start_up_s: f64::NAN, ..good.clone() },
        Progress { checkpoint_s: -1.0, ..good.clone() },
        Progress { redone_s: 1e9, ..good.clone() },
        Progress { last_step: T + 20 * DAY, ..good.clone() },
        Progress { saved: Some(T - DAY), ..good.clone() },
    ] {
        let mut story = ten_hours(Outcome::Failed);
        story.add_from(Source::User, T + DAY, What::Progress(bad));
        near(ettr(&story, 1), 0.0, 10.0 / 12.0);
    }
}

#[test]
fn a_restart_inside_the_allocation_can_lose_all_before_it() {
    let mut story = ten_hours(Outcome::Completed);
    story.add_from(Source::User, T + 6 * HOUR, What::Restarted { job: 1, attempt: 0 });
    near(ettr(&story, 1), 0.0, 10.0 / 12.0);
}

#[test]
fn goodput_is_split_between_months() {
    let mut story = Story::new();
    // 2026-11-30 20:00 to 2026-12-01 06:00.
    let start = T + 4 * DAY + 20 * HOUR;
    story.job(1, 0..2, start, start + 10 * HOUR, Outcome::Completed);
    let months = goodput(&story.history(), &Settings::default());
    let [november, december] = &months[..] else { panic!("{months:?}") };
    assert_eq!((november.month.as_str(), december.month.as_str()), ("2026-11", "2026-12"));
    assert!((november.gpu_hours - 64.0).abs() < 1e-9 && (december.gpu_hours - 96.0).abs() < 1e-9);
    // At least 8.55 h of 10 h: of the first 4 h all but 1.45 h.
    near(november.productive, (4.0 - 1.45) * 16.0, 64.0);
    near(december.productive, (6.0 - 1.45) * 16.0, 96.0);
}

/// Jobs of four nodes, of which each tenth fails because of another node.
fn failing(jobs: u32) -> Story {
    let mut story = Story::new();
    for job in 0..jobs {
        let end = T + u64::from(job + 1) * 6 * HOUR;
        let outcome = if job % 10 == 0 { Outcome::NodeFail } else { Outcome::Completed };
        let first = usize::try_from(job / 10 * 4 % 36).unwrap();
        story.job(job, first..first + 4, end - 5 * HOUR, end, outcome);
        if job % 10 == 0 {
            story.add(end, What::Down { node: name(first) });
        }
    }
    story
}

#[test]
fn time_to_failure_by_size_and_the_checkpoint_interval() {
    let story = failing(100);
    let (history, judgement) = (story.history(), story.judge());
    let sizes = by_size(&history, &judgement);
    let [size] = &sizes[..] else { panic!("{sizes:?}") };
    assert_eq!((size.from, size.to, size.attempts, size.node.failures), (2, Some(8), 100, 10));
    let (low, mean, high) = size.job_hours_to_failure();
    assert!((mean.unwrap() - 50.0).abs() < 1e-9 && low < 50.0 && high.unwrap() > 50.0);
    let settings = Settings::default();
    let Advice::Every { seconds, low, high } = checkpoint_interval(&sizes, 4, 60.0, &settings) else {
        panic!()
    };
    // √(2 × 60 s × 50 h)
    assert!((seconds - (2.0 * 60.0 * 180_000.0_f64).sqrt()).abs() < 1e-6 && low < seconds && seconds < high);
    // Twice the nodes fail twice as often.
    let Advice::Every { seconds: of_eight, .. } = checkpoint_interval(&sizes, 8, 60.0, &settings) else {
        panic!()
    };
    assert!((of_eight - seconds / 2.0_f64.sqrt()).abs() < 1e-6);
    let lost = lost_by_cause(&history, &judgement, &settings);
    let node = lost.iter().find(|lost| lost.why == Loss::Node(Cause::Down)).unwrap();
    assert_eq!(node.attempts, 10);
    near(node.gpu_hours, 0.0, 10.0 * 5.0 * 32.0);
}

#[test]
fn advice_is_refused_without_enough_failures() {
    let story = failing(31);
    let sizes = by_size(&story.history(), &story.judge());
    let refused = |nodes: usize, write_s: f64| match checkpoint_interval(
        &sizes,
        nodes,
        write_s,
        &Settings::default(),
    ) {
        Advice::Refused(why) => why,
        Advice::Every { .. } => panic!("{nodes} {write_s}"),
    };
    assert_eq!(refused(4, 60.0), "too few failures of jobs of about this size: 4, at least 5 are needed");
    assert_eq!(refused(100, 60.0), "no job of about this size has run");
    assert_eq!(refused(4, f64::NAN), "the time to write a checkpoint is not known");
    let story = failing(100);
    let sizes = by_size(&story.history(), &story.judge());
    let slow = checkpoint_interval(&sizes, 4, 6.0 * 3600.0, &Settings::default());
    assert_eq!(
        slow,
        Advice::Refused("writing a checkpoint takes more than a tenth of the 50.0 h between failures".into())
    );
}

#[test]
fn shares_are_those_of_all_jobs_together() {
    let mut story = ten_hours(Outcome::Completed);
    // Two hours, of which none is sure.
    story.job(2, 2..4, T + DAY, T + DAY + 2 * HOUR, Outcome::Cancelled);
    let (history, settings) = (story.history(), Settings::default());
    let (costs, months) = (costs(&history, &settings), goodput(&history, &settings));
    let wall: f64 = costs.iter().map(|job| job.wall_hours).sum();
    let ettr = Share::ettr(&costs);
    assert_eq!(ettr.whole, wall);
    near(ettr.of_one().unwrap(), 9.5 * 0.9 / wall, 12.0 / wall);
    let held = Share::goodput(&months);
    near(held.of_one().unwrap(), 9.5 * 0.9 / 12.0, 1.0);
    assert_eq!(Share::goodput(&[]).of_one(), None);
    assert_eq!(Share::ettr(&[]).of_one(), None);
}

#[test]
fn faults_are_counted_by_cause() {
    let mut story = Story::new();
    story.fault(5, T + 3 * DAY, Some(1));
    story.fault(6, T + 9 * DAY, Some(1));
    leaf_fails(&mut story, T + 20 * DAY);
    let judgement = story.judge();
    let causes = judgement.faults_by_cause();
    // With those of the ten nodes that failed once.
    assert_eq!(causes.get(&Cause::Gpu), Some(&FaultCounts { counted: 12, aside: 0 }));
    let of_leaf = causes.get(&Cause::Network).unwrap();
    assert!(of_leaf.counted == 0 && of_leaf.aside > 2, "{of_leaf:?}");
    let sum: usize = causes.values().map(|of| of.counted + of.aside).sum();
    assert_eq!(sum, judgement.faults.len());
}
