//! The file that `SLURM_HOSTFILE` names, for `srun --distribution=arbitrary`.

use railgate_text::shorten;

/// The longest name of a node, bytes.
const MAX_NAME: usize = 255;

/// A node and its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated<'a> {
    /// Name of the node in Slurm.
    pub name: &'a str,
    /// Number of tasks.
    pub tasks: u32,
}

/// A list of nodes that makes no hostfile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHostfile {
    /// Slurm would read the name as something else: a list, a count or a comment.
    #[error("'{0}' is not the name of a node")]
    Name(String),
    /// A node twice: its tasks would be apart.
    #[error("{0} is in the order twice")]
    Twice(String),
    /// No node has a task.
    #[error("no tasks")]
    Empty,
}

/// Returns the text of a hostfile: the name of a node for each of its tasks, one in a line, in the order of the ranks. Each Slurm release
/// from 22.05 on reads it; `srun` needs `--ntasks` with the number of lines. Nodes without tasks are left out.
///
/// Only `SLURM_PROCID` follows the file. Slurm sorts the nodes of such a step by name, so the first node of `SLURM_STEP_NODELIST`
/// need not have rank 0, and `SLURM_NODEID` is no rank.
///
/// # Errors
/// [`BadHostfile`].
pub fn hostfile(nodes: &[Allocated<'_>]) -> Result<String, BadHostfile> {
    let mut seen = std::collections::HashSet::new();
    let mut text = String::new();
    for node in nodes {
        let host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if node.name.is_empty() || node.name.len() > MAX_NAME || !node.name.bytes().all(host) {
            return Err(BadHostfile::Name(shorten(node.name, 80)));
        }
        if !seen.insert(node.name) {
            return Err(BadHostfile::Twice(node.name.to_owned()));
        }
        for _ in 0..node.tasks {
            text.push_str(node.name);
            text.push('\n');
        }
    }
    if text.is_empty() { Err(BadHostfile::Empty) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: &[(&str, u32)]) -> Result<String, BadHostfile> {
        let nodes: Vec<_> = nodes.iter().map(|(name, tasks)| Allocated { name, tasks: *tasks }).collect();
        hostfile(&nodes)
    }

    #[test]
    fn each_task_has_a_line() {
        assert_eq!(
            of(&[("gn2", 2), ("r1-gn1.cluster", 1), ("idle", 0)]).unwrap(),
            "gn2\ngn2\nr1-gn1.cluster\n"
        );
    }

    #[test]
    fn names_that_slurm_reads_otherwise_are_refused() {
        for name in
            ["gn[1-2]", "gn1,gn2", "gn1*3", "#gn1", "gn 1", "gn1\ngn2", "", "gn\u{e4}", &"n".repeat(256)]
        {
            assert!(matches!(of(&[(name, 1)]), Err(BadHostfile::Name(_))), "{name:?}");
        }
        assert_eq!(of(&[("gn1", 1), ("gn2", 1), ("gn1", 1)]), Err(BadHostfile::Twice("gn1".to_owned())));
        assert_eq!(of(&[("gn1", 0)]), Err(BadHostfile::Empty));
        assert_eq!(of(&[]), Err(BadHostfile::Empty));
    }
}
