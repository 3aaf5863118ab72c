//! Products of some rows with sixteen outputs.
//!
//! The kernel is written once, over [`Instructions`], and compiled for each [`Level`];
//! [`Portable`](portable::Portable) is its definition in plain Rust. Code here is `unsafe` because it
//! reads through pointers that [`multiply`] has checked, and uses instructions that [`Level`] has
//! checked for.

#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the module's documentation says why")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::activations::{ActivationBlock, Activations, BASE, DIGITS};
use super::format::QuantFormat;
use super::layout::{Group, Line, Numbers};
use super::{BLOCK, LANES};

/// Rows that share one reading of the weights at most.
const ROWS: usize = 4;

/// Cache lines between the one that is multiplied and the one that is fetched meanwhile.
const AHEAD: usize = 64;

/// Blocks of a row of activations.
type Row = *const ActivationBlock;

/// Products of some rows with sixteen outputs.
type Products = [[f32; LANES]; ROWS];

/// Instruction sets that the kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
}

/// Vectors of sixteen outputs.
///
/// # Safety
/// The machine must have the instructions of the implementation; pointers must be valid for what is
/// read. All functions are inlined into a function that is compiled for these instructions.
trait Instructions {
    /// Sixty-four bytes.
    type Bytes: Copy;
    /// Sixteen sums of products of nibbles of a block.
    type NibbleSums: Copy;
    /// Sixteen integers.
    type Integers: Copy;
    /// Sixteen f32 numbers.
    type Floats: Copy;

    /// Zero point of bytes as [`dot_bytes`](Self::dot_bytes) takes them.
    const BYTE_ZERO: i32;

    unsafe fn load(from: *const Line) -> Self::Bytes;
    unsafe fn low_nibbles(bytes: Self::Bytes) -> Self::Bytes;
    unsafe fn high_nibbles(bytes: Self::Bytes) -> Self::Bytes;
    unsafe fn zero_nibble_sums() -> Self::NibbleSums;
    /// Adds to each output the products of its four bytes, which are less than 16, with those of `x`.
    unsafe fn dot_nibbles(sums: Self::NibbleSums, q: Self::Bytes, x: [i8; 4]) -> Self::NibbleSums;
    unsafe fn finish(sums: Self::NibbleSums) -> Self::Integers;
    /// The same of any bytes, whose zero point becomes [`BYTE_ZERO`](Self::BYTE_ZERO).
    unsafe fn dot_bytes(sums: Self::Integers, q: Self::Bytes, x: [i8; 4]) -> Self::Integers;
    unsafe fn integers(x: i32) -> Self::Integers;
    unsafe fn sub(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// `a · 255 + b`.
    unsafe fn next_digit(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn to_floats(x: Self::Integers) -> Self::Floats;
    unsafe fn floats(x: f32) -> Self::Floats;
    unsafe fn load_numbers(from: *const Numbers) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn store(to: &mut [f32; LANES], x: Self::Floats);
    /// Asks for the line [`AHEAD`] of this one, which may be beyond the matrix.
    unsafe fn prefetch(at: *const Line);
}

/// A [`QuantFormat`] at compile time.
trait Format {
    const FORMAT: QuantFormat;
}

struct Q4_0;
struct Q4_1;
struct Q8_0;

impl Format for Q4_0 {
    const FORMAT: QuantFormat = QuantFormat::Q4_0;
}

impl Format for Q4_1 {
    const FORMAT: QuantFormat = QuantFormat::Q4_1;
}

impl Format for Q8_0 {
    const FORMAT: QuantFormat = QuantFormat::Q8_0;
}

/// Products of the rows of `x` with a group, `[rows][16]`; the last row of `products` may be cut.
pub(super) fn multiply(
    level: Level,
    format: QuantFormat,
    x: &Activations,
    group: Group<'_>,
    products: &mut [f32],
) {
    let mut first = 0;
    let mut out = Products::default();
    while first < x.rows() {
        let count = match x.rows() - first {
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let rows: [&[ActivationBlock]; ROWS] =
            std::array::from_fn(|i| x.row(first + i.min(count - 1)));
        for row in rows {
            group.check(format, row.len());
        }
        let rows = rows.map(<[_]>::as_ptr);
        // SAFETY: the level is one of the machine's; `check` has compared lengths.
        unsafe {
            match format {
                QuantFormat::Q4_0 => level.multiply::<Q4_0>(&rows[..count], group, &mut out),
                QuantFormat::Q4_1 => level.multiply::<Q4_1>(&rows[..count], group, &mut out),
                QuantFormat::Q8_0 => level.multiply::<Q8_0>(&rows[..count], group, &mut out),
            }
        }
        let products = products[first * LANES..].chunks_mut(LANES);
        products.zip(&out[..count]).for_each(|(to, from)| to.copy_from_slice(&from[..to.len()]));
        first += count;
    }
}

impl Group<'_> {
    fn check(&self, format: QuantFormat, blocks: usize) {
        let lines = if format.has_nibbles() { 4 } else { 8 };
        assert_eq!(self.quanta.len(), blocks * lines, "lines of a group");
        assert_eq!(self.scales.len(), blocks, "scales of a group");
        assert!(!format.has_offsets() || self.offsets.len() == blocks, "offsets of a group");
    }
}

impl Level {
    /// Best of this machine.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            if avx2 && avx512 {
                return Self::Avx512Vnni;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// All levels that this machine has.
    #[cfg(test)]
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let levels = [Self::Portable, Self::Avx2, Self::Avx512Vnni];
        levels.into_iter().filter(|&level| level <= Self::best())
    }

    /// # Safety
    /// The machine must have this level. Every row must have as many blocks as the group, and the group
    /// the lines and numbers of the format.
    unsafe fn multiply<F: Format>(
        self,
        rows: &[Row],
        group: Group<'_>,
        out: &mut Products,
    ) {
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512Vnni => avx512::multiply::<F>(rows, group, out),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => avx2::multiply::<F>(rows, group, out),
                _ => multiply_rows::<portable::Portable, F>(rows, group, out),
            }
        }
    }
}

/// Products of 1, 2 or 4 rows.
///
/// # Safety
/// As [`Level::multiply`].
#[inline(always)]
unsafe fn multiply_rows<I: Instructions, F: Format>(
    rows: &[Row],
    group: Group<'_>,
    out: &mut Products,
) {
    unsafe {
        match *rows {
            [a, b, c, d] => multiply_n::<I, F, 4>([a, b, c, d], group, out),
            [a, b] => multiply_n::<I, F, 2>([a, b], group, out),
            [a] => multiply_n::<I, F, 1>([a], group, out),
            _ => unreachable!("{} rows at once", rows.len()),
        }
    }
}

#[inline(always)]
unsafe fn multiply_n<I: Instructions, F: Format, const N: usize>(
    rows: [Row; N],
    group: Group<'_>,
    out: &mut Products,
) {
    unsafe {
        let (mut sums, mut offsets) = ([I::floats(0.0); N], [I::floats(0.0); N]);
        for block in 0..group.scales.len() {
            let x = rows.map(|row| row.add(block));
            let dots = dot_block::<I, F, N>(x, group.quanta.as_ptr(), block);
            let scale = I::load_numbers(group.scales.as_ptr().add(block));
            for n in 0..N {
                let [high, middle, low] = dots[n];
                let rest = I::to_floats(I::next_digit(middle, low));
                let base = I::floats((BASE * BASE) as f32);
                let dot = I::fma(I::to_floats(high), base, rest);
                let scale = I::mul(scale, I::floats((*x[n]).scale));
                sums[n] = I::fma(scale, dot, sums[n]);
                if F::FORMAT.has_offsets() {
                    let offset = I::load_numbers(group.offsets.as_ptr().add(block));
                    offsets[n] = I::fma(offset, I::floats((*x[n]).total), offsets[n]);
                }
            }
        }
        for n in 0..N {
            I::store(&mut out[n], I::add(sums[n], offsets[n]));
        }
    }
}

/// Integer dot products of a block with each row's three kinds of digits, less the zero point.
#[inline(always)]
unsafe fn dot_block<I: Instructions, F: Format, const N: usize>(
    x: [Row; N],
    quanta: *const Line,
    block: usize,
) -> [[I::Integers; DIGITS]; N] {
    unsafe {
        let word = |n: usize, digit: usize, i: usize| -> [i8; 4] {
            let digits: *const [[i8; 4]; BLOCK / 4] = (&raw const (*x[n]).digits[digit]).cast();
            (*digits)[i]
        };
        let mut dots = [[I::integers(0); DIGITS]; N];
        if F::FORMAT.has_nibbles() {
            let mut sums = [[I::zero_nibble_sums(); DIGITS]; N];
            for line in 0..4 {
                let at = quanta.add(4 * block + line);
                I::prefetch(at);
                let bytes = I::load(at);
                let (low, high) = (I::low_nibbles(bytes), I::high_nibbles(bytes));
                for n in 0..N {
                    for digit in 0..DIGITS {
                        let sum = I::dot_nibbles(sums[n][digit], low, word(n, digit, line));
                        sums[n][digit] = I::dot_nibbles(sum, high, word(n, digit, 4 + line));
                    }
                }
            }
            for n in 0..N {
                dots[n] = sums[n].map(|sum| I::finish(sum));
            }
        } else {
            for line in 0..8 {
                let at = quanta.add(8 * block + line);
                I::prefetch(at);
                let bytes = I::load(at);
                for n in 0..N {
                    for digit in 0..DIGITS {
                        dots[n][digit] = I::dot_bytes(dots[n][digit], bytes, word(n, digit, line));
                    }
                }
            }
        }
        let zero = if F::FORMAT.has_nibbles() { i32::from(F::FORMAT.zero()) } else { I::BYTE_ZERO };
        if zero != 0 {
            for n in 0..N {
                for digit in 0..DIGITS {
                    let sum = I::integers(zero * (*x[n]).sums[digit]);
                    dots[n][digit] = I::sub(dots[n][digit], sum);
                }
            }
        }
        dots
    }
}
