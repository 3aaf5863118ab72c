//! Layout of a packed matrix.

use half::f16;
use rayon::prelude::*;

use super::activations::Activations;
use super::format::QuantFormat;
use super::kernel::{Level, multiply};
use super::{BLOCK, LANES};

/// Bytes of a matrix that are worth a job of their own.
const LEAST_PART: usize = 1 << 14;

/// Jobs for each thread, so that one that is late does not keep the others waiting for long.
const PARTS_PER_THREAD: usize = 4;

/// A cache line: four inputs of sixteen outputs, `[16][4]`, a byte each; or, where two weights share a
/// byte, inputs `4 i ..` in the low halves and `16 + 4 i ..` in the high ones.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 4 * LANES]);

/// Scales or offsets of a block of sixteen outputs.
pub(super) type Numbers = [f16; LANES];

/// A quantised matrix `[outputs, inputs]`, in groups of sixteen outputs; the last group may have rows
/// of zeros at its end. Takes the bytes of the file.
#[derive(Clone, Debug)]
pub(crate) struct PackedMatrix {
    format: QuantFormat,
    outputs: usize,
    /// Blocks of a row.
    blocks: usize,
    /// `[groups][blocks][lines]`, 4 or 8 lines.
    quanta: Vec<Line>,
    /// `[groups][blocks]`
    scales: Vec<Numbers>,
    /// The same, or empty.
    offsets: Vec<Numbers>,
}

/// Sixteen outputs of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) quanta: &'a [Line],
    pub(super) scales: &'a [Numbers],
    pub(super) offsets: &'a [Numbers],
}

impl PackedMatrix {
    /// Packs the blocks of a file, row after row.
    ///
    /// # Errors
    /// The number of the first block whose scale or offset is not finite.
    ///
    /// # Panics
    /// If there are not as many bytes as the shape asks for.
    pub(crate) fn new(
        format: QuantFormat,
        bytes: &[u8],
        [outputs, inputs]: [usize; 2],
    ) -> Result<Self, usize> {
        let blocks = inputs / BLOCK;
        assert_eq!(bytes.len(), outputs * blocks * format.block_bytes(), "bytes of a matrix");
        let tiles = outputs.div_ceil(LANES) * blocks;
        let lines = lines(format);
        let mut matrix = Self {
            format,
            outputs,
            blocks,
            quanta: vec![Line([0; 4 * LANES]); tiles * lines],
            scales: vec![[f16::ZERO; LANES]; tiles],
            offsets: vec![[f16::ZERO; LANES]; if format.has_offsets() { tiles } else { 0 }],
        };
        for (i, bytes) in bytes.chunks_exact(format.block_bytes()).enumerate() {
            let block = format.read(bytes);
            if !(block.scale.is_finite() && block.offset.is_finite()) {
                return Err(i);
            }
            let (tile, lane) = matrix.find_tile(i / blocks, i % blocks);
            matrix.scales[tile][lane] = block.scale;
            if let Some(offsets) = matrix.offsets.get_mut(tile) {
                offsets[lane] = block.offset;
            }
            let quanta = &mut matrix.quanta[tile * lines..][..lines];
            for (input, quantum) in block.quanta.into_iter().enumerate() {
                let (line, shift) = (input / 4 % lines, input / 4 / lines * 4);
                quanta[line].0[4 * lane + input % 4] |= quantum << shift;
            }
        }
        Ok(matrix)
    }

    /// Number of its tile, of `[groups][blocks]`, and lane within the tile.
    fn find_tile(&self, output: usize, block: usize) -> (usize, usize) {
        (output / LANES * self.blocks + block, output % LANES)
    }

    /// `[outputs, inputs]`
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.outputs, self.blocks * BLOCK]
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.quanta[..])
            + size_of_val(&self.scales[..])
            + size_of_val(&self.offsets[..])
    }

    /// Weights of output `i` in f32, `[inputs]`.
    pub(crate) fn read_row(&self, i: usize, row: &mut [f32]) {
        let (lines, zero) = (lines(self.format), f32::from(self.format.zero()));
        for (block, weights) in row.chunks_exact_mut(BLOCK).enumerate() {
            let (tile, lane) = self.find_tile(i, block);
            let scale = self.scales[tile][lane].to_f32();
            let offset = self.offsets.get(tile).map_or(0.0, |offsets| offsets[lane].to_f32());
            let quanta = &self.quanta[tile * lines..][..lines];
            for (input, weight) in weights.iter_mut().enumerate() {
                let byte = quanta[input / 4 % lines].0[4 * lane + input % 4];
                let quantum = match (self.format.has_nibbles(), input < BLOCK / 2) {
                    (true, true) => byte & 15,
                    (true, false) => byte >> 4,
                    (false, _) => byte,
                };
                *weight = scale * (f32::from(quantum) - zero) + offset;
            }
        }
    }

    /// All weights in f32, `[outputs, inputs]`, on all threads.
    pub(crate) fn read_all(&self, wide: &mut [f32]) {
        let rows = wide.par_chunks_mut(self.blocks * BLOCK).enumerate();
        rows.for_each(|(i, row)| self.read_row(i, row));
    }

    /// `x Wᵀ`, `[rows, outputs]`, into `y`, on all threads. The result does not depend on their
    /// number.
    ///
    /// Cost: 6 byte products for each weight and row; the matrix is read once for every 4 rows.
    pub(crate) fn multiply(&self, x: &Activations, y: &mut [f32]) {
        self.multiply_at(Level::best(), x, y);
    }

    /// [`multiply`](Self::multiply) with the instructions of a level.
    pub(super) fn multiply_at(&self, level: Level, x: &Activations, y: &mut [f32]) {
        let rows = x.rows();
        assert_eq!(y.len(), rows * self.outputs, "products of every row and output");
        assert_eq!(x.row(0).len(), self.blocks, "rows of the inputs");
        let part = self.groups_per_part();
        if rows == 1 {
            let parts = y.par_chunks_mut(part * LANES).enumerate();
            parts.for_each(|(i, y)| self.multiply_groups(level, x, i * part, y));
            return;
        }
        let mut products = vec![0.0; self.groups() * rows * LANES];
        let parts = products.par_chunks_mut(part * rows * LANES).enumerate();
        parts.for_each(|(i, products)| self.multiply_groups(level, x, i * part, products));
        for (group, products) in products.chunks_exact(rows * LANES).enumerate() {
            for (row, products) in products.chunks_exact(LANES).enumerate() {
                let y = &mut y[row * self.outputs..(row + 1) * self.outputs];
                let y = &mut y[group * LANES..];
                let len = y.len().min(LANES);
                y[..len].copy_from_slice(&products[..len]);
            }
        }
    }

    /// Products of groups from `first` on, `[groups][rows][16]`; the last may be cut.
    fn multiply_groups(&self, level: Level, x: &Activations, first: usize, products: &mut [f32]) {
        for (i, products) in products.chunks_mut(x.rows() * LANES).enumerate() {
            multiply(level, self.format, x, self.group(first + i), products);
        }
    }

    fn groups_per_part(&self) -> usize {
        let threads = rayon::current_num_threads();
        let parts = if threads == 1 { 1 } else { PARTS_PER_THREAD * threads };
        let least = LEAST_PART.div_ceil(self.blocks * lines(self.format) * size_of::<Line>());
        self.groups().div_ceil(parts).max(least)
    }

    fn groups(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    fn group(&self, i: usize) -> Group<'_> {
        let tiles = i * self.blocks..(i + 1) * self.blocks;
        let lines = lines(self.format);
        Group {
            quanta: &self.quanta[tiles.start * lines..tiles.end * lines],
            scales: &self.scales[tiles.clone()],
            offsets: self.offsets.get(tiles).unwrap_or_default(),
        }
    }
}

/// Cache lines of a block of sixteen outputs.
fn lines(format: QuantFormat) -> usize {
    if format.has_nibbles() { 4 } else { 8 }
}
