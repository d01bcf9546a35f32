//! A fleet with known truth: nodes that fail, lemons, repairs and swaps, failures of what nodes share, jobs that fail their nodes,
//! accusations by peers, forged files, lost events. It knows nothing of how railgate judges.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use railgate_fleet::{
    Card, Cause, Drainer, Event, Grade, NodeFinding, Outcome, Shared, SharedKind, Source, What,
};
use railgate_model::{Class, Severity};

mod jobs;
mod storms;

use crate::random::Random;
use crate::work::Program;

pub(crate) const SECOND: u64 = 1000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
/// 2026-10-01, so that a history spans months.
pub(crate) const BEGIN: u64 = 1_790_812_800_000;

const LEAF: usize = 32;
const RACK: usize = 8;
const PDU: usize = 16;
const COOLING: usize = 128;
const CARDS: usize = 8;
const RAILS: usize = 8;

/// What the fleet is like. The defaults are the rates that Meta published of RSC-1, and guesses where nothing is published.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) nodes: usize,
    pub(crate) days: u64,
    pub(crate) seed: u64,
    /// Faults of single nodes per node and day.
    pub(crate) rate: f64,
    /// Share of lemons among the nodes.
    pub(crate) lemons: f64,
    /// Share of the faults of single nodes that lemons cause. Meta's large jobs failed in 14 % of cases with lemons and in 4 % without.
    pub(crate) of_lemons: f64,
    /// Failures of what nodes share, per thousand nodes and day.
    pub(crate) shared: f64,
    /// Share of jobs with several nodes that fail their nodes.
    pub(crate) killers: f64,
}

impl Parameters {
    pub(crate) fn new(nodes: usize, days: u64, seed: u64) -> Parameters {
        Parameters {
            nodes,
            days,
            seed,
            rate: 6.5e-3,
            lemons: 0.012,
            of_lemons: 0.7,
            shared: 0.6,
            killers: 0.004,
        }
    }

    /// The same fleet with all rates of failure multiplied.
    pub(crate) fn times(self, factor: f64) -> Parameters {
        Parameters {
            rate: self.rate * factor,
            shared: self.shared * factor,
            killers: self.killers * factor,
            ..self
        }
    }
}

/// A failure of what nodes share.
#[derive(Clone, Debug)]
pub(crate) struct Planted {
    pub(crate) shared: Shared,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Nodes of which there is evidence.
    pub(crate) nodes: BTreeSet<String>,
}

/// Why an attempt really ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Ordinary,
    Node { node: String, evidence: bool },
    Shared,
    Itself,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    /// When each node was a lemon: from, to.
    pub(crate) lemons: BTreeMap<String, Vec<(u64, u64)>>,
    pub(crate) planted: Vec<Planted>,
    /// Events that jobs caused, peers claim or users forged.
    pub(crate) framing: BTreeSet<String>,
    pub(crate) ends: BTreeMap<(u32, u32), Why>,
    /// Productive hours and wall-clock hours of each job that ended.
    pub(crate) productive: BTreeMap<u32, (f64, f64)>,
}

impl Truth {
    pub(crate) fn is_lemon(&self, node: &str, time: u64) -> bool {
        self.lemons.get(node).is_some_and(|spans| spans.iter().any(|(from, to)| *from <= time && time < *to))
    }
}

pub(crate) struct Fleet {
    pub(crate) events: Vec<Event>,
    pub(crate) truth: Truth,
    pub(crate) begin: u64,
    pub(crate) now: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Todo {
    End(usize),
    Resume(usize),
    Fault(usize, u32),
    Shared(usize),
    Killer(usize),
    Start,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    No,
    /// Slot of the card that is bad.
    Card(usize),
    Board(Cause),
}

struct Machine {
    name: String,
    cards: Vec<String>,
    bad: Bad,
    bad_rate: f64,
    bad_since: u64,
    /// Which of its drawn faults is valid.
    drawn: u32,
    out: bool,
    busy: Option<usize>,
    driver: &'static str,
}

struct Job {
    id: u32,
    uid: u32,
    size: usize,
    program: Program,
    left_s: f64,
    attempts: u32,
    first_queued: u64,
    queued: u64,
    productive_s: f64,
    killer: bool,
    /// Fraction of the work after which the owner's program ends it otherwise.
    own_end: Option<(f64, Outcome)>,
}

struct Running {
    job: usize,
    nodes: Vec<usize>,
    start: u64,
    end: u64,
    outcome: Outcome,
    why: Why,
    attempt: u32,
    starts_s: (f64, f64),
    restart: Option<u64>,
    done: bool,
}

struct World {
    p: Parameters,
    random: Random,
    events: Vec<Event>,
    truth: Truth,
    now: u64,
    end: u64,
    machines: Vec<Machine>,
    jobs: Vec<Job>,
    waiting: Vec<usize>,
    running: Vec<Running>,
    heap: BinaryHeap<Reverse<(u64, u64, Todo)>>,
    order: u64,
    plan: Vec<(SharedKind, usize)>,
    spares: Vec<(String, Bad, f64)>,
    next_card: u32,
    next_event: u64,
    /// User, and number of jobs to come.
    series: (u32, u32),
}

pub(crate) fn fleet(parameters: &Parameters) -> Fleet {
    let mut world = World::new(parameters.clone());
    world.play();
    let end = world.end;
    for index in 0..world.machines.len() {
        world.close_lemon(index, end + 1);
    }
    // Some events come twice.
    let copies: Vec<Event> = world.events.iter().step_by(17).cloned().collect();
    world.events.extend(copies);
    Fleet { events: world.events, truth: world.truth, begin: BEGIN, now: end }
}

fn ms(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}

impl World {
    fn new(p: Parameters) -> World {
        let mut world = World {
            random: Random::new(p.seed),
            end: BEGIN + p.days * DAY,
            p,
            events: Vec::new(),
            truth: Truth::default(),
            now: BEGIN,
            machines: Vec::new(),
            jobs: Vec::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            heap: BinaryHeap::new(),
            order: 0,
            plan: Vec::new(),
            spares: Vec::new(),
            next_card: 0,
            next_event: 0,
            series: (2000, 0),
        };
        for index in 0..world.p.nodes {
            let cards = (0..CARDS).map(|_| world.new_card()).collect();
            let driver = if world.random.chance(0.8) { "580.1" } else { "575.9" };
            world.machines.push(Machine {
                name: format!("n{index:04}"),
                cards,
                bad: Bad::No,
                bad_rate: 0.0,
                bad_since: BEGIN,
                drawn: 0,
                out: false,
                busy: None,
                driver,
            });
        }
        let lemons = (world.p.nodes as f64 * world.p.lemons).round() as usize;
        let mean = world.p.rate * world.p.of_lemons / world.p.lemons;
        let mut chosen = BTreeSet::new();
        while chosen.len() < lemons {
            chosen.insert(world.random.below(world.p.nodes));
        }
        for node in chosen {
            let bad = match world.random.unit() {
                card if card < 0.6 => Bad::Card(world.random.below(CARDS)),
                _ => {
                    Bad::Board(world.random.pick(&[Cause::Network, Cause::Host, Cause::Down, Cause::Nvlink]))
                }
            };
            let rate = mean * world.random.erlang(3);
            world.make_bad(node, bad, rate);
        }
        for node in 0..world.p.nodes {
            world.place(node);
            world.cards(node);
            world.draw_fault(node);
        }
        world.plan_shared();
        world.forge();
        world.push(BEGIN, Todo::Start);
        world
    }

    fn new_card(&mut self) -> String {
        self.next_card += 1;
        format!("GPU-{:06x}", self.next_card)
    }

    fn push(&mut self, time: u64, todo: Todo) {
        self.order += 1;
        self.heap.push(Reverse((time, self.order, todo)));
    }

    fn emit(&mut self, time: u64, source: Source, what: What) {
        self.next_event += 1;
        self.events.push(Event { id: format!("e{}", self.next_event), time, source, what });
    }

    fn make_bad(&mut self, node: usize, bad: Bad, rate: f64) {
        let machine = &mut self.machines[node];
        machine.bad = bad;
        machine.bad_rate = rate;
        machine.bad_since = self.now;
    }

    fn close_lemon(&mut self, node: usize, time: u64) {
        let machine = &mut self.machines[node];
        if machine.bad != Bad::No {
            let span = (machine.bad_since, time);
            self.truth.lemons.entry(machine.name.clone()).or_default().push(span);
        }
        machine.bad = Bad::No;
    }

    fn shares(&self, node: usize) -> Vec<Shared> {
        let mut shares = vec![
            Shared { kind: SharedKind::Rack, name: format!("r{}", node / RACK) },
            Shared { kind: SharedKind::Pdu, name: format!("p{}", node / PDU) },
            Shared { kind: SharedKind::Cooling, name: format!("c{}", node / COOLING) },
            Shared { kind: SharedKind::FileServer, name: format!("fs{}", node / 4 % 2) },
            Shared { kind: SharedKind::Driver, name: self.machines[node].driver.to_owned() },
            Shared { kind: SharedKind::Image, name: "image-7".to_owned() },
        ];
        let leafs = (0..RAILS).map(|rail| leaf(node / LEAF, rail));
        shares.extend(leafs.map(|name| Shared { kind: SharedKind::Leaf, name }));
        shares
    }

    fn place(&mut self, node: usize) {
        let (node_name, shares) = (self.machines[node].name.clone(), self.shares(node));
        self.emit(self.now, Source::Root, What::Placed { node: node_name, shares });
    }

    fn cards(&mut self, node: usize) {
        let machine = &self.machines[node];
        let card = |uuid: &String| Card { uuid: uuid.clone(), serial: String::new() };
        let what =
            What::Cards { node: machine.name.clone(), cards: machine.cards.iter().map(card).collect() };
        self.emit(self.now, Source::Root, what);
    }

    fn rate(&self, node: usize) -> f64 {
        let healthy = self.p.rate * (1.0 - self.p.of_lemons) / (1.0 - self.p.lemons);
        healthy + if self.machines[node].bad == Bad::No { 0.0 } else { self.machines[node].bad_rate }
    }

    fn draw_fault(&mut self, node: usize) {
        let days = 1.0 / self.rate(node);
        let wait = self.random.exponential(days) * DAY as f64;
        self.machines[node].drawn += 1;
        let drawn = self.machines[node].drawn;
        if wait < (self.end - BEGIN) as f64 {
            self.push(self.now + wait as u64, Todo::Fault(node, drawn));
        }
    }

    fn play(&mut self) {
        while let Some(Reverse((time, _, todo))) = self.heap.pop() {
            if time > self.end {
                break;
            }
            self.now = time;
            match todo {
                Todo::Start => self.start_jobs(),
                Todo::End(index) => self.job_end(index),
                Todo::Resume(node) => self.resume(node),
                Todo::Fault(node, drawn) if self.machines[node].drawn == drawn => self.fault(node),
                Todo::Fault(..) => {}
                Todo::Shared(index) => self.shared(index),
                Todo::Killer(index) => self.killer(index),
            }
        }
    }

    fn resume(&mut self, node: usize) {
        self.machines[node].out = false;
        if self.random.chance(0.9) {
            let node = self.machines[node].name.clone();
            self.emit(self.now, Source::Root, What::Resumed { node });
        }
        self.push(self.now, Todo::Start);
    }

    fn take_out(&mut self, node: usize, time: u64, hours: f64) {
        if self.machines[node].out {
            return;
        }
        self.machines[node].out = true;
        let reason = "railgate: test".to_owned();
        let name = self.machines[node].name.clone();
        self.emit(time, Source::Root, What::Drained { node: name, by: Drainer::Railgate, reason });
        self.push(time + ms(hours * 3600.0), Todo::Resume(node));
    }

    fn fault(&mut self, node: usize) {
        self.draw_fault(node);
        if self.machines[node].out {
            return;
        }
        let share = self.machines[node].bad_rate / self.rate(node);
        let of_lemon = self.machines[node].bad != Bad::No && self.random.chance(share);
        let causes = [
            (Cause::Gpu, 0.5),
            (Cause::Network, 0.15),
            (Cause::Nvlink, 0.1),
            (Cause::Host, 0.1),
            (Cause::Down, 0.15),
        ];
        let (mut cause, mut slot) = (self.random.weighted(&causes), self.random.below(CARDS));
        if of_lemon && self.random.chance(0.9) {
            match self.machines[node].bad {
                Bad::Card(bad) => (cause, slot) = (Cause::Gpu, bad),
                Bad::Board(bad) => cause = bad,
                Bad::No => {}
            }
        }
        let card = (cause == Cause::Gpu).then(|| self.machines[node].cards[slot].clone());
        let name = self.machines[node].name.clone();
        let evidence = self.random.chance(0.92);
        let running = self.machines[node].busy;
        let hang = if self.random.chance(0.15) { 600.0 } else { 0.0 };
        let mut found = self.now + ms(self.random.between(1.0, 300.0));
        if let Some(number) = running {
            let after = if cause == Cause::Down { 300.0 } else { self.random.between(5.0, 120.0) + hang };
            let end = self.now + ms(after);
            found = if hang > 0.0 { found } else { end + ms(self.random.between(2.0, 120.0)) };
            let outcome = if cause == Cause::Down { Outcome::NodeFail } else { Outcome::Failed };
            self.cut(number, end, outcome, Why::Node { node: name.clone(), evidence });
            if cause == Cause::Network {
                self.accuse(number, node, end);
            }
        }
        if !evidence {
            return;
        }
        if cause == Cause::Down {
            self.emit(found, Source::Root, What::Down { node: name });
        } else {
            let grade = if self.random.chance(0.6) { Grade::Proof } else { Grade::Sign };
            let leaf = (cause == Cause::Network).then(|| leaf(node / LEAF, slot));
            let seen = finding(&name, cause, grade, card, leaf);
            let times = if running.is_none() { 2 } else { 1 + self.random.below(3) };
            for time in 0..times {
                self.emit(found + time as u64 * MINUTE, Source::Root, What::Finding(seen.clone()));
            }
        }
        let hours = self.random.lognormal(2.0, 0.7);
        self.take_out(node, found + 2 * SECOND, hours);
        self.repair(node, found + ms(hours * 1800.0), slot, cause, of_lemon);
    }

    /// What the admins do with a drained node. Most faults get a reboot.
    fn repair(&mut self, node: usize, time: u64, slot: usize, cause: Cause, of_lemon: bool) {
        let now = std::mem::replace(&mut self.now, time);
        let name = self.machines[node].name.clone();
        let what = self.random.unit();
        // A lemon is by Meta's definition a node that the usual repairs do not mend.
        let mends = if of_lemon { 0.04 } else { 0.12 };
        if what < mends {
            if cause == Cause::Gpu {
                self.swap(node, slot);
            } else {
                if of_lemon && matches!(self.machines[node].bad, Bad::Board(_)) {
                    self.close_lemon(node, time);
                }
                self.emit(time, Source::Root, repaired(name));
            }
        } else if what < 0.22 {
            // An admin believes to have repaired it.
            self.emit(time, Source::Root, repaired(name));
        } else {
            self.emit(time, Source::Root, What::Rebooted { node: name, expected: Some(true) });
        }
        self.draw_fault(node);
        self.now = now;
    }

    /// Puts another card into a slot. The old one goes to the vendor, or back to the shelf and later into another node.
    fn swap(&mut self, node: usize, slot: usize) {
        let bad = self.machines[node].bad == Bad::Card(slot);
        let (old, rate) = (self.machines[node].cards[slot].clone(), self.machines[node].bad_rate);
        if bad {
            let time = self.now;
            self.close_lemon(node, time);
        }
        let from_shelf = !self.spares.is_empty() && self.random.chance(0.5);
        let new = if from_shelf { self.spares.remove(0) } else { (self.new_card(), Bad::No, 0.0) };
        self.machines[node].cards[slot] = new.0;
        if matches!(new.1, Bad::Card(_)) && self.machines[node].bad == Bad::No {
            self.make_bad(node, Bad::Card(slot), new.2);
        }
        if self.random.chance(0.3) {
            self.spares.push((old, if bad { Bad::Card(0) } else { Bad::No }, rate));
        }
        self.cards(node);
    }
}

fn repaired(node: String) -> What {
    What::Maintained { node, repair: true, card: None, by: String::new(), why: String::new() }
}

fn leaf(group: usize, rail: usize) -> String {
    format!("leaf{group}-{rail}")
}

fn finding(
    node: &str,
    cause: Cause,
    grade: Grade,
    card: Option<String>,
    leaf: Option<String>,
) -> NodeFinding {
    NodeFinding {
        node: node.to_owned(),
        check: format!("test-{cause}"),
        severity: Severity::Fail,
        class: if cause == Cause::Network { Class::Fabric } else { Class::Node },
        cause,
        grade,
        card,
        leaf,
        accuser: None,
    }
}
