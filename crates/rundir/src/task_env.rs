use std::fmt::Write as _;

/// Variables for every task of a job on this node, as the plugin reads them.
///
/// One line each, after a first line `railgate-task-env 1`:
/// `default NAME=VALUE` is set only where the user has not, `force NAME=VALUE` always, and `notice TEXT` is
/// a line that the batch script's task prints to the job's own standard error before it starts.
/// Names are `[A-Z][A-Z0-9_]*`, values and texts are printable ASCII on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskEnv {
    /// In the order in which they are set.
    pub settings: Vec<TaskSetting>,
    /// What the user is told in the job's own output.
    pub notices: Vec<String>,
}

/// One variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSetting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Overrides the user's own.
    pub force: bool,
}

/// The text is not a task environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task.env line {line}: {what}")]
pub struct BadTaskEnv {
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

const HEAD: &str = "railgate-task-env 1";

pub(crate) fn name_ok(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn value_ok(value: &str) -> bool {
    value.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

impl TaskEnv {
    /// The file's text. A setting that the format cannot hold is left out rather than damaged: the
    /// caller learns of it in the second value.
    pub fn to_text(&self) -> (String, Vec<&TaskSetting>) {
        let mut text = String::from(HEAD);
        text.push('\n');
        for notice in self.notices.iter().filter(|notice| value_ok(notice)) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "notice {notice}");
        }
        let mut left_out = Vec::new();
        for setting in &self.settings {
            if !name_ok(&setting.name) || !value_ok(&setting.value) {
                left_out.push(setting);
                continue;
            }
            let mode = if setting.force { "force" } else { "default" };
            let _ = writeln!(text, "{mode} {}={}", setting.name, setting.value);
        }
        (text, left_out)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// The first line that is not of the format, by number. Nothing of such a file is used.
    pub fn parse(text: &str) -> Result<Self, BadTaskEnv> {
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, HEAD)) => {}
            _ => return Err(BadTaskEnv { line: 1, what: "not a railgate task environment of version 1" }),
        }
        let mut env = TaskEnv::default();
        for (index, line) in lines {
            let bad = |what| BadTaskEnv { line: index + 1, what };
            let (mode, rest) = line.split_once(' ').ok_or(bad("no mode"))?;
            let force = match mode {
                "default" => false,
                "force" => true,
                "notice" if value_ok(rest) => {
                    env.notices.push(rest.to_owned());
                    continue;
                }
                "notice" => return Err(bad("notice is not printable ASCII")),
                _ => return Err(bad("mode is none of 'default', 'force' and 'notice'")),
            };
            let (name, value) = rest.split_once('=').ok_or(bad("no '='"))?;
            if !name_ok(name) {
                return Err(bad("not a variable name"));
            }
            if !value_ok(value) {
                return Err(bad("value is not printable ASCII"));
            }
            env.settings.push(TaskSetting { name: name.to_owned(), value: value.to_owned(), force });
        }
        Ok(env)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: &str, force: bool) -> TaskSetting {
        TaskSetting { name: name.to_owned(), value: value.to_owned(), force }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let env = TaskEnv {
            settings: vec![
                setting("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1", false),
                setting("NCCL_DEBUG_FILE", "/run/railgate/jobs/1/current/user/nccl.%h.%p", true),
            ],
            notices: vec!["railgate: moved here from gn3: gpu-lost@3".to_owned()],
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
        };
        let (text, left_out) = env.to_text();
        assert_eq!(left_out.len(), 1);
        assert_eq!(TaskEnv::parse(&text).unwrap(), TaskEnv::default());
    }

    #[test]
    fn the_bad_line_is_named() {
        let text = "railgate-task-env 1\ndefault A=1\nmaybe B=2\n";
        assert_eq!(TaskEnv::parse(text).unwrap_err().line, 3);
        assert_eq!(TaskEnv::parse("").unwrap_err().line, 1);
    }
}
