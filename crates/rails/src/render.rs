use std::fmt::Write as _;

use railgate_node::{RailMap, Reading, Setting};
use serde::Serialize;

use crate::folklore::{FOLKLORE, Folklore};
use crate::ports::{layer_text, state_word};

/// What `railgate rails --format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct View<'a> {
    /// Layout of this object.
    pub schema: u32,
    /// The node.
    pub node: &'a str,
    /// How it is wired.
    pub rail_map: &'a RailMap,
    /// What the tasks of a job get.
    pub settings: &'a [Setting],
    /// What railgate never sets, and why.
    pub folklore: &'a [Folklore],
}

impl<'a> View<'a> {
    /// Puts map and environment together.
    pub fn new(node: &'a str, rail_map: &'a RailMap, settings: &'a [Setting]) -> Self {
        View { schema: 1, node, rail_map, settings, folklore: FOLKLORE }
    }
}

/// Names come from the kernel and from profiles; neither may drive the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn or_unknown<T: std::fmt::Display>(reading: &Reading<T>) -> String {
    match reading {
        Reading::Known(value) => value.to_string(),
        Reading::Unsupported => "-".to_owned(),
        Reading::Failed(_) => "unknown".to_owned(),
    }
}

fn columns(text: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain(std::iter::once(head[column].len()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    };
    line(&mut head.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}

/// The rail map for a person.
pub fn table(map: &RailMap) -> String {
    let mut text = String::new();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let gpu_row = |gpu: &railgate_node::RailGpu| {
        vec![gpu.index.to_string(), or_unknown(&gpu.pci), or_unknown(&gpu.numa_node)]
    };
    for (index, rail) in map.rails.iter().enumerate() {
        let port = vec![
            format!("{}:{}", plain(&rail.hca), rail.port),
            or_unknown(&rail.pci),
            match &rail.link_layer {
                Reading::Known(layer) => plain(layer_text(layer)),
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
    columns(
        &mut text,
        &["RAIL", "GPU", "GPU PCI", "NUMA", "DIST", "HCA:PORT", "HCA PCI", "LINK", "RATE", "STATE"],
        &rows,
    );
    // Writing to a String cannot fail.
    let _ = match map.rails.as_slice() {
        [] => writeln!(text, "\nno rails"),
        _ => writeln!(text, "\npairs found by: {}", plain(&map.method)),
    };
    for left_out in &map.left_out {
        let _ = writeln!(text, "left out: {}: {}", plain(&left_out.port), plain(&left_out.why));
    }
    for note in &map.notes {
        let _ = writeln!(text, "note: {}", plain(note));
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

/// The environment, `NAME=value` a line, quoted for a shell where it must be.
pub fn env(settings: &[Setting]) -> String {
    settings.iter().map(|setting| format!("{}={}\n", setting.name, quoted(&setting.value))).collect()
}

/// The same with each variable's reason, rule and source as comments, and what is left alone and why.
pub fn explain(settings: &[Setting]) -> String {
    let mut text = String::new();
    for setting in settings {
        let force = if setting.force { "; overrides the user's own value" } else { "" };
        let _ = writeln!(text, "{}={}", setting.name, quoted(&setting.value));
        let _ = writeln!(text, "#   why:    {}", plain(&setting.why));
        let _ = writeln!(text, "#   rule:   {}{force}", plain(&setting.rule));
        let _ = writeln!(text, "#   source: {}", plain(&setting.source));
    }
    text.push_str("\n# Never set by railgate:\n");
    for row in FOLKLORE {
        let _ = writeln!(text, "# {} ({}): {} [{}]", row.variable, row.values, row.why, row.source);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{machine, profile};
    use crate::{JobShape, RailsConfig, environment, rail_map};

    #[test]
    fn the_table_has_a_row_for_each_gpu_and_no_control_characters() {
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
    fn the_environment_can_be_sourced() {
        let snapshot = machine();
        let map = rail_map(&snapshot, &profile());
        let config = RailsConfig {
            set: [("NCCL_X".to_owned(), "it's two words".to_owned())].into(),
            ..RailsConfig::default()
        };
        let settings = environment(&map, &snapshot, &config, &JobShape::default());
        let text = env(&settings);
        assert!(text.contains("NCCL_IB_HCA==mlx5_0:1,"));
        assert!(text.contains("NCCL_X='it'\\''s two words'\n"));
        let explained = explain(&settings);
        assert!(explained.lines().all(|line| line.is_empty() || line.starts_with('#') || line.contains('=')));
        assert!(explained.contains("# NCCL_ALGO ("));
    }

    #[test]
    fn the_view_is_an_object_with_a_schema() {
        let snapshot = machine();
        let map = rail_map(&snapshot, &profile());
        let settings = environment(&map, &snapshot, &RailsConfig::default(), &JobShape::default());
        let view = serde_json::to_value(View::new("n1", &map, &settings)).unwrap();
        assert_eq!(view["schema"], 1);
        assert_eq!(view["rail_map"]["rails"][2]["hca"], "mlx5_2");
        assert_eq!(view["rail_map"]["gpus"][2]["distance"], "PIX");
        assert_eq!(view["settings"][0]["name"], "NCCL_IB_HCA");
        assert_eq!(view["folklore"][0]["variable"], "NCCL_IB_HCA");
    }

    #[test]
    fn the_table_names_what_is_left_out_and_why() {
        let text = table(&rail_map(&machine(), &profile()));
        assert!(text.contains("left out: mlx5_4:1: no GPU is nearest to it"));
        assert!(text.lines().next().unwrap().contains("STATE"));
        assert!(text.contains("ACTIVE") && text.contains("400 Gb/s"));
    }
}
