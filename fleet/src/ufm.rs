//! Watches the alarms of NVIDIA's Unified Fabric Manager (`[fleet.ufm]`).
//!
//! Source: `GET /ufmRestV3/app/alarms`, with an access token. UFM 6.16 names the object of an alarm in `related_object_path`, `default / Switch: sw1`;
//! UFM 6.19 in `object_path`, `Computer: gn017 / mlx5_0`. Both are read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use railgate_alerts::{Condition, Priority};
use railgate_http::{Address, Http, HttpConfig, OpenError, Peer, Secret};
use railgate_runner::{UfmConfig, UfmSeverity};
use serde::Deserialize;

use crate::reading::Reading;

/// Interval of the readings.
const EVERY: Duration = Duration::from_secs(60);
/// For one request: it delays the reading of the other sources.
const DEADLINE: Duration = Duration::from_secs(10);
/// Most bytes of an answer: an alarm has about 400.
const MAX_ANSWER: u64 = 16 << 20;
/// UFM has some 300 types of events: an answer with many more is not one of UFM, and each type is a message.
const MOST_TYPES: usize = 1000;
/// Objects of a type that the message describes.
const SHOWN: usize = 3;
const PATH: &str = "/ufmRestV3/app/alarms";

/// The alarms as of the last answer.
#[derive(Debug, Default)]
pub(crate) struct Ufm(Reading);

impl Ufm {
    /// Asks for the alarms if that is due. Returns one condition for each type of event: P1 if an alarm of it is critical, otherwise P2.
    pub(crate) fn conditions(&mut self, config: Option<&UfmConfig>) -> &[Condition] {
        let Some(config) = config else { return &[] };
        self.0.conditions(EVERY, "UFM: could not tell which alarms it has", || {
            let conditions = conditions(&alarms(&ask(config)?)?, config);
            match conditions.len() {
                0..=MOST_TYPES => Ok(conditions),
                more => Err(format!("its answer has {more} types of events")),
            }
        })
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.is_known()
    }
}

/// The fields that are used, of both shapes. Others are ignored: releases add fields.
#[derive(Debug, Deserialize)]
struct Alarm {
    event_type: u32,
    severity: String,
    /// The text of the type in 6.16, and one of few categories in 6.19.
    name: Option<String>,
    /// The text of the type in 6.19.
    description: Option<String>,
    reason: Option<String>,
    /// 6.16
    related_object_path: Option<String>,
    /// 6.19
    object_path: Option<String>,
}

impl Alarm {
    /// A severity of a later release counts as the highest one: its alarm must not be lost. `None`: information.
    fn severity(&self) -> Option<UfmSeverity> {
        match self.severity.to_ascii_lowercase().as_str() {
            "info" => None,
            "warning" => Some(UfmSeverity::Warning),
            "minor" => Some(UfmSeverity::Minor),
            _ => Some(UfmSeverity::Critical),
        }
    }

    fn what(&self) -> &str {
        self.description.as_deref().or(self.name.as_deref()).unwrap_or("alarm")
    }

    /// The object without the name of the site that 6.16 begins with: `Computer: gn017 / mlx5_0`.
    fn object(&self) -> &str {
        let path = self.object_path.as_deref().or(self.related_object_path.as_deref()).unwrap_or("fabric");
        match path.split_once(" / ") {
            Some((site, rest)) if !site.contains(": ") && rest.contains(": ") => rest,
            _ => path,
        }
    }

    /// The host or switch: `gn017`.
    fn device(&self) -> &str {
        let object = self.object();
        let device = object.split(" / ").next().unwrap_or(object);
        device.split_once(": ").map_or(device, |(_, name)| name)
    }
}

/// Returns the body of the answer.
fn ask(config: &UfmConfig) -> Result<Vec<u8>, String> {
    let of = |key: &str, why: String| format!("fleet.ufm.{key}: {why}");
    let address = Address::of(&config.url, Peer::Proved).map_err(|why| of("url", why))?;
    // Read each time: an admin can replace it.
    let token = Secret::read(&config.token_file).map_err(|why| of("token_file", why.to_string()))?;
    let limits =
        HttpConfig { deadline: DEADLINE, most: MAX_ANSWER, ca_file: config.ca_file.as_deref(), proxy: None };
    let http = Http::open(&limits, address).map_err(|why| match why {
        OpenError::Certificates(why) => of("ca_file", why),
        OpenError::Proxy => why.to_string(),
    })?;
    let url = format!("{}{PATH}", config.url.trim_end_matches('/'));
    let authorization = format!("Basic {}", token.reveal());
    let answer = http
        .get(&url, &[("Authorization", &authorization), ("Accept", "application/json")])
        .map_err(|why| why.to_string())?;
    match answer.status {
        200 => answer.body.ok_or(format!("its answer did not arrive within {} MiB", MAX_ANSWER >> 20)),
        401 | 403 => Err(format!("it refused the token of fleet.ufm.token_file (status {})", answer.status)),
        300..=399 => Err(format!("status {}: redirects are not followed", answer.status)),
        status => Err(format!("status {status}")),
    }
}

fn alarms(body: &[u8]) -> Result<Vec<Alarm>, String> {
    // serde's text names line and column, and of the content at most a type.
    serde_json::from_slice(body).map_err(|why| format!("its answer is not a list of alarms: {why}"))
}

fn conditions(alarms: &[Alarm], config: &UfmConfig) -> Vec<Condition> {
    let mut by_type: BTreeMap<u32, Vec<(UfmSeverity, &Alarm)>> = BTreeMap::new();
    for alarm in alarms {
        let severity = alarm.severity();
        let is_named = config.events.contains(&alarm.event_type);
        if is_named || severity.is_some_and(|severity| severity >= config.severity) {
            let severity = severity.unwrap_or(UfmSeverity::Warning);
            by_type.entry(alarm.event_type).or_default().push((severity, alarm));
        }
    }
    by_type.into_iter().map(|(event, found)| condition(event, found)).collect()
}

fn condition(event: u32, mut found: Vec<(UfmSeverity, &Alarm)>) -> Condition {
    found.sort_by(|(one, first), (other, second)| {
        other.cmp(one).then_with(|| first.object().cmp(second.object()))
    });
    let devices: BTreeSet<&str> = found.iter().map(|(_, alarm)| alarm.device()).collect();
    let place = match devices.first() {
        Some(device) if devices.len() == 1 => (*device).to_owned(),
        _ => format!("{} hosts and switches", devices.len()),
    };
    let is_critical = found.first().is_some_and(|(severity, _)| *severity == UfmSeverity::Critical);
    let what = found.first().map_or("", |(_, alarm)| alarm.what());
    let one = |(severity, alarm): &(UfmSeverity, &Alarm)| {
        let reason = alarm.reason.as_deref().unwrap_or_else(|| alarm.what()).trim().trim_end_matches('.');
        format!("{}, {severity}: {reason}", alarm.object())
    };
    let mut details: Vec<String> = found.iter().take(SHOWN).map(one).collect();
    if found.len() > SHOWN {
        details.push(format!("{} more alarms", found.len() - SHOWN));
    }
    Condition {
        key: format!("ufm/{event}"),
        priority: if is_critical { Priority::P1 } else { Priority::P2 },
        title: format!("UFM: {what} (event {event}) on {place}"),
        details: format!("{}.", details.join(". ")),
        check: None,
        nodes: devices.into_iter().map(|device| (device.to_owned(), BTreeSet::new())).collect(),
        // UFM's times have no time zone.
        since: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the REST API Guide of UFM 6.16 has them.
    const OF_6_16: &str = r#"[{"event_type": 394, "event_count": 31, "timestamp": "2017-05-08 11:48:09.351",
        "related_object_path": "default / Switch: r-ufm-sw63", "counter": null, "related_object_name": "e41d2d0300167ee0",
        "name": "Module status FAULT", "reason": "Module PS 2 on r-ufm-sw63(10.209.36.223) status is fatal", "duration": 420,
        "summary": "Module status FAULT", "type": 55, "id": 1, "severity": "Critical"}]"#;
    /// As that of UFM 6.19 has them.
    const OF_6_19: &str = r#"[{"id": 2, "type": "Switch", "name": "System Module Error", "description": "Module status FAULT",
        "event_type": 394, "duration": "0 s", "reason": "Module PS 1 on sw-ufm-qm01(10.209.224.32) status is fatal", "severity": "Critical",
        "timestamp": "2024-05-28 08:23:10", "counter": "N/A", "event_count": 459, "object_name": "0c42a1030079a66c",
        "object_path": "Switch: sw-ufm-qm01"},
        {"id": 3, "type": "IBPort", "name": "Link HW Error", "description": "Link Downed", "event_type": 112, "duration": "0 s",
        "reason": "Link-Downed counter delta threshold exceeded. Threshold is 0, calculated delta is 2. Peer info: default / Switch: sw-ufm-qm01 / 35.",
        "severity": "Warning", "timestamp": "2024-05-27 08:18:51", "counter": "Infiniband_LinkDowned", "event_count": 1,
        "object_name": "b8599f03000a7768_1", "object_path": "Computer: r-ufm77 / mlx5_0"}]"#;

    fn of(body: &str, severity: UfmSeverity, events: &[u32]) -> Vec<Condition> {
        let config = UfmConfig { severity, events: events.to_vec(), ..UfmConfig::example() };
        conditions(&alarms(body.as_bytes()).unwrap(), &config)
    }

    #[test]
    fn alarms_of_both_shapes_are_conditions() {
        for (body, switch) in [(OF_6_16, "r-ufm-sw63"), (OF_6_19, "sw-ufm-qm01")] {
            let found = of(body, UfmSeverity::Critical, &[]);
            let [one] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!((one.key.as_str(), one.priority), ("ufm/394", Priority::P1));
            assert_eq!(one.title, format!("UFM: Module status FAULT (event 394) on {switch}"));
            assert!(one.details.starts_with(&format!("Switch: {switch}, critical: Module PS ")), "{one:?}");
            assert!(one.details.ends_with("status is fatal."), "{one:?}");
            assert_eq!(one.nodes.keys().collect::<Vec<_>>(), [switch]);
        }
    }

    #[test]
    fn severity_and_named_events_decide() {
        let keys = |severity, events: &[u32]| {
            let found = of(OF_6_19, severity, events).into_iter();
            found.map(|one| format!("{} {}", one.priority, one.key)).collect::<Vec<_>>()
        };
        assert_eq!(keys(UfmSeverity::Critical, &[]), ["P1 ufm/394"]);
        assert_eq!(keys(UfmSeverity::Minor, &[]), ["P1 ufm/394"]);
        assert_eq!(keys(UfmSeverity::Warning, &[]), ["P2 ufm/112", "P1 ufm/394"]);
        assert_eq!(keys(UfmSeverity::Critical, &[112]), ["P2 ufm/112", "P1 ufm/394"]);
        let link = &of(OF_6_19, UfmSeverity::Warning, &[])[0];
        assert_eq!(link.title, "UFM: Link Downed (event 112) on r-ufm77");
        assert!(
            link.details.starts_with("Computer: r-ufm77 / mlx5_0, warning: Link-Downed counter"),
            "{link:?}"
        );
        // An alarm of an unknown severity is not lost; information is left out.
        let later = OF_6_19.replace("Warning", "Emergency");
        assert_eq!(of(&later, UfmSeverity::Critical, &[])[0].priority, Priority::P1);
        assert_eq!(of(&OF_6_19.replace("Warning", "Info"), UfmSeverity::Warning, &[]).len(), 1);
    }

    #[test]
    fn many_alarms_of_a_type_are_one_condition() {
        let one = |number: u32| {
            OF_6_16
                .replace("r-ufm-sw63\"", &format!("sw{number:03} / 1\""))
                .trim_matches(['[', ']'])
                .to_owned()
        };
        let body = format!("[{}]", (1..=500).map(one).collect::<Vec<_>>().join(","));
        let found = of(&body, UfmSeverity::Critical, &[]);
        let [whole] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(whole.title, "UFM: Module status FAULT (event 394) on 500 hosts and switches");
        assert_eq!(whole.nodes.len(), 500);
        assert!(whole.nodes.contains_key("sw007"), "{:?}", whole.nodes.keys().next());
        assert!(whole.details.ends_with("497 more alarms."), "{}", whole.details);
    }

    #[test]
    fn another_answer_is_an_error_without_its_text() {
        for body in ["", "{}", "[{}]", "<html>s3cr3t</html>", r#"[{"event_type":"s3cr3t"}]"#, "[1"] {
            let why = alarms(body.as_bytes()).unwrap_err();
            assert!(why.starts_with("its answer is not a list of alarms: "), "{why}");
        }
        assert_eq!(of("[]", UfmSeverity::Warning, &[]), []);
    }
}
