use railgate_node::{Gpu, Reading};

use crate::scene::Scene;

/// A GPU before the job, in the same boot, and how long ago that was. Counters are judged over such a window
/// only; a first look has none.
pub(super) struct Window<'a> {
    pub(super) before: &'a Gpu,
    pub(super) millis: u64,
}

impl<'a> Window<'a> {
    pub(super) fn of(scene: &Scene<'a>, gpu: &Gpu) -> Option<Window<'a>> {
        let before = scene.before(gpu)?;
        let millis = scene.now.taken.checked_sub(scene.seen.before?.taken)?;
        Some(Window { before, millis })
    }

    /// What a counter rose by. `None` where it went backwards (the driver was loaded anew) or is not known.
    pub(super) fn rose(&self, gpu: &Gpu, counter: impl Fn(&Gpu) -> &Reading<u64>) -> Option<u64> {
        counter(gpu).known()?.checked_sub(*counter(self.before).known()?)
    }

    /// How much of a rate is allowed in this window; a short one counts as a whole unit.
    pub(super) fn allowed(&self, each: u64, unit_ms: u64) -> u64 {
        each.saturating_mul(self.millis.div_ceil(unit_ms).max(1))
    }

    /// `in 3 min`
    pub(super) fn text(&self) -> String {
        format!("in {} min", self.millis.div_ceil(60_000).max(1))
    }
}
