use serde::{Deserialize, Serialize};

use crate::Reading;

/// The module in a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optic {
    /// The RDMA device: `mlx5_2`.
    pub device: String,
    /// Its interface, through which the module was read.
    pub interface: String,
    /// Its data; unsupported if this kernel, driver or port cannot access the module.
    pub module: Reading<Module>,
}

/// The data in a module's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Vendor, part number and serial number.
    pub name: [String; 3],
    /// It is a copper cable, which has no monitors.
    pub copper: bool,
    /// Temperature, degrees Celsius.
    pub temperature_c: Option<Monitor>,
    /// Received power of the lanes in use, milliwatts.
    pub receive_mw: Option<Monitor>,
    /// Bias current of the lanes in use, milliamperes.
    pub bias_ma: Option<Monitor>,
    /// Flags that the module has raised, in words: `receive power low (lane 2)`.
    pub alarms: Vec<String>,
    /// The same for flags that are only warnings.
    pub warnings: Vec<String>,
}

/// Values of one kind, one per lane, and what the module itself takes for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Monitor {
    /// One per lane; one for the whole module.
    pub values: Vec<f64>,
    /// The module's own limits, where it has them.
    pub limits: Option<Limits>,
}

/// Limits in the unit of their values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say all")]
pub struct Limits {
    pub high_alarm: f64,
    pub low_alarm: f64,
    pub high_warning: f64,
    pub low_warning: f64,
}
