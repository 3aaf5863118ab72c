//! Random hyperplanes, the same on every machine.

use std::sync::Arc;

use vattention_core::{Site, step::Stream};

use super::Bits;
use crate::{Activation, Affine, CodeMap, Network};

/// Purpose of the random numbers, which differs from those of the selectors and the sampler.
const PURPOSE: u16 = u16::MAX - 1;

/// Creates a map of one layer without bias, shared by queries and keys.
pub(super) fn draw_map(
    site: &Site,
    member: usize,
    bits: Bits,
    dim: usize,
) -> Result<CodeMap, String> {
    let weight = draw_normals(site, member, bits, dim);
    let bias = vec![0.0; usize::from(bits.get())];
    let network = Network::new(vec![Affine { weight, bias }], Activation::Relu);
    let network = Arc::new(network.map_err(|error| error.to_string())?);
    CodeMap::new(network.clone(), network, 1.0).map_err(|error| error.to_string())
}

/// Draws the normals of `bits` hyperplanes, `[dim, bits]`. They are nearly Gaussian: each number is
/// a sum of twelve random bytes minus its mean. They are whole numbers, so that products with small
/// whole numbers are exact.
///
/// The normals depend only on the seed and on the layer, head and member, so that all sequences
/// share them.
fn draw_normals(site: &Site, member: usize, bits: Bits, dim: usize) -> Vec<f32> {
    let place = Site { sequence: 0, ..*site };
    let bits = usize::from(bits.get());
    let mut planes = vec![0.0; dim * bits];
    for bit in 0..bits {
        let stream = Stream::new(&place, PURPOSE, bit as u32, member);
        let words: Vec<u32> = stream.words().take(3 * dim).collect();
        for (row, words) in words.as_chunks::<3>().0.iter().enumerate() {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            let sum: i32 = bytes.map(i32::from).sum();
            planes[row * bits + bit] = (sum - 12 * 255 / 2) as f32;
        }
    }
    planes
}
