//! Start and duration of each collective of a step.

use railgate_tests::training::{Group, Kind, LAYERS, STEP_S, kinds};

/// A collective of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) kind: Kind,
    /// Start in seconds after the begin of the step.
    pub(crate) at_s: f64,
}

/// The collectives of a step by start time. The forward pass gathers each layer; the backward pass gathers it again, scatters
/// its gradients within the node and sums them over the nodes.
pub(crate) fn of_step(per_node: u32) -> Vec<Planned> {
    const THERE: f64 = 0.27 * STEP_S;
    const BACK: f64 = 0.70 * STEP_S;
    let [gather, scatter, reduce, norm] = kinds(per_node);
    let mut all = Vec::new();
    let mut add = |kind: Kind, at_s: f64| all.push(Planned { kind, at_s });
    for layer in 0..LAYERS {
        let part = f64::from(layer) / f64::from(LAYERS);
        add(gather, THERE * part);
        let back = THERE + BACK * part;
        add(gather, back);
        add(scatter, back + 0.0035);
        add(reduce, back + 0.005);
    }
    add(norm, 0.975 * STEP_S);
    all.sort_by(|one, two| one.at_s.total_cmp(&two.at_s));
    all
}

/// A duration with a variation of up to 1.5 % either way, derived from `numbers`: rank, step and collective.
pub(crate) fn about(seconds: f64, numbers: [u32; 3]) -> f64 {
    let mut mixed: u64 = 0x9e37_79b9_7f4a_7c15;
    for number in numbers {
        mixed = (mixed ^ u64::from(number)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
    }
    #[expect(clippy::cast_precision_loss, reason = "20 bits")]
    let between = (mixed >> 44) as f64 / f64::from(1 << 20);
    seconds * (0.985 + 0.03 * between)
}

/// Number of ranks in a communicator, this rank's number in it, and the number of the communicator among those of its group.
pub(crate) fn members(group: Group, rank: u32, world: u32, per_node: u32) -> (u32, u32, u32) {
    let (node, local) = (rank / per_node, rank % per_node);
    match group {
        Group::Node => (per_node, local, node),
        Group::Rail => (world / per_node, node, local),
        Group::World => (world, rank, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_of_a_communicator_never_overlap() {
        for group in [Group::Node, Group::Rail, Group::World] {
            let (ranks, ..) = members(group, 11, 16, 8);
            let own: Vec<Planned> =
                of_step(8).into_iter().filter(|planned| planned.kind.group == group).collect();
            let mut free = 0.0;
            for planned in own {
                assert!(planned.at_s >= free, "{planned:?}");
                free = planned.at_s + 1.015 * planned.kind.seconds(ranks);
            }
            assert!(free < STEP_S);
        }
        assert_eq!(members(Group::Node, 11, 16, 8), (8, 3, 1));
        assert_eq!(members(Group::Rail, 11, 16, 8), (2, 1, 3));
    }

    #[test]
    fn about_varies_by_at_most_1_5_percent() {
        let all: Vec<f64> = (0..1000).map(|step| about(1.0, [3, step, 7])).collect();
        assert!(all.iter().all(|one| (0.985..=1.015).contains(one)));
        assert!((all.iter().sum::<f64>() / 1000.0 - 1.0).abs() < 0.002);
    }
}
