//! A tree in which values are replaced by others.

use serde_json::{Value, json};

/// What a browser must never see as it stands.
pub const TAG: &str = "<script>alert";

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

fn other(value: Value, kind: u8, number: u64) -> Value {
    match kind % 14 {
        0 => Value::Null,
        1 => json!(number),
        2 => json!(u64::MAX - number),
        3 => json!(-1),
        4 => json!(f64::MAX),
        5 => json!(""),
        6 => json!("unsupported"),
        7 => json!({"failed": "gone \u{1b}[2J"}),
        8 => json!({"known": u64::MAX - number}),
        9 => json!({"known": f64::MIN}),
        10 => json!([]),
        11 => json!(format!("{TAG}({number})</script>\u{1b}[2J\u{1}\n")),
        _ => match value {
            Value::Array(mut items) => {
                items.extend(items.clone());
                Value::Array(items)
            }
            Value::Bool(what) => json!(!what),
            Value::Number(what) => json!(what.as_u64().unwrap_or(0).wrapping_add(number)),
            Value::String(what) => json!(format!("{what}{TAG}(1)\u{9b}31m")),
            other => other,
        },
    }
}

/// Four bytes an edit: where (two of them), what, and how much.
pub fn bend(tree: &mut Value, bytes: &[u8]) {
    for edit in bytes.chunks_exact(4).take(16) {
        let place = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % count(tree);
        if let Some(value) = nth(tree, &mut { place }) {
            *value = other(value.take(), edit[2], u64::from(edit[3]));
        }
    }
}
