//! The part of one node.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use railgate_model::{GpuSelfTested, ValueCheck, compute_ports};
use railgate_pair::{Key, Limits, Meeting, Outcome, Role, tcp};
use railgate_rundir::{NoteDir, PREFLIGHT_MARK};

use super::lines::{Line, ORDER, Order};
use super::results::Net;
use crate::node_source::NodeArgs;
use crate::output::say;
use crate::{Site, exit};

pub(crate) const GPU_PROGRAM: &str = "/usr/libexec/railgate/railgate-gpu-selftest";
const RDMA_PROGRAM: &str = "/usr/libexec/railgate/railgate-rdma-selftest";
/// How long an end waits for the other one.
const PEER_S: u16 = 25;
/// Name of the device in results of TCP.
const TCP: &str = "tcp";

/// Does what the environment orders, and prints the results as lines of JSON.
pub(crate) fn run(site: &Site) -> anyhow::Result<u8> {
    let order = std::env::var(ORDER).with_context(|| format!("{ORDER} is not set"))?;
    let order: Order = serde_json::from_str(&order).context(ORDER)?;
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| site.node.clone());
    let done = match order {
        Order::Gpus { length, waits_ms } => {
            let wait = waits_ms.iter().find(|(name, _)| *name == node).map_or(0, |(_, wait)| *wait);
            std::thread::sleep(Duration::from_millis(wait));
            gpus(&node, &length)
        }
        Order::Devices => devices(site, &node),
        Order::Pairs { net, pairs, port } => pair(site, &node, net, &pairs, port),
        Order::Named { nodes } => keep_mark(site, &node, &nodes),
    };
    if let Err(why) = done {
        print(&Line::Problem { node, why: format!("{why:#}") })?;
    }
    Ok(exit::OK)
}

fn print(line: &Line) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string(line)?)
}

fn gpus(node: &str, length: &str) -> anyhow::Result<()> {
    let output = Command::new(GPU_PROGRAM)
        .args(["--length", length])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {GPU_PROGRAM}"))?;
    let mut some = false;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut test: GpuSelfTested =
            serde_json::from_str(line).with_context(|| format!("{GPU_PROGRAM} printed '{line}'"))?;
        // srun may mix lines of several tasks that are longer than 1 KiB.
        if let ValueCheck::Wrong { first, .. } = &mut test.values {
            first.truncate(2);
        }
        print(&Line::Gpu { node: node.to_owned(), test })?;
        some = true;
    }
    if !some {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{GPU_PROGRAM}: {}", said.lines().next().unwrap_or("no result"));
    }
    Ok(())
}

fn devices(site: &Site, node: &str) -> anyhow::Result<()> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let leaf = leaf(&variable("SLURM_TOPOLOGY_ADDR"), &variable("SLURM_TOPOLOGY_ADDR_PATTERN"));
    print(&Line::Devices { node: node.to_owned(), devices: hcas(site)?, leaf })
}

/// The switch above the node in Slurm's topology: `leaf-1` of `spine.leaf-1.gn1`, whose pattern is `switch.switch.node`.
fn leaf(address: &str, pattern: &str) -> Option<String> {
    let (above, node) = pattern.rsplit_once('.')?;
    let of_a_switch = node == "node" && above.rsplit('.').next() == Some("switch");
    // Names of nodes have no dot in Slurm.
    let (above, _) = address.rsplit_once('.')?;
    let name = above.rsplit('.').next()?;
    (of_a_switch && !name.is_empty()).then(|| name.to_owned())
}

/// Leaves what was found of this node for the job's epilog.
fn keep_mark(site: &Site, node: &str, nodes: &[(String, String)]) -> anyhow::Result<()> {
    let Some((_, what)) = nodes.iter().find(|(name, _)| name == node) else { return Ok(()) };
    let job = std::env::var("SLURM_JOB_ID").ok().and_then(|id| id.parse::<u32>().ok());
    let job = job.context("SLURM_JOB_ID is not a number")?;
    // As the plugin finds it: a user can pass through the directories but not list them.
    let run = site.places.run.join(format!("jobs/{job}/current"));
    let kept = NoteDir::find(&run).and_then(|dir| dir.write(PREFLIGHT_MARK, what.as_bytes()));
    kept.with_context(|| format!("{}/user/{PREFLIGHT_MARK}", run.display()))
}

/// Compute HCAs in the order of the rails.
fn hcas(site: &Site) -> anyhow::Result<Vec<String>> {
    let seen = NodeArgs { snapshot: None, simulate: None }.read(site, &site.config()?)?;
    let found = compute_ports(&seen.snapshot, &seen.profile);
    // The program tests the first port of a device.
    let first = found.ports.iter().filter(|port| port.port.number == 1);
    Ok(first.map(|port| port.hca.name.clone()).collect())
}

/// Tests all rails with the other node of the pair at once.
fn pair(site: &Site, node: &str, net: Net, pairs: &[(String, String)], port: u16) -> anyhow::Result<()> {
    let Some((left, right)) = pairs.iter().find(|(left, right)| left == node || right == node) else {
        return Ok(());
    };
    let (role, peer) = if left == node { (Role::Serve, right) } else { (Role::Connect, left) };
    let devices = match net {
        Net::Rdma => hcas(site)?,
        Net::Tcp => vec![TCP.to_owned()],
    };
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let tests: Vec<_> = (port..)
            .zip(&devices)
            .map(|(port, device)| scope.spawn(move || end(net, device, role, peer, port)))
            .collect();
        tests.into_iter().map(|test| test.join().unwrap_or_default()).collect()
    });
    for (rail, outcome) in outcomes.into_iter().enumerate() {
        print(&Line::Rail { node: node.to_owned(), rail, outcome })?;
    }
    Ok(())
}

/// One end of one rail.
fn end(net: Net, device: &str, role: Role, peer: &str, port: u16) -> Outcome {
    let mut outcome = Outcome { device: device.to_owned(), ..Outcome::default() };
    let result = match net {
        Net::Rdma => rdma(device, role, peer, port).map(|measured| outcome = measured),
        Net::Tcp => over_tcp(role, peer, port, &mut outcome),
    };
    if let Err(why) = result {
        outcome.error = Some(why);
    }
    outcome
}

fn rdma(device: &str, role: Role, peer: &str, port: u16) -> Result<Outcome, String> {
    let mut program = Command::new(RDMA_PROGRAM);
    match role {
        Role::Serve => program.args(["serve", device, "--port", &port.to_string()]),
        Role::Connect => program.args(["connect", device, &format!("{peer}:{port}")]),
    };
    let output = program
        .args(["--deadline", &PEER_S.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|why| format!("cannot start {RDMA_PROGRAM}: {why}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(said.trim()).map_err(|_| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("{RDMA_PROGRAM}: {}", errors.lines().last().unwrap_or("no result"))
    })
}

fn over_tcp(role: Role, peer: &str, port: u16, outcome: &mut Outcome) -> Result<(), String> {
    let key = Key::read(None)?;
    let limits = Limits::new(Duration::from_secs(PEER_S.into()));
    let meeting = Meeting { key: &key, version: tcp::VERSION, limits, dropped: |_| {} };
    let mut link = match role {
        Role::Serve => {
            let listener =
                TcpListener::bind(("0.0.0.0", port)).map_err(|why| format!("port {port}: {why}"))?;
            meeting.accept(&listener)?
        }
        Role::Connect => meeting.connect(&format!("{peer}:{port}"))?,
    };
    outcome.peer_device = Some(TCP.to_owned());
    tcp::test(&mut link, role, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaf_is_the_switch_above_the_node() {
        let of = |address, pattern| leaf(address, pattern);
        assert_eq!(of("spine.leaf-1.gn1", "switch.switch.node").as_deref(), Some("leaf-1"));
        assert_eq!(of("leaf-1.gn1", "switch.node").as_deref(), Some("leaf-1"));
        // Slurm without a tree of switches, with blocks, and without these variables.
        for (address, pattern) in
            [("gn1", "node"), ("b1.gn1", "block.node"), ("", ""), ("a.b", ""), (".gn1", "switch.node")]
        {
            assert_eq!(of(address, pattern), None, "{address} {pattern}");
        }
    }
}
