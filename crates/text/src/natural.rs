/// Returns a sort key that puts `mlx5_10` after `mlx5_9`, and `gn10` after `gn2`.
///
/// ```
/// use railgate_text::natural;
/// let mut names = ["gn10", "gn2"];
/// names.sort_by_key(|name| natural(name));
/// assert_eq!(names, ["gn2", "gn10"]);
/// ```
pub fn natural(text: &str) -> Vec<(String, u64)> {
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
    fn numbers_in_names_are_compared_as_numbers() {
        assert!(natural("mlx5_9") < natural("mlx5_10") && natural("mlx5_1") < natural("mlx5_1_2"));
        assert!(natural("gn2 GPU 10") > natural("gn2 GPU 9") && natural("gn10 GPU 0") > natural("gn2 GPU 9"));
    }
}
