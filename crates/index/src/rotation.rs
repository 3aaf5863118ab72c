//! A random rotation that mixes all elements of a vector, keyed by a stream of random numbers.
//!
//! It consists of three rounds of random signs and a Hadamard transform. Residuals of real keys lie
//! along a few directions, and two rounds would leave their errors correlated. If the length of a
//! vector is not a power of two, each round has two transforms: of the longest prefix and of the
//! longest suffix whose length is a power of two. O(dim log dim).

use multiversion::multiversion;
use vattention_core::step::Stream;

/// Number of rounds of signs and transforms.
const ROUNDS: usize = 3;

/// A random rotation of vectors of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// 1 or −1, `[ROUNDS][dim]`.
    signs: Vec<f32>,
}

impl Rotation {
    /// Creates a rotation of vectors of `dim` elements, whose signs are bits of `stream`.
    pub fn new(dim: usize, stream: &Stream) -> Self {
        let words = stream.words().flat_map(|word| (0..u32::BITS).map(move |bit| word >> bit & 1));
        let signs = words.map(|bit| if bit == 1 { -1.0 } else { 1.0 });
        Self { signs: signs.take(ROUNDS * dim).collect() }
    }

    /// Rotates a vector `[dim]`.
    pub fn apply(&self, x: &mut [f32]) {
        rotate(x, &self.signs);
    }

    /// Rotates a vector `[dim]` back.
    pub fn undo(&self, x: &mut [f32]) {
        rotate_back(x, &self.signs);
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn rotate(x: &mut [f32], signs: &[f32]) {
    let dim = x.len();
    let part = 1 << dim.ilog2();
    for signs in signs.chunks_exact(dim) {
        for (x, sign) in x.iter_mut().zip(signs) {
            *x *= sign;
        }
        hadamard(&mut x[..part]);
        if part < dim {
            hadamard(&mut x[dim - part..]);
        }
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn rotate_back(x: &mut [f32], signs: &[f32]) {
    let dim = x.len();
    let part = 1 << dim.ilog2();
    for signs in signs.chunks_exact(dim).rev() {
        if part < dim {
            hadamard(&mut x[dim - part..]);
        }
        hadamard(&mut x[..part]);
        for (x, sign) in x.iter_mut().zip(signs) {
            *x *= sign;
        }
    }
}

/// Applies the orthogonal Hadamard transform, its own inverse; the length is a power of two.
#[inline(always)]
fn hadamard(x: &mut [f32]) {
    let mut width = 1;
    if x.len() >= 16 {
        for x in x.as_chunks_mut().0 {
            *x = transform_four(*x);
        }
        for x in x.as_chunks_mut::<16>().0 {
            for i in 0..4 {
                let places = [i, i + 4, i + 8, i + 12];
                let transformed = transform_four(places.map(|place| x[place]));
                for (place, transformed) in places.into_iter().zip(transformed) {
                    x[place] = transformed;
                }
            }
        }
        width = 16;
    }
    while width < x.len() {
        for pair in x.chunks_exact_mut(2 * width) {
            let (low, high) = pair.split_at_mut(width);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        width *= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    for x in x {
        *x *= scale;
    }
}

/// Hadamard transform of four numbers, without its scale.
#[inline(always)]
fn transform_four([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    let [a, b, c, d] = [a + b, a - b, c + d, c - d];
    [a + c, b + d, a - c, b - d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use vattention_core::{Shape, Site};

    /// Returns a rotation, two vectors `[2, dim]`, and both after the rotation.
    fn rotate_two(dim: usize) -> (Rotation, Vec<f32>, Vec<f32>) {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed: 3, sequence: 0, layer: 2, kv_head: 1, shape };
        let rotation = Rotation::new(dim, &Stream::new(&site, 9, 0, 0));
        let x: Vec<f32> = (0..2 * dim).map(|i| ((i * 7 + 3) as f32).sin()).collect();
        let mut rotated = x.clone();
        rotated.chunks_exact_mut(dim).for_each(|x| rotation.apply(x));
        (rotation, x, rotated)
    }

    #[test]
    fn a_rotation_keeps_lengths_and_angles() {
        for dim in [1, 2, 3, 16, 80, 96, 128] {
            let (_, x, rotated) = rotate_two(dim);
            let dot = |x: &[f32]| x[..dim].iter().zip(&x[dim..]).map(|(a, b)| a * b).sum::<f32>();
            let square = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
            assert!((square(&x) - square(&rotated)).abs() < 1e-4 * square(&x), "{dim}");
            assert!((dot(&x) - dot(&rotated)).abs() < 1e-4 * square(&x), "{dim}");
        }
    }

    #[test]
    fn undo_reverses_a_rotation() {
        for dim in [1, 2, 3, 16, 80, 96, 128] {
            let (rotation, x, mut rotated) = rotate_two(dim);
            rotated.chunks_exact_mut(dim).for_each(|x| rotation.undo(x));
            for (x, y) in x.iter().zip(&rotated) {
                assert!((x - y).abs() < 1e-5, "{dim}: {x} {y}");
            }
        }
    }
}
