//! Gaussian random numbers, the same on every machine.

use vattention_core::{Site, step::Stream};

/// Purpose of the streams from which Gaussians are computed; no other stream has this purpose.
const PURPOSE: u16 = u16::MAX - 2;

/// Draws `count` vectors of `dim` independent Gaussians, `[count, dim]`.
///
/// The vectors depend on the seed, the layer, the KV head and the sequence. The method of Box and
/// Muller is exact in distribution, so that the probabilities computed from angles are exact too.
pub(super) fn draw(site: &Site, count: usize, dim: usize) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(count * dim);
    for vector in 0..count {
        let stream = Stream::new(site, PURPOSE, vector as u32, 0);
        let words: Vec<u32> = stream.words().take(dim.next_multiple_of(2)).collect();
        let pairs = words.as_chunks::<2>().0.iter().flat_map(|&[a, b]| pair(a, b));
        numbers.extend(pairs.chain(std::iter::repeat(0.0)).take(dim));
    }
    numbers
}

/// Transforms two random words to two independent Gaussians.
fn pair(a: u32, b: u32) -> [f32; 2] {
    let unit = |word: u32| (f64::from(word) + 0.5) / 2.0_f64.powi(32);
    let radius = (-2.0 * libm::log(unit(a))).sqrt();
    let (sin, cos) = libm::sincos(std::f64::consts::TAU * unit(b));
    [(radius * cos) as f32, (radius * sin) as f32]
}
