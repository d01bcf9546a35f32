//! Compares the environment that railgate set for tasks with the one that the processes had.

use std::collections::BTreeMap;

use railgate_model::Net;
use serde::{Deserialize, Serialize};

use crate::tasks::{TaskGroup, Tasks};
use crate::{NodeReport, SetBy, StepEnv};

/// Limit of rows; NCCL has about two hundred variables, and no job sets all of them.
const MOST_ROWS: usize = 256;

/// One variable, as the processes of a job on one node had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// `NCCL_IB_HCA`
    pub name: String,
    /// Value that railgate set; `None` if it left the variable alone.
    pub wanted: Option<String>,
    /// Value that the processes had; `None` if it is neither in their environment nor in an NCCL configuration
    /// file.
    pub value: Option<String>,
    /// Origin of that value, or what removed the variable.
    pub by: AppliedBy,
    /// Number of processes with this value.
    pub processes: u32,
    /// Steps of these processes.
    pub steps: Vec<String>,
}

/// Origin of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppliedBy {
    /// Set by railgate.
    Railgate,
    /// Set by the user, before the task started or in a script of the task.
    User,
    /// Set or removed at the start of a container, by variables of its image or a runtime that passes none
    /// through.
    Image,
    /// Set by the user or the image: the processes were only seen inside a container.
    UserOrImage,
    /// Set in one of NCCL's configuration files.
    NcclFile,
}

impl AppliedBy {
    /// Name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            AppliedBy::Railgate => "railgate",
            AppliedBy::User => "user",
            AppliedBy::Image => "image",
            AppliedBy::UserOrImage => "user-or-image",
            AppliedBy::NcclFile => "nccl-file",
        }
    }
}

impl Applied {
    /// Whether railgate set a value and the processes had another one.
    pub fn overruled(&self) -> bool {
        self.wanted.is_some() && self.wanted != self.value
    }
}

/// Compares what railgate set on a node with what the processes there had. Processes that use NCCL are
/// compared; if none is known to use it, those that use CUDA; otherwise all processes of steps.
pub fn applied(report: &NodeReport, tasks: &Tasks) -> Vec<Applied> {
    let groups = that_count(tasks);
    let mut rows: Vec<Applied> = Vec::new();
    for group in &groups {
        let net = group.env.get("RAILGATE_NET").map_or(Net::Ib, |net| net.parse().unwrap_or(Net::Other));
        let meant = || report.settings.iter().filter(|setting| setting.fits(net));
        let mut names: Vec<&str> = meant().map(|setting| setting.name.as_str()).collect();
        names.extend(group.env.keys().chain(group.files.keys()).map(String::as_str));
        names.retain(|name| !name.starts_with("RAILGATE_"));
        names.sort_unstable();
        names.dedup();
        for name in names {
            let offered = meant().rfind(|setting| setting.name == name).map(|setting| &setting.value);
            let wanted = wanted(name, group, offered);
            let (value, by) = judge(name, wanted, group, &groups, &report.steps);
            if wanted.is_none() && value.is_none() {
                continue;
            }
            let same = |row: &Applied| row.name == name && row.value.as_ref() == value && row.by == by;
            let place = rows.iter().position(same);
            let room = rows.len() < MOST_ROWS;
            match place.and_then(|at| rows.get_mut(at)) {
                Some(row) => {
                    row.processes += group.processes;
                    if !row.steps.contains(&group.step) {
                        row.steps.push(group.step.clone());
                    }
                }
                None if room => rows.push(Applied {
                    name: name.to_owned(),
                    wanted: wanted.cloned(),
                    value: value.cloned(),
                    by,
                    processes: group.processes,
                    steps: vec![group.step.clone()],
                }),
                None => {}
            }
        }
    }
    rows.sort_by(|a, b| (&a.name, b.processes).cmp(&(&b.name, a.processes)));
    rows
}

fn that_count(tasks: &Tasks) -> Vec<&TaskGroup> {
    let steps = || tasks.groups.iter().filter(|group| group.step != "extern");
    let some = |pick: &dyn Fn(&&TaskGroup) -> bool| -> Option<Vec<&TaskGroup>> {
        let groups: Vec<&TaskGroup> = steps().filter(pick).collect();
        (!groups.is_empty()).then_some(groups)
    };
    some(&|group| group.nccl > 0)
        .or_else(|| some(&|group| group.cuda > 0))
        // A batch script only runs srun, and has the environment of the script instead of that of a task.
        .or_else(|| some(&|group| group.step != "batch" && group.step != "interactive"))
        .unwrap_or_else(|| steps().collect())
}

/// The value that railgate set in these processes. The plugin records it for each task, because it depends on
/// what the user set before.
fn wanted<'a>(name: &str, group: &'a TaskGroup, offered: Option<&'a String>) -> Option<&'a String> {
    if listed(&group.env, "RAILGATE_SET", name) {
        return group.env.get(&format!("RAILGATE_SET_{name}")).or(offered);
    }
    let came = group.env.contains_key("RAILGATE_JOB_DIR");
    offered.filter(|_| !came || listed(&group.env, "RAILGATE_KEPT", name))
}

fn judge<'g>(
    name: &str,
    wanted: Option<&String>,
    group: &'g TaskGroup,
    groups: &[&TaskGroup],
    steps: &[StepEnv],
) -> (Option<&'g String>, AppliedBy) {
    let script = if group.image { AppliedBy::Image } else { AppliedBy::User };
    let Some(value) = group.env.get(name) else {
        return match group.files.get(name) {
            Some(value) => (Some(value), AppliedBy::NcclFile),
            None => (None, script),
        };
    };
    let listed = |list: &str| listed(&group.env, list, name);
    let noted = steps
        .iter()
        .find(|step| step.step == group.step)
        .and_then(|step| step.settings.iter().find(|setting| setting.name == name));
    let by = if listed("RAILGATE_SET") {
        if wanted == Some(value) { AppliedBy::Railgate } else { script }
    } else if listed("RAILGATE_KEPT") {
        match noted {
            Some(noted) if noted.from == SetBy::Image => AppliedBy::Image,
            Some(noted) if noted.from == SetBy::User && noted.value != *value => script,
            _ => AppliedBy::User,
        }
    } else if !group.image || outside(name, value, groups) {
        AppliedBy::User
    } else {
        AppliedBy::UserOrImage
    };
    (Some(value), by)
}

fn listed(env: &BTreeMap<String, String>, list: &str, name: &str) -> bool {
    env.get(list).is_some_and(|names| names.split(',').any(|listed| listed == name))
}

/// Whether a process outside of any container has the same value.
fn outside(name: &str, value: &String, groups: &[&TaskGroup]) -> bool {
    groups.iter().any(|other| !other.image && other.env.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, part};

    fn group(step: &str, image: bool, env: &[(&str, &str)]) -> TaskGroup {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        TaskGroup { step: step.to_owned(), image, processes: 8, nccl: 8, env, ..TaskGroup::default() }
    }

    fn rows(groups: Vec<TaskGroup>) -> Vec<(String, Option<String>, AppliedBy)> {
        let mut report = part("n1", &job(0..8), "", vec![], 0);
        report.settings[0].value = "=a:1".to_owned();
        report.steps[0].settings[0].value = "mine".to_owned();
        let tasks = Tasks { groups, ..Tasks::default() };
        applied(&report, &tasks).into_iter().map(|row| (row.name, row.value, row.by)).collect()
    }

    fn one(group: TaskGroup) -> (Option<String>, AppliedBy) {
        let rows = rows(vec![group]);
        let row = rows.into_iter().find(|(name, _, _)| name == "NCCL_IB_HCA").unwrap();
        (row.1, row.2)
    }

    #[test]
    fn origin_of_a_value_follows_from_the_plugins_record() {
        let set = [("RAILGATE_SET", "X,NCCL_IB_HCA"), ("RAILGATE_SET_NCCL_IB_HCA", "=a:1")];
        let with = |value: &'static str, more: &[(&'static str, &'static str)]| {
            [&[("NCCL_IB_HCA", value)], more].concat()
        };
        let value = |text: &str| Some(text.to_owned());
        let cases = [
            (false, with("=a:1", &set), value("=a:1"), AppliedBy::Railgate),
            (false, with("mlx", &set), value("mlx"), AppliedBy::User),
            (true, with("mlx", &set), value("mlx"), AppliedBy::Image),
            (true, set.to_vec(), None, AppliedBy::Image),
            (false, vec![], None, AppliedBy::User),
            (false, with("mine", &[("RAILGATE_KEPT", "NCCL_IB_HCA")]), value("mine"), AppliedBy::User),
            (true, with("mine", &[("RAILGATE_KEPT", "NCCL_IB_HCA")]), value("mine"), AppliedBy::User),
            (true, with("other", &[("RAILGATE_KEPT", "NCCL_IB_HCA")]), value("other"), AppliedBy::Image),
            (true, with("mlx", &[]), value("mlx"), AppliedBy::UserOrImage),
        ];
        for (image, env, expected, by) in cases {
            assert_eq!(one(group("0", image, &env)), (expected, by), "{image} {env:?}");
        }
        let mut by_file = group("0", false, &[]);
        by_file.files.insert("NCCL_IB_HCA".to_owned(), "=b".to_owned());
        assert_eq!(one(by_file), (value("=b"), AppliedBy::NcclFile));
    }

    #[test]
    fn variable_that_the_plugin_skipped_counts_as_not_wanted() {
        let group = group("0", false, &[("RAILGATE_JOB_DIR", "/run"), ("RAILGATE_SET", "NCCL_DEBUG")]);
        assert_eq!(rows(vec![group]), []);
    }

    #[test]
    fn only_processes_with_nccl_are_compared() {
        let shell = TaskGroup { nccl: 0, ..group("0", false, &[("NCCL_ALGO", "Tree")]) };
        let batch = TaskGroup { nccl: 0, ..group("batch", false, &[("NCCL_P2P_LEVEL", "SYS")]) };
        let rank = group("0", false, &[("NCCL_DEBUG", "INFO")]);
        let names = |groups| -> Vec<String> { rows(groups).into_iter().map(|row| row.0).collect() };
        assert_eq!(names(vec![shell.clone(), batch.clone(), rank]), ["NCCL_DEBUG", "NCCL_IB_HCA"]);
        assert_eq!(names(vec![shell, batch.clone()]), ["NCCL_ALGO", "NCCL_IB_HCA"]);
        assert_eq!(names(vec![batch]), ["NCCL_IB_HCA", "NCCL_P2P_LEVEL"]);
    }

    #[test]
    fn user_is_the_origin_if_a_process_outside_the_container_has_the_value() {
        let outside = group("0", false, &[("NCCL_DEBUG", "INFO")]);
        let inside = group("1", true, &[("NCCL_DEBUG", "INFO"), ("NCCL_ALGO", "Tree")]);
        let rows = rows(vec![outside, inside]);
        let by = |name: &str| rows.iter().filter(|row| row.0 == name).map(|row| row.2).collect::<Vec<_>>();
        assert_eq!(by("NCCL_DEBUG"), [AppliedBy::User]);
        assert_eq!(by("NCCL_ALGO"), [AppliedBy::UserOrImage]);
    }
}
