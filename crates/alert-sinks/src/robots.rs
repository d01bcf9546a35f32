//! Chat robots: their requests, and the refusals that each reports in an answer with status 200.
//!
//! All get plain text: in Markdown a node's name or a user's text could become a link, or mention all members.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use railgate_alerts::{Message, Outcome};
use railgate_http::{Answer, Secret};
use railgate_model::UnixMillis;
use railgate_text::clip;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::answer::{by_status, later, rejected};

/// Longest text of WeCom, bytes.
const WECOM: usize = 2048;
/// Longer texts are hard to read in a chat. All services accept this.
const CHAT: usize = 3800;
/// A robot of DingTalk that sent too much is muted for ten minutes.
const MUTED: Duration = Duration::from_secs(600);
/// For the others, the window of their limit.
const MINUTE: Duration = Duration::from_secs(60);
/// Longest text of a refusal that is shown.
const SHOWN: usize = 200;

fn sign(key: &[u8], text: &[u8]) -> String {
    // HMAC takes keys of any length; an error is not possible.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(text);
    BASE64_STANDARD.encode(mac.finalize().into_bytes())
}

/// The signature of DingTalk: the secret is the key, time and secret are the text.
pub(crate) fn dingtalk_signature(secret: &Secret, now: UnixMillis) -> String {
    let secret = secret.reveal();
    sign(secret.as_bytes(), format!("{now}\n{secret}").as_bytes())
}

/// The signature of Feishu: time and secret are the key, the text is empty.
pub(crate) fn feishu_signature(secret: &Secret, seconds: u64) -> String {
    sign(format!("{seconds}\n{}", secret.reveal()).as_bytes(), b"")
}

/// The address for DingTalk, with the signature.
pub(crate) fn dingtalk_url(url: &Secret, secret: Option<&Secret>, now: UnixMillis) -> String {
    let url = url.reveal();
    let Some(secret) = secret else { return url.to_owned() };
    // Of the characters of Base64 these have a meaning in an address.
    let sign = dingtalk_signature(secret, now).replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}timestamp={now}&sign={sign}")
}

pub(crate) fn dingtalk_body(message: &Message) -> Value {
    json!({ "msgtype": "text", "text": { "content": message.text(CHAT) } })
}

pub(crate) fn wecom_body(message: &Message) -> Value {
    json!({ "msgtype": "text", "text": { "content": message.text(WECOM) } })
}

/// Feishu reads tags in its texts: `<at user_id="all">` would notify all members.
pub(crate) fn feishu_body(message: &Message, secret: Option<&Secret>, now: UnixMillis) -> Value {
    let text = message.mapped_text(CHAT, &|text| text.replace('<', "‹").replace('>', "›"));
    let mut body = json!({ "msg_type": "text", "content": { "text": text } });
    if let (Some(secret), Some(body)) = (secret, body.as_object_mut()) {
        let seconds = now / 1000;
        body.insert("timestamp".to_owned(), seconds.to_string().into());
        body.insert("sign".to_owned(), feishu_signature(secret, seconds).into());
    }
    body
}

/// Slack's own escapes: `<!channel>` would notify all members.
pub(crate) fn slack_body(message: &Message) -> Value {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    json!({ "text": message.mapped_text(CHAT, &escape) })
}

/// The code and the text of a robot's answer.
fn code(answer: &Answer, names: &[(&str, &str)]) -> Option<(i64, String)> {
    let value: Value = serde_json::from_slice(answer.body.as_deref()?).ok()?;
    names.iter().find_map(|(code, text)| {
        let text = clip(value.get(text).and_then(Value::as_str).unwrap_or_default(), SHOWN);
        Some((value.get(code)?.as_i64()?, text))
    })
}

/// Decides by the code. `busy` lists codes of limits and of outages.
fn by_code(answer: &Answer, names: &[(&str, &str)], busy: &[i64], wait: Duration) -> Outcome {
    match code(answer, names) {
        Some((0, _)) if (200..300).contains(&answer.status) => Outcome::Accepted,
        Some((code, text)) if busy.contains(&code) => later(format!("code {code}: {text}"), Some(wait)),
        _ if answer.status >= 500 || answer.status == 429 || (300..400).contains(&answer.status) => {
            by_status(answer)
        }
        Some((code, text)) if code != 0 => rejected(format!("code {code}: {text}")),
        // A page of a proxy, for example, or half an answer: the robot may or may not have it.
        _ if (200..300).contains(&answer.status) => later("the answer is not that of a robot", answer.wait),
        _ => by_status(answer),
    }
}

pub(crate) fn wecom_outcome(answer: &Answer) -> Outcome {
    // -1: busy; 45009, 45033: limits of calls.
    by_code(answer, &[("errcode", "errmsg")], &[-1, 45009, 45033], MINUTE)
}

pub(crate) fn dingtalk_outcome(answer: &Answer) -> Outcome {
    // -1: busy; 130101, 410100: more than 20 messages a minute.
    by_code(answer, &[("errcode", "errmsg")], &[-1, 130_101, 410_100], MUTED)
}

pub(crate) fn feishu_outcome(answer: &Answer) -> Outcome {
    // 11232, 99991400: limits of calls. Older answers have other names.
    by_code(answer, &[("code", "msg"), ("StatusCode", "StatusMessage")], &[11232, 99_991_400], MINUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, wait: None, body: Some(body.as_bytes().to_vec()) }
    }

    /// Values of another implementation:
    ///
    /// ```text
    /// python3 -c 'import hmac,hashlib,base64; s="SEC0f3a9c-example"
    /// print(base64.b64encode(hmac.new(s.encode(), f"1767614400000\n{s}".encode(), hashlib.sha256).digest()).decode())
    /// print(base64.b64encode(hmac.new(f"1767614400\n{s}".encode(), b"", hashlib.sha256).digest()).decode())'
    /// ```
    #[test]
    fn signatures_are_those_of_another_implementation() {
        let secret = Secret::new("SEC0f3a9c-example");
        assert_eq!(
            dingtalk_signature(&secret, 1_767_614_400_000),
            "oDSO15pYuHNlKUS4HisnvW9LQkoj+42WMBEx64Rd0Zs="
        );
        assert_eq!(feishu_signature(&secret, 1_767_614_400), "kqkquyee39GSyKRwLEUjU+a2qFd0tvKKOriMr7SFmFY=");
        let url =
            dingtalk_url(&Secret::new("https://x/send?access_token=t"), Some(&secret), 1_767_614_400_000);
        let (_, sign) = url.split_once("&sign=").unwrap();
        assert!(sign.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'%'), "{url}");
        assert!(url.starts_with("https://x/send?access_token=t&timestamp=1767614400000&sign="), "{url}");
    }

    #[test]
    fn a_refusal_in_an_answer_with_status_200_is_a_refusal() {
        type Read = fn(&Answer) -> Outcome;
        let (wecom, dingtalk, feishu): (Read, Read, Read) = (wecom_outcome, dingtalk_outcome, feishu_outcome);
        let accepted = "accepted";
        for (read, status, body, wanted) in [
            (wecom, 200, r#"{"errcode":0,"errmsg":"ok"}"#, accepted),
            (wecom, 200, r#"{"errcode":93000,"errmsg":"invalid webhook url"}"#, "rejected"),
            (wecom, 200, r#"{"errcode":45009,"errmsg":"api freq out of limit"}"#, "60"),
            (wecom, 200, r#"{"errcode":-1,"errmsg":"system error"}"#, "60"),
            (dingtalk, 200, r#"{"errcode":0,"errmsg":"ok"}"#, accepted),
            (dingtalk, 200, r#"{"errcode":310000,"errmsg":"sign not match"}"#, "rejected"),
            (dingtalk, 200, r#"{"errcode":130101,"errmsg":"send too fast"}"#, "600"),
            (feishu, 200, r#"{"StatusCode":0,"StatusMessage":"success"}"#, accepted),
            (feishu, 200, r#"{"code":0,"msg":"success","data":{}}"#, accepted),
            (feishu, 200, r#"{"code":19021,"msg":"sign match fail"}"#, "rejected"),
            (feishu, 400, r#"{"code":9499,"msg":"Bad Request"}"#, "rejected"),
            (feishu, 200, r#"{"code":11232,"msg":"frequency limited"}"#, "60"),
            // An unknown answer is neither an acceptance nor a refusal.
            (wecom, 200, "<html>sign in</html>", "later"),
            (wecom, 200, "", "later"),
            (feishu, 200, r#"{"code":"0"}"#, "later"),
            (dingtalk, 200, r#"{"errmsg":"ok"}"#, "later"),
            (dingtalk, 500, r#"{"errcode":0}"#, "later"),
            (dingtalk, 302, "", "rejected"),
            (dingtalk, 404, "", "rejected"),
            (dingtalk, 403, r#"{"errcode":0}"#, "rejected"),
            (dingtalk, 502, "<html>", "later"),
        ] {
            let got = match read(&answer(status, body)) {
                Outcome::Accepted => "accepted".to_owned(),
                Outcome::Rejected { .. } => "rejected".to_owned(),
                Outcome::Later { wait: Some(wait), .. } => wait.as_secs().to_string(),
                Outcome::Later { wait: None, .. } => "later".to_owned(),
            };
            assert_eq!(got, wanted, "{status} {body}");
        }
    }
}
