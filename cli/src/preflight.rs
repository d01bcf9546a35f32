//! `railgate preflight`: tests the GPUs of a job, and the rails between its nodes, before the first step.
//!
//! The first node starts one task on each node with srun for each part of the test, and reads the lines of JSON that they print. All of it
//! runs as the job's user: what it finds is about this job, and drains no node.

mod before_script;
mod lines;
mod nccl;
pub(crate) mod node;
mod results;
mod screen;
mod steps;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use railgate_preflight::{DEFAULT_REPEATS, MAX_REPEATS, Pair, Plan, Round, Settings, Tested};
use railgate_slurm::hostlist;

use crate::output::{Format, complain};
use crate::{Site, exit, output};
use lines::Order;
use results::{Net, Results};
use steps::Steps;

/// Most nodes: the pairs of a round are one variable of the tasks' environment, which the kernel limits to 128 KiB.
const MOST_NODES: usize = 4096;
/// Time for a step to start and end on all nodes, in addition to its work.
pub(crate) const START: Duration = Duration::from_secs(30);
/// A pair waits this long for its other end, and then tests for at most 20 s.
const PAIR: Duration = Duration::from_secs(50);
/// All pairs of a round at once.
const ROUND: Duration = PAIR.saturating_add(START);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in a job script before srun:
  railgate preflight || exit 1
  railgate preflight --gpus full --expected-gbps 380
  railgate preflight --net tcp --gpus none
  railgate preflight --format json > preflight.json

Every node computes and copies on its GPUs and compares each value; then pairs of nodes write and read each other's \
memory on all rails at once, in two rounds with different partners, and in a third if a result is bad. A pair with a slow \
rail is measured again in the same round, and its best measurement counts. If \
all_reduce_perf of nccl-tests is in PATH, it then runs over all GPUs; its result names no node. Nothing is \
drained: a node that is named here is bad for this job, and `railgate check --full` as root on it decides about the \
node.

Exit code: 0 all is good, 1 a GPU, rail, node or path is named, 2 wrong use, 3 could not tell for a part.")]
pub(crate) struct Args {
    /// Test of the GPUs
    #[arg(long, value_enum, default_value_t = Gpus::Quick)]
    gpus: Gpus,
    /// How the nodes test each other
    #[arg(long, value_enum, default_value_t = By::Auto)]
    net: By,
    /// Bandwidth that every rail should reach in each direction, Gb/s [default: rails are compared with their median]
    #[arg(long, value_name = "GBPS", value_parser = rate)]
    expected_gbps: Option<f64>,
    /// How many more times the slow pairs of a round are measured, at most; 0: each pair once
    #[arg(long, value_name = "N", default_value_t = DEFAULT_REPEATS, value_parser = repeats)]
    repeats: usize,
    /// NCCL's own test over all nodes after the pairs: auto, none, or the path of all_reduce_perf of nccl-tests
    #[arg(long, value_name = "PROGRAM", default_value = "auto", value_parser = nccl::which)]
    nccl: nccl::Which,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Do on this node what the environment orders
    #[arg(long, hide = true)]
    on_node: bool,
    /// Run by the SPANK plugin in the place of the batch script: exit code 86 only if a node is named, so that the script must not start
    #[arg(long, hide = true)]
    before_script: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Gpus {
    /// Seconds
    Quick,
    /// About half a minute
    Full,
    /// No GPU is tested
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// By RDMA if all nodes have a compute HCA, else by TCP
    Auto,
    /// On each compute HCA
    Rdma,
    /// Over one TCP connection
    Tcp,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if rate.is_finite() && rate > 0.0 { Ok(rate) } else { Err("must be above 0 Gb/s".to_owned()) }
}

fn repeats(text: &str) -> Result<usize, String> {
    let repeats = text.parse().ok().filter(|repeats| (0..=MAX_REPEATS).contains(repeats));
    repeats.ok_or_else(|| format!("must be a number from 0 to {MAX_REPEATS}"))
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    if args.on_node {
        return node::run(site);
    }
    if args.before_script {
        return before_script::run(site, args);
    }
    let (results, _) = tested(site, args, None)?;
    print(args, &results)?;
    Ok(match (results.names_something(), results.is_incomplete()) {
        (true, _) => exit::UNFIT,
        (false, true) => exit::UNKNOWN,
        (false, false) => exit::OK,
    })
}

/// Tests the nodes of the calling job as the command does without options, prints the results, and returns the nodes that are named with
/// certainty.
pub(crate) fn named_nodes(site: &Site) -> anyhow::Result<Vec<String>> {
    let args = Args {
        gpus: Gpus::Quick,
        net: By::Auto,
        expected_gbps: None,
        repeats: DEFAULT_REPEATS,
        nccl: nccl::Which::Auto,
        format: Format::Table,
        on_node: false,
        before_script: false,
    };
    let (results, _) = tested(site, &args, None)?;
    print(&args, &results)?;
    Ok(results.marks().into_iter().map(|(node, _)| node).collect())
}

fn print(args: &Args, results: &Results) -> anyhow::Result<()> {
    match args.format {
        Format::Table => output::text(&screen::text(results)),
        Format::Json => output::json(results),
    }
}

/// Runs all tests, or those that end before `until`.
fn tested(site: &Site, args: &Args, until: Option<Instant>) -> anyhow::Result<(Results, Steps)> {
    let job = variable("SLURM_JOB_ID")?;
    let nodes = hostlist::expand(&variable("SLURM_JOB_NODELIST")?).context("SLURM_JOB_NODELIST")?;
    ensure!(
        (1..=MOST_NODES).contains(&nodes.len()),
        "{} nodes; at most {MOST_NODES} are tested",
        nodes.len()
    );
    let steps = Steps::new(&job, nodes.len())?;
    let mut results = Results::new(job, nodes);
    if let Some((length, limit)) = args.gpus.length() {
        gpus(site, &steps, &mut results, length, limit, until);
    }
    if results.nodes.len() > 1 {
        rails(args, &steps, &mut results, until);
    }
    let in_time = !is_too_late(until, nccl::LIMIT + START);
    results.nccl = nccl::run(site, &args.nccl, &steps, &results, in_time);
    Ok((results, steps))
}

/// Lets the nodes test their GPUs, not more of them at the same time than the site has configured.
fn gpus(
    site: &Site,
    steps: &Steps,
    results: &mut Results,
    length: &str,
    limit: Duration,
    until: Option<Instant>,
) {
    // A site may hide its configuration from users; the command then does without.
    let config = site.config().map(|config| config.selftest).unwrap_or_default();
    let nodes = results.nodes.clone();
    let most = config.max_nodes_at_once.max(1);
    let limit = limit + START + config.ramp + config.jitter;
    for (number, part) in nodes.chunks(most).enumerate() {
        if is_too_late(until, limit) {
            results.no_time(nodes.get(number * most..).unwrap_or_default(), "the test of the GPUs");
            break;
        }
        complain!("preflight: GPUs of {} of {} nodes", part.len(), nodes.len());
        let mut waits_ms = Vec::new();
        for (place, node) in part.iter().enumerate() {
            let random = railgate_pair::random_number().unwrap_or_default();
            let wait = u64::try_from(config.wait(place, part.len(), random).as_millis()).unwrap_or_default();
            waits_ms.extend((wait > 0).then(|| (node.clone(), wait)));
        }
        let order = Order::Gpus { length: length.to_owned(), waits_ms };
        results.begin_step();
        let hear = &mut |line| results.hear(line);
        let why = if part.len() == nodes.len() {
            steps.run(&order, limit, hear)
        } else {
            steps.run_on(part, &order, limit, hear)
        };
        results.end_step(part, "the test of the GPUs", why.as_deref());
    }
}

/// Whether a part that takes at most `limit` may end later than `until`.
fn is_too_late(until: Option<Instant>, limit: Duration) -> bool {
    until.is_some_and(|until| until.saturating_duration_since(Instant::now()) < limit)
}

/// Lets the nodes test each other, round by round.
fn rails(args: &Args, steps: &Steps, results: &mut Results, until: Option<Instant>) {
    let nodes = results.nodes.clone();
    if is_too_late(until, START + ROUND) {
        results.no_time(&nodes, "the test of the rails");
        return;
    }
    results.begin_step();
    let why = steps.run(&Order::Devices, START, &mut |line| results.hear(line));
    // TCP needs no HCA.
    if args.net != By::Tcp {
        results.end_step(&nodes, "the search for HCAs", why.as_deref());
    }
    let has = |devices: &Option<Vec<String>>| devices.as_ref().is_some_and(|all| !all.is_empty());
    let all_have = results.devices.iter().all(has);
    let net = match args.net {
        // What the GPUs' test found stays.
        By::Rdma if !all_have => {
            let without = nodes.iter().zip(&results.devices).filter(|(_, devices)| !has(devices));
            let without: Vec<String> = without.map(|(node, _)| node.clone()).collect();
            results.not_tested(&without, "--net rdma: no compute HCA was found, so that no rail is tested");
            return;
        }
        // No task has started: those of the rounds would not either.
        By::Auto if why.is_some() && results.devices.iter().all(Option::is_none) => return,
        By::Auto if all_have => Net::Rdma,
        By::Rdma => Net::Rdma,
        By::Auto => {
            results.miss_devices();
            Net::Tcp
        }
        By::Tcp => Net::Tcp,
    };
    results.net = Some(net);
    let rails = |devices: &Option<Vec<String>>| match net {
        Net::Rdma => devices.as_ref().map_or(0, Vec::len),
        Net::Tcp => 1,
    };
    let places = results.places(rails);
    // The latency of TCP depends on what else the processors do.
    let max_latency_times = match net {
        Net::Rdma => Settings::default().max_latency_times,
        Net::Tcp => 10.0,
    };
    let settings = Settings { expected_gbps: args.expected_gbps, max_latency_times, ..Settings::default() };
    let plan = Plan::new(places, settings);
    let pairs = OfPairs { net, steps, nodes: &nodes };
    while let Some(of_round) = plan.next(&results.rounds) {
        let number = results.rounds.len() + 1;
        if is_too_late(until, ROUND) {
            results.no_time(&nodes, &format!("round {number}"));
            break;
        }
        let many = if of_round.len() == 1 { "pair" } else { "pairs" };
        complain!("preflight: round {number}, {} {many} of nodes", of_round.len());
        let (tested, why) = pairs.test(results, &of_round, None, &format!("round {number}"));
        // Without any result, a further round would have none either.
        let is_over = tested.is_empty() && why.is_some();
        results.rounds.push(Round { pairs: of_round, tested, measured_again: 0 });
        if is_over {
            break;
        }
        pairs.measure_again(results, &plan, args.repeats, until);
    }
    results.report = plan.report(&results.rounds);
}

/// Lets pairs of nodes test each other.
#[derive(Clone, Copy)]
struct OfPairs<'a> {
    net: Net,
    steps: &'a Steps,
    nodes: &'a [String],
}

impl OfPairs<'_> {
    /// Measures the slow pairs of the last round again: a fault stays, a moment in which a processor did something else does not.
    fn measure_again(&self, results: &mut Results, plan: &Plan, repeats: usize, until: Option<Instant>) {
        let number = results.rounds.len();
        for _ in 0..repeats {
            let again = plan.again(&results.rounds);
            if again.is_empty() {
                return;
            }
            // Another round shows more than a repeat, so that time for one is left over.
            if is_too_late(until, ROUND + ROUND) {
                complain!("preflight: no time left to measure slow pairs of round {number} again");
                return;
            }
            let many = if again.len() == 1 { "pair" } else { "pairs" };
            complain!("preflight: round {number} again, {} slow {many} of nodes", again.len());
            let on = self.names(&again);
            let what = format!("round {number}, measured again");
            let (tested, why) = self.test(results, &again, Some(&on), &what);
            if let Some(round) = results.rounds.last_mut() {
                round.measure_again(&again, tested);
            }
            if why.is_some() {
                return;
            }
        }
    }

    /// Runs a step on the nodes of the pairs, or on all nodes of the job. Returns the results, and why some may lack.
    fn test(
        &self,
        results: &mut Results,
        pairs: &[Pair],
        on: Option<&[String]>,
        what: &str,
    ) -> (Vec<Tested>, Option<String>) {
        let order = Order::Pairs {
            net: self.net,
            pairs: pairs.iter().map(|pair| (self.name(pair.left), self.name(pair.right))).collect(),
            port: port(&results.job),
        };
        results.begin_round();
        let hear = &mut |line| results.hear(line);
        let why = match on {
            Some(nodes) => self.steps.run_on(nodes, &order, ROUND, hear),
            None => self.steps.run(&order, ROUND, hear),
        };
        if let Some(why) = &why {
            results.end_step(&self.names(pairs), what, Some(why));
        }
        (results.end_round(pairs), why)
    }

    fn name(&self, node: usize) -> String {
        self.nodes.get(node).cloned().unwrap_or_default()
    }

    fn names(&self, pairs: &[Pair]) -> Vec<String> {
        pairs.iter().flat_map(|pair| [self.name(pair.left), self.name(pair.right)]).collect()
    }
}

impl Gpus {
    /// Length for the program, and how long it may take.
    fn length(self) -> Option<(&'static str, Duration)> {
        match self {
            Gpus::Quick => Some(("quick", Duration::from_secs(60))),
            Gpus::Full => Some(("full", Duration::from_secs(300))),
            Gpus::None => None,
        }
    }
}

/// Port of the first rail: from 28000 on, below the ports that the kernel gives out, 16 for each job.
fn port(job: &str) -> u16 {
    let number: u32 = job.parse().unwrap_or_default();
    u16::try_from(28_000 + number % 290 * 16).unwrap_or(28_000)
}

fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| format!("not inside a job: {name} is not set"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_job_lie_below_those_of_the_kernel() {
        for job in ["1", "289", "4294967295", "x"] {
            assert!((28_000..=32_640).contains(&port(job)), "{job}");
        }
        assert_eq!(port("1") - port("290"), 16);
    }

    #[test]
    fn a_part_starts_only_if_it_ends_in_time() {
        let until = Instant::now() + Duration::from_secs(3600);
        assert!(!is_too_late(None, Duration::MAX));
        assert!(!is_too_late(Some(until), Duration::from_secs(60)));
        assert!(is_too_late(Some(until), Duration::from_secs(3601)));
        assert!(is_too_late(Some(Instant::now()), ROUND));
    }

    #[test]
    fn repeats_are_few() {
        assert_eq!(["0", "2", "5"].map(repeats), [Ok(0), Ok(2), Ok(5)]);
        for wrong in ["6", "-1", "1.5", "", "x"] {
            assert_eq!(repeats(wrong), Err("must be a number from 0 to 5".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn a_rate_is_above_0() {
        assert_eq!(rate("380.5"), Ok(380.5));
        for wrong in ["0", "-1", "inf", "NaN", "x"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
