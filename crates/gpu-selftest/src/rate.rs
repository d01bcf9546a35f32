//! How fast a card multiplies with cuBLASLt, and its clock, power and temperature meanwhile.
//!
//! The inputs are normal random numbers with a standard deviation of 1, as far as the type can hold them. A card's power, and with it its
//! clock, depends on the bits that change: with zeros, or with the small integers of the value check, a card is faster than in training.

use std::cell::OnceCell;
use std::f64::consts::TAU;
use std::sync::OnceLock;
use std::time::Duration;

use cudarc::cublaslt::sys::{cublasComputeType_t as Compute, cudaDataType as Data};
use nvml_wrapper::Nvml;

use crate::card::observed;
use crate::cublaslt::{CublasLt, NotLoaded, Product, Types};
use crate::cuda::{Buffer, Context, Device};
use crate::kernels::{Cycles, Kernels};
use crate::said::{Outcome, Said};
use crate::stop::Stop;

/// Products before those that are measured, so that the library's kernel is loaded and the clock has reached what the power allows.
const WARM_UP: Duration = Duration::from_millis(100);
/// Random numbers, which repeat to the end of a matrix. Not a multiple of a row, so that neighbouring tiles differ.
const NUMBERS: usize = 1_000_448;

/// Type of a product.
#[derive(Clone, Copy, Debug)]
struct Rated {
    name: &'static str,
    /// Bits of the exponent and of the fraction of an input; one more is its sign.
    bits: (u32, u32),
    input: Data,
    result: Data,
    compute: Compute,
    /// Compute capability from which on a card has it.
    since: u32,
}

const TYPES: [Rated; 5] = [
    rated("bf16", (8, 7), Data::CUDA_R_16BF, Data::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F, 80),
    rated("fp16", (5, 10), Data::CUDA_R_16F, Data::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F, 80),
    rated("tf32", (8, 23), Data::CUDA_R_32F, Data::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32, 80),
    // Scales are left out, which are then 1.
    rated("fp8", (4, 3), Data::CUDA_R_8F_E4M3, Data::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F, 89),
    // Without the tensor cores.
    rated("fp32", (8, 23), Data::CUDA_R_32F, Data::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F, 0),
];

const fn rated(
    name: &'static str,
    bits: (u32, u32),
    input: Data,
    result: Data,
    compute: Compute,
    since: u32,
) -> Rated {
    Rated { name, bits, input, result, compute, since }
}

impl Rated {
    fn types(self) -> Types {
        let input_bytes = bytes(self.bits);
        let result_bytes = if self.result == Data::CUDA_R_32F { 4 } else { 2 };
        Types { input: self.input, input_bytes, result: self.result, result_bytes, compute: self.compute }
    }
}

/// What is multiplied, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) side: u32,
    /// Of each type.
    pub(crate) measured: Duration,
}

/// Measures each type.
pub(crate) fn test(
    nvml: Option<&Nvml>,
    device: &Device,
    context: &Context,
    kernels: &Kernels<'_>,
    (load, stop): (Load, &Stop),
    say: &dyn Fn(Said),
) {
    let library = OnceCell::new();
    for of in TYPES.into_iter().take_while(|_| !stop.is_due()) {
        let name = format!("gemm-rate-{}", of.name);
        if device.capability < of.since {
            say(Said::not_applicable(name, "this card does not have the type"));
            continue;
        }
        say(Said::of(name, || {
            // Loaded in the first test, whose time then includes it.
            match library.get_or_init(|| CublasLt::load(context)) {
                Ok(library) => measure(nvml, device, (context, kernels), library, (of, load)),
                Err(NotLoaded::Absent(why)) => Ok(Outcome::not_applicable(why)),
                Err(NotLoaded::Unusable(why)) => Err(why.clone()),
            }
        }));
    }
}

fn measure(
    nvml: Option<&Nvml>,
    device: &Device,
    (context, kernels): (&Context, &Kernels<'_>),
    library: &CublasLt<'_>,
    (of, load): (Rated, Load),
) -> Result<Outcome, String> {
    let stream = context.stream()?;
    let product = Product::new(library, of.types(), load.side)?;
    let (of_input, of_result) = product.bytes();
    let (a, b, d) = (context.buffer(of_input)?, context.buffer(of_input)?, context.buffer(of_result)?);
    let mut numbers = encoded(normal_numbers(), of.bits);
    fill(&a, &numbers)?;
    let half = numbers.len() / 2;
    numbers.rotate_left(half);
    fill(&b, &numbers)?;
    let products = |times: u32| (0..times).try_for_each(|_| product.start(&stream, [&a, &b, &d]));
    // The first one loads the kernel.
    products(1)?;
    stream.wait()?;
    let one = Duration::from_secs_f64((stream.timed(|| products(2))? / 2.0).max(1e-6));
    products(times(WARM_UP, one))?;
    stream.wait()?;
    let measured = times(load.measured, one);
    let cycles = Cycles::new(context, device.multiprocessors)?;
    let (seconds, observed) =
        observed(nvml, device, || cycles.around(kernels, &stream, || stream.timed(|| products(measured))))?;
    if seconds <= 0.0 {
        return Err("the products took no time".to_owned());
    }
    let operations = 2.0 * f64::from(load.side).powi(3) * f64::from(measured);
    let mut outcome = Outcome::default().with("rate_tflops", operations / seconds / 1e12);
    if let Ok(version) = u32::try_from(library.version()) {
        // Rates of different versions of the library do not compare.
        outcome = outcome.with("cublaslt_version", f64::from(version));
    }
    let counted = true_clock(&cycles.megahertz()?, device.multiprocessors);
    if let Some(clock) = observed.sm_mhz {
        outcome = outcome.with("sm_clock_mhz", clock);
    }
    if let Some(counted) = counted {
        outcome = outcome.with("counted_sm_clock_mhz", counted);
    }
    if let (Some(shown), Some(counted)) = (observed.sm_mhz, counted) {
        outcome = outcome.with("clock_factor", shown / counted);
    }
    Ok(observed.add_to(outcome))
}

/// The mean clock of the multiprocessors, MHz. `None` if fewer than nine in ten were counted, or they contradict each other: all have one
/// clock, so that a counter that began anew, or stood still, shows.
fn true_clock(megahertz: &[f64], multiprocessors: u32) -> Option<f64> {
    let counted = u32::try_from(megahertz.len()).ok()?;
    let mean = megahertz.iter().sum::<f64>() / f64::from(counted);
    let agree = megahertz.iter().all(|one| (one / mean - 1.0).abs() < 0.02);
    (counted > 0 && 10 * u64::from(counted) >= 9 * u64::from(multiprocessors) && agree).then_some(mean)
}

/// Products of which each takes `one`, for so long; at least three.
fn times(time: Duration, one: Duration) -> u32 {
    u32::try_from(time.as_nanos() / one.as_nanos().max(1)).unwrap_or(u32::MAX).clamp(3, 100_000)
}

/// Fills a buffer with numbers, which repeat.
fn fill(buffer: &Buffer<'_>, numbers: &[u8]) -> Result<(), String> {
    let first = numbers.get(..buffer.bytes()).unwrap_or(numbers);
    buffer.put(first)?;
    buffer.repeat(first.len())
}

/// Normal random numbers with a mean of 0 and a standard deviation of 1, the same ones in each run.
fn normal_numbers() -> &'static [f64] {
    static NORMAL: OnceLock<Vec<f64>> = OnceLock::new();
    NORMAL.get_or_init(|| {
        let mut state = 0_u64;
        // Above 0 and below 1. The generator is splitmix64.
        let mut uniform = || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let x = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let high = u32::try_from((x ^ (x >> 31)) >> 32).unwrap_or_default();
            (f64::from(high) + 0.5) / 4_294_967_296.0
        };
        // Box and Muller's method.
        let pair = |_| {
            let (length, (sin, cos)) = ((-2.0 * uniform().ln()).sqrt(), (TAU * uniform()).sin_cos());
            [length * cos, length * sin]
        };
        (0..NUMBERS / 2).flat_map(pair).collect()
    })
}

/// Numbers in a type with bits for exponent and fraction, as the card reads them.
fn encoded(numbers: &[f64], bits: (u32, u32)) -> Vec<u8> {
    let bytes = bytes(bits);
    numbers.iter().flat_map(|number| code(*number, bits).to_le_bytes().into_iter().take(bytes)).collect()
}

/// Bytes of a number with a sign and bits for exponent and fraction.
fn bytes((exponent, fraction): (u32, u32)) -> usize {
    usize::try_from((1 + exponent + fraction) / 8).unwrap_or_default()
}

/// The nearest number of a type with bits for exponent and fraction. `number` is far below the largest of any type.
fn code(number: f64, (exponent_bits, fraction_bits): (u32, u32)) -> u32 {
    let field = u32::try_from(number.to_bits() >> 52 & 0x7FF).unwrap_or_default();
    // Exponents with the bias of double precision; `least` is the smallest of the type, which its subnormal numbers have as well.
    let least = 1023 + 2 - (1 << (exponent_bits - 1));
    let exponent = field.max(least);
    // The factor is a power of two, put together from its exponent.
    let steps = number.abs() * f64::from_bits(u64::from(fraction_bits + 2 * 1023 - exponent) << 52);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 2^(fraction_bits + 1)"
    )]
    let steps = steps.round_ties_even() as u32;
    // A normal number's leading bit counts into the exponent, and so does a carry.
    let size = ((exponent - least) << fraction_bits) + steps;
    u32::from(number.is_sign_negative()) << (exponent_bits + fraction_bits) | size
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a code.
    fn value(code: u32, (exponent_bits, fraction_bits): (u32, u32)) -> f64 {
        let fraction = f64::from(code & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
        let exponent = code >> fraction_bits & ((1 << exponent_bits) - 1);
        let bias = (1 << (exponent_bits - 1)) - 1;
        let sign = if code >> (exponent_bits + fraction_bits) == 0 { 1.0 } else { -1.0 };
        let (whole, exponent) = if exponent == 0 { (0.0, 1) } else { (1.0, exponent) };
        sign * (whole + fraction) * 2_f64.powi(i32::try_from(exponent).unwrap() - bias)
    }

    #[test]
    fn numbers_are_normal() {
        let numbers = normal_numbers();
        assert_eq!(numbers.len(), NUMBERS);
        let count = f64::from(u32::try_from(NUMBERS).unwrap());
        let mean = numbers.iter().sum::<f64>() / count;
        let square = numbers.iter().map(|x| x * x).sum::<f64>() / count;
        assert!(mean.abs() < 0.005 && (square - 1.0).abs() < 0.01, "{mean} {square}");
        let within_one = numbers.iter().filter(|x| x.abs() < 1.0).count();
        assert!(within_one.abs_diff(NUMBERS * 6827 / 10_000) < NUMBERS / 200, "{within_one}");
        assert!(numbers.iter().all(|x| x.abs() < 8.0));
    }

    #[test]
    fn codes_are_those_of_the_types() {
        for number in [0.0, -0.0, 1.0, -1.5, 0.1, 3.3e-7, 5.9, 1e-41] {
            #[expect(clippy::cast_possible_truncation, reason = "the conversion that is compared")]
            let single = number as f32;
            assert_eq!(code(number, (8, 23)), single.to_bits(), "{number}");
        }
        assert_eq!([1.0, -2.0, 1.0 + 1.0 / 256.0].map(|x| code(x, (8, 7))), [0x3F80, 0xC000, 0x3F80]);
        assert_eq!([1.0, -2.0, 6e-8, 0.1].map(|x| code(x, (5, 10))), [0x3C00, 0xC000, 0x0001, 0x2E66]);
        assert_eq!([1.0, -2.0, 0.001, 1.97, 0.015].map(|x| code(x, (4, 3))), [0x38, 0xC0, 0x01, 0x40, 0x08]);
    }

    /// No infinity and no NaN; fp8 e4m3 has only 0x7F and 0xFF of them.
    #[test]
    fn all_codes_are_near_their_numbers() {
        for of in TYPES {
            let least = 2_f64.powi(2 - (1 << (of.bits.0 - 1)));
            let half_step = 2_f64.powi(-1 - i32::try_from(of.bits.1).unwrap());
            for number in &normal_numbers()[..20_000] {
                let error = (value(code(*number, of.bits), of.bits) - number).abs();
                assert!(error <= half_step * number.abs().max(least) * 1.000_001, "{} {number}", of.name);
            }
            let size = bytes(of.bits);
            assert_eq!(encoded(&[1.0, -1.0], of.bits).len(), 2 * size);
            assert_eq!(encoded(&[-1.0], of.bits)[size - 1] & 0x80, 0x80);
            // The library asks for 16 bytes, and for 16 columns of fp8.
            assert_eq!(NUMBERS * size % 16, 0);
        }
    }

    #[test]
    fn neighbouring_rows_differ() {
        assert!((1..=512).all(|rows| rows * 8192 % NUMBERS != 0));
    }

    #[test]
    fn a_clock_needs_multiprocessors_that_agree() {
        assert_eq!(true_clock(&[1500.0, 1510.0], 2), Some(1505.0));
        assert_eq!(true_clock(&[1500.0, 1500.0], 3), None, "not counted");
        assert_eq!(true_clock(&[1500.0, 900.0], 2), None, "a counter that stood still for a while");
        assert_eq!(true_clock(&[], 0), None);
    }

    #[test]
    fn products_fill_the_time() {
        let ms = Duration::from_millis;
        assert_eq!(times(ms(250), ms(2)), 125);
        assert_eq!(times(ms(250), ms(400)), 3);
        assert_eq!(times(ms(2000), Duration::ZERO), 100_000);
    }
}
