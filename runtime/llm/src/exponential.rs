//! Exponential of many numbers, by vector instructions.

use multiversion::multiversion;

/// Replaces each number, at most 88, by `e^x`, to 2 units in the last place; 0 below -87.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
pub(crate) fn exp_all(numbers: &mut [f32]) {
    for x in numbers {
        *x = exp(*x);
    }
}

/// Replaces each `x` by `x / (1 + e^-x) · y`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
pub(crate) fn silu_times(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x = *x / (1.0 + exp((-*x).min(88.0))) * y;
    }
}

/// Replaces each `x` by its GELU, approximated by the hyperbolic tangent, times `y`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
pub(crate) fn gelu_times(x: &mut [f32], y: &[f32]) {
    /// `2 √(2 / π)`
    const SCALE: f32 = 2.0 * 0.797_884_6;
    for (x, y) in x.iter_mut().zip(y) {
        // x / 2 · (1 + tanh(s / 2)) = x / (1 + e^-s)
        let s = SCALE * (*x + 0.044_715 * *x * *x * *x);
        *x = *x / (1.0 + exp((-s).min(88.0))) * y;
    }
}

/// Replaces each gate `x` by `min(x, limit)`, times its sigmoid with factor `alpha`, times 1 more
/// than `y` within `-limit ..= limit`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
pub(crate) fn clamped_swiglu(x: &mut [f32], y: &[f32], alpha: f32, limit: f32) {
    for (x, y) in x.iter_mut().zip(y) {
        let gate = if *x > limit { limit } else { *x };
        let up = y.clamp(-limit, limit);
        *x = gate / (1.0 + exp((-alpha * gate).min(88.0))) * (up + 1.0);
    }
}

/// Computes `2^n e^r` with `|r| <= ln 2 / 2`, and `e^r` by its Taylor series up to the seventh
/// power.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Constant whose addition rounds to a whole number, in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// `ln 2` in two parts. The first has few bits, so that its products are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let mut sum = 1.0 / 5040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * r + term;
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { sum * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_match_f64() {
        let mut x: Vec<f32> = (-8700..=8800).map(|i| i as f32 / 100.0).collect();
        let expected: Vec<f64> = x.iter().map(|&x| f64::from(x).exp()).collect();
        exp_all(&mut x);
        let error = |(&found, &e): (&f32, &f64)| (f64::from(found) / e - 1.0).abs();
        let worst = x.iter().zip(&expected).map(error).fold(0.0, f64::max);
        assert!(worst < 2.5e-7, "{worst}");
        let mut ends = [f32::NEG_INFINITY, -1e30, -87.1, 0.0, -0.0];
        exp_all(&mut ends);
        assert_eq!(ends, [0.0, 0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn nan_stays_nan() {
        let mut x = [f32::NAN, 1.0];
        exp_all(&mut x);
        assert!(x[0].is_nan() && !x[1].is_nan());
        for activate in [
            |x: &mut [f32]| gelu_times(x, &[1.0, 1.0]),
            |x: &mut [f32]| clamped_swiglu(x, &[1.0, 1.0], 1.702, 7.0),
        ] {
            let mut x = [f32::NAN, 1.0];
            activate(&mut x);
            assert!(x[0].is_nan() && !x[1].is_nan());
        }
    }

    #[test]
    fn other_activations_match_f64() {
        let inputs: Vec<f32> = (-2000..2000).map(|i| i as f32 / 100.0).collect();
        let y: Vec<f32> = inputs.iter().map(|x| (x * 7.0).sin() * 9.0).collect();
        let (mut gelu, mut swiglu) = (inputs.clone(), inputs.clone());
        gelu_times(&mut gelu, &y);
        clamped_swiglu(&mut swiglu, &y, 1.702, 7.0);
        for (i, &x) in inputs.iter().enumerate() {
            let (x, y) = (f64::from(x), f64::from(y[i]));
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            let expected = 0.5 * x * (1.0 + inner.tanh()) * y;
            let error = (f64::from(gelu[i]) - expected).abs();
            assert!(error <= 3e-6 * expected.abs() + 1e-6, "gelu of {x}: {} {expected}", gelu[i]);
            let gate = x.min(7.0);
            let expected = gate / (1.0 + (-1.702 * gate).exp()) * (y.clamp(-7.0, 7.0) + 1.0);
            let error = (f64::from(swiglu[i]) - expected).abs();
            assert!(error <= 3e-6 * expected.abs() + 1e-6, "{x}: {} {expected}", swiglu[i]);
        }
    }

    #[test]
    fn silu_matches_f64() {
        let mut x: Vec<f32> = (-20000..20000).map(|i| i as f32 / 100.0).collect();
        let y = vec![2.0; x.len()];
        let expected: Vec<f64> =
            x.iter().map(|&x| f64::from(x)).map(|x| 2.0 * x / (1.0 + (-x).exp())).collect();
        silu_times(&mut x, &y);
        for (found, expected) in x.iter().zip(&expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= 1e-6 * expected.abs() + 1e-30, "{found} {expected}");
        }
    }
}
