use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuPersistence;

settings! {
    action = Drain;
    severity: Severity = Severity::Note, "the driver unloads an idle GPU";
}

impl Check for GpuPersistence {
    const ABOUT: &'static str = "persistence mode is off";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetPersistenceMode`.

Why: without it the driver unloads an idle GPU: every job start waits for seconds, and error counters are reset each time,
so that faults between jobs go unseen.

Fix: run `nvidia-persistenced`, or `nvidia-smi -pm 1` at boot.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} persistence mode");
            if out.value(&part, &what, SOURCE, &gpu.persistence) == Some(&false) {
                out.add(
                    Found::new(set.severity, Class::Site, part, "persistence mode is off")
                        .fix("run nvidia-persistenced")
                        .row(what, "off", "on", SOURCE),
                );
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetPersistenceMode";

#[cfg(test)]
mod tests {
    use railgate_model::Severity;

    use crate::testing::case;

    #[test]
    fn persistence_mode_off_is_a_note_by_default() {
        let off = case("h100-sxm:gpu-persistence-off@3");
        assert_eq!((off.summary(), off.of("gpu-persistence")), ("fit".to_owned(), vec![Severity::Note]));
        let strict = off.settings("[checks.gpu-persistence]\nseverity = \"warn\"");
        assert!(strict.summary().starts_with("degraded: warn gpu-persistence@3: persistence mode is off"));
    }
}
