//! What a task's environment becomes: our settings, the user's own, and what we set in an outer step.
//!
//! `srun` inside a batch script inherits the script's environment, so there a value that *we* set on the
//! batch host looks as if the user had set it, while on another node the devices may have other names.
//! Hence each value that we set is also recorded:
//!
//! ```text
//! NCCL_IB_HCA==mlx5_0:1,mlx5_1:1
//! RAILGATE_SET=NCCL_IB_HCA                          every variable that railgate set
//! RAILGATE_SET_NCCL_IB_HCA==mlx5_0:1,mlx5_1:1       what it set it to
//! RAILGATE_KEPT=NCCL_SOCKET_IFNAME                  what the user had set and railgate left alone
//! RAILGATE_JOB_DIR=/run/railgate/jobs/7/current     the run's directory on the node
//! ```
//!
//! A listed variable that still holds its recorded value is ours and is computed anew on each node; one that
//! holds anything else is the user's.

use crate::{TaskEnv, Used, Winner};

/// Names of the variables that railgate set, with commas.
pub const SET: &str = "RAILGATE_SET";
/// With the name of a variable behind it: the value that railgate gave it.
pub const SET_PREFIX: &str = "RAILGATE_SET_";
/// Names of the variables that the user had set and railgate left alone, with commas.
pub const KEPT: &str = "RAILGATE_KEPT";
/// The run's directory on this node.
pub const JOB_DIR: &str = "RAILGATE_JOB_DIR";

/// The environment is the user's: longer lists than ours can be are not followed.
const MOST_NAMES: usize = 64;

/// One step on the way to the new environment, to be done in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Give the variable this value, whatever it has.
    Set(String, String),
    /// Take the variable away.
    Unset(String),
}

/// What is to be done, and what was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// In this order.
    pub changes: Vec<Change>,
    /// Per variable, who won.
    pub used: Vec<Used>,
}

/// Decides about each variable. `now` is the task's environment as it stands; `job_dir` the run's directory.
pub fn merge(env: &TaskEnv, job_dir: &str, now: impl Fn(&str) -> Option<Vec<u8>>) -> Merged {
    let inherited = names(now(SET));
    let ours = |name: &str| {
        inherited.iter().any(|listed| listed == name)
            && matches!((now(name), now(&recorded(name))), (Some(is), Some(was)) if is == was)
    };
    let mut merged = Merged::default();
    let mut set = Vec::new();
    let mut kept = Vec::new();
    for setting in &env.settings {
        let theirs = now(&setting.name).filter(|_| !ours(&setting.name));
        let winner = match theirs {
            Some(value) if !setting.force => {
                kept.push(setting.name.as_str());
                merged.used.push(Used::new(Winner::User, &setting.name, &value));
                continue;
            }
            Some(value) if value != setting.value.as_bytes() => {
                merged.used.push(Used::new(Winner::Overruled, &setting.name, &value));
                Winner::Railgate
            }
            _ => Winner::Railgate,
        };
        merged.used.push(Used::new(winner, &setting.name, setting.value.as_bytes()));
        merged.changes.push(Change::Set(setting.name.clone(), setting.value.clone()));
        merged.changes.push(Change::Set(recorded(&setting.name), setting.value.clone()));
        set.push(setting.name.as_str());
    }
    for name in &inherited {
        if set.contains(&name.as_str()) {
            continue;
        }
        // Computed for another node, and this one has no such setting.
        if ours(name) && !env.settings.iter().any(|setting| setting.name == *name) {
            merged.changes.push(Change::Unset(name.clone()));
        }
        merged.changes.push(Change::Unset(recorded(name)));
    }
    for (list, content) in [(SET, &set), (KEPT, &kept)] {
        if !content.is_empty() {
            merged.changes.push(Change::Set(list.to_owned(), content.join(",")));
        } else if now(list).is_some() {
            merged.changes.push(Change::Unset(list.to_owned()));
        }
    }
    merged.changes.push(Change::Set(JOB_DIR.to_owned(), job_dir.to_owned()));
    merged
}

fn recorded(name: &str) -> String {
    format!("{SET_PREFIX}{name}")
}

fn names(list: Option<Vec<u8>>) -> Vec<String> {
    let Some(list) = list.and_then(|bytes| String::from_utf8(bytes).ok()) else { return Vec::new() };
    list.split(',')
        .filter(|name| name.len() <= 128 && crate::task_env::name_ok(name))
        .take(MOST_NAMES)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::TaskSetting;

    type Env = BTreeMap<String, String>;

    fn node(settings: &[(&str, &str, bool)]) -> TaskEnv {
        let settings = settings
            .iter()
            .map(|(name, value, force)| TaskSetting {
                name: (*name).to_owned(),
                value: (*value).to_owned(),
                force: *force,
            })
            .collect();
        TaskEnv { settings, ..TaskEnv::default() }
    }

    fn enter(env: &mut Env, node: &TaskEnv) -> Vec<Used> {
        let merged = merge(node, "/run/j", |name| env.get(name).map(|v| v.clone().into_bytes()));
        for change in merged.changes {
            match change {
                Change::Set(name, value) => env.insert(name, value),
                Change::Unset(name) => env.remove(&name),
            };
        }
        merged.used
    }

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_fresh_task_gets_everything_and_learns_what() {
        let mut task = Env::new();
        let used = enter(&mut task, &node(&[("NCCL_IB_HCA", "=mlx5_0:1", false), ("X", "1", true)]));
        let expected = env(&[
            ("NCCL_IB_HCA", "=mlx5_0:1"),
            ("RAILGATE_JOB_DIR", "/run/j"),
            ("RAILGATE_SET", "NCCL_IB_HCA,X"),
            ("RAILGATE_SET_NCCL_IB_HCA", "=mlx5_0:1"),
            ("RAILGATE_SET_X", "1"),
            ("X", "1"),
        ]);
        assert_eq!(task, expected);
        assert!(used.iter().all(|used| used.winner == Winner::Railgate));
    }

    #[test]
    fn the_users_own_value_stays_even_an_empty_one() {
        for value in ["mlx5_7", ""] {
            let mut task = env(&[("NCCL_IB_HCA", value)]);
            let used = enter(&mut task, &node(&[("NCCL_IB_HCA", "=mlx5_0:1", false)]));
            assert_eq!(task["NCCL_IB_HCA"], value);
            assert_eq!(task["RAILGATE_KEPT"], "NCCL_IB_HCA");
            assert!(!task.contains_key("RAILGATE_SET"));
            assert_eq!(used, [Used::new(Winner::User, "NCCL_IB_HCA", value.as_bytes())]);
        }
    }

    #[test]
    fn force_overrules_the_user_and_says_so() {
        let mut task = env(&[("X", "mine")]);
        let used = enter(&mut task, &node(&[("X", "ours", true)]));
        assert_eq!(task["X"], "ours");
        assert_eq!(used[0], Used::new(Winner::Overruled, "X", b"mine"));
        assert_eq!(used[1], Used::new(Winner::Railgate, "X", b"ours"));
    }

    #[test]
    fn what_was_set_on_the_batch_host_is_computed_anew_on_the_next_node() {
        let mut task = Env::new();
        enter(&mut task, &node(&[("NCCL_IB_HCA", "=mlx5_0:1", false), ("ONLY_THERE", "1", false)]));
        enter(&mut task, &node(&[("NCCL_IB_HCA", "=ibp3s0:1", false)]));
        let expected = env(&[
            ("NCCL_IB_HCA", "=ibp3s0:1"),
            ("RAILGATE_JOB_DIR", "/run/j"),
            ("RAILGATE_SET", "NCCL_IB_HCA"),
            ("RAILGATE_SET_NCCL_IB_HCA", "=ibp3s0:1"),
        ]);
        assert_eq!(task, expected);
    }

    #[test]
    fn a_batch_script_that_changes_our_value_makes_it_the_users() {
        let mut task = Env::new();
        let here = node(&[("NCCL_IB_HCA", "=mlx5_0:1", false)]);
        enter(&mut task, &here);
        task.insert("NCCL_IB_HCA".to_owned(), "mlx5_3".to_owned());
        enter(&mut task, &here);
        let expected = env(&[
            ("NCCL_IB_HCA", "mlx5_3"),
            ("RAILGATE_JOB_DIR", "/run/j"),
            ("RAILGATE_KEPT", "NCCL_IB_HCA"),
        ]);
        assert_eq!(task, expected);
        // And it stays so in a step within the step.
        enter(&mut task, &here);
        assert_eq!(task, expected);
    }

    #[test]
    fn a_forged_list_takes_away_nothing_but_what_it_records() {
        let mut task = env(&[
            ("PATH", "/bin"),
            ("HOME", "/home/u"),
            ("RAILGATE_SET", "PATH,HOME,,a b,=,LD_PRELOAD"),
            ("RAILGATE_SET_HOME", "/home/other"),
        ]);
        enter(&mut task, &node(&[]));
        let expected = env(&[("HOME", "/home/u"), ("PATH", "/bin"), ("RAILGATE_JOB_DIR", "/run/j")]);
        assert_eq!(task, expected);
    }
}
