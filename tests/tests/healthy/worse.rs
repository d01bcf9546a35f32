//! An additional fault never leads to a milder verdict.

use std::collections::{BTreeMap, BTreeSet};

use railgate_gate::GateConfig;
use railgate_model::{
    Action, Class, Finding, Host, Part, Phase, Port, Profile, Reading, Severity, Snapshot, Verdict,
};
use railgate_simulate::{FAULTS, Fault, FaultPart};
use serde_json::Value;

use crate::rng::Rng;
use crate::{Case, cases, findings, noise, number};

/// Strictness of a verdict: the action, then the worst severity.
fn hardness(verdict: &Verdict) -> (Action, Option<Severity>) {
    let found = verdict.findings.iter().filter(|finding| finding.class != Class::Internal);
    let severity = |finding: &Finding| match finding.severity {
        // Shortly after boot a device that is down may only be late. That Unknown hides a Warn, so it counts as one.
        Severity::Unknown if finding.what.ends_with("node just booted") => Severity::Warn,
        severity => severity,
    };
    (verdict.action, found.map(severity).max())
}

/// The parts of a snapshot that a fault changes, except the kernel log.
#[derive(Debug)]
struct Touched {
    paths: BTreeSet<String>,
    /// The fault removes a value from which another fault may be detected.
    hides: bool,
}

impl Touched {
    fn by(healthy: &Value, broken: &Snapshot) -> Self {
        let broken = serde_json::to_value(broken).unwrap();
        let mut touched = Touched { paths: BTreeSet::new(), hides: false };
        let parts = [healthy, &broken].into_iter().flat_map(|look| look.as_object().unwrap().keys());
        for part in parts.collect::<BTreeSet<_>>() {
            // Kernel log lines are only added to those of other faults.
            if part != "kernel_log" && part != "nvml_xids" {
                differences(part, healthy.get(part), broken.get(part), &mut touched);
            }
        }
        touched.hides |= broken["kernel_log"].get("read").is_none();
        touched
    }

    fn disjoint(&self, other: &Touched) -> bool {
        let below = |a: &String, b: &String| a == b || a.starts_with(&format!("{b}/"));
        self.paths.iter().all(|a| other.paths.iter().all(|b| !below(a, b) && !below(b, a)))
    }
}

fn differences(path: &str, healthy: Option<&Value>, broken: Option<&Value>, touched: &mut Touched) {
    match (healthy, broken) {
        (Some(Value::Object(a)), Some(Value::Object(b))) if a.keys().eq(b.keys()) => {
            for (name, value) in a {
                differences(&format!("{path}/{name}"), Some(value), b.get(name), touched);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (place, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{place}"), Some(a), Some(b), touched);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            let size = |value: Option<&Value>| match value {
                Some(Value::Array(items)) => Some(items.len()),
                _ => None,
            };
            // A reading that is no longer known, a part that did not answer, a shorter list.
            let was_there = a.is_some_and(|a| a.get("known").is_some() || a.get("read").is_some());
            let is_there = b.is_some_and(|b| b.get("known").is_some() || b.get("read").is_some());
            touched.hides |= was_there && !is_there || size(a) > size(b);
            touched.paths.insert(path.to_owned());
        }
    }
}

fn places(profile: &Profile, healthy: &Value) -> Vec<(Fault, Touched)> {
    let mut all = Vec::new();
    for info in FAULTS {
        let id = info.id.replace("<code>", "48");
        let indexes: &[u32] = if info.part == FaultPart::Node { &[0] } else { &[0, info.default_index] };
        for index in indexes {
            let text = match info.part {
                FaultPart::Node => format!("{}:{id}", profile.id),
                _ => format!("{}:{id}@{index}", profile.id),
            };
            // A machine without HCAs has no HCA faults.
            let Ok((_, faults)) = railgate_simulate::parse(&text, &[]) else { continue };
            let broken = railgate_simulate::simulated(profile, &faults);
            let mut touched = Touched::by(healthy, &broken);
            // Under MIG the owner of a GPU is unknown, and the earlier counters of a renamed HCA are not used.
            touched.hides |= ["gpu-mig-on", "ib-renamed"].contains(&id.as_str());
            all.push((faults[0], touched));
        }
    }
    all
}

fn one_more_fault_is_never_milder(id: &str) {
    let profile = railgate_profiles::load(id, &[]).unwrap();
    let config = GateConfig::default();
    let base = railgate_simulate::simulated(&profile, &[]);
    let all = places(&profile, &serde_json::to_value(&base).unwrap());
    let (first, count) = (number("RAILGATE_SEED", 1), cases() / 10);
    let mut harder = BTreeMap::new();
    for seed in first..first + count {
        let mut rng = Rng::new(seed);
        let mut case = noise::case(&base, &profile, true, &mut rng);
        let mut broken: Vec<&(Fault, Touched)> = Vec::new();
        let mut before = case.judge(&config, &profile);
        for _ in 0..rng.within(1, 4) {
            let next = rng.pick(&all);
            let (fault, touched) = next;
            if touched.hides || broken.iter().any(|(_, other)| !touched.disjoint(other)) {
                continue;
            }
            railgate_simulate::inject(&mut case.now, fault);
            let verdict = case.judge(&config, &profile);
            let (now, mildest) = (hardness(&verdict), hardness(&before));
            let names: Vec<String> = broken.iter().map(|(fault, _)| fault.to_string()).collect();
            assert!(
                now >= mildest,
                "{id}, case {seed}, {names:?} and {fault}: was {}\nis {}",
                findings(&before),
                findings(&verdict)
            );
            *harder.entry(fault.to_string()).or_insert(0) += u32::from(now > mildest);
            before = verdict;
            broken.push(next);
        }
    }
    // Ensures that the faults had an effect at all.
    assert!(harder.values().sum::<u32>() > 20, "{harder:?}");
}

#[test]
fn one_more_fault_is_never_milder_with_a_fabric() {
    one_more_fault_is_never_milder("h100-sxm");
}

#[test]
fn one_more_fault_is_never_milder_without_a_fabric() {
    one_more_fault_is_never_milder("l40s");
}

/// A quantity that can be worse or better: from 0.0, healthy, to 1.0.
type Knob = (&'static str, fn(&mut Case, f64));

fn up(worst: f64, level: f64) -> u64 {
    (worst * level) as u64
}

fn gpus(case: &mut Case, change: impl Fn(&mut railgate_model::Gpu)) {
    if let Part::Read { data, .. } = &mut case.now.gpus {
        data.gpus.iter_mut().take(2).for_each(change);
    }
}

fn ports(case: &mut Case, change: impl Fn(&mut Port)) {
    if let Part::Read { data, .. } = &mut case.now.fabric {
        data.hcas.iter_mut().take(2).flat_map(|hca| &mut hca.ports).for_each(change);
    }
}

fn count(case: &mut Case, name: &str, worst: f64, level: f64) {
    ports(case, |port| {
        if let Some(Reading::Known(count)) = port.counters.get_mut(name) {
            *count = count.saturating_add(up(worst, level));
        }
    });
}

fn host(case: &mut Case, change: impl FnOnce(&mut Host)) {
    if let Part::Read { data, .. } = &mut case.now.host {
        change(data);
    }
}

fn set<T>(reading: &mut Reading<T>, change: impl FnOnce(&mut T)) {
    if let Reading::Known(value) = reading {
        change(value);
    }
}

const KNOBS: &[Knob] = &[
    ("gpu ecc volatile uncorrected", |case, level| {
        gpus(case, |gpu| set(&mut gpu.ecc.volatile_uncorrected, |count| *count = up(100.0, level)));
    }),
    ("gpu ecc volatile corrected", |case, level| {
        gpus(case, |gpu| set(&mut gpu.ecc.volatile_corrected, |count| *count += up(1e12, level)));
    }),
    ("gpu rows remapped", |case, level| {
        gpus(case, |gpu| set(&mut gpu.row_remap, |rows| rows.uncorrectable = up(600.0, level) as _));
    }),
    ("gpu temperature", |case, level| {
        gpus(case, |gpu| {
            set(&mut gpu.temperature_c, |degrees| *degrees = (*degrees).max(78) + up(40.0, level) as u32)
        });
    }),
    ("gpu pcie replays", |case, level| {
        gpus(case, |gpu| set(&mut gpu.pcie_replays, |count| *count += up(1e6, level)));
    }),
    ("gpu pcie width", |case, level| {
        gpus(case, |gpu| set(&mut gpu.pcie_width, |lanes| *lanes -= up(f64::from(*lanes - 1), level) as u32));
    }),
    ("nvlinks down", |case, level| {
        gpus(case, |gpu| {
            let down = up(gpu.nvlinks.len() as f64, level) as usize;
            gpu.nvlinks.iter_mut().take(down).for_each(|link| link.up = Reading::Known(false));
        });
    }),
    ("packets retransmitted by an NVLink", |case, level| {
        gpus(case, |gpu| {
            for link in &mut gpu.details.nvlink_errors.links {
                set(&mut link.replays, |count| *count += up(1e6, level));
            }
        });
    }),
    ("an NVLink trained anew", |case, level| {
        gpus(case, |gpu| {
            for link in gpu.details.nvlink_errors.links.iter_mut().take(3) {
                set(&mut link.recoveries, |count| *count += up(20.0, level));
            }
        });
    }),
    ("wear of an NVMe drive", |case, level| {
        host(case, |host| {
            set(&mut host.system.nvmes, |drives| {
                set(&mut drives[0].health, |health| health.used_percent = up(255.0, level) as u8);
            });
        });
    }),
    ("port rate", |case, level| {
        ports(case, |port| set(&mut port.rate_gbps, |rate| *rate -= *rate * 0.9 * level));
    }),
    ("symbol errors", |case, level| count(case, "symbol_error", 1e7, level)),
    ("links downed", |case, level| count(case, "link_downed", 50.0, level)),
    ("link error recoveries", |case, level| count(case, "link_error_recovery", 1e4, level)),
    ("receive errors", |case, level| count(case, "port_rcv_errors", 1e6, level)),
    ("local integrity errors", |case, level| count(case, "local_link_integrity_errors", 1e5, level)),
    ("space on /", |case, level| {
        host(case, |host| {
            set(&mut host.system.file_systems, |all| {
                set(&mut all[0].space, |space| space.free_mib -= up(space.free_mib as f64, level));
            });
        });
    }),
    ("inodes on /", |case, level| {
        host(case, |host| {
            set(&mut host.system.file_systems, |all| {
                set(&mut all[0].space, |space| space.inodes_free -= up(space.inodes_free as f64, level));
            });
        });
    }),
    ("space in /dev/shm", |case, level| {
        host(case, |host| {
            set(&mut host.system.file_systems, |all| {
                set(&mut all[2].space, |space| space.free_mib -= up(space.free_mib as f64, level));
            });
        });
    }),
    ("memory", |case, level| {
        host(case, |host| set(&mut host.memory_mib, |mib| *mib -= up(*mib as f64 * 0.9, level)));
    }),
    ("processors", |case, level| {
        host(case, |host| set(&mut host.system.cpus, |cpus| *cpus = 192 - up(190.0, level) as u32));
    }),
    ("NVMe temperature", |case, level| {
        host(case, |host| {
            set(&mut host.system.nvmes, |drives| {
                drives[0].temperature_c = Reading::Known(60.0 + 60.0 * level);
            });
        });
    }),
    ("NVMe drives", |case, level| {
        host(case, |host| set(&mut host.system.nvmes, |drives| drives.truncate(4 - up(4.0, level) as usize)));
    }),
    ("uncorrected memory errors", |case, level| {
        host(case, |host| {
            set(&mut host.system.memory, |all| {
                set(&mut all[0].uncorrected, |count| *count += up(10.0, level))
            });
        });
    }),
    ("corrected memory errors", |case, level| {
        host(case, |host| {
            set(&mut host.system.memory, |all| set(&mut all[0].corrected, |count| *count += up(1e7, level)));
        });
    }),
    ("machine checks", |case, level| {
        host(case, |host| set(&mut host.system.machine_checks, |count| *count += up(10.0, level)));
    }),
    ("zombies", |case, level| {
        host(case, |host| set(&mut host.system.processes, |all| all.zombies += up(1e5, level) as u32));
    }),
    ("clock", |case, level| {
        host(case, |host| {
            set(&mut host.system.clock, |clock| {
                clock.synchronised = true;
                clock.max_error_us = up(1e8, level);
            });
        });
    }),
    ("memlock", |case, level| {
        host(case, |host| host.system.memlock = Reading::Known((1 << 40) - up((1_u64 << 40) as f64, level)));
    }),
];

/// Each threshold is crossed in only one direction, independent of the machine's other values.
#[test]
fn a_higher_level_is_never_judged_milder() {
    let mut profile = railgate_profiles::load("h100-sxm", &[]).unwrap();
    (profile.host.memory_gib, profile.host.cpus, profile.host.nvmes) = (Some(2048), Some(192), Some(4));
    let config = GateConfig::default();
    let base = railgate_simulate::simulated(&profile, &[]);
    let (first, count) = (number("RAILGATE_SEED", 1), cases() / 500);
    let mut crossed = BTreeSet::new();
    for seed in first..first + count.max(3) {
        let mut rng = Rng::new(seed);
        let mut case = noise::case(&base, &profile, true, &mut rng);
        // Growth since the previous check run is a fault after a job; without a previous run a count means little.
        case.phase = *rng.pick(&[Phase::Prolog, Phase::Epilog]);
        if let Part::Read { data, .. } = &mut case.now.host {
            set(&mut data.system.file_systems, |all| all.iter_mut().for_each(|one| one.read_only = false));
            set(&mut data.boot_time, |time| *time = case.now.taken / 1000 - 86_400);
        }
        let mut before = case.now.clone();
        before.taken -= 3_600_000;
        case.before = (case.phase == Phase::Epilog).then_some(before);
        for (name, turn) in KNOBS {
            let mut levels: Vec<f64> = (0..6).map(|_| rng.share()).chain([0.0, 1.0]).collect();
            levels.sort_by(f64::total_cmp);
            let mut mildest = None;
            for level in levels {
                let mut worse = case.clone();
                turn(&mut worse, level);
                let verdict = worse.judge(&config, &profile);
                let now = hardness(&verdict);
                let milder = mildest.is_some_and(|mildest| now < mildest);
                assert!(!milder, "{name} at {level}, case {seed}: was {mildest:?}, {}", findings(&verdict));
                if mildest.is_some_and(|mildest| now > mildest) {
                    crossed.insert(*name);
                }
                mildest = Some(now);
            }
        }
    }
    for name in
        ["gpu ecc volatile uncorrected", "nvlinks down", "port rate", "space on /", "memory", "zombies"]
    {
        assert!(crossed.contains(name), "{name} never crossed its threshold: {crossed:?}");
    }
}
