//! The gamma distribution: intervals of rates that are counted as events per time.

/// Steps of the series and the continued fraction, far more than they need for the shapes that counts of failures have.
const STEPS: u32 = 100_000;

/// Relative precision at which both stop.
const PRECISION: f64 = 1e-14;

/// Returns the value below which the gamma distribution with this shape and the scale 1 has the share `share`.
///
/// With a share outside of 0 to 1, or a shape that is not positive and finite, it returns NaN.
pub fn gamma_quantile(shape: f64, share: f64) -> f64 {
    if !(shape > 0.0 && shape.is_finite() && share > 0.0 && share < 1.0) {
        return f64::NAN;
    }
    let (mut low, mut high) = (0.0, 2.0 * shape + 100.0 * shape.sqrt());
    while below(shape, high) < share {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if below(shape, middle) < share {
            low = middle
        } else {
            high = middle
        }
        if high - low <= high * PRECISION {
            break;
        }
    }
    f64::midpoint(low, high)
}

/// P(X ≤ x): the regularised lower incomplete gamma function. Below the mean by its series, above by the continued fraction of
/// the rest (Abramowitz and Stegun, 6.5.29 and 6.5.31, the latter evaluated by Lentz's method).
fn below(shape: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let scale = (shape * x.ln() - x - ln_gamma(shape)).exp();
    if x < shape + 1.0 {
        let (mut term, mut sum) = (1.0 / shape, 1.0 / shape);
        for step in 1..STEPS {
            term *= x / (shape + f64::from(step));
            sum += term;
            if term < sum * PRECISION {
                break;
            }
        }
        return scale * sum;
    }
    let mut odd = x + 1.0 - shape;
    let (mut c, mut d) = (1.0 / f64::MIN_POSITIVE, 1.0 / odd);
    let mut fraction = d;
    for step in 1..STEPS {
        let step = f64::from(step);
        let even = -step * (step - shape);
        odd += 2.0;
        d = 1.0 / not_zero(even * d + odd);
        c = not_zero(odd + even / c);
        fraction *= c * d;
        if (c * d - 1.0).abs() < PRECISION {
            break;
        }
    }
    1.0 - scale * fraction
}

fn not_zero(value: f64) -> f64 {
    if value.abs() < f64::MIN_POSITIVE { f64::MIN_POSITIVE } else { value }
}

/// Returns ln Γ(x) of a positive `x`, with an absolute error below 1e-10: Stirling's series from 10 on, recurrence below it.
pub fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut less) = (x, 0.0);
    while x < 10.0 {
        less += x.ln();
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = 1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series / x - less
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_gamma_is_that_of_factorials_and_of_a_half() {
        let mut factorial: f64 = 0.0;
        for n in 1..60_u32 {
            assert!((ln_gamma(f64::from(n)) - factorial).abs() < 1e-9, "{n}");
            factorial += f64::from(n).ln();
        }
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-9);
    }

    /// The sums are exact for whole shapes: P(X ≤ x) = 1 − e^(−x) Σ x^i / i!.
    #[test]
    fn quantiles_of_whole_shapes_invert_the_poisson_sum() {
        for shape in [1, 2, 3, 7, 40, 150_u32] {
            for share in [0.001, 0.05, 0.5, 0.95, 0.999] {
                let x = gamma_quantile(f64::from(shape), share);
                let (mut term, mut sum) = ((-x).exp(), 0.0);
                for i in 0..shape {
                    sum += term;
                    term *= x / f64::from(i + 1);
                }
                assert!((1.0 - sum - share).abs() < 1e-9, "{shape} {share}: {x}");
            }
        }
    }

    /// The gamma distribution with the shape 1/2 is half of a chi-square with one degree of freedom: 3.841 at 95 % in printed tables.
    #[test]
    fn shapes_need_not_be_whole() {
        assert!((2.0 * gamma_quantile(0.5, 0.95) - 3.841).abs() < 0.001);
        // Chi-square with 3 and 7 degrees of freedom.
        assert!((2.0 * gamma_quantile(1.5, 0.05) - 0.352).abs() < 0.001);
        assert!((2.0 * gamma_quantile(3.5, 0.95) - 14.067).abs() < 0.001);
        assert!(gamma_quantile(0.01, 0.05).is_finite());
    }

    #[test]
    fn what_has_no_quantile_is_not_a_number() {
        for (shape, share) in
            [(0.0, 0.5), (-1.0, 0.5), (f64::NAN, 0.5), (1.0, 0.0), (1.0, 1.0), (1.0, f64::NAN)]
        {
            assert!(gamma_quantile(shape, share).is_nan(), "{shape} {share}");
        }
    }
}
