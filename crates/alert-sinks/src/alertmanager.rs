//! Alertmanager, API v2: `POST /api/v2/alerts`.

use railgate_alerts::{Entry, Message, MessageKind, Priority};
use railgate_model::{UnixMillis, rfc3339};
use serde_json::{Value, json};

/// Names of nodes in an annotation; the rest is a number.
const SHOWN_NODES: usize = 50;

/// The body of the request.
///
/// An alert is identified by its labels, and one of them is the priority, since routes need it. So when the priority of a condition changes,
/// one alert begins and the former one ends.
pub(crate) fn body(message: &Message, now: UnixMillis) -> Value {
    if message.kind == MessageKind::Heartbeat {
        return json!([{
            "labels": { "alertname": "RailgateHeartbeat", "site": message.site },
            "annotations": { "summary": message.title(200) },
            "startsAt": time(message.time),
            "endsAt": time(message.valid_until),
        }]);
    }
    message.entries.iter().flat_map(|entry| alerts(message, entry, now)).collect()
}

fn alerts(message: &Message, entry: &Entry, now: UnixMillis) -> Vec<Value> {
    if entry.kind.is_over() {
        return vec![alert(message, entry, entry.known_by.unwrap_or(entry.priority), false, now)];
    }
    let former = entry.known_by.map(|priority| alert(message, entry, priority, false, now));
    [alert(message, entry, entry.priority, true, now)].into_iter().chain(former).collect()
}

fn alert(message: &Message, entry: &Entry, priority: Priority, fires: bool, now: UnixMillis) -> Value {
    let ended = entry.ended.unwrap_or(message.time).max(entry.since);
    let mut alert = json!({
        "labels": {
            "alertname": "Railgate",
            "incident": entry.key,
            "severity": priority.to_string(),
            "site": message.site,
        },
        // Alertmanager notifies at once of an alert that began longer than its `group_wait` ago, without those that arrive a moment later.
        "startsAt": time(if fires { now } else { entry.since }),
        // Without an end, Alertmanager would assume one after some minutes.
        "endsAt": time(if fires { message.valid_until } else { ended }),
    });
    if !message.brief
        && let Some(alert) = alert.as_object_mut()
    {
        let nodes: Vec<&str> = entry.nodes.iter().take(SHOWN_NODES).map(String::as_str).collect();
        let more = entry.nodes.len().saturating_sub(SHOWN_NODES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let annotations = json!({
            "summary": entry.title,
            "description": entry.details,
            "since": time(entry.since),
            "nodes": format!("{}{more}", nodes.join(", ")),
            "message_id": message.id,
        });
        alert.insert("annotations".to_owned(), annotations);
    }
    alert
}

fn time(time: UnixMillis) -> Value {
    rfc3339(time).map_or(Value::Null, Value::String)
}
