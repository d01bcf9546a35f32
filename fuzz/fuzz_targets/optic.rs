//! Arbitrary bytes as the memory of a transceiver module: decoded or refused, and no finding drains.

#![no_main]

#[path = "judged.rs"]
mod judged;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_simulate::{parse, simulated};
use railgate_model::{Optic, Part, Profile, Reading, Snapshot};
use railgate_probe::module_of_dump;

static MACHINE: LazyLock<(Profile, Snapshot)> = LazyLock::new(|| {
    let (profile, _) = parse("h100-sxm", &[]).expect("a profile that is built in");
    let snapshot = simulated(&profile, &[]);
    (profile, snapshot)
});

fuzz_target!(|memory: &[u8]| {
    let (profile, healthy) = &*MACHINE;
    let module = match module_of_dump(memory) {
        Ok(module) => {
            let monitors = [&module.temperature_c, &module.receive_mw, &module.bias_ma];
            for monitor in monitors.into_iter().flatten() {
                assert!(monitor.values.len() <= 8 && monitor.values.iter().all(|value| value.is_finite()));
            }
            assert!(!module.copper || module.receive_mw.is_none());
            Reading::Known(module)
        }
        Err(why) => Reading::Failed(why),
    };
    let optic = Optic { device: "mlx5_2".to_owned(), interface: "ib2".to_owned(), module };
    let mut snapshot = healthy.clone();
    snapshot.extras.optics = Some(Part::Read { data: vec![optic], took_ms: 1.0 });
    judged::judged(&snapshot, None, profile);
});
