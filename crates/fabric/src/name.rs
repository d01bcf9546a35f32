//! What the names of devices tell.

/// The node and the HCA, where a name has the usual form: `gn3 mlx5_2`, `gn3 HCA-1`. A card that nobody named
/// yet (`MT4129 ConnectX7 Mellanox Technologies`) tells neither.
pub(crate) fn node_and_hca(name: &str) -> Option<(&str, &str)> {
    let mut words = name.split_ascii_whitespace();
    let (node, hca) = (words.next()?, words.next()?);
    let both = words.next().is_none() && plain(node) && plain(hca);
    (both && hca.bytes().any(|byte| byte.is_ascii_digit())).then_some((node, hca))
}

/// A name that may stand in Slurm's files as it is.
pub(crate) fn plain(text: &str) -> bool {
    text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// A switch's aggregation node (SHARP) answers as an HCA on every switch, spines too.
pub(crate) fn aggregation(name: &str) -> bool {
    name.contains("Aggregation Node")
}

/// `leaf-5` of `MF0;leaf-5:MQM9700/U1`.
pub(crate) fn switch(name: &str) -> Option<&str> {
    let name = name.split_once(';').map_or(name, |(_, name)| name);
    let name = name.split_once(':').map_or(name, |(name, _)| name).trim();
    plain(name).then_some(name)
}

/// Orders `mlx5_10` behind `mlx5_9`.
pub(crate) fn natural(text: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let (mut word, mut digits) = (String::new(), String::new());
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        if !digits.is_empty() {
            parts.push((std::mem::take(&mut word), digits.parse().unwrap_or(u64::MAX)));
            digits.clear();
        }
        word.push(c);
    }
    parts.push((word, digits.parse().unwrap_or_default()));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(node_and_hca("gn3 mlx5_2"), Some(("gn3", "mlx5_2")));
        assert_eq!(node_and_hca("gn3 HCA-1"), Some(("gn3", "HCA-1")));
        for other in
            ["", "gn3", "MT4129 ConnectX7   Mellanox Technologies", "gn\"3 mlx5_0", "--x mlx5_0", "a b"]
        {
            assert_eq!(node_and_hca(other), None, "{other}");
        }
        assert_eq!(switch("MF0;leaf-5:MQM9700/U1"), Some("leaf-5"));
        assert_eq!(switch("leaf-5"), Some("leaf-5"));
        assert_eq!(switch("Quantum Mellanox Technologies"), None);
        assert!(natural("mlx5_9") < natural("mlx5_10") && natural("mlx5_1") < natural("mlx5_1_2"));
    }
}
