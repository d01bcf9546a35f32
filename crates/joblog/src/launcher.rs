//! Messages of launchers, in plain words.

use std::sync::LazyLock;

use railgate_model::ProcessExit;
use regex::Regex;

/// `failed (exitcode: -9) local_rank: 1 (pid: 2620) of binary: /opt/venv/bin/python` of torchrun's agent; a signal is negative.
static TORCHRUN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"failed \(exitcode: (?P<code>-?\d{1,3})\) local_rank: (?P<rank>\d{1,4}) \(pid: (?P<pid>\d{1,10})\)",
    )
    .ok()
});

/// `torchrun: local rank 1 (pid 2620) was ended by SIGKILL (signal 9)`; `None` for other messages.
pub(crate) fn plain(text: &str) -> Option<String> {
    let found = TORCHRUN.as_ref()?.captures(text)?;
    let code: i16 = found.name("code")?.as_str().parse().ok()?;
    let exit = match u8::try_from(code) {
        Ok(code) => ProcessExit::Code(code),
        Err(_) => ProcessExit::Signal(u8::try_from(-code).ok()?),
    };
    Some(format!("torchrun: local rank {} (pid {}) {exit}", &found["rank"], &found["pid"]))
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn torchrun_names_the_end_of_a_process() {
        for (code, said) in [
            ("-9", Some("was ended by SIGKILL (signal 9)")),
            ("-35", Some("was ended by signal 35")),
            ("1", Some("ended with exit code 1")),
            ("255", Some("ended with exit code 255")),
            ("256", None),
            ("-256", None),
            ("99999999999", None),
            ("", None),
        ] {
            let line = format!(
                "E1128 19:57:33.078000 2540 api.py:986] failed (exitcode: {code}) local_rank: 1 (pid: 2620) of binary: python"
            );
            let said = said.map(|said| format!("torchrun: local rank 1 (pid 2620) {said}"));
            assert_eq!(plain(&line), said, "{code}");
        }
        assert_eq!(plain("failed (exitcode: 1)"), None);
    }
}
