//! A headless Chromium, driven through the two pipes of `--remote-debugging-pipe`: messages of the DevTools protocol, each ended by a zero byte.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

/// For one answer: a large page is laid out and examined on a machine that runs other tests at the same time.
const DEADLINE: Duration = Duration::from_secs(300);

/// Path of the program, if it is installed.
pub(crate) fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("chromium")).find(|file| file.exists())
}

/// A browser with one tab. It ends with the value.
pub(crate) struct Chromium {
    child: Child,
    to: ChildStdin,
    from: Receiver<Vec<u8>>,
    session: Option<String>,
    number: u64,
    /// What the tab reported since the last [`Chromium::events`].
    events: Vec<Value>,
    _profile: TempDir,
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Chromium {
    pub(crate) fn start(program: PathBuf) -> Result<Chromium> {
        let profile = tempfile::tempdir()?;
        // The pipes are the descriptors 3 and 4. What Chromium logs is not part of a test.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"]);
        command.arg(program).args(["--headless=new", "--remote-debugging-pipe", "--disable-gpu"]);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        // A small /dev/shm in a container.
        command.arg("--disable-dev-shm-usage");
        if nix::unistd::geteuid().is_root() {
            command.arg("--no-sandbox");
        }
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        // It is killed at the end, and would leave a directory of its own behind.
        command.env("TMPDIR", profile.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().context("no input")?;
        let out = BufReader::new(child.stdout.take().context("no output")?);
        let (send, from) = channel();
        std::thread::spawn(move || {
            for message in out.split(0) {
                // An error: the test ends.
                let Ok(Ok(())) = message.map(|message| send.send(message)) else { return };
            }
        });
        let mut browser =
            Chromium { child, to, from, session: None, number: 0, events: Vec::new(), _profile: profile };
        let tab = browser.call("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": tab["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach)?;
        browser.session = Some(attached["sessionId"].as_str().context("no session")?.to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        browser.events.clear();
        Ok(browser)
    }

    /// Calls a method of the tab, before there is one of the browser. Returns its result.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).with_context(|| method.to_owned())?;
        loop {
            let message = self.next().with_context(|| method.to_owned())?;
            if message["id"] == self.number {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
        }
    }

    fn next(&mut self) -> Result<Value> {
        let message = self.from.recv_timeout(DEADLINE).context("no message of Chromium")?;
        let message: Value = serde_json::from_slice(&message)?;
        if message["id"].is_null() {
            self.events.push(message.clone());
        }
        Ok(message)
    }

    /// Loads a page and waits for its end.
    pub(crate) fn load(&mut self, url: &str) -> Result<()> {
        let done = self.call("Page.navigate", &json!({"url": url}))?;
        ensure!(done["errorText"].is_null(), "{url}: {}", done["errorText"]);
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            self.next()?;
        }
        Ok(())
    }

    /// The events since the last call.
    pub(crate) fn events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    /// The value of an expression in the page; of a promise, the value that it resolves to.
    pub(crate) fn value(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let done = self.call("Runtime.evaluate", &params)?;
        ensure!(done["exceptionDetails"].is_null(), "{}", done["exceptionDetails"]);
        Ok(done["result"]["value"].clone())
    }
}
