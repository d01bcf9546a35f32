use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::Path;

use railgate_model::Net;

/// Variables for every task of a job on this node, written by the prolog and read by the plugin.
///
/// After a first line `railgate-task-env 2`, one line each: `default NAME=VALUE` is set only if the user has not,
/// `force NAME=VALUE` always. Conditions follow the word: `default;net=ib,sharp NAME=VALUE` applies only with one of
/// these network plugins, `default;with=NCCL_DEBUG NAME=VALUE` only if an earlier line set that variable. `net ib` is
/// the network plugin that is assumed if the task's own environment does not set it. `notice TEXT` is a line that the
/// batch script's task prints to the job's own standard error before it starts. Version 1 had neither conditions nor
/// `net`. Names are `[A-Z][A-Z0-9_]*`, values and texts are printable ASCII on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskEnv {
    /// In the order in which they are set.
    pub settings: Vec<TaskSetting>,
    /// Notices for the user in the job's own output.
    pub notices: Vec<String>,
    /// The network plugin if the task's own environment does not set it; `None` if it was not determined.
    pub net: Option<Net>,
}

/// One variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskSetting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Whether it replaces the user's value.
    pub force: bool,
    /// Network plugins to which it applies; empty: all.
    pub nets: Vec<Net>,
    /// Set only if railgate has also set this variable.
    pub with: Option<String>,
}

/// The text is not a valid task environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task.env line {line}: {what}")]
pub struct BadTaskEnv {
    /// Line number, from 1.
    pub line: usize,
    /// The problem.
    pub what: &'static str,
}

/// Largest file that is read, bytes.
const MOST_BYTES: u64 = 256 << 10;
const HEAD: &str = "railgate-task-env 2";
/// First line of an older release's file, which may exist for a running job.
const OLD_HEAD: &str = "railgate-task-env 1";

pub(crate) fn name_ok(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

pub(crate) fn value_ok(value: &str) -> bool {
    value.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

impl TaskEnv {
    /// Formats the file's text. Settings that the format cannot represent are left out and returned as the second
    /// value.
    pub fn to_text(&self) -> (String, Vec<&TaskSetting>) {
        let mut text = String::from(HEAD);
        text.push('\n');
        for notice in self.notices.iter().filter(|notice| value_ok(notice)) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "notice {notice}");
        }
        if let Some(net) = self.net {
            let _ = writeln!(text, "net {net}");
        }
        let mut left_out = Vec::new();
        for setting in &self.settings {
            let with_ok = setting.with.as_deref().is_none_or(name_ok);
            if !name_ok(&setting.name) || !value_ok(&setting.value) || !with_ok {
                left_out.push(setting);
                continue;
            }
            text.push_str(if setting.force { "force" } else { "default" });
            if !setting.nets.is_empty() {
                let nets: Vec<&str> = setting.nets.iter().map(|net| net.as_str()).collect();
                let _ = write!(text, ";net={}", nets.join(","));
            }
            if let Some(with) = &setting.with {
                let _ = write!(text, ";with={with}");
            }
            let _ = writeln!(text, " {}={}", setting.name, setting.value);
        }
        (text, left_out)
    }

    /// Reads a file, without following a link and without blocking.
    ///
    /// # Errors
    /// Errors of the file system; `InvalidData` if it is larger than 256 KiB or invalid.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = railgate_fsutil::nofollow::read(path)?;
        let mut text = String::new();
        if file.take(MOST_BYTES + 1).read_to_string(&mut text)? as u64 > MOST_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than 256 KiB"));
        }
        TaskEnv::parse(&text).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Parses a file's text.
    ///
    /// # Errors
    /// The first invalid line, by number. No setting of such a file is used.
    pub fn parse(text: &str) -> Result<Self, BadTaskEnv> {
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, HEAD | OLD_HEAD)) => {}
            _ => {
                return Err(BadTaskEnv {
                    line: 1,
                    what: "not a railgate task environment of version 1 or 2",
                });
            }
        }
        let mut env = TaskEnv::default();
        for (index, line) in lines {
            let bad = |what| BadTaskEnv { line: index + 1, what };
            let (mode, rest) = line.split_once(' ').ok_or(bad("no mode"))?;
            let mut words = mode.split(';');
            let force = match words.next().unwrap_or_default() {
                "default" => false,
                "force" => true,
                "net" => {
                    env.net = Some(rest.parse().map_err(|_| bad("not a network plugin"))?);
                    continue;
                }
                "notice" if value_ok(rest) => {
                    env.notices.push(rest.to_owned());
                    continue;
                }
                "notice" => return Err(bad("notice is not printable ASCII")),
                _ => return Err(bad("mode is none of 'default', 'force', 'net' and 'notice'")),
            };
            let (name, value) = rest.split_once('=').ok_or(bad("no '='"))?;
            if !name_ok(name) {
                return Err(bad("not a variable name"));
            }
            if !value_ok(value) {
                return Err(bad("value is not printable ASCII"));
            }
            let (name, value) = (name.to_owned(), value.to_owned());
            let mut setting = TaskSetting { name, value, force, ..TaskSetting::default() };
            for word in words {
                match word.split_once('=') {
                    Some(("net", nets)) => {
                        setting.nets = nets
                            .split(',')
                            .map(|net| net.parse().map_err(|_| bad("not a network plugin")))
                            .collect::<Result<_, _>>()?;
                    }
                    Some(("with", name)) if name_ok(name) => setting.with = Some(name.to_owned()),
                    _ => return Err(bad("condition is neither 'net=' nor 'with='")),
                }
            }
            env.settings.push(setting);
        }
        Ok(env)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: &str, force: bool) -> TaskSetting {
        TaskSetting { name: name.to_owned(), value: value.to_owned(), force, ..TaskSetting::default() }
    }

    #[test]
    fn a_task_environment_survives_a_round_trip() {
        let env = TaskEnv {
            settings: vec![
                setting("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1", false),
                setting("NCCL_DEBUG_FILE", "/run/railgate/jobs/1/current/user/nccl.%h.%p", true),
                TaskSetting {
                    nets: vec![Net::Ib, Net::Sharp],
                    with: Some("NCCL_IB_HCA".to_owned()),
                    ..setting("NCCL_IB_TC", "106", false)
                },
            ],
            notices: vec!["railgate: moved here from gn3: gpu-lost@3".to_owned()],
            net: Some(Net::Ofi),
        };
        let (text, left_out) = env.to_text();
        assert!(left_out.is_empty());
        assert_eq!(TaskEnv::parse(&text).unwrap(), env);
    }

    #[test]
    fn a_value_that_would_break_the_format_is_left_out() {
        let env = TaskEnv {
            settings: vec![setting("A", "x\nforce LD_PRELOAD=/tmp/x", false)],
            notices: vec!["x\n".to_owned()],
            net: None,
        };
        let (text, left_out) = env.to_text();
        assert_eq!(left_out.len(), 1);
        assert_eq!(TaskEnv::parse(&text).unwrap(), TaskEnv::default());
    }

    #[test]
    fn the_number_of_the_invalid_line_is_reported() {
        let text = "railgate-task-env 1\ndefault A=1\nmaybe B=2\n";
        assert_eq!(TaskEnv::parse(text).unwrap_err().line, 3);
        assert_eq!(TaskEnv::parse("").unwrap_err().line, 1);
        for line in ["default;net=eth A=1", "default;if=x A=1", "default;with=a A=1", "net x", "default; A=1"]
        {
            let text = format!("railgate-task-env 2\nforce B=1\n{line}\n");
            assert_eq!(TaskEnv::parse(&text).unwrap_err().line, 3, "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_parsed_file_is_written_back_unchanged(text in "(railgate-task-env [123]\n)?(.{0,80}\n){0,4}", line in "(default|force|net|notice)(;(net|with)=[a-zA-Z_,]{0,9}){0,2} [ -~]{0,40}") {
            for text in [text.clone(), format!("{HEAD}\n{line}\n"), format!("{HEAD}\n{line}\n{text}")] {
                if let Ok(env) = TaskEnv::parse(&text) {
                    let (written, left_out) = env.to_text();
                    proptest::prop_assert!(left_out.is_empty());
                    proptest::prop_assert_eq!(TaskEnv::parse(&written).unwrap(), env);
                }
            }
        }
    }
}
