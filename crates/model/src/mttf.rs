//! Mean time to failure of a node, with its interval.

use serde::{Deserialize, Serialize};

use crate::gamma_quantile;

/// Confidence of the interval: 5 % beyond each end.
const CONFIDENCE: f64 = 0.90;

/// The estimate from a test that ended at a time, not at a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mttf {
    /// Hours that nodes worked, summed over all nodes.
    pub node_hours: f64,
    /// Failures.
    pub failures: u32,
    /// Jobs that were lost, and of which it is not known whether a node failed. They are not counted.
    #[serde(default)]
    pub unknown: u32,
    /// Hours of a node per failure; `None` without a failure.
    pub hours: Option<f64>,
    /// Lower end of the interval of 90 %, hours.
    pub lower: f64,
    /// Upper end, hours; `None` without a failure.
    pub upper: Option<f64>,
}

/// Returns the estimate, `None` if no node worked.
///
/// With T hours and r failures of an exponential distribution: T/r, from 2T/χ²(0.95; 2r+2) to 2T/χ²(0.05; 2r).
pub fn mttf(node_hours: f64, failures: u32, unknown: u32) -> Option<Mttf> {
    if !(node_hours.is_finite() && node_hours > 0.0) {
        return None;
    }
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let lower = 2.0 * node_hours / chi_square(1.0 - tail, failures + 1);
    let some = failures > 0;
    let upper = some.then(|| 2.0 * node_hours / chi_square(tail, failures));
    let hours = some.then(|| node_hours / f64::from(failures));
    Some(Mttf { node_hours, failures, unknown, hours, lower, upper })
}

/// Quantile of the chi-square distribution with `2 * half` degrees of freedom: twice that of the gamma distribution with shape `half`.
fn chi_square(share: f64, half: u32) -> f64 {
    2.0 * gamma_quantile(f64::from(half), share)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed tables of the chi-square distribution, for example NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4.
    #[test]
    fn quantiles_are_those_of_the_table() {
        for (share, degrees, want) in [
            (0.95, 2, 5.991),
            (0.95, 4, 9.488),
            (0.95, 10, 18.307),
            (0.95, 100, 124.342),
            (0.05, 2, 0.103),
            (0.05, 4, 0.711),
            (0.05, 10, 3.940),
            (0.05, 100, 77.929),
        ] {
            let got = chi_square(share, degrees / 2);
            assert!((got - want).abs() < 0.000_6, "{share} {degrees}: {got}");
        }
    }

    #[test]
    fn the_interval_follows_from_hours_and_failures() {
        let none = mttf(2996.0, 0, 0).unwrap();
        assert_eq!((none.hours, none.upper), (None, None));
        // 2 × 2996 / 5.991
        assert!((none.lower - 1000.1).abs() < 0.5, "{none:?}");
        let two = mttf(1000.0, 2, 0).unwrap();
        assert_eq!(two.hours, Some(500.0));
        assert!((two.lower - 2000.0 / 12.592).abs() < 0.05, "{two:?}");
        assert!((two.upper.unwrap() - 2000.0 / 0.711).abs() < 3.0, "{two:?}");
        assert_eq!((mttf(0.0, 1, 0), mttf(f64::NAN, 1, 0)), (None, None));
        let many = mttf(1e6, 5000, 0).unwrap();
        assert!(many.lower < 200.0 && many.lower > 190.0 && many.upper.unwrap() > 200.0, "{many:?}");
    }
}
