use serde::{Deserialize, Serialize};

/// `[launch]`: how often `railgate launch` may start a program again inside its allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LaunchConfig {
    /// Most restarts in one attempt of a job, over all causes. `--restarts` can only lower it.
    pub max_restarts: u32,
}

impl Default for LaunchConfig {
    fn default() -> Self {
        LaunchConfig { max_restarts: 10 }
    }
}

/// A job that needs more than this has another problem.
const MOST: u32 = 1000;

impl LaunchConfig {
    /// Values out of range, one line each.
    pub fn problems(&self) -> Vec<String> {
        let is = self.max_restarts;
        let wrong = (is > MOST).then(|| format!("launch.max_restarts: {is} is above {MOST}"));
        wrong.into_iter().collect()
    }
}
