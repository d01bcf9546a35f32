use railgate_node::{LinkLayer, RailMap, Reading, Setting, Snapshot};

use crate::config::{DEBUG, RailsConfig, name_ok, value_ok};
use crate::job_shape::{JobGpus, JobShape};
use crate::rules::{Context, RULES};

/// The variables that the tasks of a job get on this node, the same for all of them.
pub fn environment(
    map: &RailMap,
    snapshot: &Snapshot,
    config: &RailsConfig,
    shape: &JobShape,
) -> Vec<Setting> {
    if !config.environment || shape.gpus == JobGpus::None {
        return Vec::new();
    }
    let context = Context { map, snapshot, config, shape };
    let mut settings: Vec<Setting> = Vec::new();
    let mut put = |setting: Setting| {
        settings.retain(|have| have.name != setting.name);
        settings.push(setting);
    };
    for rule in RULES {
        if let Some(value) = (rule.value)(&context) {
            put(Setting {
                name: rule.variable.to_owned(),
                value,
                force: false,
                rule: rule.id.to_owned(),
                why: rule.why.to_owned(),
                source: rule.source.to_owned(),
            });
        }
    }
    for (name, value) in &config.set {
        put(site_setting("site-set", name, value, "the site's own value", "[rails] set"));
    }
    for (name, value) in shape.profile.iter().flat_map(|profile| user_profile(config, profile, shape)) {
        // What the site forces no profile may change, not even the site's own.
        if config.set.contains_key(&name) && config.force.contains(&name) {
            continue;
        }
        let (why, source) = ("asked for by --railgate-profile", "[rails.profiles], or built in");
        put(site_setting("user-profile", &name, &value, why, source));
    }
    settings.retain(|setting| {
        name_ok(&setting.name) && value_ok(&setting.value) && !config.never.contains(&setting.name)
    });
    for setting in &mut settings {
        setting.force = config.force.contains(&setting.name);
    }
    settings
}

fn site_setting(rule: &str, name: &str, value: &str, why: &str, source: &str) -> Setting {
    Setting {
        name: name.to_owned(),
        value: value.to_owned(),
        force: false,
        rule: rule.to_owned(),
        why: why.to_owned(),
        source: source.to_owned(),
    }
}

/// What `--railgate-profile=NAME` means here; nothing for a name that is not known.
fn user_profile(config: &RailsConfig, name: &str, shape: &JobShape) -> Vec<(String, String)> {
    if let Some(profile) = config.profiles.get(name) {
        return profile.set.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    }
    if name != DEBUG {
        return Vec::new();
    }
    let mut settings = vec![("NCCL_DEBUG".to_owned(), "WARN".to_owned())];
    // Without a place of its own the job keeps the lines in its output.
    if let Some(dir) = shape.user_dir.to_str().filter(|dir| !dir.is_empty()) {
        settings.push(("NCCL_DEBUG_FILE".to_owned(), format!("{}/nccl.%h.%p", dir.trim_end_matches('/'))));
    }
    settings
}

/// There are rails, and every one speaks this.
pub(crate) fn speaks(map: &RailMap, layer: &LinkLayer) -> bool {
    !map.rails.is_empty() && map.rails.iter().all(|rail| rail.link_layer == Reading::Known(layer.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use railgate_node::{Part, Port, PortState};

    use crate::testing::{flat_machine, machine, profile, wired_profile};
    use crate::{TopologyFile, UserProfile, folklore, rail_map};

    fn value<'a>(settings: &'a [Setting], name: &str) -> Option<&'a str> {
        settings.iter().find(|setting| setting.name == name).map(|setting| setting.value.as_str())
    }

    fn settings(config: &RailsConfig, shape: &JobShape) -> Vec<Setting> {
        let snapshot = machine();
        environment(&rail_map(&snapshot, &profile()), &snapshot, config, shape)
    }

    #[test]
    fn a_whole_node_gets_every_rail_in_order_with_ports_and_exact_names() {
        let shape = JobShape { job_id: 7, nodes: Some(2), ..JobShape::default() };
        let settings = settings(&RailsConfig::default(), &shape);
        assert_eq!(value(&settings, "NCCL_IB_HCA"), Some("=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"));
        assert_eq!(value(&settings, "NCCL_SOCKET_IFNAME"), Some("=eno1"));
        assert!(settings.iter().all(|setting| !setting.force && !setting.why.is_empty()));
        assert_eq!(value(&settings, "NCCL_TOPO_FILE"), None);
        assert_eq!(value(&settings, "NCCL_IB_TC"), None);
    }

    #[test]
    fn half_a_node_gets_the_rails_of_its_own_gpus() {
        let shape =
            JobShape { job_id: 7, nodes: Some(2), gpus: JobGpus::Indices(vec![2, 3]), ..JobShape::default() };
        assert_eq!(
            value(&settings(&RailsConfig::default(), &shape), "NCCL_IB_HCA"),
            Some("=mlx5_2:1,mlx5_3:1")
        );
    }

    #[test]
    fn a_job_without_gpus_or_a_site_that_says_so_gets_nothing() {
        let none = JobShape { gpus: JobGpus::None, ..JobShape::default() };
        assert!(settings(&RailsConfig::default(), &none).is_empty());
        let off = RailsConfig { environment: false, ..RailsConfig::default() };
        assert!(settings(&off, &JobShape::default()).is_empty());
    }

    #[test]
    fn one_node_needs_no_bootstrap_interface() {
        let shape = JobShape { nodes: Some(1), ..JobShape::default() };
        assert_eq!(value(&settings(&RailsConfig::default(), &shape), "NCCL_SOCKET_IFNAME"), None);
    }

    #[test]
    fn jobs_of_one_node_get_ras_ports_of_their_own() {
        let port = |job| {
            let shape = JobShape { job_id: job, ..JobShape::default() };
            value(&settings(&RailsConfig::default(), &shape), "NCCL_RAS_ADDR").unwrap().to_owned()
        };
        assert_ne!(port(41), port(42));
        assert!(port(u32::MAX).starts_with("localhost:2"));
    }

    #[test]
    fn the_site_replaces_forces_and_forbids() {
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
    fn the_debug_profile_writes_where_the_job_may() {
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
    fn what_the_format_cannot_hold_is_not_given() {
        let shape = JobShape {
            user_dir: "/run/a\nb".into(),
            profile: Some("debug".to_owned()),
            ..JobShape::default()
        };
        assert_eq!(value(&settings(&RailsConfig::default(), &shape), "NCCL_DEBUG_FILE"), None);
    }

    #[test]
    fn both_ports_of_a_card_belong_to_the_half_that_holds_its_gpu() {
        let mut snapshot = machine();
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            for hca in &mut data.hcas {
                let second = Port { number: 2, ..hca.ports[0].clone() };
                hca.ports.push(second);
            }
        }
        let map = rail_map(&snapshot, None);
        let of = |gpus: &[u32]| {
            let shape = JobShape { gpus: JobGpus::Indices(gpus.to_vec()), ..JobShape::default() };
            let settings = environment(&map, &snapshot, &RailsConfig::default(), &shape);
            value(&settings, "NCCL_IB_HCA").unwrap().to_owned()
        };
        assert_eq!(of(&[1]), "=mlx5_1:1,mlx5_1:2");
        assert_eq!(of(&[3, 3]), "=mlx5_3:1,mlx5_3:2");
        let all = "=mlx5_0:1,mlx5_0:2,mlx5_1:1,mlx5_1:2,mlx5_2:1,mlx5_2:2,mlx5_3:1,mlx5_3:2";
        assert_eq!(of(&[0, 1, 2, 3]), all);
        assert_eq!(of(&[1, 9]), all, "nobody knows where GPU 9 is");
    }

    #[test]
    fn a_gpu_whose_rail_is_down_widens_the_list() {
        let mut snapshot = machine();
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            data.hcas[1].ports[0].state = Reading::Known(PortState::Down);
        }
        let map = rail_map(&snapshot, &profile());
        let shape = JobShape { gpus: JobGpus::Indices(vec![0, 1]), ..JobShape::default() };
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
    fn gpus_only_means_no_word_about_the_fabric() {
        let mut snapshot = machine();
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            data.hcas.clear();
        }
        let map = rail_map(&snapshot, &profile());
        let settings = environment(&map, &snapshot, &RailsConfig::default(), &JobShape::default());
        assert!(settings.iter().all(|setting| !setting.name.starts_with("NCCL_IB")));
    }

    #[test]
    fn an_unknown_default_interface_is_not_guessed() {
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
    fn a_topology_file_is_named_only_where_the_site_wants_one() {
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
    fn a_users_profile_replaces_the_sites_value_unless_that_is_forced() {
        let table = |value: &str| [("NCCL_DEBUG".to_owned(), value.to_owned())].into();
        let mut config = RailsConfig { set: table("VERSION"), ..RailsConfig::default() };
        config
            .profiles
            .insert("loud".to_owned(), UserProfile { set: table("INFO"), ..UserProfile::default() });
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
    fn nothing_that_is_set_is_folklore() {
        let config = RailsConfig {
            traffic_class: Some(106),
            service_level: Some(1),
            cross_nic: Some(0),
            ..RailsConfig::default()
        };
        let settings = settings(&config, &JobShape::default());
        let pairs: Vec<_> = settings.iter().map(|setting| (&setting.name, &setting.value)).collect();
        assert_eq!(folklore(&pairs), []);
    }
}
