//! Replaces values in a JSON tree by others.

use serde_json::Value;

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

fn nth<'v>(value: &'v mut Value, left: &mut usize) -> Option<&'v mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, left)),
        Value::Object(fields) => fields.values_mut().find_map(|item| nth(item, left)),
        _ => None,
    }
}

/// Applies at most `most` edits of four bytes each: the position (two bytes), the kind of replacement, and its size.
pub fn bend(tree: &mut Value, bytes: &[u8], most: usize, other: fn(Value, u8, u64) -> Value) {
    for edit in bytes.chunks_exact(4).take(most) {
        let place = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % count(tree);
        if let Some(value) = nth(tree, &mut { place }) {
            *value = other(value.take(), edit[2], u64::from(edit[3]));
        }
    }
}
