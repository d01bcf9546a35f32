//! Whether Slurm orders the tasks of a step by topology without help.

use super::Shape;

/// The first release that does, year and month.
const FIRST: (u32, u32) = (26, 5);

/// Returns whether Slurm itself lays out the tasks of a step in the order of the topology, so that no hostfile is needed.
///
/// From 26.05 on, `select/cons_tres` ranks the nodes of a job by leaf, block, ring or torus, unless `SelectTypeParameters` has
/// `CR_NO_DIST_TOPO_BLOCK`. Leafs follow in the order in which the configuration lists them, so those of a spine are neighbours only
/// if the configuration lists them so. A step with `--distribution=cyclic`, `plane` or `arbitrary` is laid out as it asks.
///
/// `release` is `SLURM_VERSION` of `scontrol show config`, for example `26.05.5`; the others are its `SelectType` and
/// `SelectTypeParameters`. `shape` is that of the text of `scontrol show topology`: with a `topology.yaml`, `TopologyPlugin` of
/// `scontrol show config` is `topology/flat` even if the default topology is a tree (26.05.5).
///
/// Returns `false` for a release that is not understood: a hostfile is right on all of them.
pub fn slurm_orders_itself(
    release: &str,
    select_type: &str,
    select_parameters: &str,
    shape: Option<Shape>,
) -> bool {
    let mut numbers = release.split('.').map(str::parse::<u32>);
    let (Some(Ok(year)), Some(Ok(month))) = (numbers.next(), numbers.next()) else { return false };
    let has = |name: &str| {
        select_parameters.split(',').any(|parameter| parameter.trim().eq_ignore_ascii_case(name))
    };
    (year, month) >= FIRST
        && select_type.trim() == "select/cons_tres"
        && !has("CR_NO_DIST_TOPO_BLOCK")
        && shape.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_orders_tasks_from_26_05_on() {
        let of = |release: &str, parameters: &str, shape| {
            slurm_orders_itself(release, "select/cons_tres", parameters, shape)
        };
        for shape in [Shape::Tree, Shape::Block, Shape::Ring, Shape::Torus] {
            assert!(of("26.05.5", "CR_CORE_MEMORY", Some(shape)));
        }
        assert!(of("27.05.0-0rc1", "CR_CORE", Some(Shape::Tree)));
        for release in ["22.05.8", "24.11.5", "25.11.7", "26", "", "x.05", "unknown"] {
            assert!(!of(release, "CR_CORE", Some(Shape::Tree)), "{release}");
        }
        // No topology, the parameter that reverts it, and the plugin that has no ranks.
        assert!(!of("26.05.5", "CR_CORE", None));
        assert!(!of("26.05.5", "CR_CORE,CR_NO_DIST_TOPO_BLOCK", Some(Shape::Tree)));
        assert!(!of("26.05.5", "cr_core, cr_no_dist_topo_block", Some(Shape::Tree)));
        assert!(!slurm_orders_itself("26.05.5", "select/linear", "", Some(Shape::Tree)));
    }
}
