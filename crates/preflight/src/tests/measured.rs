//! The noise of healthy pairs as it was measured: docs/accuracy.md, "Results of healthy pairs".

/// Values as shares of the median of their preflight, by the share of the values below them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) bandwidth: [f64; SHARES.len()],
    pub(super) latency: [f64; SHARES.len()],
    /// The share of the lowest bandwidths that is left out: moments in which a process of a shared machine did not run.
    pub(super) without: f64,
    /// 1 as measured; a wider one multiplies each distance from the median.
    pub(super) width: f64,
}

/// Shares of the values, in per cent.
const SHARES: [f64; 15] =
    [0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 100.0];

impl Measured {
    /// A bandwidth as a share of the median. `share`: from 0 to below 1.
    pub(super) fn bandwidth(&self, share: f64) -> f64 {
        let share = self.without + share * (1.0 - self.without);
        (1.0 + (drawn(&self.bandwidth, share) - 1.0) * self.width).max(0.01)
    }

    /// A latency as a share of the median: its distances are factors.
    pub(super) fn latency(&self, share: f64) -> f64 {
        drawn(&self.latency, share).powf(self.width)
    }
}

/// The value below which this share of the values is, between two measured ones on a line.
fn drawn(values: &[f64; SHARES.len()], share: f64) -> f64 {
    let percent = share * 100.0;
    let above = SHARES.iter().position(|limit| percent < *limit).unwrap_or(SHARES.len() - 1).max(1);
    let (low, high) = (SHARES[above - 1], SHARES[above]);
    let part = (percent - low) / (high - low);
    values[above - 1] + (values[above] - values[above - 1]) * part
}

/// Two rails of four nodes on rxe devices in an emulated machine, limited to 8 Mb/s: 100 directions, 216 latencies.
pub(super) const RXE: Measured = Measured {
    bandwidth: [
        0.7421, 0.7421, 0.7421, 0.7421, 0.8223, 0.8962, 0.9179, 0.9839, 0.9996, 1.0042, 1.0115, 1.0221,
        1.0318, 1.0386, 1.0404,
    ],
    latency: [
        0.1565, 0.1565, 0.2531, 0.2789, 0.3170, 0.3615, 0.4613, 0.6332, 0.9954, 1.2033, 1.6177, 1.9532,
        2.8840, 3.1941, 4.3671,
    ],
    without: 0.0,
    width: 1.0,
};

/// One connection between four nodes in namespaces, limited to 800 Mb/s: 208 directions, 104 latencies.
pub(super) const TCP: Measured = Measured {
    bandwidth: [
        0.6835, 0.6835, 0.7123, 0.7180, 0.8185, 0.8548, 0.9083, 0.9595, 0.9999, 1.0122, 1.0341, 1.0445,
        1.0550, 1.0622, 1.0760,
    ],
    latency: [
        0.9749, 0.9749, 0.9749, 0.9766, 0.9772, 0.9903, 0.9949, 0.9970, 1.0000, 1.0004, 1.0047, 1.0081,
        1.0119, 1.0131, 1.5522,
    ],
    without: 0.0,
    width: 1.0,
};
