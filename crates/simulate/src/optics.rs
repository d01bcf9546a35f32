use railgate_model::{Hca, Limits, Module, Monitor, Optic, Part, Reading};

use super::FabricFault;

/// Applies a fault to the module in a port; the other modules are healthy. Returns `false` if it is not a fault of a
/// module.
pub(super) fn apply(
    hcas: &[Hca],
    optics: &mut Option<Part<Vec<Optic>>>,
    fault: FabricFault,
    place: usize,
) -> bool {
    let change: fn(&mut Optic) = match fault {
        FabricFault::OpticHot => |optic| {
            on(optic, |module| {
                set(&mut module.temperature_c, 0, 71.5);
                module.warnings.push("temperature high".to_owned());
            });
        },
        FabricFault::OpticDark => |optic| {
            on(optic, |module| {
                set(&mut module.receive_mw, 1, 0.01);
                module.alarms.push("receive power low (lane 2)".to_owned());
            });
        },
        FabricFault::OpticDim => |optic| on(optic, |module| set(&mut module.receive_mw, 1, 0.12)),
        FabricFault::OpticUneven => |optic| on(optic, |module| set(&mut module.receive_mw, 1, 0.45)),
        FabricFault::OpticAgeing => |optic| on(optic, |module| set(&mut module.bias_ma, 1, 9.4)),
        FabricFault::OpticUnreadable => |optic| {
            optic.module = Reading::Failed(format!("{}: module: EIO: I/O error", optic.interface));
        },
        FabricFault::OpticCopper => |optic| {
            on(optic, |module| {
                module.copper = true;
                (module.temperature_c, module.receive_mw, module.bias_ma) = (None, None, None);
            });
        },
        _ => return false,
    };
    let healthy = || Part::Read { data: hcas.iter().map(healthy).collect(), took_ms: 210.0 };
    if let Part::Read { data, .. } = optics.get_or_insert_with(healthy)
        && let Some(optic) = data.get_mut(place)
    {
        change(optic);
    }
    true
}

fn on(optic: &mut Optic, change: impl FnOnce(&mut Module)) {
    if let Reading::Known(module) = &mut optic.module {
        change(module);
    }
}

fn set(monitor: &mut Option<Monitor>, lane: usize, value: f64) {
    if let Some(place) = monitor.as_mut().and_then(|monitor| monitor.values.get_mut(lane)) {
        *place = value;
    }
}

fn healthy(hca: &Hca) -> Optic {
    let limits = |high_alarm, low_alarm, high_warning, low_warning| {
        Some(Limits { high_alarm, low_alarm, high_warning, low_warning })
    };
    let name = ["NVIDIA", "MMA4Z00-NS", "MT2306FT07"].map(str::to_owned);
    Optic {
        device: hca.name.clone(),
        interface: hca.netdevs.first().cloned().unwrap_or_default(),
        module: Reading::Known(Module {
            name,
            copper: false,
            temperature_c: Some(Monitor { values: vec![48.0], limits: limits(75.0, -5.0, 70.0, 0.0) }),
            receive_mw: Some(Monitor {
                values: vec![1.1, 1.0, 1.2, 1.1],
                limits: limits(3.5, 0.06, 2.8, 0.1),
            }),
            bias_ma: Some(Monitor { values: vec![7.0, 7.1, 6.9, 7.0], limits: limits(10.0, 2.0, 9.5, 2.5) }),
            alarms: Vec::new(),
            warnings: Vec::new(),
        }),
    }
}
