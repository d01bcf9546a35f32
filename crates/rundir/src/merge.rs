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
//! RAILGATE_NET=ib                                   what moves NCCL's data: ib, ofi, sharp, other
//! ```
//!
//! A listed variable that still holds its recorded value is ours and is computed anew on each node; one that
//! holds anything else is the user's. So is what stands in the user's own `.nccl.conf`, which NCCL reads only
//! where the environment has nothing.

use std::cell::LazyCell;

use railgate_model::Net;

use crate::{NcclConf, TaskEnv, TaskSetting, Used, Winner};

/// Names of the variables that railgate set, with commas.
pub const SET: &str = "RAILGATE_SET";
/// With the name of a variable behind it: the value that railgate gave it.
pub const SET_PREFIX: &str = "RAILGATE_SET_";
/// Names of the variables that the user had set and railgate left alone, with commas.
pub const KEPT: &str = "RAILGATE_KEPT";
/// The run's directory on this node.
pub const JOB_DIR: &str = "RAILGATE_JOB_DIR";

/// What moves NCCL's data between nodes, [`Net`].
pub const NET: &str = "RAILGATE_NET";

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

/// Decides about each variable. `now` is the task's environment as it stands; `job_dir` the run's directory;
/// `conf` what NCCL's file of the user says, asked for only where it can matter.
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
        // Of several for one variable the last that fits.
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
        // Computed for another node, and here it is not to be set.
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

    #[test]
    fn what_the_users_file_says_counts_as_the_users() {
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
        // What a node without the file gave is taken back where there is one.
        let mut task = Env::new();
        enter(&mut task, &here);
        enter_with(&mut task, &here, "NCCL_IB_HCA=mlx5_7\n");
        assert_eq!(task, expected);
    }

    #[test]
    fn a_file_that_cannot_matter_is_not_read() {
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
    fn a_foreign_network_plugin_keeps_what_it_owns() {
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
        // The site's own choice is seen as well, and what another node gave is taken back.
        here.net = Some(Net::Ib);
        let mut task = Env::new();
        enter(&mut task, &here);
        here.settings.push(TaskSetting {
            name: "NCCL_NET_PLUGIN".to_owned(),
            value: "ofi".to_owned(),
            ..TaskSetting::default()
        });
        assert_eq!(got(&task, &here, ""), less("ofi"));
        // Of several values the last that fits.
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
    fn a_log_goes_elsewhere_only_where_railgate_asked_for_it() {
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
