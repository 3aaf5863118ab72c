//! Layout of a packed matrix.

use half::f16;
use vattention_backends::process;

use super::activations::Activations;
use super::codebook::{LARGEST_EXPONENT, half_power};
use super::format::{QuantBlock, QuantFormat};
use super::kernel::{InstructionSet, multiply};
use super::tile::{CacheLine, LaneExponents, LaneFactors, LaneNumbers, OutputGroup};
use super::{BLOCK, LANES};

/// Least number of bytes of a matrix per part that a thread computes.
const LEAST_PART: usize = 1 << 14;

/// Quantised matrix `[outputs, inputs]`, in groups of sixteen outputs; the last group may end in
/// rows of zeros.
#[derive(Clone, Debug)]
pub(crate) struct PackedMatrix {
    format: QuantFormat,
    outputs: usize,
    /// Number of blocks in a row.
    blocks: usize,
    /// `[groups][blocks][lines]`
    quanta: Vec<CacheLine>,
    /// Scales, `[groups][units]`; a unit is the blocks that share a scale. Empty if they are powers
    /// of two.
    scales: Vec<LaneNumbers>,
    /// Scales that are powers of two, `[groups][units]`; otherwise empty.
    exponents: Vec<LaneExponents>,
    /// Offsets, `[groups][units]`; empty if the format has none.
    offsets: Vec<LaneNumbers>,
    /// Factors of the scales, `[groups][blocks]`, or `[groups][blocks][2]` with a factor for each
    /// half; empty if the format is not nested.
    scale_factors: Vec<LaneFactors>,
    /// Factors of the offsets, `[groups][blocks]`; empty unless the format is nested and has
    /// offsets.
    offset_factors: Vec<LaneFactors>,
}

impl PackedMatrix {
    /// Packs the blocks of a file, row by row.
    ///
    /// # Errors
    /// The number of the first unit whose scale or offset is not finite.
    ///
    /// # Panics
    /// Panics if the number of bytes does not match the shape.
    pub(crate) fn new(
        format: QuantFormat,
        bytes: &[u8],
        [outputs, inputs]: [usize; 2],
    ) -> Result<Self, usize> {
        let (blocks, unit) = (inputs / BLOCK, format.unit_blocks());
        let units = outputs * blocks / unit;
        assert_eq!(bytes.len(), units * format.file_bytes(), "bytes of a matrix");
        let tiles = outputs.div_ceil(LANES) * blocks;
        let mut matrix = Self {
            format,
            outputs,
            blocks,
            quanta: vec![CacheLine([0; 4 * LANES]); tiles * format.lines()],
            scales: vec![[f16::ZERO; LANES]; tiles / unit * usize::from(!format.has_exponents())],
            exponents: vec![[0; LANES]; tiles / unit * usize::from(format.has_exponents())],
            offsets: vec![[f16::ZERO; LANES]; tiles / unit * usize::from(format.has_offsets())],
            scale_factors: vec![[0; LANES]; tiles * format.scale_factors()],
            offset_factors: vec![[0; LANES]; tiles * format.offset_factors()],
        };
        for (i, bytes) in bytes.chunks_exact(format.file_bytes()).enumerate() {
            let (tile, lane) = matrix.find_tile(i * unit / blocks, i * unit % blocks);
            if !matrix.put_scale(tile / unit, lane, bytes) {
                return Err(i);
            }
            for i in 0..unit {
                matrix.put_block(tile + i, lane, &format.read_block(bytes, i));
            }
        }
        Ok(matrix)
    }

    /// Stores the scale and the offset of a unit; returns false if its weights may not be finite.
    fn put_scale(&mut self, unit: usize, lane: usize, bytes: &[u8]) -> bool {
        if self.format.has_exponents() {
            self.exponents[unit][lane] = bytes[0];
            return bytes[0] <= LARGEST_EXPONENT;
        }
        let [scale, offset] = self.format.read_numbers(bytes);
        self.scales[unit][lane] = scale;
        if let Some(offsets) = self.offsets.get_mut(unit) {
            offsets[lane] = offset;
        }
        scale.is_finite() && offset.is_finite()
    }

    fn put_block(&mut self, tile: usize, lane: usize, block: &QuantBlock) {
        let count = self.format.scale_factors();
        for (half, factor) in block.scales[..count].iter().enumerate() {
            self.scale_factors[tile * count + half][lane] = *factor;
        }
        if let Some(factors) = self.offset_factors.get_mut(tile) {
            factors[lane] = block.offset;
        }
        let lines = self.format.lines();
        let quanta = &mut self.quanta[tile * lines..][..lines];
        for (input, quantum) in block.quanta.into_iter().enumerate() {
            let byte = 4 * lane + input % 4;
            if self.format.high_bits() == 4 {
                quanta[input / 4].0[byte] = quantum;
                continue;
            }
            let (low, high) = places(self.format, input);
            quanta[low.0].0[byte] |= (quantum & 15) << low.1;
            if let Some(high) = high {
                quanta[high.0].0[byte] |= quantum >> 4 << high.1;
            }
        }
    }

    /// Returns the number of the tile in `[groups][blocks]`, and the lane within the tile.
    fn find_tile(&self, output: usize, block: usize) -> (usize, usize) {
        (output / LANES * self.blocks + block, output % LANES)
    }

    /// Shape of the matrix, `[outputs, inputs]`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.outputs, self.blocks * BLOCK]
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.quanta[..])
            + size_of_val(&self.scales[..])
            + size_of_val(&self.exponents[..])
            + size_of_val(&self.offsets[..])
            + size_of_val(&self.scale_factors[..])
            + size_of_val(&self.offset_factors[..])
    }

    /// Reads the weights of output `i` in f32, `[inputs]`.
    pub(crate) fn read_row(&self, i: usize, row: &mut [f32]) {
        let (lines, unit) = (self.format.lines(), self.format.unit_blocks());
        let zero = f32::from(self.format.zero());
        let halves = self.format.scale_factors().max(1);
        for (block, weights) in row.chunks_exact_mut(BLOCK).enumerate() {
            let (tile, lane) = self.find_tile(i, block);
            let factor = |factors: &[LaneFactors], i: usize| {
                factors.get(i).map_or(1.0, |factors| f32::from(factors[lane]))
            };
            let scale = match self.exponents.get(tile / unit) {
                Some(exponents) => half_power(exponents[lane]),
                None => self.scales[tile / unit][lane].to_f32(),
            };
            let offset = self
                .offsets
                .get(tile / unit)
                .map_or(0.0, |offsets| offsets[lane].to_f32() * factor(&self.offset_factors, tile));
            let quanta = &self.quanta[tile * lines..][..lines];
            for (input, weight) in weights.iter_mut().enumerate() {
                let half = input * halves / BLOCK;
                let scale = scale * factor(&self.scale_factors, tile * halves + half);
                let byte = |line: usize| quanta[line].0[4 * lane + input % 4];
                let quantum = if self.format.high_bits() == 4 {
                    byte(input / 4)
                } else {
                    let (low, high) = places(self.format, input);
                    let mask = (1 << self.format.high_bits()) - 1;
                    let high = high.map_or(0, |high| byte(high.0) >> high.1 & mask);
                    byte(low.0) >> low.1 & 15 | high << 4
                };
                let integer = match self.format.codebook() {
                    Some(codebook) => codebook[usize::from(quantum)],
                    None => quantum,
                };
                *weight = scale * (f32::from(integer) - zero) + offset;
            }
        }
    }

    /// Computes `x Wᵀ`, `[rows, outputs]`, into `y`, on all threads. The result does not depend on
    /// their number.
    ///
    /// Cost: 6 byte products for each weight and row; the matrix is read once for every 4 rows.
    pub(crate) fn multiply(&self, x: &Activations, y: &mut [f32]) {
        self.multiply_at(InstructionSet::best(), x, y);
    }

    /// Runs [`multiply`](Self::multiply) with the instructions of a level.
    pub(super) fn multiply_at(&self, level: InstructionSet, x: &Activations, y: &mut [f32]) {
        let rows = x.rows();
        assert_eq!(y.len(), rows * self.outputs, "products of every row and output");
        assert_eq!(x.row(0).len(), self.blocks, "rows of the inputs");
        if rows == 1 {
            return process(self.parts(level, x, y).collect(), PackedPart::multiply);
        }
        let mut products = vec![0.0; self.groups() * rows * LANES];
        process(self.parts(level, x, &mut products).collect(), PackedPart::multiply);
        for (group, products) in products.chunks_exact(rows * LANES).enumerate() {
            for (row, products) in products.chunks_exact(LANES).enumerate() {
                let y = &mut y[row * self.outputs..(row + 1) * self.outputs];
                let y = &mut y[group * LANES..];
                let len = y.len().min(LANES);
                y[..len].copy_from_slice(&products[..len]);
            }
        }
    }

    /// Parts of the product with one row, `y` `[outputs]`.
    pub(crate) fn parts_of_row<'a>(
        &'a self,
        x: &'a Activations,
        y: &'a mut [f32],
    ) -> impl Iterator<Item = PackedPart<'a>> {
        assert_eq!((x.rows(), y.len()), (1, self.outputs), "products of one row and every output");
        assert_eq!(x.row(0).len(), self.blocks, "rows of the inputs");
        self.parts(InstructionSet::best(), x, y)
    }

    /// Parts of a product; `products` is `[groups][rows][16]`, and its last group may be shorter.
    fn parts<'a>(
        &'a self,
        level: InstructionSet,
        x: &'a Activations,
        products: &'a mut [f32],
    ) -> impl Iterator<Item = PackedPart<'a>> {
        let groups = self.groups_per_part();
        let parts = products.chunks_mut(groups * x.rows() * LANES).enumerate();
        parts.map(move |(i, products)| PackedPart {
            matrix: self,
            level,
            x,
            first: i * groups,
            products,
        })
    }

    /// Each thread computes one part, because threads read long parts faster: lines beyond the end
    /// of a part are prefetched in vain.
    fn groups_per_part(&self) -> usize {
        let threads = rayon::current_num_threads();
        let least = LEAST_PART.div_ceil(self.blocks * self.format.lines() * size_of::<CacheLine>());
        self.groups().div_ceil(threads).max(least)
    }

    fn groups(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    fn group(&self, i: usize) -> OutputGroup<'_> {
        let count = self.groups();
        OutputGroup {
            quanta: part(&self.quanta, i, count),
            scales: part(&self.scales, i, count),
            exponents: part(&self.exponents, i, count),
            offsets: part(&self.offsets, i, count),
            scale_factors: part(&self.scale_factors, i, count),
            offset_factors: part(&self.offset_factors, i, count),
        }
    }
}

/// Some groups of a product, which one thread computes.
pub(crate) struct PackedPart<'a> {
    matrix: &'a PackedMatrix,
    level: InstructionSet,
    x: &'a Activations,
    /// Number of the first group.
    first: usize,
    /// `[groups][rows][16]`; the last group may be shorter.
    products: &'a mut [f32],
}

impl PackedPart<'_> {
    pub(crate) fn multiply(self) {
        let Self { matrix, level, x, first, products } = self;
        for (i, products) in products.chunks_mut(x.rows() * LANES).enumerate() {
            multiply(level, matrix.format, x, matrix.group(first + i), products);
        }
    }
}

/// Part `i` of `count` equal parts.
fn part<T>(all: &[T], i: usize, count: usize) -> &[T] {
    let len = all.len() / count;
    &all[i * len..(i + 1) * len]
}

/// Positions of an input's low four bits and of its high bits, each as line and shift.
fn places(format: QuantFormat, input: usize) -> ((usize, usize), Option<(usize, usize)>) {
    let word = input / 4;
    let bit = word * format.high_bits();
    ((word % 4, word / 4 * 4), (format.high_bits() > 0).then_some((4 + bit / 8, bit % 8)))
}
