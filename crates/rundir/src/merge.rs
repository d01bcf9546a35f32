//! Computes a task's environment from railgate's settings, the user's own variables, and values that railgate set in
//! an outer step.
//!
//! `srun` inside a batch script inherits the script's environment. A value that *railgate* set on the batch host then
//! looks like the user's, while devices may have other names on another node. So each value that railgate sets is
//! also recorded:
//!
//! ```text
//! NCCL_IB_HCA==mlx5_0:1,mlx5_1:1
//! RAILGATE_SET=NCCL_IB_HCA                          names of all variables that railgate set
//! RAILGATE_SET_NCCL_IB_HCA==mlx5_0:1,mlx5_1:1       the value that it set
//! RAILGATE_KEPT=NCCL_SOCKET_IFNAME                  names of variables of the user that it did not change
//! RAILGATE_JOB_DIR=/run/railgate/jobs/7/current     the run's directory on the node
//! RAILGATE_NET=ib                                   NCCL's network plugin: ib, ofi, sharp, other
//! ```
//!
//! A listed variable with its recorded value is railgate's, and is computed again on each node; with any other value
//! it is the user's. Values in the user's own `.nccl.conf`, which NCCL uses only for variables that are not set, are
//! the user's too.

use std::cell::LazyCell;

use railgate_model::Net;

use crate::{NcclConf, TaskEnv, TaskSetting, Used, Winner};

/// Names of the variables that railgate set, separated by commas.
pub const SET: &str = "RAILGATE_SET";
/// Prefix of a variable's name: records the value that railgate set.
pub const SET_PREFIX: &str = "RAILGATE_SET_";
/// Names of the variables that the user had set and railgate did not change, separated by commas.
pub const KEPT: &str = "RAILGATE_KEPT";
/// The run's directory on this node.
pub const JOB_DIR: &str = "RAILGATE_JOB_DIR";

/// The network plugin that transfers NCCL's data between nodes, [`Net`].
pub const NET: &str = "RAILGATE_NET";

/// Most names that are read from a list, which users can forge; railgate's own lists are shorter.
const MOST_NAMES: usize = 64;

/// One change of the environment; changes are applied in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set the variable, whether or not it is set already.
    Set(String, String),
    /// Unset the variable.
    Unset(String),
}

/// Changes, and the decision for each variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// In the order in which they are applied.
    pub changes: Vec<Change>,
    /// For each variable, whose value applies.
    pub used: Vec<Used>,
}

/// Decides about each variable. `now`: the task's current environment; `job_dir`: the run's directory; `conf`: the
/// user's NCCL configuration file, read only if it can affect the result.
pub fn merge(
    env: &TaskEnv,
    job_dir: &str,
    now: impl Fn(&str) -> Option<Vec<u8>>,
    conf: impl FnOnce() -> NcclConf,
) -> Merged {
    let inherited = names(now(SET));
    let ours = |name: &str| {
        inherited.iter().any(|listed| listed == name)
            && matches!((now(name), now(&recorded(name))), (Some(is), Some(was)) if is == was)
    };
    let conf = LazyCell::new(conf);
    let theirs =
        |name: &str| now(name).filter(|_| !ours(name)).or_else(|| conf.get(name).map(<[u8]>::to_vec));
    let net = env.net.map(|net| {
        let site = |name: &str| env.settings.iter().find(|setting| setting.name == name);
        Net::told(|name| theirs(name).or_else(|| Some(site(name)?.value.clone().into_bytes()))).unwrap_or(net)
    });
    let mut merged = Merged::default();
    let mut set = Vec::new();
    let mut kept = Vec::new();
    let fits =
        |setting: &TaskSetting| setting.nets.is_empty() || setting.nets.contains(&net.unwrap_or_default());
    for (at, setting) in env.settings.iter().enumerate() {
        let follows = setting.with.as_deref().is_none_or(|with| set.contains(&with));
        // Of several settings for one variable the last one that applies.
        let later = env.settings.iter().skip(at + 1).any(|other| other.name == setting.name && fits(other));
        if !fits(setting) || !follows || later {
            continue;
        }
        let winner = match theirs(&setting.name) {
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
        // Computed for another node, and not to be set here.
        if ours(name) {
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
    match net {
        Some(net) => merged.changes.push(Change::Set(NET.to_owned(), net.to_string())),
        None if now(NET).is_some() => merged.changes.push(Change::Unset(NET.to_owned())),
        None => {}
    }
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

    type Env = BTreeMap<String, String>;

    fn node(settings: &[(&str, &str, bool)]) -> TaskEnv {
        let settings = settings
            .iter()
            .map(|(name, value, force)| TaskSetting {
                name: (*name).to_owned(),
                value: (*value).to_owned(),
                force: *force,
                ..TaskSetting::default()
            })
            .collect();
        TaskEnv { settings, ..TaskEnv::default() }
    }

    fn enter(env: &mut Env, node: &TaskEnv) -> Vec<Used> {
        enter_with(env, node, "")
    }

    fn enter_with(env: &mut Env, node: &TaskEnv, conf: &str) -> Vec<Used> {
        let now = |name: &str| env.get(name).map(|value| value.clone().into_bytes());
        let merged = merge(node, "/run/j", now, || NcclConf::parse(conf.as_bytes()));
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
    fn a_new_task_gets_all_settings_and_their_record() {
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
    fn a_value_of_the_user_is_kept_even_if_empty() {
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
    fn force_overrides_the_user_and_is_recorded() {
        let mut task = env(&[("X", "mine")]);
        let used = enter(&mut task, &node(&[("X", "ours", true)]));
        assert_eq!(task["X"], "ours");
        assert_eq!(used[0], Used::new(Winner::Overruled, "X", b"mine"));
        assert_eq!(used[1], Used::new(Winner::Railgate, "X", b"ours"));
    }

    #[test]
    fn a_value_set_on_the_batch_host_is_recomputed_on_another_node() {
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
    fn a_value_that_the_batch_script_changes_becomes_the_users() {
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
        // It also stays the user's in a nested step.
        enter(&mut task, &here);
        assert_eq!(task, expected);
    }

    #[test]
    fn a_forged_list_unsets_only_values_that_it_records() {
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

    #[test]
    fn values_in_the_users_nccl_conf_are_the_users() {
        let here = node(&[("NCCL_IB_HCA", "=mlx5_0:1", false), ("NCCL_IB_TC", "106", true)]);
        let mut task = Env::new();
        let used = enter_with(&mut task, &here, "NCCL_IB_HCA=mlx5_7\nNCCL_IB_TC=1\n");
        let expected = env(&[
            ("NCCL_IB_TC", "106"),
            ("RAILGATE_JOB_DIR", "/run/j"),
            ("RAILGATE_KEPT", "NCCL_IB_HCA"),
            ("RAILGATE_SET", "NCCL_IB_TC"),
            ("RAILGATE_SET_NCCL_IB_TC", "106"),
        ]);
        assert_eq!(task, expected);
        assert_eq!(used[0], Used::new(Winner::User, "NCCL_IB_HCA", b"mlx5_7"));
        assert_eq!(used[1], Used::new(Winner::Overruled, "NCCL_IB_TC", b"1"));
        // A value set on a node without the file is unset on a node with it.
        let mut task = Env::new();
        enter(&mut task, &here);
        enter_with(&mut task, &here, "NCCL_IB_HCA=mlx5_7\n");
        assert_eq!(task, expected);
    }

    #[test]
    fn a_file_without_effect_is_not_read() {
        let unread = || -> NcclConf { panic!("read") };
        let read = |node: &TaskEnv, task: &Env| {
            let now = |name: &str| task.get(name).map(|value| value.clone().into_bytes());
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| merge(node, "/run/j", now, unread)))
                .is_err()
        };
        assert!(!read(&node(&[]), &Env::new()));
        assert!(!read(&node(&[("X", "1", false)]), &env(&[("X", "mine")])));
        assert!(read(&node(&[("X", "1", false)]), &Env::new()));
    }

    #[test]
    fn settings_of_another_network_plugin_are_not_changed() {
        let mut here = node(&[("NCCL_IB_HCA", "=mlx5_0:1", false), ("NCCL_RAS_ADDR", "localhost:1", false)]);
        here.settings[0].nets = vec![Net::Ib, Net::Sharp];
        here.net = Some(Net::Ib);
        let got = |task: &Env, here: &TaskEnv, conf: &str| {
            let mut task = task.clone();
            enter_with(&mut task, here, conf);
            (
                task["RAILGATE_NET"].clone(),
                task.contains_key("NCCL_IB_HCA"),
                task.contains_key("NCCL_RAS_ADDR"),
            )
        };
        let all = |net: &str| (net.to_owned(), true, true);
        let less = |net: &str| (net.to_owned(), false, true);
        assert_eq!(got(&Env::new(), &here, ""), all("ib"));
        assert_eq!(got(&env(&[("NCCL_NET", "AWS Libfabric")]), &here, ""), less("ofi"));
        assert_eq!(got(&env(&[("NCCL_NET_PLUGIN", "ucx")]), &here, ""), less("other"));
        assert_eq!(got(&env(&[("NCCL_NET", "IBext_v8")]), &here, ""), all("sharp"));
        assert_eq!(got(&Env::new(), &here, "NCCL_NET=Socket\n"), less("other"));
        here.net = Some(Net::Ofi);
        assert_eq!(got(&Env::new(), &here, ""), less("ofi"));
        assert_eq!(
            got(&env(&[("NCCL_NET", "IB")]), &here, ""),
            all("ib"),
            "the job's own word counts for more"
        );
        // The site's own choice is used as well, and a value from another node is unset.
        here.net = Some(Net::Ib);
        let mut task = Env::new();
        enter(&mut task, &here);
        here.settings.push(TaskSetting {
            name: "NCCL_NET_PLUGIN".to_owned(),
            value: "ofi".to_owned(),
            ..TaskSetting::default()
        });
        assert_eq!(got(&task, &here, ""), less("ofi"));
        // Of several values the last one that applies.
        here.settings.pop();
        let other =
            TaskSetting { value: "=mlx5_1:1".to_owned(), nets: vec![Net::Sharp], ..here.settings[0].clone() };
        here.settings.push(other);
        for (net, value) in [("IB", "=mlx5_0:1"), ("IBext", "=mlx5_1:1")] {
            let mut task = env(&[("NCCL_NET", net)]);
            enter(&mut task, &here);
            assert_eq!(task["NCCL_IB_HCA"], value, "{net}");
        }
    }

    #[test]
    fn the_log_file_is_set_only_where_railgate_enabled_the_log() {
        let mut here = node(&[("NCCL_DEBUG", "WARN", false), ("NCCL_DEBUG_FILE", "/run/j/user/nccl", false)]);
        here.settings[1].with = Some("NCCL_DEBUG".to_owned());
        let mut task = Env::new();
        enter(&mut task, &here);
        assert_eq!(task["NCCL_DEBUG_FILE"], "/run/j/user/nccl");
        let mut task = env(&[("NCCL_DEBUG", "INFO")]);
        enter(&mut task, &here);
        assert!(!task.contains_key("NCCL_DEBUG_FILE"));
        assert_eq!(task["RAILGATE_KEPT"], "NCCL_DEBUG");
    }
}
