//! Properties that hold on every machine, with any faults.

use std::collections::BTreeSet;

use proptest::prelude::*;
use railgate_model::{JobGpus, Net, Part, Snapshot};

use crate::testing::{machines, switches};
use crate::{
    JobShape, NcclVersion, RailsConfig, SiteRule, effective, environment, rail_map, table, topology_xml,
};

fn ports(snapshot: &Snapshot, gpus: JobGpus) -> Option<Vec<String>> {
    let map = rail_map(snapshot, None);
    let shape = JobShape { gpus, ..JobShape::default() };
    let settings = environment(&map, snapshot, &RailsConfig::default(), &shape);
    let hca = settings.iter().find(|setting| setting.name == "NCCL_IB_HCA")?;
    Some(hca.value.strip_prefix('=').unwrap().split(',').map(str::to_owned).collect())
}

proptest! {
    #[test]
    fn every_port_is_either_a_rail_or_left_out(snapshot in machines()) {
        let map = rail_map(&snapshot, None);
        let rails = map.rails.iter().map(|rail| format!("{}:{}", rail.hca, rail.port));
        let mut told: Vec<String> = rails.chain(map.left_out.iter().map(|left| left.port.clone())).collect();
        let hcas = &snapshot.fabric.data().unwrap().hcas;
        let mut there: Vec<String> = hcas.iter().map(|hca| format!("{}:1", hca.name)).collect();
        told.sort();
        there.sort();
        prop_assert_eq!(told, there);
        for gpu in &map.gpus {
            prop_assert!(gpu.rail.is_none_or(|rail| rail < map.rails.len()));
        }
        prop_assert!(map.rails.windows(2).all(|pair| pair[0].number < pair[1].number));
        // Neither may panic, on any machine.
        let _ = (table(&map), topology_xml(&map, &snapshot));
    }

    #[test]
    fn the_map_does_not_depend_on_the_order_of_devices(snapshot in machines()) {
        let mut sorted = snapshot.clone();
        if let Part::Read { data, .. } = &mut sorted.fabric {
            data.hcas.sort_by(|a, b| b.name.cmp(&a.name));
        }
        prop_assert_eq!(rail_map(&snapshot, None), rail_map(&sorted, None));
    }

    #[test]
    fn part_of_the_gpus_get_part_of_the_rails(snapshot in machines(), mask in 1..255_u32) {
        let gpus: Vec<u32> = (0..8).filter(|index| mask & (1 << index) != 0).collect();
        let (all, some) = (ports(&snapshot, JobGpus::default()), ports(&snapshot, JobGpus::these(gpus)));
        prop_assert_eq!(all.is_some(), some.is_some());
        if let (Some(all), Some(some)) = (all, some) {
            let (set, part): (BTreeSet<_>, BTreeSet<_>) = (all.iter().collect(), some.iter().collect());
            prop_assert!(part.is_subset(&set) && !part.is_empty());
            prop_assert_eq!(part.len(), some.len(), "no port twice");
        }
    }

    #[test]
    fn the_number_of_rails_depends_only_on_the_number_of_gpus(
        count in 1..5_u32,
        gpus_each in 1..3_u32,
        hcas_each in 1..3_u32,
        one in 1..255_u32,
        other in 1..255_u32,
    ) {
        let snapshot = switches(count, gpus_each, hcas_each);
        let here = count * gpus_each;
        let of = |mask: u32| (0..here).filter(|index| mask & (1 << index) != 0).collect::<Vec<_>>();
        let (one, mut other) = (of(one), of(other));
        prop_assume!(!one.is_empty() && other.len() >= one.len());
        other.truncate(one.len());
        let number = |gpus: Vec<u32>| ports(&snapshot, JobGpus::these(gpus)).map(|ports| ports.len());
        prop_assert_eq!(number(one), number(other));
    }

    #[test]
    fn each_variable_has_one_value_with_any_site_settings(
        snapshot in machines(),
        said in proptest::collection::vec((0..4_usize, "[a-z]{0,3}", 0..4_usize, 0..3_usize, any::<bool>()), 0..8),
        profile in prop_oneof![Just(None), "(latency|throughput|debug|own)".prop_map(Some)],
        released in 0..3_usize,
    ) {
        const NAMES: [&str; 4] = ["NCCL_IB_HCA", "NCCL_X", "NCCL_CROSS_NIC", "NCCL_DEBUG"];
        const RANGES: [&str; 3] = [">=2.29.2", "<2.30.7", ">=2.28.7,<2.30.7"];
        let nets = [vec![], vec![Net::Ib], vec![Net::Ofi, Net::Other], vec![Net::Sharp]];
        let rules = said.iter().map(|(name, value, net, range, of_profile)| SiteRule {
            set: [(NAMES[*name].to_owned(), value.clone())].into(),
            net: nets[*net].clone(),
            nccl: if *range == 0 { crate::NcclRange::ALL } else { RANGES[*range].parse().unwrap() },
            profile: of_profile.then(|| "own".to_owned()),
            ..SiteRule::default()
        });
        let config = RailsConfig {
            rules: rules.collect(),
            cross_nic: Some(0),
            force: vec!["NCCL_X".to_owned()],
            never: vec!["NCCL_RAS_ADDR".to_owned()],
            ..RailsConfig::default()
        };
        let shape = JobShape { profile, env_plugin: Some("/p.so".into()), ..JobShape::default() };
        let settings = environment(&rail_map(&snapshot, None), &snapshot, &config, &shape);
        let released = [None, Some(NcclVersion::new(2, 21, 5)), Some(NcclVersion::new(2, 30, 7))][released];
        for net in [Net::Ib, Net::Ofi, Net::Sharp, Net::Other] {
            let found = effective(&settings, net, released);
            let names: BTreeSet<&str> = found.iter().map(|setting| setting.name.as_str()).collect();
            prop_assert_eq!(names.len(), found.len(), "{:?}", found);
            prop_assert!(!names.contains("NCCL_RAS_ADDR"));
            // The site can set any variable, but railgate itself sets no HCA variables for other plugins.
            let foreign = matches!(net, Net::Ofi | Net::Other);
            prop_assert!(!foreign || found.iter().all(|setting| {
                setting.rule.starts_with("site-") || !setting.name.starts_with("NCCL_IB_")
            }), "{:?}", found);
        }
        prop_assert!(settings.iter().all(|setting| setting.force == (setting.name == "NCCL_X")));
    }
}
