//! Number types of stored rows.

use half::{bf16, f16};

use super::{CHUNK, LANES, Simd, SimdLine};

/// A number type of the cache that kernels can read.
pub(crate) trait SimdElement: Copy + Default + Send + Sync + 'static {
    /// Type of copies of values, which include the scales of their rows.
    type Sample: SimdElement;

    /// True if rows are 8-bit integers with a scale per row, by which they are to be multiplied.
    const SCALED: bool = false;

    /// Loads [`CHUNK`] elements of a row in the order of [`place`](Self::place).
    ///
    /// # Safety
    /// See [`Simd`]; `from` must point to [`CHUNK`] elements.
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F);

    /// Address of a row's 8-bit integers, if [`SCALED`](Self::SCALED) is true.
    fn integers(_row: *const Self) -> *const i8 {
        unreachable!("rows without scales have no integers")
    }

    /// Copies [`CHUNK`] elements of a row with this scale to a sample.
    ///
    /// # Safety
    /// See [`Simd`]; both pointers must point to [`CHUNK`] elements.
    unsafe fn copy_chunk<S: Simd>(from: *const Self, scale: f32, to: *mut Self::Sample);

    /// Position in a chunk of the row of the element in lane `lane < CHUNK`.
    fn place(lane: usize) -> usize {
        lane
    }
}

impl SimdElement for f32 {
    type Sample = Self;

    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_f32(from)
    }

    #[inline(always)]
    unsafe fn copy_chunk<S: Simd>(from: *const Self, _: f32, to: *mut Self) {
        std::ptr::copy_nonoverlapping(from, to, CHUNK);
    }
}

impl SimdElement for f16 {
    type Sample = Self;

    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_f16(from)
    }

    #[inline(always)]
    unsafe fn copy_chunk<S: Simd>(from: *const Self, _: f32, to: *mut Self) {
        std::ptr::copy_nonoverlapping(from, to, CHUNK);
    }
}

impl SimdElement for bf16 {
    type Sample = Self;

    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_bf16(from)
    }

    #[inline(always)]
    unsafe fn copy_chunk<S: Simd>(from: *const Self, _: f32, to: *mut Self) {
        std::ptr::copy_nonoverlapping(from, to, CHUNK);
    }

    /// Even positions come first: a shift and a mask widen the two numbers of each 32-bit word.
    fn place(lane: usize) -> usize {
        2 * (lane % LANES) + lane / LANES
    }
}

impl SimdElement for i8 {
    type Sample = f32;

    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        (S::widen_i8(from), S::widen_i8(from.add(LANES)))
    }

    #[inline(always)]
    fn integers(row: *const Self) -> *const i8 {
        row
    }

    #[inline(always)]
    unsafe fn copy_chunk<S: Simd>(from: *const Self, scale: f32, to: *mut f32) {
        let (low, high) = Self::widen::<S>(from);
        S::store(to, S::mul(low, S::splat(scale)));
        S::store(to.add(LANES), S::mul(high, S::splat(scale)));
    }
}

/// Multiplies a row by `factor` and writes it to `lanes` in the lanes' order, padded with zeros.
pub(crate) fn to_lanes<E: SimdElement>(row: &[f32], factor: f32, lanes: &mut [SimdLine]) {
    for (chunk, lines) in lanes.as_chunks_mut::<{ CHUNK / LANES }>().0.iter_mut().enumerate() {
        let numbers: [f32; CHUNK] = chunk_of(row, chunk);
        for lane in 0..CHUNK {
            lines[lane / LANES].0[lane % LANES] = numbers[E::place(lane)] * factor;
        }
    }
}

/// Writes the elements of `lanes`, whole chunks, to `row` in the row's order; `row` may be shorter.
pub(crate) fn from_lanes<E: SimdElement>(lanes: &[f64], row: &mut [f64]) {
    for (lanes, row) in lanes.as_chunks::<CHUNK>().0.iter().zip(row.chunks_mut(CHUNK)) {
        let mut numbers = [0.0; CHUNK];
        for lane in 0..CHUNK {
            numbers[E::place(lane)] = lanes[lane];
        }
        row.copy_from_slice(&numbers[..row.len()]);
    }
}

/// Elements of a chunk of a row, with zeros past the row's end.
fn chunk_of(row: &[f32], chunk: usize) -> [f32; CHUNK] {
    let row = &row[row.len().min(chunk * CHUNK)..];
    row.first_chunk().copied().unwrap_or_else(|| {
        let mut numbers = [0.0; CHUNK];
        numbers[..row.len()].copy_from_slice(row);
        numbers
    })
}
