//! Exponentials and logarithms of many numbers, in f64. They use only operations that vector units
//! have, so that results are the same on every machine.

use multiversion::multiversion;

/// Number of elements computed at a time.
const LANES: usize = 16;

/// `1.5 · 2^52`: adding it rounds a number to an integer, which is then in the lowest bits of the
/// sum.
const ROUNDING: f64 = 6_755_399_441_055_744.0;

/// Two parts whose sum is `ln 2`. The product of the first and an integer below 2^11 is exact.
const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];

/// Smallest exponent. Lower exponents are raised to it, because their exponentials are negligible.
const MIN_EXPONENT: f64 = -700.0;

/// `1 / k!` for `k` from 13 down to 2.
const INVERSE_FACTORIALS: [f64; 12] = {
    let mut inverses = [0.0; 12];
    let (mut k, mut factorial) = (2, 1.0);
    while k <= 13 {
        factorial *= k as f64;
        inverses[13 - k] = 1.0 / factorial;
        k += 1;
    }
    inverses
};

/// `e^(scale · (x − shift))` of each number `x`, with a relative error below 1e-15 for exponents
/// from −700 to 700. An exponent below −700 counts as −700. For one above 700 the result is
/// unspecified.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub fn exponentials(numbers: &[f32], shift: f64, scale: f64) -> Vec<f64> {
    let mut exponentials = vec![0.0; numbers.len()];
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let (outs, out) = exponentials.as_chunks_mut::<LANES>();
    for (chunk, out) in chunks.iter().zip(outs) {
        for i in 0..LANES {
            out[i] = exponential(scale * (f64::from(chunk[i]) - shift));
        }
    }
    for (&number, out) in rest.iter().zip(out) {
        *out = exponential(scale * (f64::from(number) - shift));
    }
    exponentials
}

/// `e^x = 2^n e^r` with an integer `n` and `|r| ≤ ½ ln 2`. `e^r` is computed by its Taylor series.
#[inline(always)]
fn exponential(x: f64) -> f64 {
    let x = if x > MIN_EXPONENT { x } else { MIN_EXPONENT };
    let rounded = x * std::f64::consts::LOG2_E + ROUNDING;
    let n = rounded - ROUNDING;
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let mut series = INVERSE_FACTORIALS[0];
    for &inverse in &INVERSE_FACTORIALS[1..] {
        series = series * r + inverse;
    }
    let power = f64::from_bits((rounded.to_bits() << 52).wrapping_add(1023 << 52));
    ((series * r + 1.0) * r + 1.0) * power
}

/// Replaces each number, which must be at least 2^-1022, by its natural logarithm. The error is
/// below 1e-15, absolute near 1 and relative elsewhere.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub fn take_logarithms(numbers: &mut [f64]) {
    let (chunks, rest) = numbers.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for number in chunk.iter_mut() {
            *number = logarithm(*number);
        }
    }
    for number in rest {
        *number = logarithm(*number);
    }
}

/// `ln x = n ln 2 + 2 artanh s` with `s = (m − 1) / (m + 1)`, `x = 2^n m` and `½√2 ≤ m < √2`.
#[inline(always)]
fn logarithm(x: f64) -> f64 {
    let exponent = x.to_bits().wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits()) as i64 >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub((exponent << 52) as u64));
    // Converts the exponent to f64 by adding it to the lowest bits of `ROUNDING`.
    let n = f64::from_bits(ROUNDING.to_bits().wrapping_add(exponent as u64)) - ROUNDING;
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut series = 1.0 / 21.0;
    for odd in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = series * square + 1.0 / odd;
    }
    n * LN_2[0] + (2.0 * s + 2.0 * s * square * series + n * LN_2[1])
}

/// Largest of some numbers, or −∞ if there are none. The numbers must not be NaN.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub fn largest(numbers: &[f32]) -> f32 {
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            most[i] = if chunk[i] > most[i] { chunk[i] } else { most[i] };
        }
    }
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Sum of numbers, added in an order that is the same on every machine.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
pub fn sum(numbers: &[f64]) -> f64 {
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            sums[i] += chunk[i];
        }
    }
    sums.iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_equal_those_of_the_standard_library() {
        for scale in [1.0, 2.0] {
            let numbers: Vec<f32> = (0..65_003_u16).map(|i| -0.005 * f32::from(i)).collect();
            for (number, got) in numbers.iter().zip(exponentials(&numbers, 0.25, scale)) {
                let want = (scale * (f64::from(*number) - 0.25)).exp();
                assert!((got - want).abs() <= 1e-15 * want, "{number}: {want}, not {got}");
            }
        }
        assert_eq!(exponentials(&[3.0], 3.0, 1.0), [1.0]);
        assert!(exponentials(&[f32::MIN, f32::NEG_INFINITY], 0.0, 1.0).iter().all(|&e| e < 1e-300));
    }

    #[test]
    fn logarithms_equal_those_of_the_standard_library() {
        let numbers: Vec<f64> = (1..5_000).map(|i| f64::from(i) * 0.0017).collect();
        for scale in [1.0, 1e-300, 1e280] {
            let mut logarithms: Vec<f64> = numbers.iter().map(|x| scale * x).collect();
            take_logarithms(&mut logarithms);
            for (x, got) in numbers.iter().zip(logarithms) {
                let want = (scale * x).ln();
                assert!(
                    (got - want).abs() <= 1e-15 * want.abs().max(1.0),
                    "{x}: {want}, not {got}"
                );
            }
        }
        let mut one = [1.0];
        take_logarithms(&mut one);
        assert_eq!(one, [0.0]);
    }

    #[test]
    fn sums_and_maxima_include_every_number() {
        for len in [0, 1, 15, 16, 17, 50] {
            let numbers: Vec<f64> = (0..len).map(|i| f64::from(i) - 9.0).collect();
            let narrow: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
            assert_eq!(sum(&numbers), numbers.iter().sum::<f64>());
            assert_eq!(largest(&narrow), narrow.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
