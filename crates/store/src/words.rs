//! Reads from a job's reports the few fields that programs decide by, in the child that reads the files.
//!
//! A job's owner can write anything into the job's report directory. Only files named after nodes of the job
//! are therefore opened (the caller knows the names; the directory is never listed), all of them share one
//! deadline and one byte budget, and the caller receives a few short fields per node instead of the files'
//! contents.

mod launched;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use railgate_child::ask;
use railgate_model::xid_catalogue::{Owner, lookup};
use railgate_model::{Class, Finding, PREFLIGHT_CHECK, PciAddress, Reading, Severity, UnixMillis};
use railgate_node_report::application::AppEventKind;
use railgate_node_report::{ActKind, Decision, Exit};
use serde::{Deserialize, Serialize};

use self::launched::PartLaunched;
pub use self::launched::Restarts;
use super::bounded::{Few, Short};
use super::dirs::{below, content_below, job_below, top};
use super::read::known_schema;
use super::{DECISION, dir_name};
use crate::ReportConfig;

pub(super) const READ_WORDS: &str = "read-words";

/// Slurm's limit of components of a heterogeneous job.
const MOST_JOBS: usize = 128;
const MOST_NODES: usize = 65_536;
/// Maximum evidence of one node; evidence that can decide comes first.
const MOST_EVIDENCE: usize = 8;
const MOST_PROBLEMS: usize = 20;
const MOST_UNTOLD: usize = 8;
/// Maximum length of a finding's subject and a device's name, characters.
const LONG: usize = 60;
/// Maximum length of a sentence, characters.
const TEXT: usize = 300;
/// Maximum length of the host list of a decision, bytes.
const MOST_LIST: usize = 64 << 10;
/// Byte budget of a read: this amount, plus one per node of the job. A report with eight GPUs takes 0.15 MB.
const BYTES: u64 = 16 << 20;
const BYTES_PER_NODE: u64 = 512 << 10;
const MOST_BYTES: u64 = 512 << 20;
/// Address space of the child beyond two buffers of the largest report. Reports are parsed without being kept.
const MEMORY: u64 = 96 << 20;
/// Time for the child to send its reply after the deadline.
const ANSWER: Duration = Duration::from_secs(1);

/// Selects the reports to read.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Cluster name.
    pub cluster: &'a str,
    /// Job id, or those of all components of a heterogeneous job.
    pub jobs: &'a [u32],
    /// Owner of the job: files of other users except root are refused.
    pub uid: u32,
    /// The attempt.
    pub attempt: u32,
    /// Nodes of the job according to Slurm: files of other nodes are not opened.
    pub nodes: &'a [String],
}

/// Fields of the job's node reports, bounded in number and length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    /// One entry per report, sorted by node name.
    pub nodes: Vec<NodeWord>,
    /// Files that were refused or could not be read, with the reason; at most a few.
    pub problems: Vec<String>,
    /// Nodes whose state is unknown, because their file is unusable or the budget was spent; at most a few.
    pub untold: Vec<String>,
    /// Total number of these nodes.
    pub untold_count: usize,
}

impl Words {
    /// What is unknown, as a clause of a sentence; `None` if nothing is.
    pub fn could_not_tell(&self) -> Option<String> {
        if self.untold_count == 0 {
            return None;
        }
        let more = self.untold_count.saturating_sub(self.untold.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let why = self.problems.first().map(|why| format!(": {why}")).unwrap_or_default();
        Some(format!("could not tell what {}{more} reported{why}", self.untold.join(", ")))
    }
}

/// Fields of the report of one node about one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeWord {
    /// Job id, or that of the component that ran there.
    pub job: u32,
    /// Node name.
    pub node: String,
    /// Whether the epilog wrote the file.
    pub ended: bool,
    /// Whether the prolog refused the job there.
    pub refused: bool,
    /// The deciding finding: that of the prolog if it refused the job, else that of the epilog.
    pub cause: Option<String>,
    /// Findings that may have ended the job.
    pub evidence: Vec<WordEvidence>,
    /// Whether the node has a message for the end of the job's output.
    pub speaks: bool,
    /// Restarts by `railgate launch`.
    pub restarts: Restarts,
}

/// One finding that may have ended the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordEvidence {
    /// Check and part, `gpu-lost@3`, in printable ASCII without blanks.
    pub subject: String,
    /// Device.
    pub part: String,
    /// Severity.
    pub severity: Severity,
    /// Class: part that is at fault.
    pub class: Class,
    /// Whether the job held the device; `None` if not known.
    pub own: Option<bool>,
    /// Time of the fault, if known.
    pub at: Option<UnixMillis>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    dir: PathBuf,
    cluster: String,
    jobs: Vec<u32>,
    uid: u32,
    attempt: u32,
    nodes: Vec<String>,
    /// Maximum size of a report, bytes.
    max_bytes: u64,
    /// Maximum of all reports together, bytes.
    most_bytes: u64,
    time: Duration,
    /// Read the controller's decision instead of the node reports.
    nodelist: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    words: Words,
    nodelist: Option<String>,
}

/// Reads the node reports of a job in the shared directory, within one deadline for all.
///
/// A job of many nodes gets more time than `[report] deadline`: 20 ms for each node, at most four times the
/// deadline. `patience` limits both.
///
/// # Errors
/// The child did not reply in time, or its reply exceeds the limits.
pub fn load_words(config: &ReportConfig, asked: &Asked<'_>, patience: Duration) -> Result<Words, String> {
    let Some(dir) = &config.dir else { return Ok(Words::default()) };
    let nodes: Vec<String> = asked.nodes.iter().filter(|name| dir_name(name).is_some()).cloned().collect();
    if nodes.len() > MOST_NODES || asked.jobs.len() > MOST_JOBS {
        return Err(format!("{} nodes, {} components: too many", nodes.len(), asked.jobs.len()));
    }
    let order = order(config, dir, asked, nodes, patience);
    let answer = send(&order)?;
    strict(&answer.words, &order)?;
    Ok(answer.words)
}

/// The nodes of an attempt as the controller recorded them in its decision, unexpanded.
///
/// # Errors
/// As [`load_words`].
pub fn load_nodelist(
    config: &ReportConfig,
    asked: &Asked<'_>,
    patience: Duration,
) -> Result<Option<String>, String> {
    let Some(dir) = &config.dir else { return Ok(None) };
    let order = Order { nodelist: true, ..order(config, dir, asked, Vec::new(), patience) };
    let list = send(&order)?.nodelist;
    match list {
        Some(list) if list.len() > MOST_LIST || !list.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("the decision's list of nodes is none".to_owned())
        }
        list => Ok(list.filter(|list| !list.is_empty())),
    }
}

fn order(
    config: &ReportConfig,
    dir: &Path,
    asked: &Asked<'_>,
    nodes: Vec<String>,
    patience: Duration,
) -> Order {
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    Order {
        dir: dir.to_path_buf(),
        cluster: asked.cluster.to_owned(),
        jobs: asked.jobs.to_vec(),
        uid: asked.uid,
        attempt: asked.attempt,
        nodes,
        max_bytes: config.max_bytes(),
        most_bytes: byte_budget(count),
        time: config.time_for(count).min(patience),
        nodelist: false,
    }
}

/// Byte budget for all reports of a job with this number of nodes.
pub(super) fn byte_budget(nodes: u32) -> u64 {
    u64::from(nodes).saturating_mul(BYTES_PER_NODE).saturating_add(BYTES).min(MOST_BYTES)
}

fn send(order: &Order) -> Result<Answer, String> {
    let input = serde_json::to_vec(order).map_err(|why| why.to_string())?;
    let reply = ask(READ_WORDS, &input, order.time + ANSWER)?;
    let most = (order.nodes.len() + 1) * 8192 + (1 << 20);
    if reply.len() > most {
        return Err(format!("an answer of {} bytes, at most {most} were expected", reply.len()));
    }
    serde_json::from_slice(&reply).map_err(|why| format!("answer: {why}"))
}

/// Checks a reply against its limits, because the child has parsed user-written files.
fn strict(words: &Words, order: &Order) -> Result<(), String> {
    let known: std::collections::HashSet<&str> = order.nodes.iter().map(String::as_str).collect();
    let mut seen = std::collections::HashSet::new();
    let plain =
        |text: &str, most: usize| text.len() <= most && text.bytes().all(|byte| byte.is_ascii_graphic());
    let sentence =
        |text: &String| text.chars().count() <= TEXT && text.chars().all(railgate_text::is_printable);
    let node_is_right = |word: &NodeWord| {
        known.contains(word.node.as_str())
            && order.jobs.contains(&word.job)
            && word.evidence.len() <= MOST_EVIDENCE
            && word.evidence.iter().all(|item| plain(&item.subject, LONG) && plain(&item.part, LONG))
            && word.cause.as_ref().is_none_or(sentence)
            && word.restarts.is_bounded()
    };
    let right = words.nodes.iter().all(|word| node_is_right(word) && seen.insert((word.job, &word.node)))
        && words.problems.len() <= MOST_PROBLEMS
        && words.problems.iter().all(sentence)
        && words.untold.len() <= MOST_UNTOLD
        && words.untold.iter().all(|name| known.contains(name.as_str()));
    if right {
        Ok(())
    } else {
        Err("the answer of the child that reads the reports breaks its bounds".to_owned())
    }
}

/// Runs in the child, as the job's owner if the caller is root.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_slice(input).map_err(|why| format!("order: {why}"))?;
    let memory = order.max_bytes.saturating_mul(2).saturating_add(MEMORY);
    let _ = setrlimit(Resource::RLIMIT_AS, memory, memory);
    serde_json::to_vec(&read(&order)?).map_err(|why| why.to_string())
}

/// Remaining budget.
struct Budget {
    until: Instant,
    bytes: u64,
}

impl Budget {
    /// Why no further file is opened.
    fn spent(&self) -> Option<&'static str> {
        if Instant::now() >= self.until {
            Some("not read: the time for all reports of the job is over")
        } else if self.bytes == 0 {
            Some("not read: the reports of the job are larger than allowed together")
        } else {
            None
        }
    }
}

fn read(order: &Order) -> Result<Answer, String> {
    let mut budget = Budget { until: Instant::now() + order.time, bytes: order.most_bytes };
    let mut answer = Answer::default();
    let Some(cluster) = dir_name(&order.cluster) else { return Err("not a cluster name".to_owned()) };
    let dir = top(&order.dir).map_err(|why| std::io::Error::from(why).to_string())?;
    let Some(cluster) = optional(below(dir.as_fd(), cluster))? else { return Ok(answer) };
    for &job in &order.jobs {
        let Some((dir, _)) = job_below(cluster.as_fd(), job, Some(order.uid))? else { continue };
        let Some(attempt) = optional(below(dir.as_fd(), &order.attempt.to_string()))? else { continue };
        if order.nodelist {
            answer.nodelist = nodelist(order, job, &attempt)?;
            return Ok(answer);
        }
        for name in &order.nodes {
            match word(order, job, &attempt, name, &mut budget) {
                Ok(word) => answer.words.nodes.extend(word),
                Err(why) => answer.words.not_told(name, &why),
            }
        }
    }
    Ok(answer)
}

fn optional<T>(found: Result<T, nix::errno::Errno>) -> Result<Option<T>, String> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(nix::errno::Errno::ENOENT) => Ok(None),
        Err(why) => Err(std::io::Error::from(why).to_string()),
    }
}

impl Words {
    fn not_told(&mut self, name: &str, why: &str) {
        self.untold_count += 1;
        if self.untold.len() < MOST_UNTOLD {
            self.untold.push(name.to_owned());
        }
        let problem = sentence(&format!("{name}: {why}"));
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

/// Fields of the file of one node; `None` if there is no file.
fn word(
    order: &Order,
    job: u32,
    dir: &OwnedFd,
    name: &str,
    budget: &mut Budget,
) -> Result<Option<NodeWord>, String> {
    if let Some(why) = budget.spent() {
        return Err(why.to_owned());
    }
    let file = format!("{name}.json");
    let Some((content, owner)) = content_below(dir.as_fd(), &file, order.max_bytes, &mut budget.bytes)?
    else {
        return Ok(None);
    };
    if owner != order.uid && owner != 0 {
        return Err(format!("refused: it belongs to uid {owner}, the job to {}", order.uid));
    }
    let part: Part = serde_json::from_slice(&content).map_err(|why| format!("not a node report: {why}"))?;
    known_schema(part.schema)?;
    let same = part.job.id == job
        && part.job.uid == order.uid
        && part.attempt == order.attempt
        && part.node.0 == name
        && part.cluster.0 == order.cluster;
    if !same {
        return Err("refused: contents do not match the path".to_owned());
    }
    Ok(Some(part.word(job, name)))
}

fn nodelist(order: &Order, job: u32, dir: &OwnedFd) -> Result<Option<String>, String> {
    let mut bytes = order.most_bytes;
    let Some((content, _)) = content_below(dir.as_fd(), DECISION, order.max_bytes, &mut bytes)? else {
        return Ok(None);
    };
    let decision: Decision =
        serde_json::from_slice(&content).map_err(|why| format!("not a decision: {why}"))?;
    known_schema(decision.schema)?;
    let same = (decision.job, decision.attempt, &decision.cluster) == (job, order.attempt, &order.cluster);
    if same { Ok(Some(decision.nodelist)) } else { Err("refused: contents do not match the path".to_owned()) }
}

/// The fields of a node report that decisions need. Lists are truncated and other fields skipped, so that
/// parsing takes no more memory than the file, regardless of content.
#[derive(Deserialize)]
struct Part {
    schema: u32,
    cluster: Short,
    node: Short,
    job: PartJob,
    attempt: u32,
    #[serde(default)]
    end: Option<UnixMillis>,
    #[serde(default)]
    exit: Option<Exit>,
    #[serde(default)]
    prolog: Option<PartLook>,
    #[serde(default)]
    epilog: Option<PartLook>,
    #[serde(default)]
    evidence: Few<PartEvidence, 256>,
    #[serde(default)]
    acts: Few<PartAct, 256>,
    #[serde(default)]
    gpus: Few<PartGpu, 64>,
    #[serde(default)]
    kernel: PartKernel,
    #[serde(default)]
    application: Option<PartApplication>,
    #[serde(default)]
    launched: Option<PartLaunched>,
}

#[derive(Deserialize)]
struct PartJob {
    id: u32,
    uid: u32,
}

#[derive(Deserialize)]
struct PartLook {
    verdict: PartVerdict,
}

#[derive(Deserialize)]
struct PartVerdict {
    findings: Few<PartFinding, 256>,
    deciding: Option<usize>,
}

#[derive(Deserialize)]
struct PartFinding {
    check: Short,
    #[serde(default)]
    part: Short,
    severity: Severity,
    class: Class,
    what: Short,
}

#[derive(Deserialize)]
struct PartEvidence {
    finding: PartFinding,
    #[serde(default)]
    time: Option<UnixMillis>,
    #[serde(default)]
    device: Short,
    #[serde(default)]
    own: Option<bool>,
}

#[derive(Deserialize)]
struct PartAct {
    what: ActKind,
}

#[derive(Deserialize)]
struct PartGpu {
    pci: Reading<PciAddress>,
    own: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PartKernel {
    xids: Few<PartXid, 256>,
}

#[derive(Deserialize)]
struct PartXid {
    code: u32,
    gpu: Option<PciAddress>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PartApplication {
    ranks: Few<PartRank, 1024>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PartRank {
    events: Few<PartEvent, 16>,
}

#[derive(Deserialize)]
struct PartEvent {
    what: AppEventKind,
}

impl PartFinding {
    fn subject(&self) -> String {
        let finding = Finding {
            check: self.check.0.clone(),
            part: self.part.0.clone(),
            severity: self.severity,
            class: self.class,
            what: String::new(),
            fix: String::new(),
            evidence: Vec::new(),
        };
        finding.subject()
    }
}

impl Part {
    fn word(&self, job: u32, node: &str) -> NodeWord {
        let refused = self.acts.0.iter().any(|act| act.what == ActKind::Refused);
        let look = if refused { &self.prolog } else { &self.epilog };
        let cause = look.as_ref().and_then(|look| {
            let cause = look.verdict.findings.0.get(look.verdict.deciding?)?;
            (cause.severity == Severity::Fail)
                .then(|| sentence(&format!("{}: {}", cause.subject(), cause.what.0)))
        });
        let mut evidence: Vec<WordEvidence> = self
            .evidence
            .0
            .iter()
            .map(|item| WordEvidence {
                subject: plain(&item.finding.subject()),
                part: plain(&item.device.0),
                severity: item.finding.severity,
                class: item.finding.class,
                own: item.own,
                at: item.time,
            })
            .collect();
        evidence.sort_by_key(|item| !item.may_decide());
        evidence.truncate(MOST_EVIDENCE);
        NodeWord {
            job,
            node: node.to_owned(),
            ended: self.end.is_some(),
            refused,
            cause,
            speaks: !refused && self.speaks(),
            evidence,
            restarts: self.launched.as_ref().map(PartLaunched::restarts).unwrap_or_default(),
        }
    }

    fn speaks(&self) -> bool {
        let hardware = self
            .evidence
            .0
            .iter()
            .filter(|item| item.finding.check.0 != PREFLIGHT_CHECK)
            .any(|item| item.own == Some(true) && item.finding.severity == Severity::Fail);
        let mut events =
            self.application.iter().flat_map(|told| &told.ranks.0).flat_map(|rank| &rank.events.0);
        let own_gpus =
            self.gpus.0.iter().filter(|gpu| gpu.own == Some(true)).filter_map(|gpu| gpu.pci.known());
        self.exit.is_some_and(|exit| exit.status != 0)
            && (hardware
                || events.any(|event| event.what == AppEventKind::Nan)
                || programs_xid(own_gpus, self.kernel.xids.0.iter().map(|xid| (xid.code, xid.gpu))).is_some())
    }
}

impl WordEvidence {
    /// Whether the evidence can decide, as far as the report alone shows.
    fn may_decide(&self) -> bool {
        self.severity == Severity::Fail
            && matches!(self.class, Class::Node | Class::Fabric)
            && self.own == Some(true)
    }
}

/// The first Xid on the job's own GPUs that the driver attributes to the program.
pub fn programs_xid<'a>(
    own_gpus: impl Iterator<Item = &'a PciAddress>,
    mut xids: impl Iterator<Item = (u32, Option<PciAddress>)>,
) -> Option<(u32, &'static str)> {
    let own: Vec<&PciAddress> = own_gpus.collect();
    let (code, _) = xids.find(|(_, gpu)| gpu.as_ref().is_some_and(|gpu| own.contains(&gpu)))?;
    lookup(code).filter(|row| row.owner == Owner::Application).map(|row| (code, row.meaning))
}

fn plain(text: &str) -> String {
    text.chars().take(LONG).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

fn sentence(text: &str) -> String {
    railgate_text::clip(text, TEXT)
}

#[cfg(test)]
mod tests {
    use railgate_node_report::testing::{job, lost_gpu, part};

    use super::*;

    fn order() -> Order {
        Order {
            dir: PathBuf::new(),
            cluster: "alpha".to_owned(),
            jobs: vec![48_213],
            uid: 1000,
            attempt: 0,
            nodes: vec!["n1".to_owned(), "n2".to_owned()],
            max_bytes: 1 << 20,
            most_bytes: 1 << 20,
            time: Duration::from_secs(1),
            nodelist: false,
        }
    }

    fn told(report: &railgate_node_report::NodeReport) -> NodeWord {
        let part: Part = serde_json::from_slice(&serde_json::to_vec(report).unwrap()).unwrap();
        part.word(48_213, "n1")
    }

    #[test]
    fn the_jobs_own_preflight_does_not_speak_for_the_hardware() {
        let mut report = part("n1", &job(0..8), "", vec![lost_gpu()], 256);
        report.evidence[0].own = Some(true);
        assert!(told(&report).speaks);
        report.evidence[0].finding.check = PREFLIGHT_CHECK.to_owned();
        let word = told(&report);
        assert!(!word.speaks && !word.evidence.is_empty(), "the controller still sees it: {word:?}");
    }

    #[test]
    fn finding_about_the_whole_node_has_no_part() {
        let whole =
            railgate_node_report::testing::finding("part-silent", "", Severity::Fail, Class::Node, "silent");
        let word = told(&part("n1", &job(0..8), "", vec![whole], 256));
        assert_eq!(word.evidence[0].subject, "part-silent");
    }

    #[test]
    fn report_is_reduced_to_deciding_fields() {
        let mut report = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
        let word = told(&report);
        assert_eq!((word.ended, word.refused, word.speaks), (true, false, true));
        assert_eq!((word.evidence[0].subject.as_str(), word.evidence[0].own), ("gpu-lost@3", Some(true)));
        assert!(word.cause.is_some_and(|cause| cause.starts_with("gpu-lost@3: ")));
        // Deciding evidence is kept, regardless of how much precedes it.
        let own = report.evidence.remove(0);
        let mut other = own.clone();
        (other.own, other.finding.part) = (Some(false), "x y\u{202e}\n".repeat(100));
        report.evidence = vec![other; 200];
        report.evidence.push(own);
        let word = told(&report);
        assert_eq!((word.evidence.len(), word.evidence[0].subject.as_str()), (MOST_EVIDENCE, "gpu-lost@3"));
        assert!(strict(&Words { nodes: vec![word], ..Words::default() }, &order()).is_ok());
    }

    #[test]
    fn reply_that_exceeds_its_limits_is_refused() {
        let word = |node: &str| NodeWord {
            job: 48_213,
            node: node.to_owned(),
            ended: true,
            refused: false,
            cause: None,
            evidence: Vec::new(),
            speaks: false,
            restarts: Restarts::default(),
        };
        let answer = |nodes: Vec<NodeWord>| strict(&Words { nodes, ..Words::default() }, &order());
        assert!(answer(vec![word("n1"), word("n2")]).is_ok());
        assert!(answer(vec![word("n1"), word("n1")]).is_err(), "twice");
        assert!(answer(vec![word("n3")]).is_err(), "not a node of the job");
        assert!(answer(vec![NodeWord { job: 7, ..word("n1") }]).is_err(), "another job");
        let long = NodeWord { cause: Some("x".repeat(TEXT + 1)), ..word("n1") };
        assert!(answer(vec![long]).is_err());
        let item = WordEvidence {
            subject: "gpu-lost@3".to_owned(),
            part: String::new(),
            severity: Severity::Fail,
            class: Class::Node,
            own: Some(true),
            at: None,
        };
        let with = |item: WordEvidence, count| NodeWord { evidence: vec![item; count], ..word("n1") };
        assert!(answer(vec![with(item.clone(), MOST_EVIDENCE)]).is_ok());
        assert!(answer(vec![with(item.clone(), MOST_EVIDENCE + 1)]).is_err());
        assert!(answer(vec![with(WordEvidence { subject: "a b".to_owned(), ..item }, 1)]).is_err());
        assert!(serde_json::from_str::<Answer>(r#"{"words":{},"nodelist":null,"more":1}"#).is_err());
    }
}
