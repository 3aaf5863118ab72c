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

/// A rotation of vectors of one length.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rotation {
    /// 1 or −1, `[ROUNDS][dim]`.
    signs: Vec<f32>,
}

impl Rotation {
    /// Creates a rotation of vectors of `dim` elements, whose signs are bits of `stream`.
    pub(super) fn new(dim: usize, stream: &Stream) -> Self {
        let words = stream.words().flat_map(|word| (0..u32::BITS).map(move |bit| word >> bit & 1));
        let signs = words.map(|bit| if bit == 1 { -1.0 } else { 1.0 });
        Self { signs: signs.take(ROUNDS * dim).collect() }
    }

    /// Rotates a vector.
    pub(super) fn apply(&self, x: &mut [f32]) {
        rotate(x, &self.signs);
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

/// Applies the orthogonal Hadamard transform; the length is a power of two.
#[inline(always)]
fn hadamard(x: &mut [f32]) {
    let mut width = 1;
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
