//! Places for tests.

use super::{Place, SwitchPath};

/// Places from paths such as `core.spine1.leaf7`.
pub(super) fn known(paths: &[&str]) -> Vec<Place> {
    let place = |path: &&str| SwitchPath::new(path.split('.').map(str::to_owned).collect());
    paths.iter().map(place).map(|path| Place::Known(path.unwrap())).collect()
}

pub(super) fn unknown() -> Place {
    Place::Unknown
}

/// Expands host lists with at most one bracket at the end of a name, as the texts of the tests have them.
pub(super) fn listed(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        let (prefix, after) = rest.split_at(end);
        if prefix.is_empty() {
            return None;
        }
        let Some(inner) = after.strip_prefix('[') else {
            names.push(prefix.to_owned());
            rest = after.strip_prefix(',').unwrap_or(after);
            continue;
        };
        let (inner, after) = inner.split_once(']')?;
        for range in inner.split(',') {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (first, last, width) = (low.parse::<u32>().ok()?, high.parse::<u32>().ok()?, low.len());
            names.extend((first..=last).map(|number| format!("{prefix}{number:0width$}")));
        }
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Some(names)
}
