//! Creates a machine profile from a healthy machine.

mod fabric;
mod host;

use std::collections::BTreeMap;

use railgate_model::{Access, Gpu, Hca, Pci, Port, PortState, Profile, Reading, Snapshot};
use railgate_text::printable;

/// A profile made from a machine, and the values that are missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The profile.
    pub profile: Profile,
    /// Keys that are absent because their values are unknown, with the reasons.
    pub unknown: Vec<(String, String)>,
    /// Decisions that a person should check.
    pub notes: Vec<String>,
}

impl Recorded {
    /// Returns the profile as a file for `/etc/railgate/profiles/`, with unknown values as comments.
    ///
    /// # Errors
    /// Returns an error for a value that TOML cannot represent, which is a bug.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut text = String::new();
        for (key, why) in &self.unknown {
            text.push_str(&format!("# {key}: not recorded: {}\n", printable(why)));
        }
        for note in &self.notes {
            text.push_str(&format!("# {}\n", printable(note)));
        }
        Ok(text + &toml::to_string(&self.profile)?)
    }
}

/// Creates a profile of this machine. `like` is the existing profile for the GPU's name, for values that no machine
/// reports (its peak performance).
pub fn record(snapshot: &Snapshot, id: &str, like: Option<&Profile>) -> Recorded {
    let mut recorded = Recorded { profile: Profile::generic(), unknown: Vec::new(), notes: Vec::new() };
    id.clone_into(&mut recorded.profile.id);
    recorded.profile.title = format!("recorded from {}", printable(&snapshot.node));
    gpus(snapshot, like, &mut recorded);
    fabric(snapshot, &mut recorded);
    host::host(snapshot, &mut recorded);
    recorded.profile.rails = like.map(|like| like.rails.clone()).unwrap_or_default();
    recorded
}

fn gpus(snapshot: &Snapshot, like: Option<&Profile>, into: &mut Recorded) {
    let Some(found) = snapshot.gpus.data() else {
        let why = snapshot.gpus.missing().unwrap_or_default();
        into.unknown.push(("gpus".to_owned(), why));
        return;
    };
    let gpus: Vec<&Gpu> = found.gpus.iter().filter(|gpu| gpu.access == Access::Ok).collect();
    if gpus.len() < found.gpus.len() {
        into.notes.push(format!(
            "{} of {} GPUs do not answer: they are not counted",
            found.gpus.len() - gpus.len(),
            found.gpus.len()
        ));
    }
    let pci = snapshot.pci.data();
    let profile = &mut into.profile.gpus;
    profile.count = u32::try_from(gpus.len()).ok();
    let mut names: Vec<String> = gpus.iter().filter_map(|gpu| gpu.name.known().cloned()).collect();
    names.sort();
    names.dedup();
    profile.names = names;
    let unknown = &mut into.unknown;
    let mut all = |key: &str, readings: Vec<Reading<u64>>| agree(&format!("gpus.{key}"), readings, unknown);
    let links = |gpu: &&Gpu| {
        // A GPU without NVLink returns that for each link.
        let unreadable = gpu.nvlinks.iter().find_map(|link| match &link.up {
            Reading::Failed(why) => Some(why.clone()),
            Reading::Known(_) | Reading::Unsupported => None,
        });
        let up = gpu.nvlinks.iter().filter(|link| link.up == Reading::Known(true)).count();
        unreadable.map_or(Reading::Known(up as u64), Reading::Failed)
    };
    profile.nvlinks_up = all("nvlinks_up", gpus.iter().map(links).collect()).and_then(number);
    let ecc = |gpu: &&Gpu| gpu.ecc_enabled.clone().map(u64::from);
    profile.ecc = all("ecc", gpus.iter().map(ecc).collect()).map(|on| on != 0);
    let remap = |gpu: &&Gpu| match &gpu.row_remap {
        Reading::Known(_) => Reading::Known(1),
        Reading::Unsupported => Reading::Known(0),
        Reading::Failed(why) => Reading::Failed(why.clone()),
    };
    profile.row_remap = all("row_remap", gpus.iter().map(remap).collect()).map(|can| can != 0);
    // The link of an idle GPU can run below its maximum speed.
    let generation = |gpu: &&Gpu| match best_generation(gpu, pci) {
        Some(generation) => Reading::Known(generation),
        None => Reading::Failed(
            "the PCI tree does not show the link's maximum, and an idle link is slower".to_owned(),
        ),
    };
    profile.pcie_gen = all("pcie_gen", gpus.iter().map(generation).collect()).and_then(number);
    let width = |gpu: &&Gpu| gpu.pcie_width.clone().map(u64::from);
    profile.pcie_width = all("pcie_width", gpus.iter().map(width).collect()).and_then(number);
    let memory = |gpu: &&Gpu| gpu.memory.clone().map(|memory| memory.total_mib / 1024);
    profile.memory_gib = all("memory_gib", gpus.iter().map(memory).collect()).and_then(number);
    let watts = |gpu: &&Gpu| gpu.power_limit_w.clone().map(whole);
    profile.power_limit_w = all("power_limit_w", gpus.iter().map(watts).collect()).map(|watts| watts as f64);
    // Only recorded if all GPUs have the same mode; mixed modes are the site's partitioning.
    let mig = |gpu: &&Gpu| gpu.mig.clone().map(u64::from);
    profile.mig = all("mig", gpus.iter().map(mig).collect()).map(|on| on != 0);
    profile.driver = found.driver.known().cloned().into_iter().collect();
    profile.vbios = host::versions(&gpus, |gpu| &gpu.vbios);
    profile.inforom = host::versions(&gpus, |gpu| &gpu.details.inforom);
    profile.gsp = host::versions(&gpus, |gpu| &gpu.details.gsp);
    profile.bf16_tflops = like.and_then(|like| like.gpus.bf16_tflops);
    if profile.bf16_tflops.is_none() {
        let why = "machines do not report their peak: take it from the datasheet".to_owned();
        into.unknown.push(("gpus.bf16_tflops".to_owned(), why));
    }
    let peak = like.map_or_else(String::new, |like| format!("; bf16_tflops from {}", like.id));
    into.profile.gpus.source = format!("recorded from {}{peak}", printable(&snapshot.node));
}

/// The most common kind of active ports is taken as the compute fabric; other ports are left out.
fn fabric(snapshot: &Snapshot, into: &mut Recorded) {
    let Some(found) = snapshot.fabric.data() else {
        let why = snapshot.fabric.missing().unwrap_or_default();
        into.unknown.push(("fabric".to_owned(), why));
        return;
    };
    let profile = &mut into.profile.fabric;
    let mut kinds: BTreeMap<(&str, u64), Vec<&Hca>> = BTreeMap::new();
    for hca in &found.hcas {
        for port in hca.ports.iter().filter(|port| port.state == Reading::Known(PortState::Active)) {
            if let Some(kind) = kind(port) {
                kinds.entry(kind).or_default().push(hca);
            }
        }
    }
    // If two kinds have the same number of ports, the faster one is the compute fabric.
    let Some(((layer, rate), rails)) = kinds.into_iter().max_by_key(|((_, rate), hcas)| (hcas.len(), *rate))
    else {
        if found.hcas.is_empty() {
            profile.hcas = Some(0);
        } else {
            into.unknown.push(("fabric.hcas".to_owned(), "no port is active".to_owned()));
        }
        return;
    };
    profile.hcas = u32::try_from(rails.len()).ok();
    profile.link_layer = Some(layer.to_owned());
    profile.rate_gbps = Some(rate as f64);
    let others = found.hcas.iter().filter(|hca| rails.iter().all(|rail| rail.name != hca.name));
    profile.exclude = others.map(|hca| hca.name.clone()).collect();
    let ports = fabric::ports_of(&found.hcas, layer, rate);
    if !profile.exclude.is_empty() {
        into.notes.push(format!(
            "fabric.exclude: taken for storage or management, since they are not like the {} others: {}",
            rails.len(),
            profile.exclude.join(", ")
        ));
    }
    fabric::details(snapshot, &ports, into);
}

fn kind(port: &Port) -> Option<(&'static str, u64)> {
    Some((fabric::layer(port.link_layer.known()?)?, whole(*port.rate_gbps.known()?)))
}

/// The common value of all readings. If one failed or two differ, the profile has no value.
fn agree(key: &str, readings: Vec<Reading<u64>>, unknown: &mut Vec<(String, String)>) -> Option<u64> {
    let mut values = Vec::new();
    for reading in readings {
        match reading {
            Reading::Known(value) => values.push(value),
            Reading::Unsupported => {}
            Reading::Failed(why) => {
                unknown.push((key.to_owned(), why));
                return None;
            }
        }
    }
    values.sort_unstable();
    values.dedup();
    match values[..] {
        [one] => Some(one),
        [] => {
            unknown.push((key.to_owned(), "the machine has no such value".to_owned()));
            None
        }
        _ => {
            let values: Vec<String> = values.iter().map(u64::to_string).collect();
            unknown.push((key.to_owned(), format!("the GPUs differ: {}", values.join(", "))));
            None
        }
    }
}

fn best_generation(gpu: &Gpu, pci: Option<&Pci>) -> Option<u64> {
    let address = gpu.pci.known()?;
    let device = pci?.devices.iter().find(|device| device.address == *address)?;
    let speed = device.link.known()?.max_speed_gts;
    // Speeds of generations 1 to 6 in GT/s.
    [2.5_f64, 5.0, 8.0, 16.0, 32.0, 64.0]
        .iter()
        .position(|known| (known - speed).abs() < 0.1)
        .map(|at| at as u64 + 1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "watts and Gb/s; what is negative is 0"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn number(value: u64) -> Option<u32> {
    u32::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use railgate_simulate as simulate;

    use super::*;

    fn recorded(node: &str) -> Recorded {
        let (like, faults) = simulate::parse(node, &[]).unwrap();
        record(&simulate::simulated(&like, &faults), "mine", Some(&like))
    }

    #[test]
    fn a_simulated_machine_gives_its_own_profile() {
        for id in crate::builtin_ids().into_iter().filter(|id| !["generic", "cpu"].contains(id)) {
            let (like, _) = simulate::parse(id, &[]).unwrap();
            let got = recorded(id);
            let (gpus, want) = (&got.profile.gpus, &like.gpus);
            // The simulator makes up the values that a profile lacks.
            let same = |got: Option<f64>, want: Option<f64>| want.is_none() || got == want;
            let whole = |value: Option<u32>| value.map(f64::from);
            for (key, got, want) in [
                ("count", whole(gpus.count), whole(want.count)),
                ("nvlinks_up", whole(gpus.nvlinks_up), whole(want.nvlinks_up)),
                ("pcie_gen", whole(gpus.pcie_gen), whole(want.pcie_gen)),
                ("pcie_width", whole(gpus.pcie_width), whole(want.pcie_width)),
                ("memory_gib", whole(gpus.memory_gib), whole(want.memory_gib)),
                ("power_limit_w", gpus.power_limit_w, want.power_limit_w),
                ("bf16_tflops", gpus.bf16_tflops, want.bf16_tflops),
            ] {
                assert!(same(got, want), "{id} {key}: {got:?}, want {want:?}");
            }
            assert_eq!(gpus.ecc, want.ecc, "{id}");
            assert_eq!(got.profile.fabric.hcas, like.fabric.hcas.or(Some(0)), "{id}");
            assert_eq!(got.profile.problems(), Vec::<String>::new(), "{id}");
            let text = got.to_toml().unwrap();
            let back: Profile = toml::from_str(&text).unwrap_or_else(|why| panic!("{id}: {why}\n{text}"));
            assert_eq!(back, got.profile, "{id}");
        }
    }

    #[test]
    fn unknown_values_are_left_out_with_a_reason() {
        let (like, faults) = simulate::parse("h100-sxm:gpu-nvlink-down@3", &[]).unwrap();
        let mut node = simulate::simulated(&like, &faults);
        if let railgate_model::Part::Read { data, .. } = &mut node.gpus {
            data.gpus[0].power_limit_w = Reading::Failed("timeout\nno".to_owned());
        }
        let got = record(&node, "mine", None);
        let said: Vec<&str> = got.unknown.iter().map(|(key, _)| key.as_str()).collect();
        for key in ["gpus.nvlinks_up", "gpus.power_limit_w", "gpus.bf16_tflops"] {
            assert!(said.contains(&key), "{key}: {said:?}");
        }
        assert_eq!((got.profile.gpus.nvlinks_up, got.profile.gpus.power_limit_w), (None, None));
        let text = got.to_toml().unwrap();
        assert!(text.contains("# gpus.nvlinks_up: not recorded: the GPUs differ: 17, 18\n"), "{text}");
        assert!(text.contains("not recorded: timeout?no\n"), "{text}");
        assert!(got.notes.iter().any(|note| note.contains("mlx5_bond_0")), "{:?}", got.notes);
    }
}
