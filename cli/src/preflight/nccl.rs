//! NCCL itself, by `all_reduce_perf` of nccl-tests, where the job has it. Its result accuses no node: all of them take part in it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use railgate_node_report::comm::Reference;
use railgate_preflight::{AllReduce, Outcome, Partial};
use serde::Serialize;

use super::results::{Net, Results};
use super::steps::Steps;
use crate::Site;
use crate::output::complain;

const PROGRAM: &str = "all_reduce_perf";
/// Time for the test: NCCL starts in up to half a minute, and 24 calls of a GiB take another one at 2 GB/s.
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// Size of the message, bytes.
const BYTES: u64 = 1 << 30;
/// Below this share of the reference the result stands out: that of the rails.
const LOWEST_SHARE: f64 = 0.80;
/// Longest output that is kept, bytes.
const MOST_KEPT: usize = 1 << 20;

/// The test of NCCL.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Nccl {
    /// It was not run.
    NotRun { why: String },
    /// It gave no result.
    Failed { program: PathBuf, why: String },
    /// Its result.
    Measured(Measured),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Measured {
    pub(crate) program: PathBuf,
    /// Version of the library; `None`: not printed.
    pub(crate) nccl: Option<String>,
    pub(crate) ranks: usize,
    pub(crate) bytes: u64,
    pub(crate) busbw_gb_s: f64,
    /// Wrong values; `None`: not compared.
    pub(crate) wrong: Option<u64>,
    /// `None`: there is nothing to compare with.
    pub(crate) compared: Option<Compared>,
}

/// What a bus bandwidth is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Compared {
    /// The site's measurement of the same size, ranks and nodes.
    Reference { busbw_gb_s: f64 },
    /// What all rails of a node carry in one direction: their number times their median. It is shown, and judges nothing: a switch that adds
    /// (SHARP) passes it.
    Rails { rails: usize, gb_s: f64 },
}

/// Which program is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The one of the configuration, or the one in PATH.
    Auto,
    /// Nothing is run.
    None,
    At(PathBuf),
}

/// Parses the option.
pub(super) fn which(text: &str) -> Result<Which, String> {
    match text {
        "auto" => Ok(Which::Auto),
        "none" => Ok(Which::None),
        path if path.contains('/') => Ok(Which::At(PathBuf::from(path))),
        _ => Err("must be auto, none, or a path".to_owned()),
    }
}

/// Runs the test if there is a program and something to test. `in_time`: whether it ends in time.
pub(super) fn run(
    site: &Site,
    which: &Which,
    steps: &Steps,
    results: &Results,
    in_time: bool,
) -> Option<Nccl> {
    // A site may hide its configuration from users; the command then does without.
    let config = site.config().ok();
    let configured =
        config.as_ref().map(|config| config.selftest.all_reduce_perf.clone()).unwrap_or_default();
    let program = match which {
        Which::None => return None,
        Which::At(path) => path.clone(),
        Which::Auto if !configured.as_os_str().is_empty() => configured,
        Which::Auto => match in_path(&std::env::var_os("PATH").unwrap_or_default()) {
            Some(path) => path,
            None => {
                let why = format!("no {PROGRAM} in PATH (--nccl PATH or selftest.all_reduce_perf names one)");
                return Some(Nccl::NotRun { why });
            }
        },
    };
    let not_run = |why: &str| Some(Nccl::NotRun { why: why.to_owned() });
    if !is_program(&program) {
        return Some(Nccl::Failed { program, why: "not a program that this user can start".to_owned() });
    }
    let of_slurm = std::env::var("SLURM_GPUS_ON_NODE").ok().and_then(|count| count.parse().ok());
    let Some(gpus) = of_slurm.or_else(|| results.gpus_of_each_node()).filter(|gpus| *gpus > 0) else {
        return not_run("the number of GPUs of the nodes is not known");
    };
    if gpus.saturating_mul(results.nodes.len()) < 2 {
        return not_run("one GPU has no other one");
    }
    if results.names_something() {
        return not_run("something is named already");
    }
    if !in_time {
        return not_run("no time left");
    }
    let references = config.map(|config| config.stats.references).unwrap_or_default();
    complain!("preflight: {} on {gpus} GPUs of each node", program.display());
    Some(test(steps, results, program, gpus, &references))
}

fn test(steps: &Steps, results: &Results, program: PathBuf, gpus: usize, references: &[Reference]) -> Nccl {
    let (bytes, gpus) = (BYTES.to_string(), gpus.to_string());
    let arguments = ["-b", &bytes, "-e", &bytes, "-w", "2", "-n", "10", "-g", &gpus];
    let mut text = String::new();
    let ended = steps.run_program(&program, &arguments, LIMIT, &mut |line| {
        if text.len() < MOST_KEPT {
            text.push_str(&line);
            text.push('\n');
        }
    });
    result(results, program, &text, ended, references)
}

/// The result of an output. `ended`: what was wrong with the step.
fn result(
    results: &Results,
    program: PathBuf,
    text: &str,
    ended: Option<String>,
    references: &[Reference],
) -> Nccl {
    let printed = AllReduce::parse(text);
    // It fails after wrong values as well, and these are its result.
    let size = printed.sizes.iter().find(|size| ended.is_none() || size.wrong.is_some_and(|wrong| wrong > 0));
    let nodes = results.nodes.len();
    match (printed.partial(nodes, ended.is_some()), size) {
        (Some(Partial::Alone), _) => {
            Nccl::NotRun { why: format!("{}: {}", program.display(), Partial::Alone) }
        }
        (None, Some(size)) => Nccl::Measured(Measured {
            compared: compared(results, references, printed.ranks, size.bytes),
            program,
            nccl: printed.nccl,
            ranks: printed.ranks,
            bytes: size.bytes,
            busbw_gb_s: size.busbw_gb_s,
            wrong: size.wrong,
        }),
        (Some(Partial::Cut), _) | (None, None) => {
            let own = text.lines().find(|line| line.contains("failure")).map(|line| line.trim().to_owned());
            let why = own.or(ended).unwrap_or_else(|| "it printed no result".to_owned());
            Nccl::Failed { program, why }
        }
    }
}

fn compared(results: &Results, references: &[Reference], ranks: usize, bytes: u64) -> Option<Compared> {
    let nodes = results.nodes.len();
    let is_same = |one: &&Reference| {
        one.op == "AllReduce"
            && usize::try_from(one.ranks) == Ok(ranks)
            && usize::try_from(one.nodes) == Ok(nodes)
            && one.bytes == bytes
    };
    if let Some(reference) = references.iter().find(is_same) {
        return Some(Compared::Reference { busbw_gb_s: reference.busbw_gb_s });
    }
    if results.net != Some(Net::Rdma) {
        return None;
    }
    let tested = || results.rounds.iter().flat_map(|round| &round.tested);
    let rails = tested().map(|one| one.rail + 1).max()?;
    let mut rates: Vec<f64> = tested()
        .filter_map(|one| match one.outcome {
            Outcome::Measured { gbps, .. } => Some(gbps),
            _ => None,
        })
        .flatten()
        .collect();
    rates.sort_by(f64::total_cmp);
    let median = rates.get(rates.len() / 2)?;
    let count = f64::from(u32::try_from(rails).ok()?);
    Some(Compared::Rails { rails, gb_s: count * median / 8.0 })
}

impl Measured {
    /// Share of the reference; `None` without one.
    pub(crate) fn share(&self) -> Option<f64> {
        match self.compared {
            Some(Compared::Reference { busbw_gb_s }) => Some(self.busbw_gb_s / busbw_gb_s),
            _ => None,
        }
    }

    pub(crate) fn is_low(&self) -> bool {
        self.share().is_some_and(|share| share < LOWEST_SHARE)
    }
}

impl Nccl {
    /// Returns how many values were wrong.
    pub(crate) fn wrong(&self) -> u64 {
        match self {
            Nccl::Measured(Measured { wrong, .. }) => wrong.unwrap_or(0),
            _ => 0,
        }
    }
}

/// The program in the first directory of `PATH` that has it.
fn in_path(directories: &std::ffi::OsStr) -> Option<PathBuf> {
    // A relative one would be another one on other nodes.
    let absolute = std::env::split_paths(directories).filter(|directory| directory.is_absolute());
    absolute.map(|directory| directory.join(PROGRAM)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use railgate_preflight::{Pair, Round, Tested};

    use super::*;

    const TABLE: &str = "# nccl-tests version 2.17.9 nccl-headers=22809 nccl-library=22809\n\
        #  Rank  0 Group  0 Pid   1 on        gn1 device  0 [0000:18:00] NVIDIA H200\n\
        #  Rank  1 Group  0 Pid   2 on        gn2 device  0 [0000:18:00] NVIDIA H200\n\
        #       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n\
        \x20 1073741824     268435456     float     sum      -1  22102.1   48.58   48.58       0  22093.0   48.60   48.60       0\n";

    fn results(net: Net) -> Results {
        let mut results = Results::new("7".to_owned(), vec!["gn1".to_owned(), "gn2".to_owned()]);
        let pair = Pair { left: 0, right: 1 };
        let outcome = || Outcome::Measured { gbps: [390.0, 400.0], latency_us: 2.0 };
        let tested = (0..2).map(|rail| Tested { pair, rail, outcome: outcome() }).collect();
        results.rounds.push(Round { pairs: vec![pair], tested, measured_again: 0 });
        results.net = Some(net);
        results
    }

    fn reference(ranks: u32, busbw_gb_s: f64) -> Reference {
        Reference { op: "AllReduce".to_owned(), ranks, nodes: 2, bytes: BYTES, busbw_gb_s }
    }

    fn of(text: &str, ended: Option<&str>, references: &[Reference], net: Net) -> Nccl {
        result(&results(net), PathBuf::from("/p"), text, ended.map(str::to_owned), references)
    }

    #[test]
    fn a_bus_bandwidth_is_compared_with_the_sites_or_with_the_rails() {
        let Nccl::Measured(measured) = of(TABLE, None, &[reference(4, 1.0), reference(2, 80.0)], Net::Rdma)
        else {
            panic!()
        };
        assert_eq!((measured.busbw_gb_s, measured.ranks, measured.wrong), (48.58, 2, Some(0)));
        assert_eq!(measured.nccl.as_deref(), Some("2.28.9"));
        assert!(measured.is_low() && measured.share().is_some_and(|share| (share - 0.60725).abs() < 1e-9));
        let Nccl::Measured(measured) = of(TABLE, None, &[reference(4, 1.0)], Net::Rdma) else { panic!() };
        assert_eq!(measured.compared, Some(Compared::Rails { rails: 2, gb_s: 100.0 }));
        assert!(!measured.is_low());
        let Nccl::Measured(measured) = of(TABLE, None, &[], Net::Tcp) else { panic!() };
        assert_eq!(measured.compared, None);
    }

    #[test]
    fn a_test_without_a_result_has_its_reason() {
        let failure = "gn2: Test NCCL failure common.cu:1005 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '\n";
        let Nccl::Failed { why, .. } = of(failure, Some("srun: error: gn2: task 1"), &[], Net::Tcp) else {
            panic!()
        };
        assert!(why.starts_with("gn2: Test NCCL failure common.cu:1005"), "{why}");
        let late = of("", Some("the step did not end in 120 s"), &[], Net::Tcp);
        assert_eq!(
            late,
            Nccl::Failed { program: PathBuf::from("/p"), why: "the step did not end in 120 s".to_owned() }
        );
        // A bandwidth that was printed before the end failed is not one of a whole test.
        assert!(matches!(of(TABLE, Some("srun: error: killed"), &[], Net::Tcp), Nccl::Failed { .. }));
        let wrong = TABLE.replace("48.60       0", "48.60       9");
        assert_eq!(
            of(&wrong, Some("srun: error: gn1: task 0: Exited with exit code 1"), &[], Net::Tcp).wrong(),
            9
        );
        let alone = TABLE
            .lines()
            .filter(|line| !line.contains("gn2"))
            .map(|line| format!("{line}\n"))
            .collect::<String>();
        assert!(matches!(of(&alone, None, &[], Net::Tcp), Nccl::NotRun { .. }));
        // A task of another node failed before rank 0 had listed all ranks.
        let error = "srun: error: gn2: task 1: Exited with exit code 3";
        let Nccl::Failed { why, .. } = of(&alone, Some(error), &[], Net::Tcp) else { panic!() };
        assert_eq!(why, error);
    }

    #[test]
    fn the_program_is_the_first_one_in_path() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (place.path().join("a"), place.path().join("b"));
        for (folder, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join(PROGRAM), "").unwrap();
            std::fs::set_permissions(folder.join(PROGRAM), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([Path::new("b"), &first, &second]).unwrap();
        assert_eq!(in_path(&path), Some(second.join(PROGRAM)));
        assert_eq!(in_path("".as_ref()), None);
        assert_eq!(which("none"), Ok(Which::None));
        assert_eq!(which("./all_reduce_perf"), Ok(Which::At(PathBuf::from("./all_reduce_perf"))));
        assert!(which("all_reduce_perf").is_err());
    }
}
