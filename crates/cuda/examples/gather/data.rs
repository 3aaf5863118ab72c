//! Rows, lists and codes on the device.

use std::sync::Arc;

use vattention_core::Result;
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, DeviceCodes, Lists, Pages, RowLayout};

use super::shape::{GROUP, Shape};

/// Tokens of a page, as the backend has them.
pub(crate) const LOG2_PAGE: u32 = 8;

/// Bits of a code.
pub(crate) const BITS: usize = 32;

/// Rows of small numbers for each list.
pub(crate) fn rows<D: Device>(
    device: &D,
    layout: RowLayout,
    shape: Shape,
) -> Result<Vec<Pages<D>>> {
    // The upper half of an f32 is a bf16.
    let bytes: Vec<u8> = noise(1, layout.page_bytes() / 2)
        .flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes())
        .collect();
    let page = |_| Array::new(device, &bytes).map(Arc::new);
    let head = |_| {
        let pages = (0..shape.tokens.div_ceil(1 << LOG2_PAGE)).map(page).collect::<Result<_>>()?;
        Pages::new(device, layout, pages)
    };
    (0..shape.lists()).map(head).collect()
}

/// Codes of all tokens for each query head, any bits.
pub(crate) fn codes<D: Device>(device: &D, shape: Shape) -> Result<Vec<DeviceCodes<D>>> {
    let mut words = words(u32::MAX);
    let head = |_| {
        let codes = DeviceCodes::new(device, BITS, shape.tokens)?;
        codes.write(0, 0, &words.by_ref().take(shape.tokens).collect::<Vec<_>>())?;
        Ok(codes)
    };
    (0..shape.query_heads()).map(head).collect()
}

/// Numbers between −1 and 1, the same ones for a seed.
pub(crate) fn noise(seed: u32, count: usize) -> impl Iterator<Item = f32> {
    words(seed).map(|word| (word >> 8) as f32 / (1 << 23) as f32 - 1.0).take(count)
}

/// Words of any bits, the same ones for a seed.
pub(crate) fn words(seed: u32) -> impl Iterator<Item = u32> {
    // The low bits of such a sequence repeat soon; those that are mixed do not.
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(seed), next).map(mixed)
}

/// Tokens that lists name.
pub(crate) struct Chosen<D: Device> {
    pub(crate) lists: Lists<D>,
    /// The sum of the tokens of all lists: whoever makes the same lists finds the same.
    pub(crate) sum: u64,
}

/// All tokens of each KV head.
pub(crate) fn all<D: Device>(device: &D, shape: Shape) -> Result<Lists<D>> {
    Lists::beginnings(device, &vec![shape.tokens; shape.lists()])
}

/// One of every `step` tokens of each KV head, ascending, in places that look random.
pub(crate) fn one_in<D: Device>(device: &D, shape: Shape, step: usize) -> Result<Chosen<D>> {
    let count = shape.tokens / step;
    let of_list = |list| (0..count).map(move |i| token(list, i, step));
    let indices: Vec<u32> = (0..shape.lists()).flat_map(of_list).collect();
    let indptr: Vec<usize> = (0..=shape.lists()).map(|list| list * count).collect();
    let sum = indices.iter().copied().map(u64::from).sum();
    Ok(Chosen { lists: Lists::new(device, &indptr, &indices, None)?, sum })
}

/// Token `i` of a list: one of the `step` tokens from `i · step` on. `tools/gpu_peers/lists.py` makes
/// the same.
fn token(list: usize, i: usize, step: usize) -> u32 {
    let start = (list as u32).wrapping_mul(0x9E37_79B9) ^ (i as u32).wrapping_mul(0x85EB_CA6B);
    i as u32 * step as u32 + mixed(start) % step as u32
}

/// A word whose every bit depends on many of another's.
fn mixed(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^ x >> 15
}

/// For a row, how many tokens it is to take: one of every `step`.
pub(crate) fn counts(shape: Shape, step: usize) -> Vec<u32> {
    vec![(shape.tokens / step) as u32; shape.lists() * GROUP]
}
