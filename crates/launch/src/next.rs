//! What follows when a start has ended: the evidence about its nodes decides whether the program is started again, and without which
//! nodes.

/// What is known about a node of a start that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSign {
    /// Root has checked it after the step and found it fit.
    Fit,
    /// Slurm has it down, root's check found it unfit, or railgate has drained it: the reason.
    Bad(String),
    /// It does not answer, and Slurm has not decided yet.
    Silent,
    /// No check, or one without a result: the reason.
    Unknown(String),
}

/// What is known about a start that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit code of srun.
    pub code: u8,
    /// Slurm or the job's owner ends the job, or has asked that the program ends: how.
    pub stopped: Option<String>,
    /// The guard ended the steps, because the job hung.
    pub hung: bool,
    /// The nodes of the start.
    pub nodes: Vec<(String, NodeSign)>,
}

/// How often the program may still be started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// For faults of nodes and hangs.
    pub restarts: u32,
    /// Without a known cause.
    pub unknown: u32,
}

/// Why the program is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// At least one node failed.
    Node,
    /// The job hung, and the guard ended its steps.
    Hang,
    /// No cause is known (`--retry-unknown`). Never counts as a failure of a node.
    Unknown,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The program ended with exit code 0.
    Done,
    /// Nodes do not answer: ask again later.
    Wait(Vec<String>),
    /// Start again without these nodes, each with the reason.
    Again(Cause, Vec<(String, String)>),
    /// Not started again.
    End(End),
}

/// Why the program is not started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Slurm or the job's owner ended it: how.
    Stopped(String),
    /// All nodes are fit, so that the program is at fault.
    Program,
    /// The cause cannot be known: why.
    Unknown(String),
    /// A node failed or the job hung, and all restarts are used. The nodes, each with the reason.
    Spent(Cause, Vec<(String, String)>),
}

/// Decides what follows. Evidence comes before the exit code, which says nothing about the cause; only exit code 0 is final.
pub fn next(ended: &Ended, left: Left) -> Next {
    if ended.code == 0 {
        return Next::Done;
    }
    if let Some(how) = &ended.stopped {
        return Next::End(End::Stopped(how.clone()));
    }
    let bad = |sign: &NodeSign| if let NodeSign::Bad(why) = sign { Some(why.clone()) } else { None };
    let bad = ended.nodes.iter().filter_map(|(node, sign)| Some((node.clone(), bad(sign)?)));
    let bad: Vec<(String, String)> = bad.collect();
    let silent = ended.nodes.iter().filter(|(_, sign)| *sign == NodeSign::Silent);
    let silent: Vec<String> = silent.map(|(node, _)| node.clone()).collect();
    // A second node may have failed as well: starting on it would use up a restart.
    if !silent.is_empty() {
        return Next::Wait(silent);
    }
    let cause = match (bad.is_empty(), ended.hung) {
        (false, _) => Cause::Node,
        (true, true) => Cause::Hang,
        (true, false) => return without_cause(ended, left),
    };
    if left.restarts == 0 {
        return Next::End(End::Spent(cause, bad));
    }
    Next::Again(cause, bad)
}

fn without_cause(ended: &Ended, left: Left) -> Next {
    let mut unknown = ended.nodes.iter().filter_map(|(node, sign)| match sign {
        NodeSign::Unknown(why) => Some((node, why)),
        _ => None,
    });
    let Some((first, why)) = unknown.next() else { return Next::End(End::Program) };
    if left.unknown > 0 {
        return Next::Again(Cause::Unknown, Vec::new());
    }
    let others = match unknown.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Next::End(End::Unknown(format!("{first}{others}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Left = Left { restarts: 1, unknown: 0 };

    fn ended(code: u8, signs: &[NodeSign]) -> Ended {
        let nodes =
            signs.iter().enumerate().map(|(at, sign)| (format!("gn{}", at + 1), sign.clone())).collect();
        Ended { code, stopped: None, hung: false, nodes }
    }

    fn lost() -> NodeSign {
        NodeSign::Bad("down".to_owned())
    }

    fn unchecked() -> NodeSign {
        NodeSign::Unknown("no check".to_owned())
    }

    fn gn(number: u32) -> Vec<(String, String)> {
        vec![(format!("gn{number}"), "down".to_owned())]
    }

    #[test]
    fn a_program_that_succeeds_is_done_even_on_a_bad_node() {
        assert_eq!(next(&ended(0, &[lost()]), ONE), Next::Done);
    }

    #[test]
    fn a_bad_node_is_left_out() {
        let two = [NodeSign::Fit, lost()];
        assert_eq!(next(&ended(1, &two), ONE), Next::Again(Cause::Node, gn(2)));
        let none = Left { restarts: 0, unknown: 9 };
        assert_eq!(next(&ended(1, &two), none), Next::End(End::Spent(Cause::Node, gn(2))));
    }

    #[test]
    fn a_program_that_fails_on_fit_nodes_is_not_started_again() {
        let left = Left { restarts: 9, unknown: 9 };
        for code in [1, 137, 139, 255] {
            assert_eq!(next(&ended(code, &[NodeSign::Fit, NodeSign::Fit]), left), Next::End(End::Program));
        }
    }

    #[test]
    fn without_a_check_the_cause_is_unknown() {
        let ended = ended(1, &[NodeSign::Fit, unchecked(), unchecked()]);
        let why = "gn2, and 1 more: no check".to_owned();
        assert_eq!(next(&ended, ONE), Next::End(End::Unknown(why)));
        let asked = Left { restarts: 0, unknown: 1 };
        assert_eq!(next(&ended, asked), Next::Again(Cause::Unknown, Vec::new()));
    }

    #[test]
    fn a_node_that_does_not_answer_is_waited_for_even_beside_a_bad_one() {
        let ended = ended(1, &[lost(), NodeSign::Silent]);
        assert_eq!(next(&ended, ONE), Next::Wait(vec!["gn2".to_owned()]));
    }

    #[test]
    fn a_hang_is_a_cause_and_leaves_out_only_bad_nodes() {
        let hung = |signs: &[NodeSign]| Ended { hung: true, ..ended(143, signs) };
        assert_eq!(next(&hung(&[NodeSign::Fit]), ONE), Next::Again(Cause::Hang, Vec::new()));
        assert_eq!(next(&hung(&[unchecked()]), ONE), Next::Again(Cause::Hang, Vec::new()));
        assert_eq!(next(&hung(&[NodeSign::Fit, lost()]), ONE), Next::Again(Cause::Node, gn(2)));
    }

    #[test]
    fn a_job_that_is_stopped_is_not_started_again() {
        let stopped = Ended { stopped: Some("cancelled".to_owned()), hung: true, ..ended(143, &[lost()]) };
        assert_eq!(next(&stopped, ONE), Next::End(End::Stopped("cancelled".to_owned())));
    }
}
