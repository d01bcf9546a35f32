//! What takes several nodes at once, and what looks as if a node had failed.

use std::collections::BTreeSet;

use railgate_fleet::{Cause, Grade, NodeFinding, Outcome, Shared, SharedKind, Source, What};

use super::*;

impl World {
    pub(super) fn frame(&mut self, time: u64, source: Source, what: What) {
        self.emit(time, source, what);
        self.truth.framing.insert(format!("e{}", self.next_event));
    }

    pub(super) fn plan_shared(&mut self) {
        let mean = self.p.shared * self.p.nodes as f64 / 1000.0 * self.p.days as f64;
        for _ in 0..self.random.poisson(mean) {
            let kinds = [
                (SharedKind::Leaf, 0.5),
                (SharedKind::Pdu, 0.2),
                (SharedKind::FileServer, 0.1),
                (SharedKind::Cooling, 0.1),
                (SharedKind::Driver, 0.1),
            ];
            let kind = self.random.weighted(&kinds);
            let seed = self.random.below(self.p.nodes);
            let time =
                BEGIN + HOUR + ms(self.random.between(0.0, ((self.end - BEGIN) / 1000 - 8 * 3600) as f64));
            self.plan.push((kind, seed));
            self.push(time, Todo::Shared(self.plan.len() - 1));
        }
    }

    /// Users forge proof against some nodes.
    pub(super) fn forge(&mut self) {
        for _ in 0..5 {
            let node = self.random.below(self.p.nodes);
            let name = self.machines[node].name.clone();
            for _ in 0..30 {
                let time = BEGIN + self.random.next() % (self.end - BEGIN);
                let finding = finding(&name, Cause::Gpu, Grade::Proof, None, None);
                self.frame(time, Source::User, What::Finding(finding));
            }
        }
    }

    /// Peers in a job report errors to the node, and the node reports errors to healthy peers.
    pub(super) fn accuse(&mut self, number: usize, node: usize, time: u64) {
        let nodes = self.running[number].nodes.clone();
        let others: Vec<usize> = nodes.into_iter().filter(|other| *other != node).collect();
        if others.is_empty() {
            return;
        }
        for _ in 0..4 {
            // The first rank is everybody's peer.
            let peer = if self.random.chance(0.5) { others[0] } else { self.random.pick(&others) };
            let (by, of) = (self.machines[node].name.clone(), self.machines[peer].name.clone());
            let grade = if self.random.chance(0.5) { Grade::Hearsay } else { Grade::Sign };
            let accusation =
                NodeFinding { accuser: Some(by), ..finding(&of, Cause::Network, grade, None, None) };
            self.frame(time, Source::Root, What::Finding(accusation));
        }
    }

    pub(super) fn killer(&mut self, number: usize) {
        if self.running[number].done || self.running[number].why != Why::Ordinary {
            return;
        }
        let nodes = self.running[number].nodes.clone();
        let share = if self.random.chance(0.5) { 1.0 } else { self.random.between(0.5, 1.0) };
        let count = ((nodes.len() as f64 * share).ceil() as usize).max(2);
        let cause = self.random.pick(&[Cause::Gpu, Cause::Down, Cause::Host, Cause::Network]);
        let end = self.now + ms(self.random.between(5.0, 90.0));
        let outcome = if cause == Cause::Down { Outcome::NodeFail } else { Outcome::Failed };
        self.cut(number, end, outcome, Why::Itself);
        if self.running[number].why != Why::Itself {
            return;
        }
        for node in nodes.into_iter().take(count) {
            let name = self.machines[node].name.clone();
            let time = end + ms(self.random.between(2.0, 100.0));
            if cause == Cause::Down {
                self.frame(time, Source::Root, What::Down { node: name });
            } else {
                let seen = finding(&name, cause, Grade::Sign, None, None);
                self.frame(time, Source::Root, What::Finding(seen));
            }
            let hours = self.random.lognormal(1.0, 0.5);
            self.take_out(node, time + 2 * SECOND, hours);
        }
    }

    pub(super) fn shared(&mut self, index: usize) {
        let (kind, seed) = self.plan[index];
        let group = |size: usize| -> Vec<usize> {
            let first = seed / size * size;
            (first..(first + size).min(self.p.nodes)).collect()
        };
        let rail = self.random.below(RAILS);
        let (members, name, causes): (Vec<usize>, String, &[(Cause, f64)]) = match kind {
            SharedKind::Leaf => (group(LEAF), leaf(seed / LEAF, rail), &[(Cause::Network, 1.0)]),
            SharedKind::Pdu => {
                (group(PDU), format!("p{}", seed / PDU), &[(Cause::Power, 0.5), (Cause::Down, 0.5)])
            }
            SharedKind::Cooling => {
                (group(COOLING), format!("c{}", seed / COOLING), &[(Cause::Thermal, 0.8), (Cause::Down, 0.2)])
            }
            SharedKind::FileServer => {
                let server = seed / 4 % 2;
                let members = (0..self.p.nodes).filter(|node| node / 4 % 2 == server).collect();
                (members, format!("fs{server}"), &[(Cause::Storage, 0.85), (Cause::Down, 0.15)])
            }
            _ => {
                let driver = self.machines[seed].driver;
                let members =
                    (0..self.p.nodes).filter(|node| self.machines[*node].driver == driver).collect();
                (members, driver.to_owned(), &[(Cause::Gpu, 0.7), (Cause::Software, 0.3)])
            }
        };
        let hit = match kind {
            SharedKind::FileServer => 0.4,
            SharedKind::Driver => 0.05,
            SharedKind::Cooling => 0.6,
            _ => 0.93,
        };
        let lasts = ms(self.random.lognormal(5400.0, 0.6));
        let flaps = kind == SharedKind::Leaf && self.random.chance(0.2);
        let mut planted = Planted {
            shared: Shared { kind, name: name.clone() },
            start: self.now,
            end: self.now + lasts,
            nodes: BTreeSet::new(),
        };
        for node in members {
            if self.machines[node].out || !self.random.chance(hit) {
                continue;
            }
            let cause = self.random.weighted(causes);
            let delay = self.random.exponential(if kind == SharedKind::Driver { 900.0 } else { 120.0 });
            let time = self.now + ms(delay.min(3600.0));
            let machine = self.machines[node].name.clone();
            planted.nodes.insert(machine.clone());
            if let Some(number) = self.machines[node].busy {
                let outcome = if cause == Cause::Down { Outcome::NodeFail } else { Outcome::Failed };
                let end = time + ms(self.random.between(0.0, 120.0));
                self.cut(number, end, outcome, Why::Shared);
            }
            if cause == Cause::Down {
                self.emit(time, Source::Root, What::Down { node: machine });
                self.machines[node].out = true;
                self.push(self.now + lasts, Todo::Resume(node));
                continue;
            }
            let grade = if self.random.chance(0.5) { Grade::Proof } else { Grade::Sign };
            let of_leaf = (kind == SharedKind::Leaf && self.random.chance(0.8)).then(|| name.clone());
            let seen = finding(&machine, cause, grade, None, of_leaf);
            for again in [0, 5 * MINUTE] {
                self.emit(time + again, Source::Root, What::Finding(seen.clone()));
            }
            if flaps && self.random.chance(0.8) {
                let later = time + ms(self.random.between(1200.0, 2400.0));
                self.emit(later, Source::Root, What::Finding(seen));
            }
        }
        self.truth.planted.push(planted);
    }
}
