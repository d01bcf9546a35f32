//! The documents of the metadata services.

use std::time::{SystemTime, UNIX_EPOCH};

use railgate_model::{CloudEvent, Reading, UnixMillis, parse_rfc3339};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::short;

/// Most events that are kept.
const MOST: usize = 32;

/// The events that begin first, bounded: one that has started, then by the start, then those without a valid one.
pub(super) fn bounded(mut events: Vec<CloudEvent>) -> Vec<CloudEvent> {
    events.sort_by_key(|event| match event.start {
        _ if event.started => (0, 0),
        Reading::Unsupported => (1, 0),
        Reading::Known(start) => (2, start),
        Reading::Failed(_) => (3, 0),
    });
    events.truncate(MOST);
    events
}

/// Parses JSON. The error has no text of the service.
fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|why| {
        let what = if why.is_data() { "other JSON than documented" } else { "not JSON" };
        format!("{what} (line {}, column {})", why.line(), why.column())
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AzureDocument {
    events: Vec<AzureEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AzureEvent {
    event_type: String,
    resources: Vec<String>,
    event_status: String,
    #[serde(default)]
    not_before: Option<String>,
    #[serde(default)]
    description: Option<String>,
}

pub(super) fn azure(text: &str) -> Result<AzureDocument, String> {
    json(text)
}

impl AzureDocument {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events of the machine with this name.
    pub(super) fn of_machine(self, name: &str) -> Vec<CloudEvent> {
        let is_own = |event: &AzureEvent| event.resources.iter().any(|own| own.eq_ignore_ascii_case(name));
        let own = self.events.into_iter().filter(is_own);
        own.map(|event| {
            let start = event.not_before.unwrap_or_default();
            CloudEvent {
                kind: short(&event.event_type),
                // The time is blank once the event has started.
                started: event.event_status == "Started",
                start: if start.trim().is_empty() { Reading::Unsupported } else { time(&start, http_date) },
                end: None,
                text: short(&event.description.unwrap_or_default()),
            }
        })
        .collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AwsEvent {
    code: String,
    #[serde(default)]
    not_before: String,
    #[serde(default)]
    not_after: String,
    #[serde(default)]
    description: String,
    state: String,
}

/// The events that are still to come. Completed and canceled ones are in another document, and are left out where they are in this one.
pub(super) fn aws(text: &str) -> Result<Vec<CloudEvent>, String> {
    let events: Vec<AwsEvent> = json(text)?;
    let open = events.into_iter().filter(|event| !matches!(event.state.as_str(), "completed" | "canceled"));
    let event = |event: AwsEvent| CloudEvent {
        kind: short(&event.code),
        started: false,
        start: time(&event.not_before, aws_date),
        end: aws_date(&event.not_after),
        text: short(&event.description),
    };
    Ok(open.map(event).collect())
}

/// Both spellings of the keys are documented: that of the API, and that of the metadata server.
#[derive(Deserialize)]
struct GcpMaintenance {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(rename = "maintenanceStatus", alias = "maintenance_status")]
    status: String,
    #[serde(rename = "windowStartTime", alias = "window_start_time", default)]
    start: Option<String>,
    #[serde(rename = "windowEndTime", alias = "window_end_time", default)]
    end: Option<String>,
}

const NO_NOTIFICATION: &str = "no notifications have been received yet, try again later";

/// Whether this is the answer of a machine for which nothing was ever announced. It has the status 503, although nothing is wrong.
pub(super) fn is_no_notification(body: &[u8]) -> bool {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    value.is_some_and(|value| value.get("error").and_then(Value::as_str) == Some(NO_NOTIFICATION))
}

/// Without an announcement the document is `{}`, or `NONE`.
pub(super) fn gcp_upcoming(text: &str) -> Result<Vec<CloudEvent>, String> {
    if matches!(text.trim(), "NONE" | "\"NONE\"") || is_no_notification(text.as_bytes()) {
        return Ok(Vec::new());
    }
    let value: Value = json(text)?;
    if value.as_object().is_some_and(serde_json::Map::is_empty) {
        return Ok(Vec::new());
    }
    let found: GcpMaintenance =
        serde_json::from_value(value).map_err(|_| "other JSON than documented".to_owned())?;
    let started = match found.status.as_str() {
        "COMPLETE" => return Ok(Vec::new()),
        "ONGOING" => true,
        "PENDING" => false,
        // `UNKNOWN`, or one that is not documented: whether something will happen is not known.
        _ => return Err("the status of the maintenance is unknown".to_owned()),
    };
    let start = found.start.unwrap_or_default();
    let event = CloudEvent {
        kind: short(found.kind.as_deref().unwrap_or("UNKNOWN_TYPE")),
        started,
        start: time(&start, rfc3339_date),
        end: found.end.and_then(|end| rfc3339_date(&end)),
        text: String::new(),
    };
    Ok(vec![event])
}

/// The notice of one hour, which has no time.
pub(super) fn gcp_notice(text: &str) -> Result<Vec<CloudEvent>, String> {
    match text.trim() {
        "NONE" => Ok(Vec::new()),
        kind @ ("TERMINATE_ON_HOST_MAINTENANCE" | "MIGRATE_ON_HOST_MAINTENANCE") => Ok(vec![CloudEvent {
            kind: kind.to_owned(),
            started: false,
            start: Reading::Unsupported,
            end: None,
            text: String::new(),
        }]),
        _ => Err("other text than documented".to_owned()),
    }
}

fn time(text: &str, parse: fn(&str) -> Option<UnixMillis>) -> Reading<UnixMillis> {
    match parse(text) {
        Some(time) => Reading::Known(time),
        None => Reading::Failed(format!("'{}' is not a time", short(text))),
    }
}

fn millis(time: SystemTime) -> Option<UnixMillis> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// `Mon, 19 Sep 2016 18:29:47 GMT`
fn http_date(text: &str) -> Option<UnixMillis> {
    millis(httpdate::parse_http_date(text.trim()).ok()?)
}

/// `21 Jan 2019 09:00:43 GMT`: as an HTTP date, without the day of the week, which the parser compares with the date.
fn aws_date(text: &str) -> Option<UnixMillis> {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let text = text.trim();
    // `1 Jan` and `01 Jan`.
    let pad = if text.find(' ') == Some(1) { "0" } else { "" };
    DAYS.iter().find_map(|day| http_date(&format!("{day}, {pad}{text}")))
}

/// `2024-12-01T19:00:01Z`; RFC 3339 also has offsets: `2024-12-01T11:00:01.000-08:00`.
fn rfc3339_date(text: &str) -> Option<UnixMillis> {
    let text = text.trim();
    if let Some(time) = parse_rfc3339(text) {
        return Some(time);
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let offset_ms = (hours.parse::<u64>().ok()? * 60 + minutes.parse::<u64>().ok()?) * 60_000;
    let local = parse_rfc3339(&format!("{local}Z"))?;
    match offset.as_bytes().first()? {
        b'+' => local.checked_sub(offset_ms),
        b'-' => local.checked_add(offset_ms),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2019-01-21 09:00:43 UTC.
    const JANUARY: UnixMillis = 1_548_061_243_000;

    /// The documented example, with two machines.
    const AZURE: &str = r#"{ "DocumentIncarnation": 2, "Events": [ {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": "Scheduled", "EventType": "Freeze",
        "ResourceType": "VirtualMachine", "Resources": ["WestNO_0", "WestNO_1"], "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
        "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        "EventSource": "Platform", "DurationInSeconds": -1 } ] }"#;

    fn event(kind: &str, start: Reading<UnixMillis>) -> CloudEvent {
        CloudEvent { kind: kind.to_owned(), started: false, start, end: None, text: String::new() }
    }

    #[test]
    fn azure_lists_events_of_other_machines() {
        let text =
            "Virtual machine is being paused because of a memory-preserving Live Migration op".to_owned();
        let expected = CloudEvent { text, ..event("Freeze", Reading::Known(1_649_716_018_000)) };
        for name in ["WestNO_1", "westno_0"] {
            assert_eq!(azure(AZURE).unwrap().of_machine(name), std::slice::from_ref(&expected), "{name}");
        }
        for name in ["WestNO_", "WestNO_11", "estNO_1"] {
            assert_eq!(azure(AZURE).unwrap().of_machine(name), [], "{name}");
        }
        assert!(azure(r#"{"DocumentIncarnation":1,"Events":[]}"#).unwrap().is_empty());
    }

    #[test]
    fn azures_time_is_blank_once_the_event_has_started() {
        let started = AZURE.replace("Scheduled", "Started").replace("Mon, 11 Apr 2022 22:26:58 GMT", "");
        let [found] = &azure(&started).unwrap().of_machine("WestNO_0")[..] else { panic!() };
        assert_eq!((found.started, &found.start), (true, &Reading::Unsupported));
        let odd = AZURE.replace("Mon, 11 Apr", "Tue, 11 Apr");
        let [found] = &azure(&odd).unwrap().of_machine("WestNO_0")[..] else { panic!() };
        assert!(matches!(&found.start, Reading::Failed(why) if why.contains("is not a time")), "{found:?}");
    }

    #[test]
    fn aws_lists_active_events() {
        let document = r#"[ { "NotBefore" : "21 Jan 2019 09:00:43 GMT", "Code" : "system-reboot", "Description" : "scheduled reboot",
            "EventId" : "instance-event-0d59937288b749b32", "NotAfter" : "21 Jan 2019 09:17:23 GMT", "State" : "active" } ]"#;
        let expected = CloudEvent {
            end: Some(1_548_062_243_000),
            text: "scheduled reboot".to_owned(),
            ..event("system-reboot", Reading::Known(JANUARY))
        };
        assert_eq!(aws(document).unwrap(), [expected]);
        assert_eq!(aws("[]").unwrap(), []);
        for over in ["completed", "canceled"] {
            assert_eq!(aws(&document.replace("\"active\"", &format!("\"{over}\""))).unwrap(), []);
        }
        let without_end = document.replace("NotAfter", "Other");
        assert_eq!(aws(&without_end).unwrap()[0].end, None);
        let without_time = document.replace("NotBefore", "Other");
        assert_eq!(aws(&without_time).unwrap()[0].start, Reading::Failed("'' is not a time".to_owned()));
    }

    #[test]
    fn google_spells_its_keys_in_two_ways() {
        let document = r#"{"can_reschedule":"true","latest_window_start_time":"2024-12-01T19:00:01Z",
            "maintenance_reasons":["PLANNED_UPDATE"],"maintenance_status":"PENDING","type":"SCHEDULED",
            "window_end_time":"2024-12-01T21:00:01Z","window_start_time":"2024-12-01T19:00:01Z"}"#;
        let expected = CloudEvent {
            end: Some(1_733_086_801_000),
            ..event("SCHEDULED", Reading::Known(1_733_079_601_000))
        };
        assert_eq!(gcp_upcoming(document).unwrap(), std::slice::from_ref(&expected));
        let api = document
            .replace("window_start_time", "windowStartTime")
            .replace("latest_windowStartTime", "latestWindowStartTime")
            .replace("window_end_time", "windowEndTime")
            .replace("maintenance_status", "maintenanceStatus")
            .replace("2024-12-01T21:00:01Z", "2024-12-01T13:00:01.000-08:00");
        assert_eq!(gcp_upcoming(&api).unwrap(), std::slice::from_ref(&expected));
        let ongoing = gcp_upcoming(&document.replace("PENDING", "ONGOING")).unwrap();
        assert_eq!(ongoing, [CloudEvent { started: true, ..expected }]);
        assert_eq!(gcp_upcoming(&document.replace("PENDING", "COMPLETE")).unwrap(), []);
        for status in ["UNKNOWN", "PAUSED"] {
            assert!(gcp_upcoming(&document.replace("PENDING", status)).is_err());
        }
    }

    #[test]
    fn google_announces_nothing_in_several_ways() {
        let error = format!("{{ \"error\": \"{NO_NOTIFICATION}\" }}");
        for nothing in ["{ }", "NONE", "\"NONE\"\n", &error] {
            assert_eq!(gcp_upcoming(nothing).unwrap(), [], "{nothing}");
        }
        assert_eq!(gcp_notice("NONE").unwrap(), []);
        let [notice] = &gcp_notice("TERMINATE_ON_HOST_MAINTENANCE\n").unwrap()[..] else { panic!() };
        assert_eq!(notice, &event("TERMINATE_ON_HOST_MAINTENANCE", Reading::Unsupported));
    }

    #[test]
    fn other_documents_are_errors_without_their_text() {
        let deep = "[".repeat(100_000);
        for odd in
            ["", "<html>bad</html>", "\u{1b}[2Jbad", "null", "7", "{\"bad\": 1}", "[\"bad\"]", "[1", &deep]
        {
            let answers = [
                azure(odd).map(|document| document.of_machine("bad")),
                aws(odd),
                gcp_upcoming(odd),
                gcp_notice(odd),
            ];
            for answer in answers {
                let why = answer.unwrap_err();
                assert!(!why.contains("bad") && !why.contains('\u{1b}') && why.len() < 80, "{why}");
            }
        }
    }

    #[test]
    fn texts_of_the_service_are_cut_and_made_printable() {
        let long = "x".repeat(10_000);
        let document = format!(
            r#"[{{"Code":"\u001b]0;owned\u0007{long}","State":"\u202eactive","NotBefore":"\u001b[2J{long}","Description":"a\nrailgate: b{long}"}}]"#
        );
        let [found] = &aws(&document).unwrap()[..] else { panic!() };
        let Reading::Failed(why) = &found.start else { panic!("{found:?}") };
        for text in [&found.kind, &found.text, why] {
            assert!(text.chars().count() <= 100 && text.chars().all(railgate_text::is_printable), "{text}");
        }
    }

    #[test]
    fn of_many_events_those_that_begin_first_are_kept() {
        let mut events: Vec<CloudEvent> =
            (0..1000).map(|start| event("Freeze", Reading::Known(JANUARY + start))).collect();
        events.push(CloudEvent { started: true, ..event("Reboot", Reading::Known(JANUARY + 5000)) });
        let kept = bounded(events);
        assert_eq!(kept.len(), MOST);
        assert_eq!((kept[0].kind.as_str(), &kept[1].start), ("Reboot", &Reading::Known(JANUARY)));
    }

    #[test]
    fn times_in_the_forms_of_each_provider() {
        assert_eq!(http_date("Mon, 21 Jan 2019 09:00:43 GMT"), Some(JANUARY));
        assert_eq!(aws_date("21 Jan 2019 09:00:43 GMT"), Some(JANUARY));
        assert_eq!(aws_date("1 Jan 2019 00:00:00 GMT"), Some(1_546_300_800_000));
        assert_eq!(aws_date("01 Jan 2019 00:00:00 GMT"), Some(1_546_300_800_000));
        assert_eq!(rfc3339_date("2019-01-21T09:00:43Z"), Some(JANUARY));
        assert_eq!(rfc3339_date("2019-01-21T17:00:43+08:00"), Some(JANUARY));
        for odd in [
            "",
            " ",
            "1",
            "21 Jan 2019",
            "30 Feb 2019 00:00:00 GMT",
            "2019-01-21",
            "é\u{301}+01:00",
            "x+99:99",
        ] {
            assert_eq!((http_date(odd), aws_date(odd), rfc3339_date(odd)), (None, None, None), "{odd}");
        }
        assert_eq!(rfc3339_date("1970-01-01T00:00:00+08:00"), None);
        assert_eq!(rfc3339_date("2019-01-21T09:00:43+99999999999999999999:00"), None);
    }
}
