//! Soft caps of logits: `cap · tanh(logit / cap)`, the same on every machine.
//!
//! `tanh x` is computed as `x P(x²) / Q(x²)`, with polynomials that minimise the largest relative
//! error for `|x| ≤` [`TANH_LIMIT`], which is 3e-8; rounding in f32 adds 3e-7. Farther from 0,
//! `tanh` is ±1 in f32.

use multiversion::multiversion;

/// Coefficients of `P` and `Q`, from the highest power on.
pub const TANH: [[f32; 5]; 2] = [
    [1.300_204_7e-8, 2.035_329e-5, 3.479_992_7e-3, 0.133_678_8, 1.0],
    [7.631_839_5e-7, 3.260_165e-4, 2.581_760_3e-2, 0.467_011_9, 1.0],
];

/// Largest argument of the polynomials. Larger arguments are lowered to it.
pub const TANH_LIMIT: f32 = 9.2;

/// Upper bound on the relative error of a capped logit, as this module or a backend's kernels
/// compute it from a logit in f32.
pub const CAP_ROUNDING: f64 = 2e-6;

/// Replaces each logit by `cap · tanh(logit / cap)`. A NaN stays a NaN.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub fn cap_logits(logits: &mut [f32], cap: f32) {
    for logit in logits {
        *logit = cap_logit(*logit, cap);
    }
}

/// `cap · tanh(logit / cap)`.
#[inline(always)]
pub(crate) fn cap_logit(logit: f32, cap: f32) -> f32 {
    let x = (logit / cap).clamp(-TANH_LIMIT, TANH_LIMIT);
    let square = x * x;
    let [mut p, mut q] = [0.0, 0.0];
    for (numerator, denominator) in TANH[0].iter().zip(TANH[1]) {
        p = p * square + numerator;
        q = q * square + denominator;
    }
    x * (p / q) * cap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capped_logits_are_precise_at_every_magnitude() {
        for cap in [1e-16, 0.5, 20.0, 50.0, 1e4, 1e16_f32] {
            let mut inputs: Vec<f32> = (-4000..=4000).map(|i| cap * i as f32 / 400.0).collect();
            inputs.extend((-20..40).map(|power| 10.0_f32.powi(power).min(1e36)));
            let mut capped = inputs.clone();
            cap_logits(&mut capped, cap);
            for (&x, &got) in inputs.iter().zip(&capped) {
                let want = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                // Quotients below 1e-30 lose digits, and the weights of such logits are 1.
                if want == 0.0 || (f64::from(x) / f64::from(cap)).abs() > 1e-30 {
                    let error = (f64::from(got) - want).abs();
                    assert!(error <= CAP_ROUNDING / 2.0 * want.abs(), "{x} with {cap}: {got}");
                }
                assert_eq!(got, cap_logit(x, cap), "slices and single numbers agree");
            }
        }
        assert!(cap_logit(f32::NAN, 50.0).is_nan());
        assert!((cap_logit(f32::INFINITY, 50.0) - 50.0).abs() < 1e-4);
    }

    #[test]
    fn soft_caps_match_f64() {
        for cap in [0.5, 30.0, 50.0] {
            let x: Vec<f32> = (-20000..20000).map(|i| i as f32 / 100.0).collect();
            let mut capped = x.clone();
            cap_logits(&mut capped, cap);
            for (x, found) in x.iter().zip(&capped) {
                let expected = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                assert!((f64::from(*found) - expected).abs() <= 4e-7 * f64::from(cap), "{x}");
            }
        }
    }
}
