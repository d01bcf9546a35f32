/// Returns the known word that a mistyped one was most likely meant to be: at most a third of its characters differ.
///
/// ```
/// use railgate_text::nearest;
/// assert_eq!(nearest("gpu-xdi", ["gpu-ecc", "gpu-xid"]), Some("gpu-xid"));
/// assert_eq!(nearest("mounts", ["gpu-ecc", "gpu-xid"]), None);
/// ```
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = typed.chars().count();
    // The time is proportional to the product of both lengths.
    if length > 100 {
        return None;
    }
    let most = (length / 3).max(1);
    let near = known.into_iter().map(|word| (strsim::damerau_levenshtein(typed, word), word));
    let best = near.min_by_key(|(distance, _)| *distance);
    best.filter(|(distance, word)| *distance <= most && *distance < word.chars().count())
        .map(|(_, word)| word)
}

/// Returns for example `; did you mean 'gpu-xid'?`, or an empty text.
pub fn did_you_mean<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(typed, known).map(|word| format!("; did you mean '{word}'?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_the_intended_word() {
        let known = ["gpu-ecc", "gpu-xid", "gpu-sxid", "ib-rate"];
        for (typed, wanted) in [
            ("gpu-xdi", Some("gpu-xid")),
            ("gpu-ec", Some("gpu-ecc")),
            ("ib-rat", Some("ib-rate")),
            ("gpu_ecc", Some("gpu-ecc")),
            ("n7", None),
            ("", None),
            ("nothing-like-it", None),
        ] {
            assert_eq!(nearest(typed, known), wanted, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), known), None);
        assert_eq!(nearest("b", ["a"]), None);
        assert_eq!(did_you_mean("gpu-xdi", known), "; did you mean 'gpu-xid'?");
    }
}
