use std::collections::BTreeMap;

use railgate_model::{Allocation, GpuId, GpuInventory, KnownGpu, Net, Part, Port, PortState};

use super::*;

use crate::testing::{flat_machine, machine, profile, wired_profile};
use crate::{Layer, Nodes, Share, SiteRule, TopologyFile, UserProfile, folklore, not_set, rail_map};

fn value<'a>(settings: &'a [Setting], name: &str) -> Option<&'a str> {
    settings.iter().find(|setting| setting.name == name).map(|setting| setting.value.as_str())
}

fn settings(config: &RailsConfig, shape: &JobShape) -> Vec<Setting> {
    let snapshot = machine();
    environment(&rail_map(&snapshot, &profile()), &snapshot, config, shape)
}

#[test]
fn a_job_on_the_whole_node_gets_every_rail_in_order_with_exact_port_names() {
    let shape = JobShape { job_id: 7, nodes: Some(2), ..JobShape::default() };
    let settings = settings(&RailsConfig::default(), &shape);
    assert_eq!(value(&settings, "NCCL_IB_HCA"), Some("=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"));
    assert_eq!(value(&settings, "NCCL_SOCKET_IFNAME"), Some("=eno1"));
    assert!(settings.iter().all(|setting| !setting.force && !setting.why.is_empty()));
    assert_eq!(value(&settings, "NCCL_TOPO_FILE"), None);
    assert_eq!(value(&settings, "NCCL_IB_TC"), None);
}

#[test]
fn a_job_on_half_a_node_gets_the_rails_of_its_gpus() {
    let shape =
        JobShape { job_id: 7, nodes: Some(2), gpus: JobGpus::these(vec![2, 3]), ..JobShape::default() };
    assert_eq!(value(&settings(&RailsConfig::default(), &shape), "NCCL_IB_HCA"), Some("=mlx5_2:1,mlx5_3:1"));
}

#[test]
fn without_gpus_or_with_environment_off_nothing_is_set() {
    let none = JobShape { gpus: JobGpus::None, ..JobShape::default() };
    assert!(settings(&RailsConfig::default(), &none).is_empty());
    let off = RailsConfig { environment: false, ..RailsConfig::default() };
    assert!(settings(&off, &JobShape::default()).is_empty());
}

#[test]
fn a_job_on_one_node_gets_no_bootstrap_interface() {
    let shape = JobShape { nodes: Some(1), ..JobShape::default() };
    assert_eq!(value(&settings(&RailsConfig::default(), &shape), "NCCL_SOCKET_IFNAME"), None);
}

#[test]
fn jobs_on_one_node_get_different_ras_ports() {
    let port = |job| {
        let shape = JobShape { job_id: job, ..JobShape::default() };
        value(&settings(&RailsConfig::default(), &shape), "NCCL_RAS_ADDR").unwrap().to_owned()
    };
    assert_ne!(port(41), port(42));
    assert!(port(u32::MAX).starts_with("localhost:2"));
}

#[test]
fn the_site_can_replace_force_and_forbid_variables() {
    let config = RailsConfig {
        set: [("NCCL_IB_HCA", "=mlx5_9:1"), ("NCCL_IB_TIMEOUT", "22")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        force: vec!["NCCL_IB_TIMEOUT".to_owned()],
        never: vec!["NCCL_RAS_ADDR".to_owned()],
        traffic_class: Some(106),
        ..RailsConfig::default()
    };
    let settings = settings(&config, &JobShape::default());
    assert_eq!(value(&settings, "NCCL_IB_HCA"), Some("=mlx5_9:1"));
    assert_eq!(value(&settings, "NCCL_RAS_ADDR"), None);
    let forced: Vec<&str> =
        settings.iter().filter(|setting| setting.force).map(|setting| setting.name.as_str()).collect();
    assert_eq!(forced, ["NCCL_IB_TIMEOUT"]);
    assert_eq!(value(&settings, "NCCL_IB_TC"), None, "traffic class acts on Ethernet only");
}

#[test]
fn the_flight_recorder_is_armed_only_if_the_site_wants_it() {
    let shape = JobShape { user_dir: "/run/railgate/jobs/7/current/user".into(), ..JobShape::default() };
    let names = ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"];
    let of = |config: &RailsConfig, shape: &JobShape| {
        let settings = settings(config, shape);
        names.map(|name| value(&settings, name).map(str::to_owned))
    };
    assert_eq!(of(&RailsConfig::default(), &shape), [None, None, None]);
    let armed = RailsConfig { flight_recorder: true, ..RailsConfig::default() };
    let dir = "/run/railgate/jobs/7/current/user";
    assert_eq!(
        of(&armed, &shape),
        [Some("2000".to_owned()), Some(format!("{dir}/fr-")), Some(format!("{dir}/fr-dump-"))]
    );
    assert_eq!(of(&armed, &JobShape::default()), [None, None, None], "the job has no place of its own");
}

#[test]
fn the_debug_profile_writes_to_the_jobs_directory() {
    let shape = JobShape {
        profile: Some("debug".to_owned()),
        user_dir: "/run/railgate/jobs/7/current/user".into(),
        ..JobShape::default()
    };
    let settings = settings(&RailsConfig::default(), &shape);
    assert_eq!(value(&settings, "NCCL_DEBUG"), Some("WARN"));
    assert_eq!(value(&settings, "NCCL_DEBUG_FILE"), Some("/run/railgate/jobs/7/current/user/nccl.%h.%p"));
}

#[test]
fn values_that_the_format_cannot_hold_are_left_out() {
    let shape =
        JobShape { user_dir: "/run/a\nb".into(), profile: Some("debug".to_owned()), ..JobShape::default() };
    assert_eq!(value(&settings(&RailsConfig::default(), &shape), "NCCL_DEBUG_FILE"), None);
}

#[test]
fn a_job_gets_both_ports_of_the_card_near_its_gpu() {
    let snapshot = dual();
    let map = rail_map(&snapshot, None);
    let of = |gpus: &[u32]| {
        let shape = JobShape { gpus: JobGpus::these(gpus.to_vec()), ..JobShape::default() };
        let settings = environment(&map, &snapshot, &RailsConfig::default(), &shape);
        value(&settings, "NCCL_IB_HCA").unwrap().to_owned()
    };
    assert_eq!(of(&[1]), "=mlx5_1:1,mlx5_1:2");
    assert_eq!(of(&[3, 3]), "=mlx5_3:1,mlx5_3:2");
    let all = "=mlx5_0:1,mlx5_0:2,mlx5_1:1,mlx5_1:2,mlx5_2:1,mlx5_2:2,mlx5_3:1,mlx5_3:2";
    assert_eq!(of(&[0, 1, 2, 3]), all);
    assert_eq!(of(&[1, 9]), all, "the place of GPU 9 is unknown");
}

#[test]
fn a_gpu_whose_rail_is_down_adds_all_rails() {
    let mut snapshot = machine();
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        data.hcas[1].ports[0].state = Reading::Known(PortState::Down);
    }
    let map = rail_map(&snapshot, &profile());
    let shape = JobShape { gpus: JobGpus::these(vec![0, 1]), ..JobShape::default() };
    let settings = environment(&map, &snapshot, &RailsConfig::default(), &shape);
    assert_eq!(value(&settings, "NCCL_IB_HCA"), Some("=mlx5_0:1,mlx5_2:1,mlx5_3:1"));
}

#[test]
fn roce_gets_its_traffic_class_and_infiniband_its_service_level() {
    let config = RailsConfig {
        traffic_class: Some(106),
        service_level: Some(1),
        queue_pairs: Some(4),
        ..RailsConfig::default()
    };
    let mut snapshot = machine();
    let given = |snapshot: &Snapshot| {
        let map = rail_map(snapshot, None);
        let settings = environment(&map, snapshot, &config, &JobShape::default());
        ["NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION"]
            .map(|name| value(&settings, name).map(str::to_owned))
    };
    assert_eq!(given(&snapshot), [None, Some("1".to_owned()), None]);
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        for hca in &mut data.hcas {
            hca.ports[0].link_layer = Reading::Known(LinkLayer::Ethernet);
        }
    }
    assert_eq!(given(&snapshot), [Some("106".to_owned()), None, Some("4".to_owned())]);
}

#[test]
fn on_a_machine_without_rails_no_fabric_variable_is_set() {
    let mut snapshot = machine();
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        data.hcas.clear();
    }
    let map = rail_map(&snapshot, &profile());
    let settings = environment(&map, &snapshot, &RailsConfig::default(), &JobShape::default());
    assert!(settings.iter().all(|setting| !setting.name.starts_with("NCCL_IB")));
}

#[test]
fn an_unknown_default_interface_is_not_set() {
    let mut snapshot = machine();
    if let Part::Read { data, .. } = &mut snapshot.host {
        data.default_interface = Reading::Unsupported;
    }
    let map = rail_map(&snapshot, &profile());
    let mut config = RailsConfig::default();
    let settings = environment(&map, &snapshot, &config, &JobShape::default());
    assert_eq!(value(&settings, "NCCL_SOCKET_IFNAME"), None);
    config.socket_ifname = Some("bond0".to_owned());
    let settings = environment(&map, &snapshot, &config, &JobShape::default());
    assert_eq!(value(&settings, "NCCL_SOCKET_IFNAME"), Some("=bond0"));
}

#[test]
fn a_topology_file_is_set_only_if_one_was_written() {
    let shape = JobShape { topology_file: Some("/run/t.xml".into()), ..JobShape::default() };
    let given = |snapshot: &Snapshot, topology_file: TopologyFile| {
        let config = RailsConfig { topology_file, ..RailsConfig::default() };
        let map = rail_map(snapshot, &wired_profile());
        value(&environment(&map, snapshot, &config, &shape), "NCCL_TOPO_FILE").is_some()
    };
    let (bare, flat) = (machine(), flat_machine());
    assert!(given(&flat, TopologyFile::Auto) && !given(&bare, TopologyFile::Auto));
    assert!(given(&flat, TopologyFile::Always) && given(&bare, TopologyFile::Always));
    assert!(!given(&flat, TopologyFile::Never) && !given(&bare, TopologyFile::Never));
}

#[test]
fn a_requested_profile_replaces_values_that_are_not_forced() {
    let table = |value: &str| [("NCCL_DEBUG".to_owned(), value.to_owned())].into();
    let mut config = RailsConfig { set: table("VERSION"), ..RailsConfig::default() };
    config.profiles.insert("loud".to_owned(), UserProfile { set: table("INFO"), ..UserProfile::default() });
    let given = |config: &RailsConfig, profile: &str| {
        let shape = JobShape { profile: Some(profile.to_owned()), ..JobShape::default() };
        value(&settings(config, &shape), "NCCL_DEBUG").map(str::to_owned)
    };
    assert_eq!(given(&config, "loud").as_deref(), Some("INFO"));
    assert_eq!(given(&config, "debug").as_deref(), Some("WARN"));
    assert_eq!(given(&config, "unknown").as_deref(), Some("VERSION"));
    config.force = vec!["NCCL_DEBUG".to_owned()];
    assert_eq!(given(&config, "loud").as_deref(), Some("VERSION"));
}

#[test]
fn no_rule_sets_a_folklore_variable() {
    let config = RailsConfig {
        traffic_class: Some(106),
        control_traffic_class: Some(184),
        service_level: Some(1),
        cross_nic: Some(0),
        adaptive_routing: Some(false),
        gid_range: Some("fd00::/16".to_owned()),
        ib_timeout: Some(22),
        ib_retries: Some(7),
        gdr_level: Some("PHB".to_owned()),
        split_ports: true,
        profiler: Some("/lib/p.so".to_owned()),
        ..RailsConfig::default()
    };
    for profile in crate::config::BUILT_IN {
        let shape = JobShape {
            profile: Some(profile.to_owned()),
            user_dir: "/run/u".into(),
            env_plugin: Some("/lib/e.so".into()),
            ..JobShape::default()
        };
        for snapshot in [machine(), roce()] {
            let settings = environment(&rail_map(&snapshot, None), &snapshot, &config, &shape);
            let pairs: Vec<_> = settings.iter().map(|setting| (&setting.name, &setting.value)).collect();
            assert_eq!(folklore(&pairs), []);
        }
    }
}

fn roce() -> Snapshot {
    ethernet(machine())
}

/// The setting of a rule, under any name.
fn by_rule<'a>(settings: &'a [Setting], rule: &str) -> Option<&'a Setting> {
    settings.iter().find(|setting| setting.rule == rule)
}

#[test]
fn fabric_settings_of_the_site_are_set_only_where_they_have_an_effect() {
    let config = RailsConfig {
        control_traffic_class: Some(184),
        adaptive_routing: Some(true),
        gid_range: Some("fd00::/16".to_owned()),
        ib_timeout: Some(22),
        gdr_level: Some("PHB".to_owned()),
        split_ports: true,
        ..RailsConfig::default()
    };
    let given = |snapshot: &Snapshot, config: &RailsConfig| {
        let settings = environment(&rail_map(snapshot, None), snapshot, config, &JobShape::default());
        let names = [
            "IB_FIFO_TC",
            "IB_ADAPTIVE_ROUTING",
            "IB_ADDR_RANGE",
            "IB_ADDR_FAMILY",
            "IB_TIMEOUT",
            "NET_GDR_LEVEL",
        ];
        names.map(|name| value(&settings, &format!("NCCL_{name}")).unwrap_or("-").to_owned()).join(" ")
    };
    assert_eq!(given(&machine(), &config), "- - - - 22 PHB");
    assert_eq!(given(&roce(), &config), "184 1 fd00::/16 AF_INET6 22 PHB");
    let other = RailsConfig {
        adaptive_routing: Some(false),
        gid_range: Some("10.4.0.0/16".to_owned()),
        ..RailsConfig::default()
    };
    assert_eq!(given(&machine(), &other), "- 0 - - - -");
    assert_eq!(given(&roce(), &other), "- - 10.4.0.0/16 - - -");

    let merged = |snapshot: &Snapshot| {
        let settings = environment(&rail_map(snapshot, None), snapshot, &config, &JobShape::default());
        value(&settings, "NCCL_NET_MERGE_LEVEL").map(str::to_owned)
    };
    assert_eq!(merged(&machine()), None, "one port a card");
    let mut dual = machine();
    if let Part::Read { data, .. } = &mut dual.fabric {
        let second = Port { number: 2, ..data.hcas[0].ports[0].clone() };
        data.hcas[0].ports.push(second);
    }
    assert_eq!(merged(&dual).as_deref(), Some("LOC"));
}

/// Each card has two ports.
fn dual() -> Snapshot {
    let mut snapshot = machine();
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        for hca in &mut data.hcas {
            let second = Port { number: 2, ..hca.ports[0].clone() };
            hca.ports.push(second);
        }
    }
    snapshot
}

fn ethernet(mut snapshot: Snapshot) -> Snapshot {
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        for port in data.hcas.iter_mut().flat_map(|hca| &mut hca.ports) {
            port.link_layer = Reading::Known(LinkLayer::Ethernet);
        }
    }
    snapshot
}

#[test]
fn nccls_own_failover_needs_a_second_port_and_recovery_infiniband() {
    let healing = RailsConfig { port_failover: true, port_recovery: true, ..RailsConfig::default() };
    let shape = JobShape { env_plugin: Some("/lib/e.so".into()), ..JobShape::default() };
    let given = |snapshot: &Snapshot, config: &RailsConfig| {
        let map = rail_map(snapshot, None);
        let settings = environment(&map, snapshot, config, &shape);
        let set = |name: &str| value(&settings, &format!("NCCL_IB_RESILIENCY_PORT_{name}")) == Some("1");
        let not: Vec<String> =
            not_set(&map, snapshot, config, &shape).into_iter().map(|row| row.why).collect();
        (set("FAILOVER"), set("RECOVERY"), not)
    };
    let off = (false, false, Vec::new());
    assert_eq!(given(&dual(), &RailsConfig::default()), off, "never without the site's word");
    assert_eq!(given(&dual(), &healing), (true, true, Vec::new()));
    let only = RailsConfig { port_recovery: false, ..healing.clone() };
    assert_eq!(given(&dual(), &only), (true, false, Vec::new()));
    let none = |snapshot: &Snapshot, config: &RailsConfig, why: &str| {
        let (failover, recovery, not) = given(snapshot, config);
        assert!(!failover && !recovery, "{why}");
        assert!(not.len() == 2 && not[0].contains(why), "{why}: {not:?}");
    };
    none(&machine(), &healing, "mlx5_0:1 has no second port on its card");
    none(&dual(), &RailsConfig { split_ports: true, ..healing.clone() }, "rails.split_ports");
    let set = |name: &str, value: &str| RailsConfig {
        set: BTreeMap::from([(name.to_owned(), value.to_owned())]),
        ..healing.clone()
    };
    none(&dual(), &set("NCCL_IB_MERGE_NICS", "0"), "NCCL_IB_MERGE_NICS=0");
    none(&dual(), &set("NCCL_NET_MERGE_LEVEL", "LOC"), "NCCL_NET_MERGE_LEVEL=LOC");
    let map = rail_map(&dual(), None);
    let file = vec![("NCCL_NET_MERGE_LEVEL".to_owned(), "LOC".to_owned())];
    let in_file = JobShape { site_conf: file, ..shape.clone() };
    assert_eq!(not_set(&map, &dual(), &healing, &in_file).len(), 2, "in /etc/nccl.conf");
    let watchdog = RailsConfig { watchdog: std::time::Duration::from_secs(20), ..healing.clone() };
    none(&dual(), &watchdog, "after 30 s, the framework's watchdog ends the job after 20 s");
    let mut one_down = dual();
    if let Part::Read { data, .. } = &mut one_down.fabric {
        data.hcas[2].ports[1].state = Reading::Known(railgate_model::PortState::Down);
    }
    none(&one_down, &healing, "mlx5_2:1 has no second port on its card");
    let (failover, recovery, not) = given(&ethernet(dual()), &healing);
    assert!(failover && !recovery && not.len() == 1 && not[0].contains("RoCE"), "{not:?}");
    let alone = RailsConfig { port_failover: false, ..healing.clone() };
    assert_eq!(given(&dual(), &alone), (false, false, vec!["it needs rails.port_failover".to_owned()]));

    let map = rail_map(&dual(), None);
    let settings = environment(&map, &dual(), &healing, &shape);
    let rule = |id: &str| by_rule(&settings, id).unwrap();
    assert_eq!(rule("port-failover").nccl.as_deref(), Some(">=2.29.7"));
    assert_eq!(rule("port-recovery").nccl.as_deref(), Some(">=2.30.3"));
    assert_eq!(rule("port-recovery").nets, [Net::Ib]);
}

#[test]
fn rail_numbers_are_set_only_for_newer_releases_and_with_the_plugin() {
    let config = RailsConfig { cross_nic: Some(0), ..RailsConfig::default() };
    let shape = JobShape { env_plugin: Some("/lib/e.so".into()), ..JobShape::default() };
    let with = settings(&config, &shape);
    let numbers = by_rule(&with, "rail-numbers").unwrap();
    assert_eq!(numbers.value, "=mlx5_0:1:0,mlx5_1:1:1,mlx5_2:1:2,mlx5_3:1:3");
    assert_eq!((numbers.nccl.as_deref(), &numbers.nets[..]), (Some(">=2.30.7"), &[Net::Ib][..]));
    assert_eq!(value(&with, "NCCL_ENV_PLUGIN"), Some("/lib/e.so"));
    assert_eq!(by_rule(&with, "ib-hca").unwrap().value, "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1");
    assert_eq!(
        value(&settings(&config, &JobShape::default()), "NCCL_ENV_PLUGIN"),
        None,
        "it is not installed"
    );
    assert_eq!(value(&settings(&RailsConfig::default(), &shape), "NCCL_ENV_PLUGIN"), None, "nothing for it");
    let refused = RailsConfig { never: vec!["NCCL_ENV_PLUGIN".to_owned()], ..config.clone() };
    assert_eq!(value(&settings(&refused, &shape), "NCCL_ENV_PLUGIN"), None);
    let other = RailsConfig { set: table("NCCL_ENV_PLUGIN", "theirs"), ..config.clone() };
    assert_eq!(value(&settings(&other, &shape), "NCCL_ENV_PLUGIN"), Some("theirs"));
    // A site that replaces the list replaces it for every release.
    let own = RailsConfig { set: table("NCCL_IB_HCA", "=mlx5_9:1"), ..config };
    let own = settings(&own, &shape);
    assert_eq!(own.iter().filter(|setting| setting.name == "NCCL_IB_HCA").count(), 1);
}

fn table(name: &str, value: &str) -> std::collections::BTreeMap<String, String> {
    [(name.to_owned(), value.to_owned())].into()
}

#[test]
fn a_job_on_part_of_a_node_never_gets_cross_nic_0() {
    let config = RailsConfig { cross_nic: Some(0), ..RailsConfig::default() };
    let given = |gpus: &[u32], nodes: u32| {
        let gpus = JobGpus::these(gpus.to_vec());
        let settings = settings(&config, &JobShape { gpus, nodes: Some(nodes), ..JobShape::default() });
        value(&settings, "NCCL_CROSS_NIC").map(str::to_owned)
    };
    assert_eq!(given(&[0, 1], 2), None);
    assert_eq!(given(&[0, 1], 1).as_deref(), Some("0"));
    assert_eq!(given(&[0, 1, 2, 3], 2).as_deref(), Some("0"));
}

#[test]
fn gpus_that_share_hcas_get_the_same_number_on_every_node() {
    // Four switches with two GPUs and one HCA each.
    let snapshot = crate::testing::switches(4, 2, 1);
    let map = rail_map(&snapshot, None);
    let given = |gpus: &[u32], nodes: u32| {
        let gpus = JobGpus::these(gpus.to_vec());
        let shape = JobShape { gpus, nodes: Some(nodes), ..JobShape::default() };
        let settings = environment(&map, &snapshot, &RailsConfig::default(), &shape);
        value(&settings, "NCCL_IB_HCA").unwrap().to_owned()
    };
    assert_eq!(given(&[0, 2], 2), "=mlx5_0:1,mlx5_1:1");
    assert_eq!(given(&[4, 5], 2), "=mlx5_2:1,mlx5_3:1", "the other one of the same socket");
    assert_eq!(given(&[4, 5], 1), "=mlx5_2:1", "alone, a job needs no more than its own");
    assert_eq!(given(&[1], 2), "=mlx5_0:1");
}

#[test]
fn built_in_profiles_apply_under_their_conditions_and_can_be_replaced() {
    let given = |snapshot: &Snapshot, config: &RailsConfig, profile: &str| {
        let shape = JobShape { profile: Some(profile.to_owned()), ..JobShape::default() };
        let settings = environment(&rail_map(snapshot, None), snapshot, config, &shape);
        ["NCCL_IB_QPS_PER_CONNECTION", "NCCL_PROFILER_PLUGIN"]
            .map(|name| value(&settings, name).unwrap_or("-").to_owned())
            .join(" ")
    };
    let config = RailsConfig {
        queue_pairs: Some(2),
        profiler: Some("/lib/p.so".to_owned()),
        ..RailsConfig::default()
    };
    assert_eq!(given(&roce(), &config, "none"), "2 /lib/p.so");
    assert_eq!(given(&roce(), &config, "latency"), "1 none");
    assert_eq!(given(&roce(), &config, "throughput"), "4 /lib/p.so");
    assert_eq!(given(&machine(), &config, "throughput"), "- /lib/p.so");
    assert_eq!(given(&machine(), &RailsConfig::default(), "latency"), "- -");
    let more = RailsConfig { queue_pairs: Some(8), ..RailsConfig::default() };
    assert_eq!(given(&roce(), &more, "throughput"), "8 -");
    let mut own = config;
    own.profiles.insert("latency".to_owned(), UserProfile::default());
    assert_eq!(given(&roce(), &own, "latency"), "2 /lib/p.so");
}

#[test]
fn a_rule_of_the_site_applies_only_if_all_conditions_hold() {
    let rule = SiteRule { set: table("NCCL_X", "1"), why: "a bug".to_owned(), ..SiteRule::default() };
    let holds = |rule: &SiteRule, snapshot: &Snapshot, shape: &JobShape| {
        let config = RailsConfig { rules: vec![rule.clone()], ..RailsConfig::default() };
        value(&environment(&rail_map(snapshot, None), snapshot, &config, shape), "NCCL_X").is_some()
    };
    let (ib, eth) = (machine(), roce());
    let whole = JobShape::default();
    let part = JobShape { gpus: JobGpus::these(vec![0]), nodes: Some(1), ..JobShape::default() };
    assert!(holds(&rule, &ib, &whole));
    let on_eth = SiteRule { link_layer: Some(Layer::Ethernet), ..rule.clone() };
    assert!(holds(&on_eth, &eth, &whole) && !holds(&on_eth, &ib, &whole));
    let for_one = SiteRule { nodes: Some(Nodes::One), ..rule.clone() };
    assert!(holds(&for_one, &ib, &part) && !holds(&for_one, &ib, &whole));
    let for_part = SiteRule { gpus: Some(Share::Part), ..rule.clone() };
    assert!(holds(&for_part, &ib, &part) && !holds(&for_part, &ib, &whole));
    let both = SiteRule { nodes: Some(Nodes::Several), ..for_part };
    assert!(!holds(&both, &ib, &part) && !holds(&both, &ib, &whole));
    let bare = SiteRule { virtualised: Some(false), ..rule.clone() };
    assert!(holds(&bare, &ib, &whole) && !holds(&bare, &flat_machine(), &whole));
    let mut unknown = ib.clone();
    if let Part::Read { data, .. } = &mut unknown.host {
        data.virtualised = Reading::Failed("I/O error".to_owned());
    }
    assert!(!holds(&bare, &unknown, &whole), "virtualisation is unknown");
    let asked = SiteRule { profile: Some("careful".to_owned()), ..rule.clone() };
    let careful = JobShape { profile: Some("careful".to_owned()), ..JobShape::default() };
    assert!(holds(&asked, &ib, &careful) && !holds(&asked, &ib, &whole));

    let config = RailsConfig {
        rules: vec![
            SiteRule { nccl: ">=2.29.2".parse().unwrap(), net: vec![Net::Ofi], ..rule.clone() },
            rule,
            SiteRule { set: table("NCCL_X", "2"), nccl: "<2.30.7".parse().unwrap(), ..SiteRule::default() },
        ],
        ..RailsConfig::default()
    };
    let settings = settings(&config, &whole);
    let told: Vec<_> = settings.iter().filter(|setting| setting.name == "NCCL_X").collect();
    assert_eq!(told.len(), 2, "the second takes the place of the first, under all its conditions: {told:#?}");
    assert_eq!(
        (told[0].rule.as_str(), told[0].why.as_str(), told[0].nccl.as_ref()),
        ("site-rule-2", "a bug", None)
    );
    assert_eq!((told[1].value.as_str(), told[1].nccl.as_deref()), ("2", Some("<2.30.7")));
}

#[test]
fn variables_in_nccl_conf_override_rules() {
    let conf = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let given = |config: &RailsConfig, site_conf: Vec<(String, String)>| {
        let settings = settings(config, &JobShape { site_conf, ..JobShape::default() });
        (value(&settings, "NCCL_IB_HCA").map(str::to_owned), settings.len())
    };
    let plain = RailsConfig::default();
    let (ours, count) = given(&plain, vec![]);
    assert!(ours.is_some());
    assert_eq!(given(&plain, conf("NCCL_IB_HCA", "=a:1")), (Some("=a:1".to_owned()), count));
    assert_eq!(given(&plain, conf("NCCL_X", "1")), (ours, count), "what we would not set is NCCL's to read");
    assert_eq!(given(&plain, conf("NCCL_IB_HCA", "\u{7}")).0, None, "NCCL reads it, and we say nothing");
    let set = RailsConfig { set: table("NCCL_IB_HCA", "=b:1"), ..plain };
    assert_eq!(
        given(&set, conf("NCCL_IB_HCA", "=a:1")).0.as_deref(),
        Some("=b:1"),
        "railgate's own table counts for more"
    );
}

#[test]
fn with_a_lost_gpu_or_mig_a_job_gets_the_right_rails() {
    let mut snapshot = machine();
    let Part::Read { data, .. } = &mut snapshot.gpus else { panic!() };
    let inventory = GpuInventory::new(KnownGpu::list(data), true);
    let hca = |snapshot: &Snapshot, index: u32| {
        let allocation = Allocation::Gpus(vec![GpuId::Index(index)]);
        let gpus = JobGpus::resolve(&allocation, snapshot.gpus.data(), &inventory, None);
        let map = rail_map(snapshot, Some(&profile()));
        let shape = JobShape { gpus, nodes: Some(1), ..JobShape::default() };
        let settings = environment(&map, snapshot, &RailsConfig::default(), &shape);
        value(&settings, "NCCL_IB_HCA").map(str::to_owned)
    };
    let (of_2, of_all) = (hca(&snapshot, 2), hca(&snapshot, 99));
    assert_ne!(of_2, of_all);
    if let Part::Read { data, .. } = &mut snapshot.gpus {
        data.gpus.remove(1);
        for (index, gpu) in (0..).zip(&mut data.gpus) {
            gpu.index = index;
        }
    }
    assert_eq!(hca(&snapshot, 2), of_2, "NVML lists it as GPU 1 now");
    if let Part::Read { data, .. } = &mut snapshot.gpus {
        data.gpus[0].mig = Reading::Known(true);
    }
    assert_eq!(hca(&snapshot, 2), of_all, "it cannot be told on which card the slice is");
}
