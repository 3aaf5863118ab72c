use half::f16;

use super::kernel::InstructionSet;
use super::*;

const FORMATS: [QuantFormat; 11] = [
    QuantFormat::Q4_0,
    QuantFormat::Q4_1,
    QuantFormat::Q5_0,
    QuantFormat::Q5_1,
    QuantFormat::Q8_0,
    QuantFormat::Q4K,
    QuantFormat::Q5K,
    QuantFormat::Q6K,
    QuantFormat::Iq4Nl,
    QuantFormat::Iq4Xs,
    QuantFormat::Mxfp4,
];

/// Returns the bytes of a file's blocks: scales and offsets near 1, and all values of the integers.
fn file_blocks(format: QuantFormat, blocks: usize) -> Vec<u8> {
    let size = format.file_bytes();
    let mut bytes: Vec<u8> = (0..blocks / format.unit_blocks() * size)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    for (i, unit) in bytes.chunks_exact_mut(size).enumerate() {
        let numbers = [0.01 + (i as f32).sin(), (i as f32 * 0.3).cos()].map(f16::from_f32);
        set_numbers(format, unit, numbers);
    }
    bytes
}

/// Writes the scale and the offset of a unit; the scale is rounded if it is a power of two.
fn set_numbers(format: QuantFormat, unit: &mut [u8], [scale, offset]: [f16; 2]) {
    if format.has_exponents() {
        unit[0] = (scale.to_bits() >> 10 & 31) as u8 + 112;
        return;
    }
    let first = if format == QuantFormat::Q6K { 208 } else { 0 };
    unit[first..first + 2].copy_from_slice(&scale.to_le_bytes());
    if format.has_offsets() {
        unit[2..4].copy_from_slice(&offset.to_le_bytes());
    }
}

/// Returns activations of which some are far larger than the others.
fn activations(count: usize) -> Vec<f32> {
    let large = |i: usize| if i.is_multiple_of(61) { 40.0 } else { 1.0 };
    (0..count).map(|i| (i as f32 * 1.7).sin() * large(i)).collect()
}

#[test]
fn products_match_the_weights_on_every_instruction_set() {
    for format in FORMATS {
        for (units, outputs) in [(1, 1), (3, 7), (2, 576), (6, 16), (5, 33)] {
            let blocks = units * format.unit_blocks();
            let shape = [outputs, blocks * BLOCK];
            let matrix =
                PackedMatrix::new(format, &file_blocks(format, blocks * outputs), shape).unwrap();
            let mut weights = vec![0.0; outputs * shape[1]];
            for (i, row) in weights.chunks_exact_mut(shape[1]).enumerate() {
                matrix.read_row(i, row);
            }
            for rows in [1, 2, 3, 4, 7] {
                let x = activations(rows * shape[1]);
                let parts = Activations::new(&x, rows);
                let mut defined = vec![0.0; rows * outputs];
                matrix.multiply_at(InstructionSet::Portable, &parts, &mut defined);
                for (i, y) in defined.iter().enumerate() {
                    let (row, output) = (i / outputs, i % outputs);
                    let x = &x[row * shape[1]..][..shape[1]];
                    let w = &weights[output * shape[1]..][..shape[1]];
                    let terms = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                    let (exact, size) =
                        terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                    let error = (f64::from(*y) - exact).abs();
                    assert!(error <= 2e-6 * size, "{format:?} {shape:?} {row} {output}: {error}");
                }
                for level in InstructionSet::all() {
                    let mut y = vec![0.0; defined.len()];
                    matrix.multiply_at(level, &parts, &mut y);
                    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&y), bits(&defined), "{format:?} {shape:?} {rows} {level:?}");
                }
            }
        }
    }
}

/// The largest integers of both signs would be the first to saturate 16-bit sums.
#[test]
fn extreme_integers_do_not_saturate() {
    for format in FORMATS {
        for byte in [0x00, 0xff, 0x7f, 0x80] {
            let inputs = format.unit_blocks() * BLOCK;
            let mut bytes = vec![byte; 16 * format.file_bytes()];
            for unit in bytes.chunks_exact_mut(format.file_bytes()) {
                set_numbers(format, unit, [1.0, 0.07].map(f16::from_f32));
            }
            let matrix = PackedMatrix::new(format, &bytes, [16, inputs]).unwrap();
            let mut weights = vec![0.0; inputs];
            matrix.read_row(3, &mut weights);
            for x in [1.0, -1.0] {
                let parts = Activations::new(&vec![x; inputs], 1);
                let exact: f64 = weights.iter().map(|w| f64::from(*w) * f64::from(x)).sum();
                for level in InstructionSet::all() {
                    let mut y = [0.0; 16];
                    matrix.multiply_at(level, &parts, &mut y);
                    let error = (f64::from(y[3]) - exact).abs();
                    assert!(error <= 1e-6 * exact.abs(), "{format:?} {byte} {level:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn weights_match_their_definition() {
    let mut bytes = vec![0x00, 0x40, 0x00, 0xbc];
    bytes.extend((0..16).map(|i| i | (15 - i) << 4));
    let matrix = PackedMatrix::new(QuantFormat::Q4_1, &bytes, [1, BLOCK]).unwrap();
    let mut row = [0.0; BLOCK];
    matrix.read_row(0, &mut row);
    let expected = |i: usize| 2.0 * (if i < 16 { i } else { 31 - i }) as f32 - 1.0;
    assert!((0..BLOCK).all(|i| row[i] == expected(i)), "{row:?}");
    bytes.copy_within(4.., 2);
    bytes.truncate(18);
    let matrix = PackedMatrix::new(QuantFormat::Q4_0, &bytes, [1, BLOCK]).unwrap();
    matrix.read_row(0, &mut row);
    assert!((0..BLOCK).all(|i| row[i] == expected(i) - 15.0), "{row:?}");
    let bytes: Vec<u8> = [0x00, 0x40].into_iter().chain(240..=255).chain(0..16).collect();
    let matrix = PackedMatrix::new(QuantFormat::Q8_0, &bytes, [1, BLOCK]).unwrap();
    matrix.read_row(0, &mut row);
    assert!((0..BLOCK).all(|i| row[i] == 2.0 * (i as f32 - 16.0)), "{row:?}");
}

/// The integers are those of llama.cpp, and the numbers of E2M1 those of the Open Compute Project's
/// specification of microscaling formats.
#[test]
fn nibbles_stand_for_the_numbers_of_a_codebook() {
    let integers = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let halves = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    let nibbles: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
    let code = |i: usize| if i < 16 { i } else { 31 - i };
    let mut row = [0.0; BLOCK];

    let bytes = [&[0x00, 0x40][..], &nibbles].concat();
    let matrix = PackedMatrix::new(QuantFormat::Iq4Nl, &bytes, [1, BLOCK]).unwrap();
    matrix.read_row(0, &mut row);
    assert!((0..BLOCK).all(|i| row[i] == 2.0 * integers[code(i)] as f32), "{row:?}");

    for exponent in [0, 1, 2, 127, 128, 252] {
        let bytes = [&[exponent][..], &nibbles].concat();
        let matrix = PackedMatrix::new(QuantFormat::Mxfp4, &bytes, [1, BLOCK]).unwrap();
        matrix.read_row(0, &mut row);
        let power = 2.0_f64.powi(i32::from(exponent) - 127);
        let expected = |i: usize| (0.5 * power * f64::from(halves[code(i)])) as f32;
        assert!((0..BLOCK).all(|i| row[i] == expected(i)), "{exponent}: {row:?}");
    }

    // Factors of 6 bits: low nibbles, then pairs of high bits of all blocks, then of 32 too much.
    let factors: [i32; 8] = [-32, -31, -1, 0, 1, 15, 16, 31];
    let stored = factors.map(|factor| (factor + 32) as u16);
    let high = (0..8).fold(0, |bits, i| bits | stored[i] >> 4 << (2 * i));
    let low = (0..4).map(|i| (stored[2 * i] & 15 | (stored[2 * i + 1] & 15) << 4) as u8);
    let mut bytes = vec![0x00, 0x40];
    bytes.extend(high.to_le_bytes());
    bytes.extend(low);
    bytes.extend(nibbles.repeat(8));
    let matrix = PackedMatrix::new(QuantFormat::Iq4Xs, &bytes, [1, 8 * BLOCK]).unwrap();
    let mut row = [0.0; 8 * BLOCK];
    matrix.read_row(0, &mut row);
    let expected = |i: usize| (2 * factors[i / BLOCK] * integers[code(i % BLOCK)]) as f32;
    assert!((0..8 * BLOCK).all(|i| row[i] == expected(i)), "{row:?}");
}

#[test]
fn products_match_the_weights_for_every_power_of_two() {
    // The product of the smallest scales is a subnormal number, which is rounded by half of the
    // smallest one. It multiplies integers of 23 bits, times doubled weights with a sum of 144.
    let subnormal = f64::from(f32::from_bits(1)) / 2.0 * f64::from(1 << 23) * 144.0;
    for exponent in 0..=LARGEST_EXPONENT {
        let bytes: Vec<u8> =
            [exponent].into_iter().chain((0..16).map(|i| i | (15 - i) << 4)).collect();
        let matrix = PackedMatrix::new(QuantFormat::Mxfp4, &bytes, [1, BLOCK]).unwrap();
        let mut weights = [0.0; BLOCK];
        matrix.read_row(0, &mut weights);
        let x: Vec<f32> = activations(BLOCK).iter().map(|x| 1e-3 * x).collect();
        let terms = weights.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
        for level in InstructionSet::all() {
            let mut y = [0.0];
            matrix.multiply_at(level, &Activations::new(&x, 1), &mut y);
            let error = (f64::from(y[0]) - exact).abs();
            assert!(error <= 2e-6 * size + subnormal, "2^{exponent} {level:?}: {error:e}");
        }
    }
}

#[test]
fn powers_that_are_not_finite_are_found() {
    for (exponent, unit) in [(252, None), (253, Some(3)), (254, Some(3)), (255, Some(3))] {
        let mut bytes = file_blocks(QuantFormat::Mxfp4, 6);
        bytes[3 * 17] = exponent;
        let found = PackedMatrix::new(QuantFormat::Mxfp4, &bytes, [2, 96]);
        assert_eq!(found.err(), unit, "{exponent}");
    }
}

#[test]
fn a_scale_that_is_not_finite_is_found() {
    let mut bytes = file_blocks(QuantFormat::Q4_1, 6);
    bytes[4 * 20 + 2..4 * 20 + 4].copy_from_slice(&f16::INFINITY.to_le_bytes());
    assert_eq!(PackedMatrix::new(QuantFormat::Q4_1, &bytes, [2, 96]).unwrap_err(), 4);
}

#[test]
fn activations_that_are_not_finite_give_nan() {
    let matrix = PackedMatrix::new(QuantFormat::Q8_0, &file_blocks(QuantFormat::Q8_0, 4), [2, 64]);
    let mut x = [1.0; 64];
    x[40] = f32::INFINITY;
    let mut y = [0.0; 2];
    matrix.unwrap().multiply(&Activations::new(&x, 1), &mut y);
    assert!(y.iter().all(|y| y.is_nan()), "{y:?}");
}
