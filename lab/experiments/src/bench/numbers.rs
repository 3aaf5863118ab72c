//! Synthetic keys, values and queries: pure functions of layer, head and token.
//!
//! Each number is a sum of four bytes, which is nearly normal, with variance 1. Logits of queries
//! and keys are about normal with variance 1 as well, so that attention is neither uniform nor
//! degenerate. One key in 1024 is four times as long, so that a few tokens are heavy. Values spread
//! around a mean: an output that is a sum of noise alone has a relative error that no sample
//! bounds.

use ndarray::{Array3, s};
use vattention_core::Shape;

/// One in this number of keys is long.
const HEAVY_EVERY: u64 = 1024;
/// Factor of the length of long keys.
const HEAVY: f32 = 4.0;
/// Standard deviation of the components of the mean value.
const MEAN_VALUE: f32 = 0.7;

/// Kind of a number; different kinds have different streams.
#[derive(Clone, Copy)]
enum NumberPart {
    Key = 1,
    Value = 2,
    Mean = 3,
    Query = 4,
}

/// Keys `[kv_heads, count, head_dim]` of `count` tokens, beginning with `first`.
pub(super) fn keys(shape: &Shape, layer: usize, first: usize, count: usize) -> Array3<f32> {
    rows([shape.kv_heads, count, shape.head_dim], |head, token, row| {
        let key = stream_key(NumberPart::Key, layer, head, first + token);
        fill(key, row);
        if mix(!key).is_multiple_of(HEAVY_EVERY) {
            for x in row {
                *x *= HEAVY;
            }
        }
    })
}

/// Values `[kv_heads, count, value_dim]` of `count` tokens, beginning with `first`.
pub(super) fn values(shape: &Shape, layer: usize, first: usize, count: usize) -> Array3<f32> {
    let means = rows([shape.kv_heads, 1, shape.value_dim], |head, _, row| {
        fill(stream_key(NumberPart::Mean, layer, head, 0), row);
    });
    rows([shape.kv_heads, count, shape.value_dim], |head, token, row| {
        fill(stream_key(NumberPart::Value, layer, head, first + token), row);
        let mean = means.slice(s![head, 0, ..]);
        row.iter_mut().zip(mean).for_each(|(x, mean)| *x += MEAN_VALUE * mean);
    })
}

/// Queries `[query_heads, 1, head_dim]` of one step.
pub(super) fn queries(shape: &Shape, layer: usize, step: usize) -> Array3<f32> {
    rows([shape.query_heads, 1, shape.head_dim], |head, _, row| {
        fill(stream_key(NumberPart::Query, layer, head, step), row);
    })
}

/// Creates an array; `make` fills each row, given its first two indices.
fn rows(dim: [usize; 3], mut make: impl FnMut(usize, usize, &mut [f32])) -> Array3<f32> {
    let [heads, count, numbers] = dim;
    let mut data = vec![0.0; heads * count * numbers];
    for (i, row) in data.chunks_exact_mut(numbers).enumerate() {
        make(i / count, i % count, row);
    }
    Array3::from_shape_vec(dim, data).expect("the data has as many numbers as the shape")
}

/// Key of the random stream of a row's numbers.
fn stream_key(part: NumberPart, layer: usize, head: usize, token: usize) -> u64 {
    mix(((part as u64) << 56) ^ ((layer as u64) << 44) ^ ((head as u64) << 32) ^ token as u64)
}

/// Fills a row with numbers of mean 0 and variance 1.
fn fill(key: u64, row: &mut [f32]) {
    for (i, pair) in row.chunks_mut(2).enumerate() {
        let word = mix(key.wrapping_add(i as u64));
        for (x, half) in pair.iter_mut().zip([word as u32, (word >> 32) as u32]) {
            *x = nearly_normal(half);
        }
    }
}

/// Sum of a word's four bytes, shifted and scaled to mean 0 and variance 1.
fn nearly_normal(word: u32) -> f32 {
    let pairs = (word & 0x00ff_00ff) + ((word >> 8) & 0x00ff_00ff);
    let sum = (pairs & 0xffff) + (pairs >> 16);
    (sum as f32 - 510.0) * (1.0 / 147.8)
}

/// SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 16 };

    fn variance(numbers: impl Iterator<Item = f32>) -> f64 {
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for x in numbers.map(f64::from) {
            (count, sum, squares) = (count + 1.0, sum + x, squares + x * x);
        }
        squares / count - (sum / count).powi(2)
    }

    #[test]
    fn a_token_does_not_depend_on_the_block_that_contains_it() {
        let (whole, late) = (keys(&SHAPE, 1, 0, 100), keys(&SHAPE, 1, 60, 40));
        assert_eq!(whole.slice(s![.., 60.., ..]), late);
        assert_ne!(whole, keys(&SHAPE, 2, 0, 100));
        assert_ne!(queries(&SHAPE, 0, 0), queries(&SHAPE, 0, 1));
    }

    /// The samples are 64000 elements of queries, 131072 of values around 32 means, and 4096 of one
    /// column.
    #[test]
    fn numbers_have_variance_1_and_a_few_keys_are_long() {
        let queries = (0..500).flat_map(|step| queries(&SHAPE, 0, step));
        assert!((variance(queries) - 1.0).abs() < 0.05);
        let keys = keys(&SHAPE, 0, 0, 4096);
        let long = keys.rows().into_iter().filter(|row| row.dot(row) > 4.0 * 32.0).count();
        assert!((1..=24).contains(&long), "{long} of 8192, 8 expected");
        let values = values(&SHAPE, 0, 0, 4096);
        assert!((variance(values.iter().copied()) - 1.49).abs() < 0.4, "1 + 0.7², of 32 means");
        let column = values.slice(s![0, .., 3]);
        assert!((variance(column.iter().copied()) - 1.0).abs() < 0.1, "around the mean");
    }
}
