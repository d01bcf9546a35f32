use std::io;

use railgate_rundir::{RunDir, Used, UserDir, Winner};
use railgate_stats::{SetBy, StepEnv, StepSetting};

/// The plugin notes at most so many steps, each in a small file.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 512 << 10;

/// What the tasks of each step had, as the plugin noted it in the user's directory. The job could write
/// there too, so it is shown and decides nothing.
pub(crate) fn steps(dir: &RunDir, uid: u32) -> Vec<StepEnv> {
    let user = match UserDir::open(dir, uid) {
        Ok(user) => user,
        Err(why) => {
            if why.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {why}", dir.user().display());
            }
            return Vec::new();
        }
    };
    let names = user.names(MOST_FILES).map(|(names, _)| names).unwrap_or_default();
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
    steps
}

/// A value that was overruled stands before ours in the file.
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
    fn the_values_users_and_railgates_are_told_apart() {
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
