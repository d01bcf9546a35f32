/// Whether a name fits a pattern of the configuration or of a profile: the name itself (`mlx5_8`), or its beginning and a
/// trailing `*` (`mlx5_bond_*`).
pub fn fits_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_its_beginning_and_a_star() {
        for (pattern, name, fits) in [
            ("mlx5_8", "mlx5_8", true),
            ("mlx5_8", "mlx5_80", false),
            ("mlx5_bond_*", "mlx5_bond_0", true),
            ("mlx5_bond_*", "mlx5_0", false),
            ("*", "", true),
            ("", "mlx5_0", false),
        ] {
            assert_eq!(fits_pattern(pattern, name), fits, "{pattern} {name}");
        }
    }
}
