//! A webhook of the site: the message as JSON, or a template.

use railgate_alerts::{Message, MessageKind};
use railgate_model::rfc3339;
use serde_json::{Value, json};

/// Longest `{text}`, bytes.
const TEXT: usize = 8 << 10;
/// Names in `{nodes}`; the rest is a number.
const SHOWN_NODES: usize = 50;

/// The message as JSON.
pub(crate) fn body(message: &Message) -> Value {
    let entries = if message.brief { &[] } else { message.entries.as_slice() };
    let entry = |entry: &railgate_alerts::Entry| {
        json!({
            "kind": entry.kind,
            "key": entry.key,
            "priority": entry.priority,
            "title": entry.title,
            "details": entry.details,
            "check": entry.check,
            "nodes": entry.nodes,
            "since": rfc3339(entry.since),
            "ended": entry.ended.and_then(rfc3339),
        })
    };
    json!({
        "schema": 1,
        "id": message.id,
        "kind": message.kind,
        "site": message.site,
        "time": rfc3339(message.time),
        "priority": priority(message),
        "title": message.title(200),
        "count": message.entries.len(),
        "entries": entries.iter().map(entry).collect::<Vec<Value>>(),
    })
}

fn priority(message: &Message) -> Option<String> {
    (message.kind != MessageKind::Heartbeat).then(|| message.priority().to_string())
}

/// The value of a field of a template.
fn field(message: &Message, name: &str) -> Option<String> {
    Some(match name {
        "id" => message.id.clone(),
        "kind" => message.kind.name().to_owned(),
        "priority" => priority(message).unwrap_or_default(),
        "site" => message.site.clone(),
        "time" => rfc3339(message.time).unwrap_or_default(),
        "title" => message.title(200),
        "text" => message.text(TEXT),
        "count" => message.entries.len().to_string(),
        "nodes" => {
            let nodes: std::collections::BTreeSet<&str> =
                message.entries.iter().flat_map(|entry| &entry.nodes).map(String::as_str).collect();
            let shown: Vec<&str> = nodes.iter().copied().take(SHOWN_NODES).collect();
            let more = nodes.len() - shown.len();
            if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
        }
        _ => return None,
    })
}

/// Fills in a template. A value is escaped as the inside of a JSON string: it can stand between quotes, and cannot end them.
pub(crate) fn fill(template: &str, message: &Message) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        match after.split_once('}').and_then(|(name, after)| Some((field(message, name)?, after))) {
            Some((value, after)) => {
                let quoted = Value::String(value).to_string();
                text.push_str(quoted.get(1..quoted.len() - 1).unwrap_or_default());
                rest = after;
            }
            None => {
                text.push('{');
                rest = after;
            }
        }
    }
    text + rest
}
