//! How long each test works.

use std::time::Duration;

use clap::ValueEnum;

use crate::gemm::Planted;
use crate::kernels::Shape;
use crate::rate::Load;

/// Length of the whole test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Length {
    /// At most 10 s for eight GPUs.
    Quick,
    /// At most 90 s.
    Full,
    /// The tests of `full` again and again, for `--seconds`.
    Burn,
}

/// Repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) shape: Shape,
    pub(crate) products: u32,
    pub(crate) copies: u32,
    pub(crate) patterns: u32,
    pub(crate) rate: Load,
}

impl Length {
    pub(crate) fn times(self, shape: Shape) -> Times {
        // Twice the side of the value check: large products reach a card's full rate.
        let load = |ms| Load { side: 2 * shape.side, measured: Duration::from_millis(ms) };
        match self {
            Length::Quick => Times { shape, products: 50, copies: 8, patterns: 1, rate: load(250) },
            Length::Full | Length::Burn => {
                Times { shape, products: 1000, copies: 40, patterns: 8, rate: load(2000) }
            }
        }
    }

    /// Seconds of patience with a GPU.
    pub(crate) fn deadline(self) -> u64 {
        match self {
            Length::Quick => 60,
            Length::Full | Length::Burn => 300,
        }
    }
}

/// Bits to flip, of each test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plants {
    pub(crate) product: Planted,
    pub(crate) pattern: Option<(u64, u32)>,
}
