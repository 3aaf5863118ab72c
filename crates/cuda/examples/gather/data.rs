//! Rows, token lists and codes on the device.

use std::sync::Arc;

use vattention_core::Result;
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, DeviceCodes, Lists, Pages, RowLayout};

use super::shape::{BatchShape, GROUP};

/// Base-2 logarithm of the tokens of a page, as in the backend.
pub(crate) const LOG2_PAGE: u32 = 8;

/// Bits of a code.
pub(crate) const BITS: usize = 32;

/// Rows of small numbers for each list.
pub(crate) fn rows<D: Device>(
    device: &D,
    layout: RowLayout,
    shape: BatchShape,
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

/// Random codes of all tokens for each query head.
pub(crate) fn codes<D: Device>(device: &D, shape: BatchShape) -> Result<Vec<DeviceCodes<D>>> {
    let mut words = words(u32::MAX);
    let head = |_| {
        let codes = DeviceCodes::new(device, BITS, shape.tokens)?;
        codes.write(0, 0, &words.by_ref().take(shape.tokens).collect::<Vec<_>>())?;
        Ok(codes)
    };
    (0..shape.query_heads()).map(head).collect()
}

/// Reproducible numbers between −1 and 1.
pub(crate) fn noise(seed: u32, count: usize) -> impl Iterator<Item = f32> {
    words(seed).map(|word| (word >> 8) as f32 / (1 << 23) as f32 - 1.0).take(count)
}

/// Reproducible random words.
pub(crate) fn words(seed: u32) -> impl Iterator<Item = u32> {
    // The low bits of a linear congruential sequence repeat soon, so the words are mixed.
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(seed), next).map(mix)
}

/// Lists of chosen tokens.
pub(crate) struct ChosenTokens<D: Device> {
    pub(crate) lists: Lists<D>,
    /// Sum of the tokens of all lists, by which other programs check that their lists are the same.
    pub(crate) sum: u64,
}

/// Lists of all tokens of each KV head.
pub(crate) fn all<D: Device>(device: &D, shape: BatchShape) -> Result<Lists<D>> {
    Lists::beginnings(device, &vec![shape.tokens; shape.lists()])
}

/// Lists of one of every `step` tokens of each KV head, ascending, at pseudo-random places.
pub(crate) fn one_in<D: Device>(
    device: &D,
    shape: BatchShape,
    step: usize,
) -> Result<ChosenTokens<D>> {
    let count = shape.tokens / step;
    let tokens = |list| (0..count).map(move |i| token(list, i, step));
    let indices: Vec<u32> = (0..shape.lists()).flat_map(tokens).collect();
    let indptr: Vec<usize> = (0..=shape.lists()).map(|list| list * count).collect();
    let sum = indices.iter().copied().map(u64::from).sum();
    Ok(ChosenTokens { lists: Lists::new(device, &indptr, &indices, None)?, sum })
}

/// Token `i` of a list: one of the `step` tokens from `i · step` on.
/// `tools/gpu_peers/lists.py` computes the same tokens.
fn token(list: usize, i: usize, step: usize) -> u32 {
    let start = (list as u32).wrapping_mul(0x9E37_79B9) ^ (i as u32).wrapping_mul(0x85EB_CA6B);
    i as u32 * step as u32 + mix(start) % step as u32
}

/// Hash of a word, in which every bit depends on many bits of the input.
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^ x >> 15
}

/// Number of tokens to take, one of every `step`, for each row.
pub(crate) fn counts(shape: BatchShape, step: usize) -> Vec<u32> {
    vec![(shape.tokens / step) as u32; shape.lists() * GROUP]
}
