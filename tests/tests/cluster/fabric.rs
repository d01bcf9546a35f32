//! `railgate fabric` with ibnetdiscover on a simulated fabric, and Slurm with the topology files that railgate writes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use railgate_launch::{BadTopology, Place, Shape, Topology, topology_lines, topology_yaml};
use railgate_tests::cluster::{Builder, Cluster, own_program};
use railgate_tests::{poll, skipped};
use serde_json::Value;

use crate::training::since;

const MINUTE: Duration = Duration::from_secs(60);
const NODES: usize = 64;
const RAILS: usize = 8;
const SPINES: usize = 4;

/// 64 nodes with eight rails in two units, a leaf switch for each rail in each unit, four spines, no oversubscription. gn1 and gn2
/// are in one unit, gn3 and gn4 in the other.
struct Net(BTreeMap<String, BTreeMap<usize, (String, usize)>>);

impl Net {
    fn new() -> Self {
        let mut net = Net(BTreeMap::new());
        let mut used = [0; 2];
        for node in 1..=NODES {
            let unit = match node {
                1 | 2 | 5..=34 => 0,
                _ => 1,
            };
            used[unit] += 1;
            for rail in 0..RAILS {
                net.plug((hca(node, rail), 1), (leaf(unit, rail), used[unit]));
            }
        }
        for number in 0..2 * RAILS {
            for cable in 0..32 {
                let spine = format!("spine-{}", cable % SPINES);
                let port = number * 32 / SPINES + cable / SPINES + 1;
                net.plug((leaf(number / RAILS, number % RAILS), 33 + cable), (spine, port));
            }
        }
        net
    }

    fn plug(&mut self, one: (String, usize), other: (String, usize)) {
        self.0.entry(one.0.clone()).or_default().insert(one.1, other.clone());
        self.0.entry(other.0).or_default().insert(other.1, one);
    }

    fn unplug(&mut self, (node, rail): (usize, usize)) -> Result<(String, usize)> {
        let name = hca(node, rail);
        let end = self.0.get_mut(&name).and_then(|ports| ports.remove(&1)).context(name)?;
        self.0.get_mut(&end.0).and_then(|ports| ports.remove(&end.1)).context("a cable with one end")?;
        Ok(end)
    }

    fn swap(&mut self, one: (usize, usize), other: (usize, usize)) -> Result<()> {
        let (a, b) = (self.unplug(one)?, self.unplug(other)?);
        self.plug((hca(one.0, one.1), 1), b);
        self.plug((hca(other.0, other.1), 1), a);
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, ports) in &self.0 {
            let kind = match name.split_once('-') {
                Some(("leaf", _)) => "Switch 64",
                Some(("spine", _)) => "Switch 128",
                _ => "Ca 1",
            };
            let _ = writeln!(text, "{kind} \"{name}\"");
            for (port, (peer, far)) in ports {
                let _ = writeln!(text, "[{port}] \"{peer}\"[{far}]");
            }
            text.push('\n');
        }
        text
    }
}

fn hca(node: usize, rail: usize) -> String {
    format!("gn{node} mlx5_{rail}")
}

fn leaf(unit: usize, rail: usize) -> String {
    format!("leaf-{}{rail}", ["a", "b"][unit])
}

/// ibsim, and an `ibnetdiscover` that queries it.
struct Simulator {
    dir: tempfile::TempDir,
    ibsim: Child,
}

impl Simulator {
    fn start(net: &Net) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("net"), net.text())?;
        let log = fs::File::create(dir.path().join("log"))?;
        let socket = dir.path().file_name().context("no name")?.to_string_lossy().into_owned();
        let ibsim = Command::new("ibsim")
            .args(["-s", "-n", "-N", "2048", "-S", "128", "-P", "8192", "net"])
            .env("IBSIM_SOCKNAME", &socket)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("ibsim (package ibsim-utils)")?;
        let simulator = Simulator { dir, ibsim };
        let library = fs::read_dir("/usr/lib")?
            .filter_map(|entry| Some(entry.ok()?.path().join("umad2sim/libumad2sim.so")))
            .find(|path| path.exists())
            .context("libumad2sim.so (package ibsim-utils)")?;
        let (dir, library) = (simulator.dir.path().display(), library.display());
        let script = format!(
            "#!/bin/sh\nenv > {dir}/env\ncd {dir} && LD_PRELOAD={library} IBSIM_SOCKNAME={socket} \
             SIM_HOST='gn1 mlx5_0' exec /usr/sbin/ibnetdiscover \"$@\"\n"
        );
        fs::write(simulator.program(), script)?;
        fs::set_permissions(simulator.program(), fs::Permissions::from_mode(0o755))?;
        poll::until(MINUTE, "ibsim to answer", || {
            let output = Command::new(simulator.program()).stdin(Stdio::null()).output()?;
            Ok(output.status.success().then_some(()))
        })?;
        Ok(simulator)
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("ibnetdiscover")
    }

    /// Runs `railgate fabric` on this fabric.
    fn railgate(&self, words: &[&str]) -> Result<Output> {
        let own = own_program()?;
        let target =
            own.ancestors().find(|dir| dir.join("railgate").is_file()).context("railgate is not built")?;
        let mut command = Command::new(target.join("railgate"));
        command.arg("fabric").arg("--ibnetdiscover").arg(self.program()).args(words);
        Ok(command.env("LD_PRELOAD_NOT", "leaked").stdin(Stdio::null()).output()?)
    }

    fn output(&self, words: &[&str]) -> Result<String> {
        let output = self.railgate(words)?;
        ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.ibsim.kill();
        let _ = self.ibsim.wait();
    }
}

#[test]
#[ignore = "needs ibsim and ibnetdiscover: cargo xtask test"]
fn rails_and_miscabled_ports_are_found_with_ibnetdiscover() -> Result<()> {
    let mut net = Net::new();
    let right = Simulator::start(&net)?;
    let seen: Value = serde_json::from_str(&right.output(&["--format", "json"])?)?;
    let count = |list: &str| seen[list].as_array().map_or(0, Vec::len);
    assert_eq!((count("switches"), count("ports"), count("units"), count("faults")), (20, 512, 2, 0));
    for port in seen["ports"].as_array().unwrap() {
        let (leaf, hca) = (port["leaf"].as_str().unwrap(), port["hca"].as_str().unwrap());
        let rail = port["rail"].as_u64().unwrap();
        assert!(leaf.ends_with(&rail.to_string()) && hca == format!("mlx5_{rail}"), "{port}");
    }
    assert_eq!(seen["tiers"][0]["oversubscription"], 1.0);
    assert_eq!((&seen["tiers"][1]["switches"], &seen["tiers"][1]["down_links"]), (&4.into(), &512.into()));
    let env = fs::read_to_string(right.dir.path().join("env"))?;
    assert!(!env.contains("leaked") && !env.contains("CARGO"), "{env}");

    net.swap((3, 2), (3, 5))?;
    net.swap((10, 0), (11, 7))?;
    net.swap((20, 4), (60, 4))?;
    net.unplug((33, 6))?;
    let wrong = Simulator::start(&net)?;
    let output = wrong.railgate(&[])?;
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout)?;
    let said = text.split_once("\nWiring: ").context(text.clone())?.1;
    let mut lines: Vec<&str> = said.lines().collect();
    lines[1..].sort_unstable();
    assert_eq!(
        lines,
        [
            "6 on the wrong leaf, 1 without a link, 0 undecided",
            "  gn10 mlx5_0 port 1 is on leaf-a7 port 9, should be on leaf-a0 (rail 0); gn11 mlx5_7 port 1 is in its place",
            "  gn11 mlx5_7 port 1 is on leaf-a0 port 8, should be on leaf-a7 (rail 7); gn10 mlx5_0 port 1 is in its place",
            "  gn20 mlx5_4 port 1 is on leaf-b4 port 28, should be on leaf-a4 (rail 4); gn60 mlx5_4 port 1 is in its place",
            "  gn3 mlx5_2 port 1 is on leaf-b5 port 1, should be on leaf-b2 (rail 2); gn3 mlx5_5 port 1 is in its place",
            "  gn3 mlx5_5 port 1 is on leaf-b2 port 1, should be on leaf-b5 (rail 5); gn3 mlx5_2 port 1 is in its place",
            "  gn33 mlx5_6 port 1 has no link, should be on leaf-a6 (rail 6)",
            "  gn60 mlx5_4 port 1 is on leaf-a4 port 18, should be on leaf-b4 (rail 4); gn20 mlx5_4 port 1 is in its place",
        ]
    );
    Ok(())
}

/// gn2 is busy: a job of two nodes gets the two of the other unit, and not gn1.
fn placed_together(cluster: &Cluster, words: &[&str]) -> Result<()> {
    let held = cluster.alice().sbatch(&["-N1", "-w", "gn2", "--exclusive"], "sleep 600")?;
    cluster.wait_job(held, &["RUNNING"], MINUTE)?;
    let id = cluster.alice().sbatch(&[&["-N2", "--exclusive"], words].concat(), "srun hostname")?;
    assert_eq!(cluster.wait_job(id, &["COMPLETED"], MINUTE)?.nodes(), "gn[3-4]");
    Ok(())
}

/// A cluster of four nodes whose slurm.conf lists all 64.
fn slurm_with(file: &str, topology: &str) -> Builder {
    let builder = Builder::new(4).plain().file(Path::new("/etc/slurm").join(file), topology);
    builder.slurm_conf("NodeName", "gn[5-64] NodeAddr=10.77.1.[5-64] State=DOWN")
}

/// `railgate launch` finds the switches of nodes in this text of Slurm or of `railgate fabric`.
fn has_places(read: Result<Topology, BadTopology>, shape: Shape, paths: [&str; 2]) -> Result<()> {
    let topology = read?;
    assert_eq!(topology.shape(), Some(shape));
    for (place, path) in topology.places(&["gn34", "gn4"]).iter().zip(paths) {
        let Place::Known(switches) = place else { bail!("no place, but {path}") };
        assert_eq!(switches.switches().join("."), path);
    }
    Ok(())
}

fn hostlist(list: &str) -> Option<Vec<String>> {
    railgate_slurm::hostlist::expand(list).ok()
}

const UNITS: [&str; 2] = ["tier2-1.unit-1", "tier2-1.unit-2"];

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn slurm_places_jobs_by_the_written_tree() -> Result<()> {
    let tree = Simulator::start(&Net::new())?.output(&["--format", "topology-tree"])?;
    has_places(topology_lines(&tree, &hostlist), Shape::Tree, UNITS)?;
    slurm_with("topology.conf", &tree).slurm_conf("TopologyPlugin", "topology/tree").test(|cluster| {
        let said = cluster.root().run(&["scontrol", "show", "topology"])?.ok()?;
        for line in [
            "SwitchName=unit-1 Level=0 LinkSpeed=1 Nodes=gn[1-2,5-34]",
            "SwitchName=unit-2 Level=0 LinkSpeed=1 Nodes=gn[3-4,35-64]",
            "SwitchName=tier2-1 Level=1 LinkSpeed=1 Nodes=gn[1-64] Switches=unit-[1-2]",
        ] {
            assert!(said.lines().any(|said| said.trim_end() == line), "no {line} in\n{said}");
        }
        has_places(topology_lines(&said, &hostlist), Shape::Tree, UNITS)?;
        placed_together(cluster, &["--switches=1"])
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn slurm_accepts_the_written_blocks() -> Result<()> {
    // topology/block exists from 23.11 on, BlockSizes from 24.05 on.
    if !since((24, 5))? {
        return skipped("fabric: this Slurm has no topology/block");
    }
    let blocks = Simulator::start(&Net::new())?.output(&["--format", "topology-block"])?;
    slurm_with("topology.conf", &blocks).slurm_conf("TopologyPlugin", "topology/block").test(|cluster| {
        let said = cluster.root().run(&["scontrol", "show", "topology"])?.ok()?;
        for line in [
            "BlockName=unit-1 BlockIndex=0 Nodes=gn[1-2,5-34]",
            "BlockName=unit-2 BlockIndex=1 Nodes=gn[3-4,35-64]",
        ] {
            assert!(said.contains(line), "no {line} in\n{said}");
        }
        has_places(topology_lines(&said, &hostlist), Shape::Block, ["unit-1", "unit-2"])?;
        placed_together(cluster, &[])
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn slurm_accepts_the_written_yaml() -> Result<()> {
    if !since((25, 5))? {
        return skipped("fabric: this Slurm reads no topology.yaml");
    }
    let yaml = Simulator::start(&Net::new())?.output(&["--format", "topology-yaml"])?;
    has_places(topology_yaml(&yaml, None, &hostlist), Shape::Tree, UNITS)?;
    slurm_with("topology.yaml", &yaml).test(|cluster| {
        let said = cluster.root().run(&["scontrol", "show", "topology"])?.ok()?;
        assert!(said.contains("SwitchName=unit-1 Level=0"), "{said}");
        has_places(topology_lines(&said, &hostlist), Shape::Tree, UNITS)?;
        let printed = cluster.root().run(&["scontrol", "show", "topoconf"])?.ok()?;
        has_places(topology_yaml(&printed, None, &hostlist), Shape::Tree, UNITS)?;
        let said = cluster.root().run(&["scontrol", "show", "topology", "block"])?.ok()?;
        assert!(said.contains("BlockName=unit-2 "), "{said}");
        placed_together(cluster, &["--switches=1"])
    })
}
