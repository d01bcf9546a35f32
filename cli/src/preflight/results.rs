//! What the tasks printed, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use railgate_model::{GpuSelfTested, ValueCheck};
use railgate_pair::Outcome;
use railgate_preflight::{Outcome as Judged, Pair, Place, Report, Round, Sign, Tested, Verdict, What};
use serde::{Deserialize, Serialize};

use super::lines::Line;
use super::nccl::Nccl;

/// Error of `railgate-rdma-selftest` for a port that cannot be used.
const NOT_ACTIVE: &str = "the port is not active";
/// Most rails of a node.
const MOST_RAILS: usize = 16;

/// How the nodes test each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Net {
    Rdma,
    Tcp,
}

/// A test of a GPU, and its node.
#[derive(Debug, Serialize)]
pub(crate) struct OfGpu {
    pub(crate) node: String,
    #[serde(flatten)]
    pub(crate) test: GpuSelfTested,
}

/// Why a node has no result.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    pub(crate) node: String,
    pub(crate) why: String,
}

/// All results of a job.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) job: String,
    /// Names of the nodes; other lists have indices into this one.
    pub(crate) nodes: Vec<String>,
    pub(crate) gpus: Vec<OfGpu>,
    /// `None`: a job of one node, which has nothing to test.
    pub(crate) net: Option<Net>,
    /// HCAs of each node in the order of its rails; `None`: not known.
    pub(crate) devices: Vec<Option<Vec<String>>>,
    /// The leaf switch of each node in Slurm's topology; `None`: not known.
    pub(crate) leafs: Vec<Option<String>>,
    pub(crate) rounds: Vec<Round>,
    pub(crate) report: Report,
    pub(crate) problems: Vec<Problem>,
    /// `None`: not asked for.
    pub(crate) nccl: Option<Nccl>,
    /// Ends of the present round, by node and rail.
    #[serde(skip)]
    ends: BTreeMap<(usize, usize), Outcome>,
    /// Nodes whose tasks printed something in the present step.
    #[serde(skip)]
    heard: BTreeSet<usize>,
}

impl Results {
    pub(crate) fn new(job: String, nodes: Vec<String>) -> Self {
        Results {
            job,
            devices: vec![None; nodes.len()],
            leafs: vec![None; nodes.len()],
            nodes,
            gpus: Vec::new(),
            net: None,
            rounds: Vec::new(),
            report: Report::default(),
            problems: Vec::new(),
            nccl: None,
            ends: BTreeMap::new(),
            heard: BTreeSet::new(),
        }
    }

    /// Takes a line of a task. One about a node that is not of the job is left out.
    pub(crate) fn hear(&mut self, line: Line) {
        if let Some(place) = self.place(line.node()) {
            self.heard.insert(place);
        }
        match line {
            Line::Gpu { node, test } if self.place(&node).is_some() => self.gpus.push(OfGpu { node, test }),
            Line::Problem { node, why } if self.place(&node).is_some() => {
                self.problems.push(Problem { node, why })
            }
            Line::Devices { node, mut devices, leaf } => {
                devices.truncate(MOST_RAILS);
                let Some(place) = self.place(&node) else { return };
                if let (Some(known), Some(of_node)) = (self.devices.get_mut(place), self.leafs.get_mut(place))
                {
                    (*known, *of_node) = (Some(devices), leaf);
                }
            }
            Line::Rail { node, rail, outcome } => {
                if let Some(place) = self.place(&node) {
                    self.ends.insert((place, rail), outcome);
                }
            }
            Line::Gpu { .. } | Line::Problem { .. } => {}
        }
    }

    fn place(&self, node: &str) -> Option<usize> {
        self.nodes.iter().position(|name| name == node)
    }

    /// Some nodes have HCAs and others have not shown one: the rails cannot be tested by RDMA, and that is not a result.
    pub(crate) fn miss_devices(&mut self) {
        let has = |devices: &Option<Vec<String>>| devices.as_ref().is_some_and(|all| !all.is_empty());
        if !self.devices.iter().any(has) {
            return;
        }
        for (node, devices) in self.nodes.iter().zip(&self.devices) {
            if !has(devices) {
                let why = "no compute HCA was found, so that all nodes test each other by TCP".to_owned();
                self.problems.push(Problem { node: node.clone(), why });
            }
        }
    }

    /// The nodes as the plan of the rounds has them. `rails`: the number of rails of a node with these HCAs.
    pub(crate) fn places(&self, rails: impl Fn(&Option<Vec<String>>) -> usize) -> Vec<Place> {
        let names: BTreeSet<&String> = self.leafs.iter().flatten().collect();
        let ids: BTreeMap<&String, u32> = names.into_iter().zip(0..).collect();
        let of_node = |(devices, leaf): (&Option<Vec<String>>, &Option<String>)| {
            let leaf = leaf.as_ref().and_then(|leaf| ids.get(leaf).copied());
            leaf.map_or_else(|| Place::unknown(rails(devices)), |leaf| Place::under(leaf, rails(devices)))
        };
        self.devices.iter().zip(&self.leafs).map(of_node).collect()
    }

    /// Nodes that could not be tested because too little time is left.
    pub(crate) fn no_time(&mut self, nodes: &[String], what: &str) {
        self.not_tested(nodes, &format!("no time left for {what}"));
    }

    /// Nodes that have no result of a part, for one reason.
    pub(crate) fn not_tested<'a>(&mut self, nodes: impl IntoIterator<Item = &'a String>, why: &str) {
        let of = |node: &String| Problem { node: node.clone(), why: why.to_owned() };
        self.problems.extend(nodes.into_iter().map(of));
    }

    pub(crate) fn begin_step(&mut self) {
        self.heard.clear();
    }

    /// Names the nodes whose tasks printed nothing in the step that has ended. `why` is what is known of the step as a whole.
    pub(crate) fn end_step(&mut self, nodes: &[String], what: &str, why: Option<&str>) {
        let silent = |node: &&String| self.place(node).is_none_or(|place| !self.heard.contains(&place));
        let silent: Vec<String> = nodes.iter().filter(silent).cloned().collect();
        let why = why.unwrap_or("its task printed no result");
        self.not_tested(&silent, &format!("no result of {what}: {why}"));
    }

    pub(crate) fn begin_round(&mut self) {
        self.begin_step();
        self.ends.clear();
    }

    /// The results of the pairs of the present round.
    pub(crate) fn end_round(&mut self, pairs: &[Pair]) -> Vec<Tested> {
        let ends = std::mem::take(&mut self.ends);
        let mut tested = Vec::new();
        for pair in pairs {
            let rails: BTreeSet<usize> = ends
                .keys()
                .filter(|(node, _)| [pair.left, pair.right].contains(node))
                .map(|(_, rail)| *rail)
                .collect();
            for rail in rails {
                let outcome = judged(*pair, ends.get(&(pair.left, rail)), ends.get(&(pair.right, rail)));
                tested.push(Tested { pair: *pair, rail, outcome });
            }
        }
        tested
    }

    /// GPUs with a wrong value.
    pub(crate) fn wrong(&self) -> impl Iterator<Item = &OfGpu> {
        self.gpus.iter().filter(|one| matches!(one.test.values, ValueCheck::Wrong { .. }))
    }

    /// Tests of GPUs without a result.
    pub(crate) fn without_result(&self) -> impl Iterator<Item = (&OfGpu, &str)> {
        self.gpus.iter().filter_map(|one| Some((one, one.test.unknown.as_deref()?)))
    }

    /// Number of GPUs that were tested on each node; `None`: it differs, or none were tested.
    pub(crate) fn gpus_of_each_node(&self) -> Option<usize> {
        let of = |node: &String| {
            let tests = self.gpus.iter().filter(|one| one.node == *node);
            tests.map(|one| one.test.gpu).collect::<BTreeSet<_>>().len()
        };
        let counts: BTreeSet<usize> = self.nodes.iter().map(of).collect();
        counts.first().copied().filter(|count| counts.len() == 1 && *count > 0)
    }

    pub(crate) fn names_something(&self) -> bool {
        let has_wrong_values = self.nccl.as_ref().is_some_and(|nccl| nccl.wrong() > 0);
        has_wrong_values || self.wrong().next().is_some() || !self.report.verdicts.is_empty()
    }

    /// The nodes of [`Results::bad_nodes`] on which a script must not start, each with the first reason.
    pub(crate) fn marks(&self) -> Vec<(String, String)> {
        let of = |node: &str| {
            let wrong = self.wrong().find(|one| one.node == node);
            let gpu = wrong.map(|one| format!("GPU {}: wrong values in {}", one.test.gpu, one.test.test));
            let of_node = |what: &What| match what {
                What::Rail(end) => self.place(node) == Some(end.node),
                What::Node { node: place, .. } => self.place(node) == Some(*place),
                _ => false,
            };
            let mut strong = self.report.verdicts.iter().filter(|verdict| self.stops_a_script(verdict));
            let mut rail = || strong.find(|verdict| of_node(&verdict.what));
            gpu.or_else(|| rail().map(|verdict| verdict.sentence(&self.nodes)))
        };
        self.bad_nodes().into_iter().filter_map(|node| Some((node.to_owned(), of(node)?))).collect()
    }

    /// Whether a verdict about a rail or a node is certain enough to take the nodes away from a job. The rate of one TCP connection and
    /// a latency depend on the load of both nodes as well.
    fn stops_a_script(&self, verdict: &Verdict) -> bool {
        match verdict.sign {
            Sign::Corrupt { .. } | Sign::Down => true,
            Sign::Failed => verdict.confirmed,
            Sign::Slow { .. } => verdict.confirmed && self.net == Some(Net::Rdma),
            Sign::Late { .. } => false,
        }
    }

    pub(crate) fn is_incomplete(&self) -> bool {
        let failed = matches!(self.nccl, Some(Nccl::Failed { .. }));
        let has_no_result = self.without_result().next().is_some();
        failed || has_no_result || !self.problems.is_empty() || !self.report.unknown.is_empty()
    }

    /// Nodes that the job should leave out, in their order.
    pub(crate) fn bad_nodes(&self) -> Vec<&str> {
        let of_gpus = self.wrong().filter_map(|one| self.place(&one.node));
        let of_rails = self.report.verdicts.iter().filter_map(|verdict| match verdict.what {
            What::Rail(end) => Some(end.node),
            What::Node { node, .. } => Some(node),
            _ => None,
        });
        let places: BTreeSet<usize> = of_gpus.chain(of_rails).collect();
        places.into_iter().filter_map(|place| self.nodes.get(place).map(String::as_str)).collect()
    }
}

/// The result of a rail from what its two ends printed. An error is evidence about the rail only if the ends had met over the
/// network of the nodes before: otherwise nothing was tested.
fn judged(pair: Pair, left: Option<&Outcome>, right: Option<&Outcome>) -> Judged {
    for (node, end) in [(pair.left, left), (pair.right, right)] {
        let error = end.and_then(|end| end.error.as_deref());
        if error.is_some_and(|why| why.contains(NOT_ACTIVE)) {
            return Judged::Failed { why: NOT_ACTIVE.to_owned(), down_end: Some(node) };
        }
    }
    let (Some(left), Some(right)) = (left, right) else {
        return Judged::Unknown { why: "one end printed no result".to_owned() };
    };
    let wrong = |one: Option<u64>, other: Option<u64>| one.unwrap_or(0).max(other.unwrap_or(0));
    let wrong_words = [
        wrong(left.wrong_words.out, right.wrong_words.into),
        wrong(right.wrong_words.out, left.wrong_words.into),
    ];
    if wrong_words != [0, 0] {
        return Judged::Corrupt { wrong_words };
    }
    let why = match (&left.error, &right.error) {
        (Some(one), Some(other)) if one != other => Some(format!("{one}; the other end: {other}")),
        (one, other) => one.clone().or_else(|| other.clone()),
    };
    let there = left.gbps.write_out.or(right.gbps.write_in);
    let back = right.gbps.write_out.or(left.gbps.write_in);
    let latency = left.latency_us.median_out.into_iter().chain(right.latency_us.median_out).reduce(f64::max);
    match (why, there.zip(back).zip(latency)) {
        (None, Some(((there, back), latency_us))) => Judged::Measured { gbps: [there, back], latency_us },
        (why, _) => {
            let why = why.unwrap_or_else(|| "not all was measured".to_owned());
            if left.peer_device.is_some() || right.peer_device.is_some() {
                Judged::Failed { why, down_end: None }
            } else {
                Judged::Unknown { why }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_preflight::{End, Plan, Settings};

    use super::*;

    const PAIR: Pair = Pair { left: 0, right: 1 };

    fn end(gbps: f64) -> Outcome {
        let mut end = Outcome {
            device: "mlx5_0".to_owned(),
            peer_device: Some("mlx5_0".to_owned()),
            ..Outcome::default()
        };
        (end.gbps.write_out, end.latency_us.median_out) = (Some(gbps), Some(gbps / 100.0));
        (end.wrong_words.out, end.wrong_words.into) = (Some(0), Some(0));
        end
    }

    fn failed(why: &str, met: bool) -> Outcome {
        let peer_device = met.then(|| "mlx5_0".to_owned());
        Outcome { peer_device, error: Some(why.to_owned()), ..Outcome::default() }
    }

    #[test]
    fn both_ends_make_one_result() {
        let measured = judged(PAIR, Some(&end(390.0)), Some(&end(200.0)));
        assert_eq!(measured, Judged::Measured { gbps: [390.0, 200.0], latency_us: 3.9 });
        let mut wrong = end(390.0);
        wrong.wrong_words.into = Some(7);
        assert_eq!(judged(PAIR, Some(&wrong), Some(&end(1.0))), Judged::Corrupt { wrong_words: [0, 7] });
        assert_eq!(judged(PAIR, Some(&end(1.0)), Some(&wrong)), Judged::Corrupt { wrong_words: [7, 0] });
    }

    #[test]
    fn an_error_counts_only_after_the_ends_have_met() {
        let of = |left: &Outcome, right: &Outcome| judged(PAIR, Some(left), Some(right));
        let refused = failed("connect to gn2:28000: Connection refused (os error 111)", false);
        let alone = failed("no peer with the key in 25 s; 0 other connections dropped", false);
        assert!(matches!(of(&alone, &refused), Judged::Unknown { .. }));
        let broken = failed("transport retry counter exceeded", true);
        let Judged::Failed { why, down_end: None } =
            of(&broken, &failed("the peer closed the connection", true))
        else {
            panic!()
        };
        assert_eq!(why, "transport retry counter exceeded; the other end: the peer closed the connection");
        let down = failed("open: the port is not active", false);
        assert!(matches!(of(&alone, &down), Judged::Failed { down_end: Some(1), .. }));
        assert!(matches!(judged(PAIR, Some(&end(1.0)), None), Judged::Unknown { .. }));
        assert!(matches!(of(&Outcome::default(), &Outcome::default()), Judged::Unknown { .. }));
    }

    fn results(nodes: usize) -> Results {
        Results::new("7".to_owned(), (1..=nodes).map(|number| format!("gn{number}")).collect())
    }

    #[test]
    fn lines_of_tasks_are_kept_by_node() {
        let mut results = results(2);
        for text in [
            r#"{"devices":{"node":"gn2","devices":["mlx5_0","mlx5_1"],"leaf":"leaf-2"}}"#,
            r#"{"devices":{"node":"other","devices":["mlx5_0"]}}"#,
            r#"{"problem":{"node":"gn1","why":"no config"}}"#,
            r#"{"problem":{"node":"other","why":"forged"}}"#,
        ] {
            results.hear(serde_json::from_str(text).unwrap());
        }
        assert_eq!(results.devices, [None, Some(vec!["mlx5_0".to_owned(), "mlx5_1".to_owned()])]);
        assert_eq!(results.leafs, [None, Some("leaf-2".to_owned())]);
        let rails = |devices: &Option<Vec<String>>| devices.as_ref().map_or(0, Vec::len);
        assert_eq!(results.places(rails), [Place::unknown(0), Place::under(0, 2)]);
        assert_eq!(results.problems.len(), 1);
        assert!(results.is_incomplete() && !results.names_something());
        results.miss_devices();
        assert_eq!(results.problems[1].node, "gn1");
        let mut without = self::results(2);
        without.miss_devices();
        assert!(without.problems.is_empty());
    }

    /// Rail 1 of gn2 is slow with both of its partners.
    #[test]
    fn a_slow_rail_excludes_its_node() {
        let mut results = results(6);
        let plan = Plan::new(vec![Place::unknown(2); 6], Settings::default());
        while let Some(pairs) = plan.next(&results.rounds) {
            results.begin_round();
            for (node, rail) in
                pairs.iter().flat_map(|pair| [pair.left, pair.right]).flat_map(|node| [(node, 0), (node, 1)])
            {
                let with = pairs.iter().find_map(|pair| pair.partner(node)).unwrap();
                let slow = rail == 1 && (node == 1 || with == 1);
                let outcome = end(if slow { 90.0 } else { 390.0 });
                results.hear(Line::Rail { node: format!("gn{}", node + 1), rail, outcome });
            }
            let tested = results.end_round(&pairs);
            assert_eq!(tested.len(), 2 * pairs.len());
            results.rounds.push(Round { pairs, tested, measured_again: 0 });
        }
        results.report = plan.report(&results.rounds);
        results.net = Some(Net::Rdma);
        assert_eq!(results.bad_nodes(), ["gn2"]);
        assert!(results.names_something() && !results.is_incomplete());
        let marks = results.marks();
        assert!(marks.len() == 1 && marks[0].0 == "gn2", "{marks:?}");
        assert!(marks[0].1.starts_with("rail 1 of gn2: 90 Gb/s "), "{marks:?}");
    }

    #[test]
    fn only_a_strong_sign_stops_a_script() {
        let slow =
            || Sign::Slow { lowest_gbps: 1.0, usual_gbps: 390.0, usual: railgate_preflight::Usual::Median };
        let late = || Sign::Late { highest_us: 90.0, usual_us: 2.0 };
        let rail = || What::Rail(End { node: 1, rail: 0 });
        let (rdma, tcp) = (Some(Net::Rdma), Some(Net::Tcp));
        for (what, sign, confirmed, net, stops) in [
            (rail(), Sign::Corrupt { wrong_words: 1 }, false, tcp, true),
            (rail(), Sign::Down, false, rdma, true),
            (rail(), Sign::Failed, true, tcp, true),
            (rail(), Sign::Failed, false, rdma, false),
            (rail(), slow(), true, rdma, true),
            (rail(), slow(), false, rdma, false),
            (rail(), slow(), true, tcp, false),
            (rail(), late(), true, rdma, false),
            (What::Node { node: 1, rails: vec![0, 1], of: 2 }, slow(), true, rdma, true),
            (What::Node { node: 1, rails: vec![0, 1], of: 2 }, late(), true, rdma, false),
            (What::Path { left: 0, right: 1, rail: 0 }, Sign::Failed, true, rdma, false),
        ] {
            let mut results = results(2);
            results.net = net;
            let case = format!("{what:?} {sign:?} {confirmed} {net:?}");
            results.report.verdicts.push(Verdict { what, confirmed, sign, evidence: Vec::new() });
            assert!(results.names_something());
            let named: Vec<String> = results.marks().into_iter().map(|(node, _)| node).collect();
            assert_eq!(named, if stops { vec!["gn2"] } else { vec![] }, "{case}");
        }
    }

    #[test]
    fn a_wrong_value_of_a_gpu_excludes_its_node() {
        let mut results = results(2);
        let text = r#"{"gpu":{"node":"gn1","test":{"gpu":"0000:61:00.0","model":"NVIDIA H200","test":"gemm-bf16","seconds":0.1,
            "values":{"wrong":{"compared":100,"wrong":1,"first":[]}},"measured":{}}}}"#;
        results.hear(serde_json::from_str(text).unwrap());
        assert_eq!((results.bad_nodes(), results.names_something()), (vec!["gn1"], true));
        let marks = [("gn1".to_owned(), "GPU 0000:61:00.0: wrong values in gemm-bf16".to_owned())];
        assert_eq!(results.marks(), marks);
    }
}
