//! Labels: short vectors that represent keys, one for each item (a token or a page), quantised or
//! exact, and their products with a query.
//!
//! With `bits` from 1 to 8 an element is stored as `base + step · code`, with a base and a step for
//! each label; see [`quantise`]. With 0 bits elements are stored in f32.

mod coded;
mod quantise;

use multiversion::multiversion;

use crate::bounded::Bounded;
use crate::{Segment, Segmented};
use coded::CodedLabels;
pub use quantise::Rounding;

/// Bits of a quantised element, or 0 for exact ones.
pub type LabelBits = Bounded<0, 8, 0>;

/// Number of items in a block, which vector instructions process together.
const LANES: usize = 64;

/// A channel, and the weight of its elements in a product.
pub type Term = (usize, f32);

/// Labels of items in order, each of `channels` elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Labels {
    labels: Segmented<LabelSegment>,
}

/// Labels of consecutive items.
#[derive(Clone, Debug, PartialEq)]
struct LabelSegment {
    channels: usize,
    bits: LabelBits,
    len: usize,
    numbers: Numbers,
}

/// Elements in blocks of [`LANES`] items, ordered by channel within a block.
#[derive(Clone, Debug, PartialEq)]
enum Numbers {
    /// `[blocks][channels][LANES]`
    Exact(Vec<f32>),
    Coded(CodedLabels),
}

impl Labels {
    /// Creates labels of `channels` elements, without items.
    pub fn new(channels: usize, bits: LabelBits) -> Self {
        Self { labels: Segmented::new(LabelSegment::new(channels, bits)) }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.labels.items()
    }

    /// Returns true if there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the label of the next item.
    pub fn push(&mut self, label: &[f32], rounding: Rounding) {
        self.labels.own_mut().push(label, rounding);
    }

    /// Removes all but the first `len` items.
    pub fn truncate(&mut self, len: usize) {
        self.labels.truncate(len);
    }

    /// Moves the labels to memory that later clones share.
    pub fn share(&mut self) {
        self.labels.share();
    }

    /// Returns an element of a label, as stored.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn get(&self, item: usize, channel: usize) -> f32 {
        let (items, labels) = self.labels.segment_of(item);
        labels.get(item - items.start, channel)
    }

    /// Adds `Σ weight · label[channel]` over `terms`, in their order, to the score of each of the
    /// first items. O(scores · terms).
    pub fn add_products(&self, terms: &[Term], scores: &mut [f32]) {
        for (items, labels) in self.labels.segments(scores.len()) {
            labels.add_products(terms, &mut scores[items]);
        }
    }

    /// Bytes of the labels. Shared memory is [divided](Segmented::bytes) among those that use it.
    pub fn bytes(&self) -> usize {
        self.labels.bytes()
    }
}

impl LabelSegment {
    fn new(channels: usize, bits: LabelBits) -> Self {
        let numbers = match bits.get() {
            0 => Numbers::Exact(Vec::new()),
            bits => Numbers::Coded(CodedLabels::new(bits)),
        };
        Self { channels, bits, len: 0, numbers }
    }

    fn push(&mut self, label: &[f32], rounding: Rounding) {
        let (block, lane) = (self.len / LANES, self.len % LANES);
        match &mut self.numbers {
            Numbers::Exact(numbers) => {
                let start = block * self.channels * LANES;
                numbers.resize(start + self.channels * LANES, 0.0);
                for (row, &x) in numbers[start..].chunks_exact_mut(LANES).zip(label) {
                    row[lane] = x;
                }
            }
            Numbers::Coded(coded) => coded.push(block, lane, label, rounding),
        }
        self.len += 1;
    }

    fn get(&self, item: usize, channel: usize) -> f32 {
        let (block, lane) = (item / LANES, item % LANES);
        match &self.numbers {
            Numbers::Exact(numbers) => numbers[(block * self.channels + channel) * LANES + lane],
            Numbers::Coded(coded) => coded.get(block * self.channels + channel, item),
        }
    }

    fn add_products(&self, terms: &[Term], scores: &mut [f32]) {
        match &self.numbers {
            Numbers::Exact(numbers) => add_exact(numbers, self.channels, terms, scores),
            Numbers::Coded(coded) => coded.add_products(self.channels, terms, scores),
        }
    }
}

impl Segment for LabelSegment {
    fn without_items(&self) -> Self {
        Self::new(self.channels, self.bits)
    }

    fn items(&self) -> usize {
        self.len
    }

    fn keep_first(&mut self, items: usize) {
        let (blocks, used) = (items.div_ceil(LANES), items % LANES);
        match &mut self.numbers {
            Numbers::Exact(numbers) => numbers.truncate(blocks * self.channels * LANES),
            Numbers::Coded(coded) => coded.truncate(blocks, self.channels, used),
        }
        self.len = self.len.min(items);
    }

    fn byte_size(&self) -> usize {
        match &self.numbers {
            Numbers::Exact(numbers) => size_of_val(&numbers[..]),
            Numbers::Coded(coded) => coded.bytes(),
        }
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn add_exact(numbers: &[f32], channels: usize, terms: &[Term], scores: &mut [f32]) {
    for (block, scores) in numbers.chunks_exact(channels * LANES).zip(scores.chunks_mut(LANES)) {
        let (rows, _) = block.as_chunks::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for &(channel, weight) in terms {
            for (sum, x) in sums.iter_mut().zip(&rows[channel]) {
                *sum += weight * x;
            }
        }
        scores.iter_mut().zip(&sums).for_each(|(score, sum)| *score += sum);
    }
}

#[cfg(test)]
mod tests;
