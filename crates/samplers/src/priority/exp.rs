//! Exponentials in operations that vectors have, alike on every machine.

/// `e^x` for `x ≤ 60`, to a relative error of 1e-5; at least `2^-100`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // A number of this size has no digits behind the point.
    const WHOLE: f32 = 12_582_912.0;
    // The series of 2^x on [-1/2, 1/2].
    const SERIES: [f32; 7] =
        [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0];
    let power = x * std::f32::consts::LOG2_E;
    let power = if power > -100.0 { power } else { -100.0 };
    let shifted = power + WHOLE;
    let part = power - (shifted - WHOLE);
    let mut series = SERIES[0];
    for c in &SERIES[1..] {
        series = series * part + c;
    }
    let whole = shifted.to_bits().wrapping_sub(WHOLE.to_bits());
    series * f32::from_bits(whole.wrapping_add(127) << 23)
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exponentials_are_near() {
        for i in -800..6900_i16 {
            let x = -f32::from(i) / 100.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) - exact).abs() <= 1e-5 * exact, "{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e30), 2.0_f32.powi(-100));
        assert_eq!(exp(f32::NEG_INFINITY), 2.0_f32.powi(-100));
    }
}
