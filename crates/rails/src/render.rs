use railgate_model::{Net, PortState, RailMap, Reading, Setting};
use railgate_text::{Lines, put};
use serde::Serialize;

use crate::folklore::{FOLKLORE, Folklore};
use crate::{NcclRange, NcclVersion, NotSet};

/// The output of `railgate rails --format json`.
#[derive(Clone, Debug, Serialize)]
pub struct View<'a> {
    /// Schema version of this object.
    pub schema: u32,
    /// Name of the node.
    pub node: &'a str,
    /// Wiring of the node.
    pub rail_map: &'a RailMap,
    /// Settings for the tasks of a job.
    pub settings: &'a [Setting],
    /// What the site asks for and this node does not allow.
    pub not_set: &'a [NotSet],
    /// Variables that railgate never sets, with the reasons.
    pub folklore: &'a [Folklore],
}

impl<'a> View<'a> {
    /// Combines map and environment.
    pub fn new(node: &'a str, rail_map: &'a RailMap, settings: &'a [Setting], not_set: &'a [NotSet]) -> Self {
        View { schema: 1, node, rail_map, settings, not_set, folklore: FOLKLORE }
    }
}

fn or_unknown<T: std::fmt::Display>(reading: &Reading<T>) -> String {
    match reading {
        Reading::Known(value) => value.to_string(),
        Reading::Unsupported => "-".to_owned(),
        Reading::Failed(_) => "unknown".to_owned(),
    }
}

/// Renders the rail map for a person.
pub fn table(map: &RailMap) -> Lines {
    let head = ["RAIL", "GPU", "GPU PCI", "NUMA", "DIST", "HCA:PORT", "HCA PCI", "LINK", "RATE", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let gpu_row = |gpu: &railgate_model::RailGpu| {
        vec![gpu.index.to_string(), or_unknown(&gpu.pci), or_unknown(&gpu.numa_node)]
    };
    for (index, rail) in map.rails.iter().enumerate() {
        let port = vec![
            format!("{}:{}", rail.hca, rail.port),
            or_unknown(&rail.pci),
            match &rail.link_layer {
                Reading::Known(layer) => layer.name().to_owned(),
                _ => "unknown".to_owned(),
            },
            match &rail.rate_gbps {
                Reading::Known(rate) => format!("{rate} Gb/s"),
                _ => "unknown".to_owned(),
            },
            state_word(&rail.state),
        ];
        let gpus: Vec<_> = map.gpus.iter().filter(|gpu| gpu.rail == Some(index)).collect();
        if gpus.is_empty() {
            let mut row =
                vec![rail.number.to_string(), "-".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned()];
            row.extend(port.clone());
            rows.push(row);
        }
        for gpu in gpus {
            let mut row = vec![rail.number.to_string()];
            row.extend(gpu_row(gpu));
            row.push(gpu.distance.map_or_else(|| "?".to_owned(), |distance| distance.to_string()));
            row.extend(port.clone());
            rows.push(row);
        }
    }
    for gpu in map.gpus.iter().filter(|gpu| gpu.rail.is_none()) {
        let mut row = vec!["-".to_owned()];
        row.extend(gpu_row(gpu));
        row.extend(std::iter::repeat_n("-".to_owned(), 6));
        rows.push(row);
    }
    let mut text = Lines::table(&rows, "");
    text.blank();
    match map.rails.as_slice() {
        [] => put!(text, "no rails"),
        _ => put!(text, "pairs found by: {}", map.method),
    }
    for left_out in &map.left_out {
        put!(text, "left out: {}: {}", left_out.port, left_out.why);
    }
    for note in &map.notes {
        put!(text, "note: {note}");
    }
    text
}

fn quoted(value: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "=:,._/%+-^@".contains(c);
    if !value.is_empty() && value.chars().all(bare) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}

/// Returns the settings that apply to tasks if `net` carries NCCL's data: of several for one variable, the last. With
/// `release`, those that NCCL of this release uses, including its environment plugin.
pub fn effective(settings: &[Setting], net: Net, release: Option<NcclVersion>) -> Vec<Setting> {
    let fits = |setting: &Setting| {
        let bare = Setting { nccl: None, ..setting.clone() };
        bare.fits(net)
            && match &setting.nccl {
                None => true,
                // 2.28.6 and earlier load no environment plugin.
                Some(range) => release
                    .filter(|release| *release >= ENV_PLUGINS)
                    .is_some_and(|release| range.parse::<NcclRange>().is_ok_and(|range| range.has(release))),
            }
    };
    let fitting: Vec<&Setting> = settings.iter().filter(|setting| fits(setting)).collect();
    // Settings that depend on the release come from the plugin and replace the others.
    let rank = |at: usize| (fitting[at].nccl.is_some(), at);
    let last = |at: &usize| {
        (0..fitting.len()).all(|other| fitting[other].name != fitting[*at].name || rank(other) <= rank(*at))
    };
    (0..fitting.len()).filter(last).map(|at| fitting[at].clone()).collect()
}

/// Renders the environment as lines `NAME=value`, quoted for a shell where necessary. Settings that depend on the NCCL
/// release follow as comments.
pub fn env(settings: &[Setting], net: Net, release: Option<NcclVersion>) -> Lines {
    let mut text = Lines::new();
    for setting in effective(settings, net, release) {
        put!(text, "{}={}", setting.name, quoted(&setting.value));
    }
    for setting in later(settings, net, release) {
        put!(text, "# {}: {}={}", condition(setting), setting.name, quoted(&setting.value));
    }
    text
}

/// As [`env()`], with comments on each variable's reason, rule and source, and on variables that are not set.
pub fn explain(settings: &[Setting], not_set: &[NotSet], net: Net, release: Option<NcclVersion>) -> Lines {
    let mut text = Lines::new();
    let mut about = |setting: &Setting, lead: &str| {
        let force = if setting.force { "; overrides the user's own value" } else { "" };
        put!(text, "{lead}{}={}", setting.name, quoted(&setting.value));
        put!(text, "#   why:    {}", setting.why);
        put!(text, "#   rule:   {}{force}", setting.rule);
        put!(text, "#   source: {}", setting.source);
        let condition = condition(setting);
        if !condition.is_empty() {
            put!(text, "#   only:   {condition}");
        }
    };
    for setting in effective(settings, net, release) {
        about(&setting, "");
    }
    for setting in later(settings, net, release) {
        about(setting, "# ");
    }
    let others: Vec<&Setting> = settings.iter().filter(|setting| is_for_others(setting, net)).collect();
    if !others.is_empty() {
        text.blank();
        put!(text, "# Left to the network plugin ({}):", net.as_str());
    }
    for setting in others {
        put!(text, "# {}={} ({})", setting.name, quoted(&setting.value), condition(setting));
    }
    if !not_set.is_empty() {
        text.blank();
        put!(text, "# Configured, but not set on this node:");
    }
    for row in not_set {
        put!(text, "# {} ({}): {}", row.variable, row.key, row.why);
    }
    text.blank();
    put!(text, "# Never set by railgate:");
    for row in FOLKLORE {
        put!(text, "# {} ({}): {} [{}]", row.variable, row.values, row.why, row.source);
    }
    text
}

/// First release that loads environment plugins.
const ENV_PLUGINS: NcclVersion = NcclVersion::new(2, 28, 7);

fn is_for_others(setting: &Setting, net: Net) -> bool {
    !setting.nets.is_empty() && !setting.nets.contains(&net)
}

/// Settings that depend on the release, if `release` is `None`.
fn later(settings: &[Setting], net: Net, release: Option<NcclVersion>) -> impl Iterator<Item = &Setting> {
    settings
        .iter()
        .filter(move |setting| release.is_none() && setting.nccl.is_some() && !is_for_others(setting, net))
}

fn condition(setting: &Setting) -> String {
    let mut parts = Vec::new();
    if let Some(range) = &setting.nccl {
        parts.push(format!("NCCL {range}, by its environment plugin"));
    }
    if !setting.nets.is_empty() {
        let nets: Vec<&str> = setting.nets.iter().map(|net| net.as_str()).collect();
        parts.push(format!("net {}", nets.join(" or ")));
    }
    if let Some(with) = &setting.with {
        parts.push(format!("where {with} is railgate's"));
    }
    parts.join("; ")
}

/// A port's state as one word for a table.
fn state_word(state: &Reading<PortState>) -> String {
    match state {
        Reading::Known(PortState::Down) => "DOWN",
        Reading::Known(PortState::Init) => "INIT",
        Reading::Known(PortState::Armed) => "ARMED",
        Reading::Known(PortState::Active) => "ACTIVE",
        Reading::Known(PortState::Other(_)) => "OTHER",
        Reading::Unsupported | Reading::Failed(_) => "unknown",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{machine, profile};
    use crate::{JobShape, RailsConfig, environment, not_set, rail_map};

    #[test]
    fn the_table_has_a_row_for_each_gpu_without_control_characters() {
        let snapshot = machine();
        let mut map = rail_map(&snapshot, &profile());
        map.notes.push("a\x1b[31mred".to_owned());
        let text = table(&map);
        assert!(
            text.lines()
                .any(|line| line.starts_with("3 ") && line.contains("PIX") && line.contains("mlx5_3:1"))
        );
        assert!(!text.contains('\x1b'));
        assert!(text.lines().all(|line| line.chars().count() <= 120));
    }

    #[test]
    fn a_shell_can_source_the_environment() {
        let snapshot = machine();
        let map = rail_map(&snapshot, &profile());
        let config = RailsConfig {
            set: [("NCCL_X".to_owned(), "it's two words".to_owned())].into(),
            ..RailsConfig::default()
        };
        let settings = environment(&map, &snapshot, &config, &JobShape::default());
        let text = env(&settings, Net::Ib, None);
        assert!(text.contains("NCCL_IB_HCA==mlx5_0:1,"));
        assert!(text.contains("NCCL_X='it'\\''s two words'\n"));
        let explained = explain(&settings, &[], Net::Ib, None);
        assert!(explained.lines().all(|line| line.is_empty() || line.starts_with('#') || line.contains('=')));
        assert!(explained.contains("# NCCL_ALGO ("));
    }

    #[test]
    fn what_the_node_does_not_allow_is_shown_with_its_reason() {
        let snapshot = machine();
        let map = rail_map(&snapshot, &profile());
        let config = RailsConfig { port_failover: true, ..RailsConfig::default() };
        let shape = JobShape::default();
        let settings = environment(&map, &snapshot, &config, &shape);
        let explained = explain(&settings, &not_set(&map, &snapshot, &config, &shape), Net::Ib, None);
        assert!(
            explained.contains(
                "\n# Configured, but not set on this node:\n# NCCL_IB_RESILIENCY_PORT_FAILOVER (rails.port_failover): \
                 mlx5_0:1 has no second port on its card"
            ),
            "{explained}"
        );
        assert!(!explain(&settings, &[], Net::Ib, None).contains("Configured"));
    }

    #[test]
    fn the_json_is_an_object_with_a_schema() {
        let snapshot = machine();
        let map = rail_map(&snapshot, &profile());
        let settings = environment(&map, &snapshot, &RailsConfig::default(), &JobShape::default());
        let view = serde_json::to_value(View::new("n1", &map, &settings, &[])).unwrap();
        assert_eq!(view["schema"], 1);
        assert_eq!(view["rail_map"]["rails"][2]["hca"], "mlx5_2");
        assert_eq!(view["rail_map"]["gpus"][2]["distance"], "PIX");
        assert_eq!(view["settings"][0]["name"], "NCCL_IB_HCA");
        assert_eq!(view["folklore"][0]["variable"], "NCCL_IB_HCA");
    }

    #[test]
    fn the_table_lists_left_out_ports_with_reasons() {
        let text = table(&rail_map(&machine(), &profile()));
        assert!(text.contains("left out: mlx5_4:1: no GPU is nearest to it"));
        assert!(text.lines().next().unwrap().contains("STATE"));
        assert!(text.contains("ACTIVE") && text.contains("400 Gb/s"));
    }

    #[test]
    fn settings_for_a_release_or_a_plugin_are_shown_separately() {
        let snapshot = machine();
        let map = rail_map(&snapshot, &profile());
        let config = RailsConfig { cross_nic: Some(0), ..RailsConfig::default() };
        let shape = JobShape { env_plugin: Some("/lib/env.so".into()), ..JobShape::default() };
        let settings = environment(&map, &snapshot, &config, &shape);
        let text = env(&settings, Net::Ib, None);
        assert!(
            text.contains("\nNCCL_CROSS_NIC=0\n") && text.contains("\nNCCL_ENV_PLUGIN=/lib/env.so\n"),
            "{text}"
        );
        assert!(text.starts_with("NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,"), "{text}");
        assert!(
            text.contains("\n# NCCL >=2.30.7, by its environment plugin; net ib: NCCL_IB_HCA==mlx5_0:1:0,"),
            "{text}"
        );
        let told = |release: &str, net: Net| env(&settings, net, Some(release.parse().unwrap()));
        assert!(told("2.30.7", Net::Ib).contains("NCCL_IB_HCA==mlx5_0:1:0,"));
        assert!(told("2.30.7", Net::Sharp).contains("NCCL_IB_HCA==mlx5_0:1,"));
        for release in ["2.30.6", "2.21.5"] {
            assert!(told(release, Net::Ib).contains("NCCL_IB_HCA==mlx5_0:1,"), "{release}");
        }
        assert!(!told("2.30.7", Net::Ofi).contains("NCCL_IB_HCA"));
        let explained = explain(&settings, &[], Net::Ofi, None);
        assert!(explained.contains("# Left to the network plugin (ofi):\n# NCCL_IB_HCA="), "{explained}");
        assert!(explain(&settings, &[], Net::Ib, None).contains("#   only:   net ib or sharp\n"));
    }
}
