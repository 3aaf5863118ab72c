//! Quantised labels: codes packed in bytes, and a base and a step for each item.

use multiversion::multiversion;

use super::quantise::{LabelGrid, Rounding};
use super::{LANES, Term};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct CodedLabels {
    bits: u8,
    /// `[blocks][channels][LANES / per_byte]`. The lowest bits of byte `i` in a row hold the code
    /// of lane `i`, the next bits that of lane `i + LANES / per_byte`, and so on.
    codes: Vec<u8>,
    /// `[blocks · LANES]`
    bases: Vec<f32>,
    /// `[blocks · LANES]`
    steps: Vec<f32>,
}

impl CodedLabels {
    pub(super) fn new(bits: u8) -> Self {
        Self { bits, codes: Vec::new(), bases: Vec::new(), steps: Vec::new() }
    }

    /// Number of codes in a byte.
    fn per_byte(&self) -> usize {
        8 / usize::from(self.bits.next_power_of_two())
    }

    /// Number of bytes in a row: the codes of one channel of a block.
    fn row(&self) -> usize {
        LANES / self.per_byte()
    }

    /// Position of a lane's code within its byte, in bits.
    fn shift(&self, lane: usize) -> usize {
        lane / self.row() * (8 / self.per_byte())
    }

    pub(super) fn push(&mut self, block: usize, lane: usize, label: &[f32], rounding: Rounding) {
        let (row, shift) = (self.row(), self.shift(lane));
        let start = block * label.len() * row;
        self.codes.resize(start + label.len() * row, 0);
        let grid = LabelGrid::new(label, self.bits);
        for (bytes, &x) in self.codes[start..].chunks_exact_mut(row).zip(label) {
            bytes[lane % row] |= grid.code(x, rounding) << shift;
        }
        for (all, x) in [(&mut self.bases, grid.base), (&mut self.steps, grid.step)] {
            all.resize((block + 1) * LANES, 0.0);
            all[block * LANES + lane] = x;
        }
    }

    /// Removes all but the first blocks. If the last one is not full, it has `used` items, and the
    /// codes of its other lanes become 0, because [`push`](Self::push) adds bits.
    pub(super) fn truncate(&mut self, blocks: usize, channels: usize, used: usize) {
        let row = self.row();
        self.codes.truncate(blocks * channels * row);
        self.bases.truncate(blocks * LANES);
        self.steps.truncate(blocks * LANES);
        let unused = if used == 0 { LANES..LANES } else { used..LANES };
        let last = self.codes.len().saturating_sub(channels * row);
        for lane in unused {
            let mask = u8::MAX >> (8 - 8 / self.per_byte()) << self.shift(lane);
            for bytes in self.codes[last..].chunks_exact_mut(row) {
                bytes[lane % row] &= !mask;
            }
        }
    }

    /// Returns the element of an item in a row, which is a channel of a block.
    pub(super) fn get(&self, row: usize, item: usize) -> f32 {
        let (lane, width) = (item % LANES, self.row());
        let byte = self.codes[row * width + lane % width];
        let mask = u8::MAX >> (8 - 8 / self.per_byte());
        let code = byte >> self.shift(lane) & mask;
        LabelGrid::value(self.bases[item], self.steps[item], code.into())
    }

    pub(super) fn add_products(&self, channels: usize, terms: &[Term], scores: &mut [f32]) {
        let add = match self.per_byte() {
            1 => add::<1, LANES>,
            2 => add::<2, { LANES / 2 }>,
            4 => add::<4, { LANES / 4 }>,
            _ => add::<8, { LANES / 8 }>,
        };
        add(&self.codes, &self.bases, &self.steps, channels, terms, scores);
    }

    pub(super) fn bytes(&self) -> usize {
        self.codes.len() + size_of_val(&self.bases[..]) + size_of_val(&self.steps[..])
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn add<const PER_BYTE: usize, const ROW: usize>(
    codes: &[u8],
    bases: &[f32],
    steps: &[f32],
    channels: usize,
    terms: &[Term],
    scores: &mut [f32],
) {
    let (rows, _) = codes.as_chunks::<ROW>();
    let (bases, steps) = (bases.as_chunks::<ROW>().0, steps.as_chunks::<ROW>().0);
    for (place, scores) in scores.chunks_mut(ROW).enumerate() {
        let (block, shift) = (place / PER_BYTE, place % PER_BYTE * 8 / PER_BYTE);
        let rows = &rows[block * channels..][..channels];
        let (bases, steps) = (&bases[place], &steps[place]);
        let mut sums = [0.0_f32; ROW];
        for &(channel, weight) in terms {
            for lane in 0..ROW {
                let code = i32::from(rows[channel][lane]) >> shift & (0xFF >> (8 - 8 / PER_BYTE));
                sums[lane] += weight * LabelGrid::value(bases[lane], steps[lane], code as f32);
            }
        }
        scores.iter_mut().zip(&sums).for_each(|(score, sum)| *score += sum);
    }
}
