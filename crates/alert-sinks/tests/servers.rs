//! Each receiver against a local server that speaks its API, refuses, hangs, or answers without an end.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::time::Duration;

use railgate_alert_sinks::{Deliver, Sink, Sinks};
use railgate_alerts::{Condition, Observation, Outcome, Priority};
use serde_json::{Value, json};
use support::*;

const ROBOTS: [&str; 3] = ["wecom", "dingtalk", "feishu"];
const ALL: [&str; 6] = ["wecom", "dingtalk", "feishu", "slack", "webhook", "alertmanager"];

/// The answer with which a service accepts a message.
fn accepts(kind: &str) -> &'static str {
    match kind {
        "wecom" | "dingtalk" => r#"{"errcode":0,"errmsg":"ok"}"#,
        "feishu" => r#"{"code":0,"msg":"success","data":{}}"#,
        _ => "ok",
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Accepted => "accepted",
        Outcome::Later { .. } => "later",
        Outcome::Rejected { .. } => "rejected",
    }
}

#[test]
fn each_service_gets_the_request_of_its_api() {
    for (kind, text_at) in [
        ("wecom", "/text/content"),
        ("dingtalk", "/text/content"),
        ("feishu", "/content/text"),
        ("slack", "/text"),
        ("webhook", "/title"),
        ("alertmanager", "/0/annotations/summary"),
    ] {
        let server = Server::start(move |_, _| ok(accepts(kind)));
        let files = Files::new();
        let config = files.config(kind, &server.url("/hook?token=abcdefgh"), "");
        assert_eq!(send(&config), Outcome::Accepted, "{kind}");
        let request = server.last();
        let text = request.json().pointer(text_at).and_then(Value::as_str).unwrap().to_owned();
        assert!(text.contains("node/gn1 failed"), "{kind}: {text}");
        assert!(request.header("content-type").unwrap().starts_with("application/json"));
        assert!(request.header("idempotency-key").unwrap().starts_with("railgate-it-"));
        let path = if kind == "alertmanager" {
            "/hook?token=abcdefgh/api/v2/alerts"
        } else {
            "/hook?token=abcdefgh"
        };
        assert_eq!(request.path, path, "{kind}");
    }
}

#[test]
fn signatures_are_where_the_services_read_them() {
    let files = Files::new();
    let secret = files.secret("secret", "SEC0f3a9c-example\n");
    let more = format!("secret_file = '{}'", secret.display());
    let server = Server::start(|_, _| ok(accepts("dingtalk")));
    let config = files.config("dingtalk", &server.url("/robot/send?access_token=abcdefgh"), &more);
    assert_eq!(send(&config), Outcome::Accepted);
    let path = server.last().path;
    // The value of the unit test, escaped.
    let sign = "&timestamp=1767614400000&sign=oDSO15pYuHNlKUS4HisnvW9LQkoj%2B42WMBEx64Rd0Zs%3D";
    assert!(path.ends_with(sign), "{path}");
    let server = Server::start(|_, _| ok(accepts("feishu")));
    let config = files.config("feishu", &server.url("/open-apis/bot/v2/hook/abcdefgh"), &more);
    assert_eq!(send(&config), Outcome::Accepted);
    let body = server.last().json();
    assert_eq!(body["timestamp"], "1767614400");
    assert_eq!(body["sign"], "kqkquyee39GSyKRwLEUjU+a2qFd0tvKKOriMr7SFmFY=");
}

#[test]
fn answers_have_the_meaning_that_the_service_gives_them() {
    for (kind, status, headers, body, wanted) in [
        ("wecom", 200, "", r#"{"errcode":93000,"errmsg":"invalid webhook url"}"#, "rejected"),
        ("wecom", 200, "", r#"{"errcode":45009,"errmsg":"freq"}"#, "later"),
        ("dingtalk", 200, "", r#"{"errcode":130101,"errmsg":"send too fast"}"#, "later"),
        ("dingtalk", 200, "", r#"{"errcode":310000,"errmsg":"keywords not in content"}"#, "rejected"),
        ("feishu", 200, "", r#"{"code":19024,"msg":"Key Words Not Found"}"#, "rejected"),
        ("feishu", 429, "", r#"{"code":11232,"msg":"frequency limited"}"#, "later"),
        ("slack", 429, "Retry-After: 30\r\n", "rate_limited", "later"),
        ("slack", 404, "", "no_service", "rejected"),
        ("slack", 410, "", "channel_is_archived", "rejected"),
        ("alertmanager", 400, "", "bad labels", "rejected"),
        ("alertmanager", 503, "", "", "later"),
        ("webhook", 204, "", "", "accepted"),
        ("webhook", 401, "", "", "rejected"),
    ] {
        let server = Server::start(move |_, _| Reply::Answer(status, headers.to_owned(), body.to_owned()));
        let files = Files::new();
        let outcome = send(&files.config(kind, &server.url("/hook"), ""));
        assert_eq!(word(&outcome), wanted, "{kind} {status} {body}: {outcome:?}");
        if !headers.is_empty() {
            assert!(
                matches!(outcome, Outcome::Later { wait: Some(wait), .. } if wait == Duration::from_secs(30))
            );
        }
    }
}

#[test]
fn what_is_no_answer_leaves_the_message_for_later() {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"errcode\":0,".to_owned();
    let endless_body = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned();
    let endless_head = "HTTP/1.1 200 OK\r\nX: ".to_owned();
    // An acceptance, if it were read as a whole.
    let large = json!({ "errcode": 0, "code": 0, "errmsg": "x".repeat(70 << 10) }).to_string();
    for reply in [
        ok(&large),
        Reply::Hang,
        Reply::Raw(String::new()),
        Reply::Raw("HTTP/1.1 200".to_owned()),
        Reply::Raw("220 mail.example.org ESMTP\r\n".to_owned()),
        Reply::Raw(half),
        Reply::Endless(endless_body),
        Reply::Endless(endless_head.clone()),
    ] {
        for kind in ROBOTS {
            let shown: String = format!("{kind}: {reply:?}").chars().take(80).collect();
            let reply = reply.clone();
            let server = Server::start(move |_, _| reply.clone());
            let files = Files::new();
            assert_eq!(word(&send(&files.config(kind, &server.url("/hook"), ""))), "later", "{shown}");
        }
    }
    let server = Server::start(move |_, _| Reply::Endless(endless_head.clone()));
    let files = Files::new();
    assert_eq!(word(&send(&files.config("slack", &server.url("/hook"), ""))), "later");
    // No server at all, and no such host.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for url in [format!("http://127.0.0.1:{unused}/"), "https://host.invalid/".to_owned()] {
        assert_eq!(word(&send(&files.config("webhook", &url, ""))), "later", "{url}");
    }
}

#[test]
fn redirects_are_not_followed() {
    for status in [301, 302, 307, 308] {
        for kind in ALL {
            let other = Server::start(|_, _| ok("ok"));
            let to = format!("Location: {}\r\n", other.url("/stolen"));
            let server = Server::start(move |_, _| Reply::Answer(status, to.clone(), String::new()));
            let files = Files::new();
            let outcome = send(&files.config(kind, &server.url("/hook"), ""));
            assert_eq!(word(&outcome), "rejected", "{kind} {status}");
            assert_eq!((server.count(), other.count()), (1, 0), "{kind} {status}");
        }
    }
}

#[test]
fn no_problem_and_no_debug_text_contains_a_secret() {
    const TOKEN: &str = "tok-0123456789abcdef";
    const SECRET: &str = "SEC-fedcba9876543210";
    let files = Files::new();
    let secret = files.secret("secret", SECRET);
    for kind in ALL {
        let more = match kind {
            "wecom" | "slack" => String::new(),
            _ => format!("secret_file = '{}'", secret.display()),
        };
        for status in [200, 400, 500] {
            // The server repeats all that it got.
            let server = Server::start(move |_, request| {
                let text = format!("{} {:?} {SECRET}", request.path, request.headers);
                let body = json!({ "errcode": 1, "errmsg": text, "code": 1, "msg": text });
                Reply::Answer(status, String::new(), body.to_string())
            });
            let config = files.config(kind, &server.url(&format!("/send/{TOKEN}?key={TOKEN}")), &more);
            let sink = Sink::open(&config, "it", &config.sinks["it"]).unwrap();
            let (_, message) = message_of(&config, vec![condition("node/a", Priority::P0, &["a"])]);
            let outcome = sink.send(&message, NOON);
            let texts = format!("{outcome:?} {sink:?} {config:?} {message:?}");
            assert!(!texts.contains(TOKEN), "{kind} {status}: {texts}");
            assert!(
                kind == "slack" || kind == "wecom" || !texts.contains(SECRET),
                "{kind} {status}: {texts}"
            );
        }
        let config = files.config(kind, &format!("https://host.invalid/{TOKEN}"), &more);
        assert!(!format!("{:?}", send(&config)).contains(TOKEN));
    }
    // An address that is not one.
    for url in [TOKEN, &format!("http://example.org/{TOKEN}"), &format!("https://[{TOKEN}/")] {
        let config = files.config("wecom", url, "");
        let sinks = Sinks::open(&config);
        let problems: Vec<String> = sinks.problems().map(ToString::to_string).collect();
        assert!(problems[0].starts_with("alerts.sinks.it.url_file: "), "{problems:?}");
        assert!(!format!("{problems:?} {sinks:?}").contains(TOKEN), "{problems:?}");
    }
}

#[test]
fn a_receiver_that_cannot_be_opened_keeps_its_messages() {
    let files = Files::new();
    let config = files.config("wecom", "https://x.invalid/", "");
    std::fs::remove_file(files.0.path().join("url")).unwrap();
    let sinks = Sinks::open(&config);
    let (_, message) = message_of(&config, vec![condition("node/a", Priority::P0, &["a"])]);
    let Outcome::Later { problem, .. } = sinks.send(&message, NOON) else { panic!("not later") };
    assert!(problem.starts_with("alerts.sinks.it.url_file: ") && problem.contains("/url"), "{problem}");
}

#[test]
fn text_of_users_mentions_no_members_and_starts_no_markup() {
    let mut hostile = condition("node/a", Priority::P0, &["<at user_id=\"all\">"]);
    hostile.title = "<!channel> <at user_id=\"all\"></at> & \"}],{\n\r\u{1b}[0m".to_owned();
    for kind in ["slack", "feishu"] {
        let server = Server::start(move |_, _| ok(accepts(kind)));
        let files = Files::new();
        let config = files.config(kind, &server.url("/hook"), "");
        let (_, message) = message_of(&config, vec![hostile.clone()]);
        let sink = Sink::open(&config, "it", &config.sinks["it"]).unwrap();
        assert_eq!(sink.send(&message, NOON), Outcome::Accepted);
        let body = server.last().json();
        let text = body.pointer("/text").or(body.pointer("/content/text")).and_then(Value::as_str).unwrap();
        assert!(!text.contains(['<', '>', '\r', '\u{1b}']), "{kind}: {text}");
    }
}

#[test]
fn texts_are_within_the_limits_of_the_services() {
    for (kind, limit) in [("wecom", 2048), ("dingtalk", 20_000), ("feishu", 20_000), ("slack", 4000)] {
        let server = Server::start(move |_, _| ok(accepts(kind)));
        let files = Files::new();
        let config = files.config(kind, &server.url("/hook"), "");
        let all: Vec<Condition> = (0..500)
            .map(|node| {
                let mut one = condition(&format!("node/gn{node}"), Priority::P1, &["漢字漢字漢字"]);
                one.details = "<&>漢".repeat(200);
                one
            })
            .collect();
        let (_, message) = message_of(&config, all);
        let sink = Sink::open(&config, "it", &config.sinks["it"]).unwrap();
        assert_eq!(sink.send(&message, NOON), Outcome::Accepted);
        let body = server.last().json();
        let text =
            ["/text/content", "/content/text", "/text"].iter().find_map(|at| body.pointer(at)?.as_str());
        let text = text.unwrap();
        assert!(text.len() <= limit && text.contains("more on the fleet's page"), "{kind}: {}", text.len());
    }
}

#[test]
fn a_template_cannot_be_left_by_a_value() {
    let server = Server::start(|_, _| ok("ok"));
    let files = Files::new();
    let template =
        r#"template = '{"summary": "{title}", "n": {count}, "brace": {}, "id": "{id}", "on": "{nodes}"}'"#;
    let config = files.config("webhook", &server.url("/hook"), template);
    let mut hostile = condition("node/a", Priority::P0, &["a\"b"]);
    hostile.title = "x\", \"admin\": true, \"y\": \"{id}\\\nz".to_owned();
    let (_, message) = message_of(&config, vec![hostile]);
    let sink = Sink::open(&config, "it", &config.sinks["it"]).unwrap();
    assert_eq!(sink.send(&message, NOON), Outcome::Accepted);
    let body = server.last().json();
    assert_eq!(body["id"], message.id.as_str());
    assert_eq!((&body["n"], &body["on"], &body["admin"]), (&json!(1), &json!("a\"b"), &Value::Null));
    assert!(body["summary"].as_str().unwrap().contains("\"admin\": true, \"y\": \"{id}\\?z"), "{body}");
}

#[test]
fn alertmanager_gets_the_end_of_the_priority_that_it_knows() {
    let server = Server::start(|_, _| ok(""));
    let files = Files::new();
    let config = files.config("alertmanager", &server.url(""), "");
    let sink = Sink::open(&config, "it", &config.sinks["it"]).unwrap();
    let (mut state, message) = message_of(&config, vec![condition("node/a", Priority::P2, &["a"])]);
    assert_eq!(sink.send(&message, NOON), Outcome::Accepted);
    assert_eq!(server.last().path, "/api/v2/alerts");
    let alerts = server.last().json();
    assert_eq!(alerts.as_array().unwrap().len(), 1);
    assert_eq!(
        alerts[0]["labels"],
        json!({"alertname": "Railgate", "incident": "node/a", "severity": "P2", "site": ""})
    );
    // The condition has lasted for a minute; it is sent now.
    assert_eq!(alerts[0]["startsAt"], "2026-01-05T12:00:00.000Z");
    assert_eq!(alerts[0]["annotations"]["since"], "2026-01-05T11:59:00.000Z");
    assert_eq!(alerts[0]["endsAt"], "2026-01-07T12:01:00.000Z");
    state.finished("it", &message.id, &Outcome::Accepted, NOON + 60_000);
    let now = NOON + 120_000;
    let conditions = vec![condition("node/a", Priority::P0, &["a"])];
    state.observe(&config, &Observation { conditions, time: now, complete: true }, now);
    let message = state.next(&config, "it", now + 60_000).unwrap();
    assert_eq!(sink.send(&message, NOON), Outcome::Accepted);
    let alerts = server.last().json();
    assert_eq!(firing(&alerts), [("P0", true), ("P2", false)]);
    state.finished("it", &message.id, &Outcome::Accepted, now + 60_000);

    // It fell to P1 without a message, and is over.
    let later = now + 2 * 60_000;
    let conditions = vec![condition("node/a", Priority::P1, &["a"])];
    state.observe(&config, &Observation { conditions, time: later, complete: true }, later);
    for minute in 1..=7 {
        let time = later + minute * 60_000;
        state.observe(&config, &Observation { conditions: Vec::new(), time, complete: true }, time);
    }
    let message = state.next(&config, "it", later + 8 * 60_000).unwrap();
    assert_eq!(sink.send(&message, NOON), Outcome::Accepted);
    assert_eq!(firing(&server.last().json()), [("P0", false)], "the one that fires there");
}

/// Severity of each alert, and whether it fires.
fn firing(alerts: &Value) -> Vec<(&str, bool)> {
    let alerts = alerts.as_array().unwrap().iter();
    let of = |alert: &Value| alert["endsAt"].as_str() > Some("2026-01-06");
    alerts.map(|alert| (alert["labels"]["severity"].as_str().unwrap(), of(alert))).collect()
}

#[test]
fn a_server_must_prove_its_name() {
    let port = Server::start_tls(|_, _| ok(accepts("wecom"))).port;
    let files = Files::new();
    let authority = files.secret("ca.pem", AUTHORITY);
    let stranger = files.secret("other.pem", include_str!("tls/server.pem"));
    for (host, ca, wanted) in [
        ("localhost", &authority, "accepted"),
        ("127.0.0.1", &authority, "TLS: "),
        ("localhost", &stranger, "TLS: "),
    ] {
        let mut config = files.config("wecom", &format!("https://{host}:{port}/hook/abcdefgh"), "");
        config.ca_file = Some(ca.clone());
        match send(&config) {
            Outcome::Accepted => assert_eq!(wanted, "accepted", "{host}"),
            Outcome::Later { problem, .. } => assert!(problem.starts_with(wanted), "{host}: {problem}"),
            Outcome::Rejected { problem } => panic!("{host}: {problem}"),
        }
    }
}
