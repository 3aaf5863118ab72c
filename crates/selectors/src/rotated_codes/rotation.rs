//! A fixed rotation that mixes all elements of a vector.
//!
//! Twice: signs as a fixed list of random numbers has them, then a Hadamard transform; of vectors whose length is no
//! power of two, one of the longest beginning that has such a length, and one of the end. O(dim log dim).

use multiversion::multiversion;

/// Rotates a vector.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn rotate(x: &mut [f32]) {
    let dim = x.len();
    let part = 1 << dim.ilog2();
    for round in 0..2 {
        for (i, x) in x.iter_mut().enumerate() {
            if is_negative(round * dim + i) {
                *x = -*x;
            }
        }
        hadamard(&mut x[..part]);
        if part < dim {
            hadamard(&mut x[dim - part..]);
        }
    }
}

/// A bit of the number `i` mixed: the finaliser of MurmurHash3 (Appleby).
#[inline(always)]
fn is_negative(i: usize) -> bool {
    let mut x = (i as u32).wrapping_mul(0x9E37_79B9).wrapping_add(1);
    x = (x ^ x >> 16).wrapping_mul(0x85EB_CA6B);
    x = (x ^ x >> 13).wrapping_mul(0xC2B2_AE35);
    x >> 31 == 1
}

/// The orthogonal Hadamard transform of as many numbers as a power of two.
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
