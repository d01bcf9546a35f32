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
    use crate::testing::{machine, profile};
    use crate::{UserProfile, rail_map};

    fn value<'a>(settings: &'a [Setting], name: &str) -> Option<&'a str> {
        settings.iter().find(|setting| setting.name == name).map(|setting| setting.value.as_str())
    }

    fn settings(config: &RailsConfig, shape: &JobShape) -> Vec<Setting> {
        let snapshot = machine();
        environment(&rail_map(&snapshot, Some(&profile())), &snapshot, config, shape)
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
}
