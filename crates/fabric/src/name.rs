//! Parses the names of hosts, HCAs and switches in node descriptions.

/// Returns host and HCA of a node description such as `gn3 mlx5_2` or `gn3 HCA-1`. A single word such as `gn3`, which old
/// drivers set, is a host with an empty HCA name. Returns `None` for a vendor's default
/// (`MT4129 ConnectX7   Mellanox Technologies`) and for other texts without a host name.
pub(crate) fn node_and_hca(name: &str) -> Option<(&str, &str)> {
    let mut words = name.split_ascii_whitespace();
    let (node, hca) = (words.next()?, words.next().unwrap_or_default());
    if words.next().is_some() || !plain(node) || chip(node) {
        return None;
    }
    match hca {
        "" => (!vendor(node) && !device(node)).then_some((node, hca)),
        _ => {
            (plain(hca) && !chip(hca) && hca.bytes().any(|byte| byte.is_ascii_digit())).then_some((node, hca))
        }
    }
}

/// Whether it is `localhost`, the default name of machines.
pub(crate) fn no_host_name(node: &str) -> bool {
    let first = node.split('.').next().unwrap_or_default();
    first.eq_ignore_ascii_case("localhost")
}

/// Whether it is the name of a chip, such as `MT4129`, `ConnectX-7` or `BlueField3`.
fn chip(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let number = word
        .strip_prefix("mt")
        .is_some_and(|rest| rest.len() >= 4 && rest.bytes().all(|byte| byte.is_ascii_digit()));
    number
        || ["connectx", "connect-ib", "bluefield", "infinihost", "infiniscale"]
            .iter()
            .any(|chip| word.starts_with(chip))
}

/// Whether it is a one-word default of a vendor's firmware or driver.
fn vendor(word: &str) -> bool {
    const WORDS: [&str; 11] = [
        "mellanox",
        "nvidia",
        "qlogic",
        "truescale",
        "omnipath",
        "omni-path",
        "intel",
        "voltaire",
        "hfi",
        "hca",
        "infiniband",
    ];
    WORDS.iter().any(|vendor| word.eq_ignore_ascii_case(vendor))
}

/// Whether it is the name of a device, such as `HCA-1` or `mlx5_0`, where a host name is expected.
fn device(word: &str) -> bool {
    const FAMILIES: [&str; 11] =
        ["HCA-", "mlx4_", "mlx5_", "mthca", "hfi1_", "qib", "ipath", "ib", "ibp", "rocep", "irdma"];
    FAMILIES.iter().any(|family| {
        word.strip_prefix(family).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The name of an HCA without its numbers, for example `mlx_` or `HCA-`. Names of one style can be compared between
/// nodes.
pub(crate) fn style(natural: &[(String, u64)]) -> String {
    natural.iter().map(|(word, _)| word.as_str()).collect()
}

/// Whether a name can be used in Slurm's files as it is.
pub(crate) fn plain(text: &str) -> bool {
    text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Whether it is the aggregation node (SHARP) of a switch. These appear as HCAs on every switch, including spine
/// switches.
pub(crate) fn aggregation(name: &str) -> bool {
    name.contains("Aggregation Node")
}

/// Returns the switch name: `leaf-5` for `MF0;leaf-5:MQM9700/U1`.
pub(crate) fn switch(name: &str) -> Option<&str> {
    let name = name.split_once(';').map_or(name, |(_, name)| name);
    let name = name.split_once(':').map_or(name, |(name, _)| name).trim();
    plain(name).then_some(name)
}

/// Returns name and slot, `core-1-L05-U1` for `MF0;core-1:MCS8500/L05/U1`: the switches of a director share its name.
pub(crate) fn switch_and_slot(name: &str) -> Option<String> {
    let (_, model) = name.split_once(';')?.1.split_once(':')?;
    let (_, slot) = model.split_once('/')?;
    let name = format!("{}-{}", switch(name)?, slot.trim().replace('/', "-"));
    plain(&name).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hosts_hcas_and_switches_are_parsed() {
        assert_eq!(node_and_hca("gn3 mlx5_2"), Some(("gn3", "mlx5_2")));
        assert_eq!(node_and_hca("gn3 HCA-1"), Some(("gn3", "HCA-1")));
        assert_eq!(node_and_hca("gn3"), Some(("gn3", "")));
        assert_eq!(node_and_hca("atlas35.site.org ibp65s0f1"), Some(("atlas35.site.org", "ibp65s0f1")));
        let none = [
            "",
            "gn\"3 mlx5_0",
            "--x mlx5_0",
            "a b",
            "gn3 'ib0'",
            "'gn3 ib0'",
            "gn3 HCA-1 (old)",
            "(none) HCA-1",
            "HCA-1",
            "mlx5_0",
            "ib0",
            "HFI",
            "OmniPath",
            "TrueScale",
            "InfiniBand",
            "Mellanox Technologies",
            "MT25408",
            "MT4119 ConnectX5",
            "MT4129 ConnectX7   Mellanox Technologies",
            "MT25408 ConnectX Mellanox Technologies",
            "ConnectX-6",
            "gn3 BlueField-3",
            "Mellanox Technologies Aggregation Node",
            "QLogic Infiniband HCA gn3",
            "Intel Infiniband HCA gn3",
            "MT23108 InfiniHost Mellanox Technologies",
            "gn3\u{202e} mlx5_0",
            "n\u{f6}de mlx5_0",
        ];
        for other in none {
            assert_eq!(node_and_hca(other), None, "{other}");
        }
        assert!(
            no_host_name("localhost") && no_host_name("localhost.localdomain") && !no_host_name("localhosts")
        );
        assert_eq!(switch_and_slot("MF0;core-1:MCS8500/L05/U1").as_deref(), Some("core-1-L05-U1"));
        assert_eq!(switch_and_slot("MF0;leaf-5:MQM9700"), None);
        assert_eq!(switch("MF0;leaf-5:MQM9700/U1"), Some("leaf-5"));
        assert_eq!(switch("leaf-5"), Some("leaf-5"));
        assert_eq!(switch("Quantum Mellanox Technologies"), None);
    }
}
