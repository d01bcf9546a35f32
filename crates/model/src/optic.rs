use serde::{Deserialize, Serialize};

use crate::Reading;

/// The transceiver or cable module in a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optic {
    /// RDMA device, for example `mlx5_2`.
    pub device: String,
    /// The device's interface, through which the module was read.
    pub interface: String,
    /// Its data; unsupported if kernel, driver or port give no access to the module.
    pub module: Reading<Module>,
}

/// The data in a module's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Vendor, part number and serial number.
    pub name: [String; 3],
    /// Whether it is a copper cable, which has no monitors.
    pub copper: bool,
    /// Temperature, degrees Celsius.
    pub temperature_c: Option<Monitor>,
    /// Received power of the used lanes, milliwatts.
    pub receive_mw: Option<Monitor>,
    /// Bias current of the used lanes, milliamperes.
    pub bias_ma: Option<Monitor>,
    /// Alarm flags that the module has raised, in words, for example `receive power low (lane 2)`.
    pub alarms: Vec<String>,
    /// Warning flags, likewise.
    pub warnings: Vec<String>,
}

/// Values of one quantity, and the module's own limits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Monitor {
    /// One value per lane, or one for the whole module.
    pub values: Vec<f64>,
    /// The module's limits, if it has them.
    pub limits: Option<Limits>,
}

/// Limits, in the unit of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say all")]
pub struct Limits {
    pub high_alarm: f64,
    pub low_alarm: f64,
    pub high_warning: f64,
    pub low_warning: f64,
}
