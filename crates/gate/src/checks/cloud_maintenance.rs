use std::cmp::Reverse;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use railgate_model::{
    Class, CloudEvent, CloudProvider, CloudService, Extra, PartName, Phase, Reading, Severity, UnixMillis,
    rfc3339,
};

use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{Limit, Value, seconds, settings};

/// The check.
pub(crate) struct CloudMaintenance;

/// Most events that a finding shows.
const SHOWN: usize = 8;

settings! {
    action = Drain;
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<CloudProvider> = None, "unset: nothing is asked";
    #[serde(with = "railgate_model::duration_text")]
    lead: Duration = Duration::from_secs(24 * 3600), limit seconds(3600..=30 * 86_400), "an outage that is due within this time fails, a later one warns; at least the time limit of jobs";
    address: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(169, 254, 169, 254), 80), limit of_this_machine(), "of the metadata service";
}

impl Value for CloudProvider {
    const CHOICES: &'static str = "azure, aws, gcp";
    const EXAMPLE: &'static str = "\"azure\"";

    fn toml(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

impl Value for SocketAddrV4 {
    fn toml(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// Root's requests never leave the machine and its host, and no user of the machine can answer them.
fn of_this_machine() -> Limit<SocketAddrV4> {
    Limit::one("link-local or loopback, port below 1024", |address: &SocketAddrV4| {
        let ip = address.ip();
        if !ip.is_link_local() && !ip.is_loopback() {
            return Some(format!("{address} is neither link-local (169.254.0.0/16) nor loopback"));
        }
        let open = address.port() >= 1024;
        open.then(|| format!("{address} has a port above 1023, on which a user could answer"))
    })
}

/// What an event does to the machine.
enum Effect {
    /// It stands still for seconds, and continues.
    Pause,
    /// Jobs end. The text is what to do, in two or three words.
    Outage(&'static str),
    /// A kind of event that is not documented.
    Unclear,
}

/// The documented kinds of events: provider and name, the name in a finding if it is another one, the effect.
const KINDS: &[(CloudProvider, &str, &str, Effect)] = {
    use CloudProvider::{Aws, Azure, Gcp};
    use Effect::{Outage, Pause};
    const AFTER: Effect = Outage("resume after it");
    const MOVES: Effect = Outage("stop and start VM");
    const GONE: Effect = Outage("replace the node");
    &[
        (Azure, "Freeze", "", Pause),
        (Azure, "Reboot", "", AFTER),
        (Azure, "Redeploy", "", AFTER),
        (Azure, "Preempt", "", GONE),
        (Azure, "Terminate", "", GONE),
        (Aws, "instance-reboot", "", AFTER),
        (Aws, "system-reboot", "", AFTER),
        // Of the network, or of the power, with a reboot: the code does not tell which.
        (Aws, "system-maintenance", "", AFTER),
        (Aws, "instance-stop", "", MOVES),
        (Aws, "instance-retirement", "", MOVES),
        // A machine with GPUs is stopped for every maintenance of its host.
        (Gcp, "SCHEDULED", "scheduled maintenance", AFTER),
        (Gcp, "UNSCHEDULED", "unscheduled maintenance", AFTER),
        (Gcp, "MULTIPLE", "maintenance", AFTER),
        (Gcp, "UNKNOWN_TYPE", "maintenance", AFTER),
        (Gcp, "TERMINATE_ON_HOST_MAINTENANCE", "", AFTER),
        (Gcp, "MIGRATE_ON_HOST_MAINTENANCE", "", Pause),
    ]
};

fn kind_of(provider: CloudProvider, event: &CloudEvent) -> (&str, &'static Effect) {
    let known = KINDS.iter().find(|(of, kind, ..)| *of == provider && *kind == event.kind);
    match known {
        Some((_, _, "", effect)) => (&event.kind, effect),
        Some((_, _, name, effect)) => (name, effect),
        None => (&event.kind, &Effect::Unclear),
    }
}

impl Check for CloudMaintenance {
    const ABOUT: &'static str = "the cloud provider will reboot, move or stop this virtual machine";
    const EXPLAIN: &'static str = "
Reads what the provider's metadata service announces for this virtual machine, with `provider` set: on Azure the Scheduled Events,
on AWS `events/maintenance/scheduled` (IMDSv2), on Google Cloud `upcoming-maintenance` and `maintenance-event`. Otherwise nothing is
asked. The service answers at a link-local address, by plain HTTP; redirects and proxies are not used.

Why: a job on the machine dies when the provider takes it away.

- An outage that has started, is imminent, or is due within `lead` is `fail`: the node is drained, jobs on it end normally, and no job
  starts. Set `lead` to the longest time limit of jobs; a job that still runs at the start of the outage ends with it. An outage
  that is due later is `warn`.
- A pause of seconds (`Freeze`, `MIGRATE_ON_HOST_MAINTENANCE`) is `warn`: NCCL waits for the machine, and a drain would cost more.
- An event whose planned window has passed, and one of a kind that the provider does not document, is `warn`.
- No answer in 2 s, an answer that cannot be read, or a start that cannot be read is `unknown`. The first request of an Azure machine
  in 24 hours can take two minutes, in which the check is `unknown`.

Fix: nothing is broken. Let the provider do it, or do it yourself earlier (a redeploy on Azure, stop and start on AWS, `gcloud compute
instances perform-maintenance` on Google Cloud). When the event is over, `railgate readmit` resumes the node; as long as the service
announces it, the node stays drained. railgate never confirms an event to the provider.

In the history of `railgate-fleet` such a drain is not a fault of the node: it counts neither for lemons nor for incidents.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[];
    const NEEDS: &'static [Need<Settings>] = &[Need::extra(|set, _, _| {
        let service = |provider| CloudService { provider, address: set.address };
        set.provider.map(|provider| Extra::CloudMaintenance(service(provider)))
    })];
    const SCOPE: Scope = Scope::Always;
    const PHASES: &'static [Phase] = &[Phase::Prolog, Phase::Periodic];
    const COST: &'static str = "with `provider`: one to two requests to the machine's host, at most 2 s";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let (Some(provider), Some(reading)) = (set.provider, &scene.now.extras.cloud_maintenance) else {
            return;
        };
        let events = match reading {
            Reading::Known(events) => events,
            Reading::Unsupported => return,
            Reading::Failed(why) => {
                let what = format!("metadata service: {why}");
                let found = Found::unknown(Class::Site, provider.as_str(), what).fix("check its access");
                out.add(found.row("events", format!("unknown ({why})"), "an answer", source(provider)));
                return;
            }
        };
        let judged = events.iter().map(|event| judged(scene.now.taken, provider, set.lead, event));
        // One finding for all events: of equally severe ones that which begins first, where its start is known.
        let start = |event: &CloudEvent| match &event.start {
            _ if event.started => 0,
            Reading::Known(start) => *start,
            Reading::Unsupported | Reading::Failed(_) => UnixMillis::MAX,
        };
        let rank = |(event, found): &(&CloudEvent, Found)| (Reverse(found.severity()), start(event));
        let Some((_, mut found)) = events.iter().zip(judged).min_by_key(rank) else { return };
        for event in events.iter().take(SHOWN) {
            found = found.row(kind_of(provider, event).0, shown(event), "no event", source(provider));
        }
        out.add(found);
    }
}

fn judged(now: UnixMillis, provider: CloudProvider, lead: Duration, event: &CloudEvent) -> Found {
    let (name, effect) = kind_of(provider, event);
    let lead = u64::try_from(lead.as_millis()).unwrap_or(UnixMillis::MAX);
    let soon = |start: UnixMillis| start <= now.saturating_add(lead);
    let (severity, what) = match &event.start {
        _ if event.started => (Severity::Fail, format!("{name} has started")),
        Reading::Unsupported => (Severity::Fail, format!("{name} is imminent")),
        Reading::Failed(why) => (Severity::Unknown, format!("{name}, start unreadable: {why}")),
        Reading::Known(start) => match event.end.filter(|end| *end < now && start <= end) {
            Some(end) => (Severity::Warn, format!("{name} still announced, window ended {}", minute(end))),
            None if soon(*start) => (Severity::Fail, format!("{name} due {}", minute(*start))),
            None => (Severity::Warn, format!("{name} due {}", minute(*start))),
        },
    };
    let found = Found::new(severity, Class::Node, provider.as_str(), what);
    match effect {
        Effect::Pause => found.only_warn("pauses the VM").fix("expect a pause"),
        Effect::Outage(fix) => found.fix(*fix),
        Effect::Unclear => found.only_warn("effect unknown").fix("ask the provider"),
    }
}

/// `2026-12-01 10:00 UTC`
fn minute(time: UnixMillis) -> String {
    let text = rfc3339(time).and_then(|text| Some(text.get(..16)?.replace('T', " ")));
    text.map_or_else(|| "unknown time".to_owned(), |text| format!("{text} UTC"))
}

fn shown(event: &CloudEvent) -> String {
    let mut parts = Vec::new();
    if event.started {
        parts.push("started".to_owned());
    }
    match &event.start {
        Reading::Known(start) => parts.push(format!("from {}", minute(*start))),
        Reading::Unsupported => {}
        Reading::Failed(why) => parts.push(why.clone()),
    }
    parts.extend(event.end.map(|end| format!("until {}", minute(end))));
    parts.extend(Some(event.text.clone()).filter(|text| !text.is_empty()));
    if parts.is_empty() { "no time given".to_owned() } else { parts.join(", ") }
}

fn source(provider: CloudProvider) -> &'static str {
    match provider {
        CloudProvider::Azure => "Azure Scheduled Events",
        CloudProvider::Aws => "IMDS events/maintenance/scheduled",
        CloudProvider::Gcp => "GCP upcoming-maintenance, maintenance-event",
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{CloudEvent, Fitness, Phase, Reading, Severity, UnixMillis};

    use crate::testing::{Case, case};

    const HOUR: u64 = 3_600_000;

    /// At the time of a simulated node, 2026-01-05 08:00 UTC, its service announces these events.
    fn announced(provider: &str, events: Vec<CloudEvent>) -> Case {
        read(provider, Reading::Known(events))
    }

    fn read(provider: &str, reading: Reading<Vec<CloudEvent>>) -> Case {
        case("h100-sxm")
            .settings(&format!("[checks.cloud-maintenance]\nprovider = \"{provider}\""))
            .with(|case| case.now.extras.cloud_maintenance = Some(reading))
    }

    fn now() -> UnixMillis {
        case("h100-sxm").now.taken
    }

    fn event(kind: &str, start: Reading<UnixMillis>) -> CloudEvent {
        CloudEvent { kind: kind.to_owned(), started: false, start, end: None, text: String::new() }
    }

    fn in_hours(kind: &str, hours: u64) -> CloudEvent {
        event(kind, Reading::Known(now() + hours * HOUR))
    }

    #[test]
    fn an_outage_drains_within_the_lead_time_and_warns_before() {
        let soon = announced("azure", vec![in_hours("Reboot", 24)]);
        assert_eq!(
            soon.summary(),
            "unfit: fail cloud-maintenance@azure: Reboot due 2026-01-06 08:00 UTC; resume after it"
        );
        let later = announced("azure", vec![in_hours("Reboot", 25)]);
        assert_eq!(
            later.summary(),
            "degraded: warn cloud-maintenance@azure: Reboot due 2026-01-06 09:00 UTC; resume after it"
        );
        let longer = "[checks.cloud-maintenance]\nprovider = \"azure\"\nlead = \"25h\"";
        assert_eq!(later.settings(longer).fitness(), Fitness::Unfit);
        assert_eq!(announced("azure", Vec::new()).summary(), "fit");
    }

    #[test]
    fn an_event_that_started_or_has_no_time_is_due() {
        let started = CloudEvent { started: true, ..event("Redeploy", Reading::Unsupported) };
        assert_eq!(
            announced("azure", vec![started]).summary(),
            "unfit: fail cloud-maintenance@azure: Redeploy has started; resume after it"
        );
        let notice = event("TERMINATE_ON_HOST_MAINTENANCE", Reading::Unsupported);
        assert_eq!(
            announced("gcp", vec![notice]).summary(),
            "unfit: fail cloud-maintenance@gcp: TERMINATE_ON_HOST_MAINTENANCE is imminent; resume after it"
        );
        let overdue = event("system-reboot", Reading::Known(now() - 2 * HOUR));
        assert_eq!(announced("aws", vec![overdue.clone()]).fitness(), Fitness::Unfit);
        let in_window = CloudEvent { end: Some(now() + HOUR), ..overdue.clone() };
        assert_eq!(announced("aws", vec![in_window]).fitness(), Fitness::Unfit);
        let over = CloudEvent { end: Some(now() - HOUR), ..overdue };
        assert_eq!(
            announced("aws", vec![over]).summary(),
            "degraded: warn cloud-maintenance@aws: system-reboot still announced, window ended 2026-01-05 07:00 UTC; resume after it"
        );
    }

    #[test]
    fn a_pause_and_an_unknown_kind_never_drain() {
        for started in [false, true] {
            let pause = CloudEvent { started, ..event("Freeze", Reading::Unsupported) };
            assert_eq!(announced("azure", vec![pause]).of("cloud-maintenance"), [Severity::Warn]);
        }
        assert_eq!(
            announced("azure", vec![in_hours("Freeze", 1)]).summary(),
            "degraded: warn cloud-maintenance@azure: Freeze due 2026-01-05 09:00 UTC, pauses the VM; expect a pause"
        );
        assert_eq!(
            announced("aws", vec![in_hours("Reboot", 1)]).summary(),
            "degraded: warn cloud-maintenance@aws: Reboot due 2026-01-05 09:00 UTC, effect unknown; ask the provider"
        );
    }

    #[test]
    fn what_could_not_be_read_is_unknown() {
        let unread = read("aws", Reading::Failed("169.254.169.254:80: no connection".to_owned()));
        assert_eq!(
            unread.summary(),
            "degraded: unknown cloud-maintenance@aws: metadata service: 169.254.169.254:80: no connection; check its access"
        );
        let odd = event("Reboot", Reading::Failed("'soon' is not a time".to_owned()));
        assert_eq!(announced("azure", vec![odd]).of("cloud-maintenance"), [Severity::Unknown]);
        let strict = "[periodic]\nunknown = \"notify\"\n[checks.cloud-maintenance]\nprovider = \"aws\"";
        assert_ne!(unread.settings(strict).phase(Phase::Periodic).fitness(), Fitness::Unfit);
    }

    #[test]
    fn of_several_events_the_worst_that_begins_first_is_named() {
        let events = vec![
            event("Reboot", Reading::Failed("'soon' is not a time".to_owned())),
            in_hours("Freeze", 0),
            in_hours("Redeploy", 3),
            in_hours("Reboot", 2),
            in_hours("Terminate", 700),
        ];
        let case = announced("azure", events);
        assert_eq!(
            case.summary(),
            "unfit: fail cloud-maintenance@azure: Reboot due 2026-01-05 10:00 UTC; resume after it"
        );
        let verdict = case.judge();
        assert_eq!(verdict.cause().unwrap().evidence.len(), 5);
        // A notice without a time does not hide the time of the same maintenance.
        let both =
            vec![event("TERMINATE_ON_HOST_MAINTENANCE", Reading::Unsupported), in_hours("SCHEDULED", 1)];
        assert_eq!(
            announced("gcp", both).summary(),
            "unfit: fail cloud-maintenance@gcp: scheduled maintenance due 2026-01-05 09:00 UTC; resume after it"
        );
        let started = CloudEvent { started: true, ..event("Reboot", Reading::Unsupported) };
        let first = announced("azure", vec![in_hours("Redeploy", 1), started]);
        assert!(first.summary().contains("Reboot has started"), "{}", first.summary());
        let many = announced("azure", vec![in_hours("Reboot", 1); 100]).judge();
        assert_eq!(many.cause().unwrap().evidence.len(), super::SHOWN);
    }

    #[test]
    fn a_fault_of_the_node_is_the_reason_rather_than_the_maintenance() {
        let both = announced("azure", vec![in_hours("Reboot", 1)]);
        let lost = both.with(|case| {
            let faults = railgate_simulate::parse("h100-sxm:gpu-lost@3", &[]).unwrap().1;
            let events = case.now.extras.cloud_maintenance.take();
            case.now = railgate_simulate::simulated(case.profile.as_ref().unwrap(), &faults);
            case.now.extras.cloud_maintenance = events;
        });
        assert!(lost.summary().starts_with("unfit: fail gpu-lost@3"), "{}", lost.summary());
    }

    #[test]
    fn without_a_provider_nothing_is_asked_and_nothing_judged() {
        let case = announced("azure", vec![in_hours("Reboot", 1)]).settings("");
        assert_eq!(case.summary(), "fit");
        let asked = |toml: &str, phase: Phase| {
            let plan = crate::plan(&toml::from_str(toml).unwrap(), phase, None);
            plan.extras.iter().any(|extra| matches!(extra, railgate_model::Extra::CloudMaintenance(_)))
        };
        let azure = "[checks.cloud-maintenance]\nprovider = \"azure\"";
        for phase in [Phase::Prolog, Phase::Periodic] {
            assert!(!asked("", phase) && asked(azure, phase));
        }
        assert!(!asked(azure, Phase::Epilog), "the job has ended, and the next one has a prolog");
        assert!(!asked(&format!("{azure}\naction = \"off\""), Phase::Prolog));
    }

    #[test]
    fn text_of_the_service_cannot_forge_a_line() {
        let mut event = in_hours("Reboot\nrailgate: gpu-lost@3\u{1b}[2J", 1);
        event.text = "a\u{202e}b\n".repeat(1000);
        let verdict = announced("azure", vec![event]).judge();
        let finding = verdict.findings.iter().find(|finding| finding.check == "cloud-maintenance").unwrap();
        let rows = finding.evidence.iter().flat_map(|row| [&row.what, &row.got]);
        for text in rows.chain([&finding.what, &finding.fix]) {
            assert!(text.chars().all(railgate_text::is_printable) && text.chars().count() <= 240, "{text}");
        }
    }

    #[test]
    fn settings_out_of_range() {
        let problems = |toml: &str| {
            let config: crate::GateConfig =
                toml::from_str(&format!("[checks.cloud-maintenance]\n{toml}")).unwrap();
            config.problems()
        };
        assert_eq!(
            problems("lead = \"59m\""),
            ["gate.checks.cloud-maintenance.lead: 59m is not between 1h and 30d"]
        );
        for inside in ["169.254.169.254:80", "169.254.0.1:1023", "127.0.0.1:1"] {
            assert_eq!(problems(&format!("address = \"{inside}\"")), Vec::<String>::new());
        }
        for outside in ["0.0.0.0:80", "10.0.0.1:80", "100.100.100.200:80", "169.253.169.254:80", "8.8.8.8:80"]
        {
            assert_eq!(
                problems(&format!("address = \"{outside}\"")),
                [format!(
                    "gate.checks.cloud-maintenance.address: {outside} is neither link-local (169.254.0.0/16) nor loopback"
                )]
            );
        }
        assert_eq!(
            problems("address = \"127.0.0.1:1024\""),
            [
                "gate.checks.cloud-maintenance.address: 127.0.0.1:1024 has a port above 1023, on which a user could answer"
            ]
        );
        for refused in
            ["provider = \"oci\"", "address = \"metadata.google.internal:80\"", "address = \"[fe80::1]:80\""]
        {
            let toml = format!("[checks.cloud-maintenance]\n{refused}");
            assert!(toml::from_str::<crate::GateConfig>(&toml).is_err(), "{refused}");
        }
    }
}
