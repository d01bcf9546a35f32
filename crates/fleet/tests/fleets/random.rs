//! Random numbers that are the same on every machine and in every release: SplitMix64.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        // Mixed twice: the streams of neighbouring seeds would be the same one, shifted.
        let mut mixed = Random(seed);
        let state = mixed.next();
        Random(state ^ mixed.next().rotate_left(32))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0 and below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }

    /// With this median, and the standard deviation of its logarithm.
    pub(crate) fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    /// The sum of `shape` exponentials with the mean 1 altogether.
    pub(crate) fn erlang(&mut self, shape: u32) -> f64 {
        (0..shape).map(|_| self.exponential(1.0 / f64::from(shape))).sum()
    }

    pub(crate) fn poisson(&mut self, mean: f64) -> usize {
        let (mut count, mut sum) = (0, self.exponential(1.0));
        while sum < mean {
            count += 1;
            sum += self.exponential(1.0);
        }
        count
    }

    pub(crate) fn weighted<T: Copy>(&mut self, of: &[(T, f64)]) -> T {
        let mut left = self.unit() * of.iter().map(|(_, weight)| weight).sum::<f64>();
        for (what, weight) in of {
            left -= weight;
            if left < 0.0 {
                return *what;
            }
        }
        of[0].0
    }
}
