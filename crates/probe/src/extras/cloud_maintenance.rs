//! What the provider of a virtual machine announces for it, from the metadata service that answers inside of the machine.
//!
//! Azure: <https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events>. AWS:
//! <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html>. Google:
//! <https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event> and
//! <https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance>.

mod answers;

use std::time::{Duration, Instant};

use railgate_child::Task;
use railgate_http::{Address, Answer, Http, HttpConfig};
use railgate_model::{CloudEvent, CloudProvider, CloudService, Reading};
use railgate_text::clip;
use serde::{Deserialize, Serialize};

use super::{Ask, Put};
use crate::answer::whole_millis;
use crate::calls::with_json;

const NAME: &str = "node-cloud-maintenance";

pub(super) const TASK: Task = Task::new(NAME, |input| with_json(input, |input: Input| Ok(announced(&input))));

/// For all requests together. The service answers from the host of the machine, within milliseconds; a prolog does not wait longer.
const DEADLINE: Duration = Duration::from_secs(2);
/// Most bytes of an answer. An event has less than 1 KiB; a document of Azure has the events of a whole scale set.
const MAX_ANSWER: u64 = 256 << 10;
/// Longest token of AWS, bytes; it has 56.
const MAX_TOKEN: usize = 1024;

#[derive(Serialize, Deserialize)]
struct Input {
    service: CloudService,
    deadline_ms: u64,
}

pub(super) fn begin(service: CloudService, ask: &mut Ask<'_>) -> Option<Put> {
    // The service knows this machine, not the one that a tree of files shows.
    if !ask.source.speaks_for_the_node() {
        return None;
    }
    let deadline_ms = whole_millis(ask.calls.program_deadline().min(DEADLINE));
    let place = ask.calls.add(NAME, &Input { service, deadline_ms });
    Some(Box::new(move |snapshot, answers| snapshot.extras.cloud_maintenance = Some(answers.reading(place))))
}

/// Asks the service. A failure has the reason, without text of the service.
fn announced(input: &Input) -> Reading<Vec<CloudEvent>> {
    let address = input.service.address;
    let service = Service {
        base: format!("http://{address}"),
        until: Instant::now() + Duration::from_millis(input.deadline_ms),
    };
    let events = match input.service.provider {
        CloudProvider::Azure => azure(&service),
        CloudProvider::Aws => aws(&service),
        CloudProvider::Gcp => gcp(&service),
    };
    match events {
        Ok(events) => Reading::Known(answers::bounded(events)),
        Err(why) => Reading::Failed(format!("{address}: {why}")),
    }
}

/// Its events, or why there are none.
type Events = Result<Vec<CloudEvent>, String>;

/// Header of a request: name and value.
type Header<'a> = (&'a str, &'a str);

struct Service {
    base: String,
    until: Instant,
}

impl Service {
    fn client(&self, deadline: Duration) -> Result<Http, String> {
        let config = HttpConfig { deadline, most: MAX_ANSWER, ca_file: None, proxy: None };
        Http::open(&config, Address::Plain).map_err(|why| why.to_string())
    }

    fn left(&self) -> Duration {
        // A deadline of zero would mean none.
        self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn get(&self, path: &str, header: Header<'_>) -> Result<Answer, String> {
        let sent = self.client(self.left())?.get(&format!("{}{path}", self.base), &[header]);
        sent.map_err(|why| of(path, &why.to_string()))
    }
}

/// The reason with the document that it is about.
fn of(path: &str, why: &str) -> String {
    let document = path.split('?').next().unwrap_or(path);
    format!("{document}: {why}")
}

/// The text of an answer with the status 200.
fn text(path: &str, answer: Answer) -> Result<String, String> {
    if answer.status != 200 {
        return Err(of(path, &format!("status {}", answer.status)));
    }
    let body = answer.body.ok_or_else(|| of(path, "no complete answer within the limits"))?;
    String::from_utf8(body).map_err(|_| of(path, "the answer is not text"))
}

fn azure(service: &Service) -> Events {
    const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
    const OWN_NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
    let header = ("Metadata", "true");
    let document = text(EVENTS, service.get(EVENTS, header)?)?;
    let document = answers::azure(&document).map_err(|why| of(EVENTS, &why))?;
    if document.is_empty() {
        return Ok(Vec::new());
    }
    // The document also has the events of other machines of the set.
    let name = text(OWN_NAME, service.get(OWN_NAME, header)?)?;
    match name.trim() {
        "" => Err(of(OWN_NAME, "the answer is empty")),
        name => Ok(document.of_machine(name)),
    }
}

fn aws(service: &Service) -> Events {
    const TOKEN: &str = "/latest/api/token";
    const EVENTS: &str = "/latest/meta-data/events/maintenance/scheduled";
    let url = format!("{}{TOKEN}", service.base);
    let header = ("X-aws-ec2-metadata-token-ttl-seconds", "60");
    let answer = service.client(service.left())?.put_nothing(&url, &[header]);
    let token = text(TOKEN, answer.map_err(|why| of(TOKEN, &why.to_string()))?)?;
    let token = token.trim();
    if token.is_empty() || token.len() > MAX_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(of(TOKEN, "the answer is not a token"));
    }
    let answer = service.get(EVENTS, ("X-aws-ec2-metadata-token", token))?;
    // The document exists only while there are active events.
    if answer.status == 404 {
        return Ok(Vec::new());
    }
    answers::aws(&text(EVENTS, answer)?).map_err(|why| of(EVENTS, &why))
}

/// Two documents: the maintenance of the machine types that Google plans ahead, and the notice of one hour that every machine with
/// GPUs gets. One that announces something counts, also if the other has no answer.
fn gcp(service: &Service) -> Events {
    const UPCOMING: &str = "/computeMetadata/v1/instance/upcoming-maintenance?alt=json";
    const NOTICE: &str = "/computeMetadata/v1/instance/maintenance-event";
    let get = |path: &str, deadline: Duration| -> Result<Answer, String> {
        let mark = ("Metadata-Flavor", "Google");
        let url = format!("{}{path}", service.base);
        let sent = service.client(deadline)?.get_marked(&url, &[mark], mark);
        sent.map_err(|why| of(path, &why.to_string()))
    };
    let upcoming = get(UPCOMING, service.left() / 2).and_then(|answer| match answer.status {
        // A machine type without planned maintenance.
        404 => Ok(Vec::new()),
        503 if answer.body.as_deref().is_some_and(answers::is_no_notification) => Ok(Vec::new()),
        _ => answers::gcp_upcoming(&text(UPCOMING, answer)?).map_err(|why| of(UPCOMING, &why)),
    });
    let notice = get(NOTICE, service.left())
        .and_then(|answer| answers::gcp_notice(&text(NOTICE, answer)?).map_err(|why| of(NOTICE, &why)));
    match (upcoming, notice) {
        (Ok(one), Ok(other)) => Ok([one, other].concat()),
        (Ok(found), Err(why)) | (Err(why), Ok(found)) if found.is_empty() => Err(why),
        (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
        (Err(why), Err(_)) => Err(why),
    }
}

/// Texts of the service that are kept, characters.
fn short(text: &str) -> String {
    const LONGEST: usize = 80;
    clip(text, LONGEST)
}
