use std::io;
use std::path::PathBuf;
use std::time::Duration;

use railgate_child::Task;
use railgate_node_report::{SetBy, StepEnv, StepSetting};
use railgate_rundir::{Root, RunDir, Used, UserDir, Winner};
use railgate_runner::Hook;

const READ: &str = "read-steps";

/// Runs in a child: the job's owner could mount a file system there that never answers.
pub(crate) const TASK: Task = Task::new(READ, task);

const DEADLINE: Duration = Duration::from_secs(5);

/// Most step files; the plugin writes at most this many, each small.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 512 << 10;

/// Settings of the tasks of each step, as the plugin noted them in the user's directory. The job can write there too,
/// so they are displayed and decide nothing.
pub(crate) fn steps(hook: &Hook) -> Vec<StepEnv> {
    let order = (&hook.places.run, hook.job.id, hook.job.uid);
    let read = serde_json::to_vec(&order)
        .map_err(|why| why.to_string())
        .and_then(|order| railgate_child::ask(READ, &order, DEADLINE))
        .and_then(|reply| serde_json::from_slice(&reply).map_err(|why| why.to_string()));
    read.unwrap_or_else(|why| {
        tracing::warn!(job = hook.job.id, "the variables of the tasks are unknown: {why}");
        Vec::new()
    })
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let (root, job, uid): (PathBuf, u32, u32) =
        serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let dir = Root::new(root).job(job).current(job).map_err(|why| why.to_string())?;
    let steps = read(&dir, uid).map_err(|why| format!("{}: {why}", dir.user().display()))?;
    serde_json::to_vec(&steps).map_err(|why| why.to_string())
}

fn read(dir: &RunDir, uid: u32) -> io::Result<Vec<StepEnv>> {
    let user = match UserDir::open(dir, uid) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let (names, _) = user.names(MOST_FILES)?;
    let mut steps: Vec<StepEnv> = names
        .iter()
        .filter_map(|name| {
            let step = name.to_str()?.strip_prefix("env.")?;
            let content = user.read(name, MOST_BYTES).ok()?;
            let plain = step.len() <= 16 && step.bytes().all(|byte| byte.is_ascii_alphanumeric());
            plain.then(|| StepEnv { step: step.to_owned(), settings: settings(&Used::parse(&content)) })
        })
        .collect();
    steps.sort_by_key(|step| (step.step.parse::<u32>().ok(), step.step.clone()));
    Ok(steps)
}

/// In the file, an overruled value precedes railgate's value.
fn settings(used: &[Used]) -> Vec<StepSetting> {
    let mut overruled: Option<&Used> = None;
    let mut settings = Vec::new();
    for line in used {
        if line.winner == Winner::Overruled {
            overruled = Some(line);
            continue;
        }
        let instead_of = overruled.take().filter(|put_aside| put_aside.name == line.name);
        settings.push(StepSetting {
            name: line.name.clone(),
            value: line.value.clone(),
            from: match (line.winner, instead_of) {
                (Winner::User, _) => SetBy::User,
                (Winner::Image, _) => SetBy::Image,
                (_, Some(_)) => SetBy::Forced,
                (_, None) => SetBy::Railgate,
            },
            instead_of: instead_of.map(|put_aside| put_aside.value.clone()),
        });
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_user_and_of_railgate_are_distinguished() {
        let used = [
            Used::new(Winner::Railgate, "A", b"1"),
            Used::new(Winner::User, "B", b"theirs"),
            Used::new(Winner::Overruled, "C", b"theirs"),
            Used::new(Winner::Railgate, "C", b"ours"),
        ];
        let settings = settings(&used);
        let shown: Vec<_> = settings
            .iter()
            .map(|s| (s.name.as_str(), s.value.as_str(), s.from, s.instead_of.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                ("A", "1", SetBy::Railgate, None),
                ("B", "theirs", SetBy::User, None),
                ("C", "ours", SetBy::Forced, Some("theirs")),
            ]
        );
    }
}
