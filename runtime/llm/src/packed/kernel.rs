//! Products of some rows with sixteen outputs.
//!
//! The kernel is written once, over [`Instructions`], and compiled for each [`InstructionSet`];
//! [`Portable`](portable::Portable) defines the operations in plain Rust. This module is `unsafe`
//! because it reads through pointers that [`multiply`] has checked, and uses instructions that
//! [`InstructionSet`] has detected.

#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the module's documentation says why")]
#![allow(clippy::needless_range_loop, reason = "several arrays share an index")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dots;
mod portable;

use super::LANES;
use super::activations::{ActivationBlock, Activations, BASE, DIGITS};
use super::format::{QuantFormat, SUPER_BLOCK};
use super::tile::{CacheLine, LaneExponents, LaneFactors, LaneNumbers, OutputGroup};
use dots::{dot_bits, dot_bytes, dot_codes, dot_nibbles};

/// Largest number of rows that share one read of the weights.
const ROWS: usize = 4;

/// Distance in cache lines between the multiplied line and the prefetched one.
const AHEAD: usize = 64;

/// Pointer to the blocks of a row of activations.
type ActivationRow = *const ActivationBlock;

/// Products of some rows with sixteen outputs.
type RowProducts = [[f32; LANES]; ROWS];

/// Instruction sets that the kernel is compiled for, in ascending order: a machine with one of them
/// also supports those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InstructionSet {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
}

/// Operations on vectors of sixteen outputs.
///
/// # Safety
/// The machine must support the instructions of the implementation, and pointers must be valid for
/// the type they point to. All functions are inlined into a function that is compiled for these
/// instructions.
trait Instructions {
    /// Vector of 64 bytes.
    type Bytes: Copy;
    /// Sixteen sums of products of a block's nibbles.
    type NibbleSums: Copy;
    /// Vector of sixteen integers.
    type Integers: Copy;
    /// Vector of sixteen f32 numbers.
    type Floats: Copy;

    /// Zero point of bytes in [`dot_bytes`](Self::dot_bytes).
    const BYTE_ZERO: i32;

    unsafe fn load(from: *const CacheLine) -> Self::Bytes;
    unsafe fn low_nibbles(bytes: Self::Bytes) -> Self::Bytes;
    unsafe fn high_nibbles(bytes: Self::Bytes) -> Self::Bytes;
    /// Looks up nibbles in a codebook.
    unsafe fn look_up(codebook: &[u8; 16], nibbles: Self::Bytes) -> Self::Bytes;
    unsafe fn zero_nibble_sums() -> Self::NibbleSums;
    /// Adds to each output the products of its four bytes, which are less than 16, with those of
    /// `x`.
    unsafe fn dot_nibbles(sums: Self::NibbleSums, q: Self::Bytes, x: [i8; 4]) -> Self::NibbleSums;
    unsafe fn finish(sums: Self::NibbleSums) -> Self::Integers;
    /// Appends to nibbles `BITS` bits of each byte of `high`, from bit `from` on.
    unsafe fn join_bits<const BITS: usize>(
        low: Self::Bytes,
        high: Self::Bytes,
        from: usize,
    ) -> Self::Bytes;
    /// Computes [`dot_nibbles`](Self::dot_nibbles) for bytes less than 64.
    unsafe fn dot_six_bits(sums: Self::Integers, q: Self::Bytes, x: [i8; 4]) -> Self::Integers;
    /// Computes [`dot_nibbles`](Self::dot_nibbles) for any bytes, with the zero point
    /// [`BYTE_ZERO`](Self::BYTE_ZERO).
    unsafe fn dot_bytes(sums: Self::Integers, q: Self::Bytes, x: [i8; 4]) -> Self::Integers;
    unsafe fn integers(x: i32) -> Self::Integers;
    unsafe fn sub(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Computes `a · 255 + b`.
    unsafe fn next_digit(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    unsafe fn to_floats(x: Self::Integers) -> Self::Floats;
    unsafe fn floats(x: f32) -> Self::Floats;
    unsafe fn load_numbers(from: *const LaneNumbers) -> Self::Floats;
    /// Loads the halves of powers of two.
    unsafe fn load_exponents(from: *const LaneExponents) -> Self::Floats;
    unsafe fn load_factors(from: *const LaneFactors) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Computes `a · b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn store(to: &mut [f32; LANES], x: Self::Floats);
    /// Prefetches the line [`AHEAD`] lines after this one, which may lie beyond the matrix.
    unsafe fn prefetch(at: *const CacheLine);
}

/// Type-level constant for a [`QuantFormat`].
trait Format {
    const FORMAT: QuantFormat;
}

/// Defines formats as types, and a function that calls the kernel with the type of a format.
macro_rules! formats {
    ($($name:ident),*) => {
        $(
            struct $name;

            impl Format for $name {
                const FORMAT: QuantFormat = QuantFormat::$name;
            }
        )*

        impl InstructionSet {
            /// # Safety
            /// The conditions are those of [`InstructionSet::multiply`].
            unsafe fn multiply_format(
                self,
                format: QuantFormat,
                rows: &[ActivationRow],
                group: OutputGroup<'_>,
                out: &mut RowProducts,
            ) {
                match format {
                    $(QuantFormat::$name => unsafe { self.multiply::<$name>(rows, group, out) },)*
                }
            }
        }
    };
}

formats!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs, Mxfp4);

/// Multiplies the rows of `x` by a group: `products` is `[rows][16]`, and its last row may be
/// shorter.
pub(super) fn multiply(
    level: InstructionSet,
    format: QuantFormat,
    x: &Activations,
    group: OutputGroup<'_>,
    products: &mut [f32],
) {
    group.check(format, x.row(0).len());
    let mut first = 0;
    let mut out = RowProducts::default();
    while first < x.rows() {
        let count = match x.rows() - first {
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let rows: [&[ActivationBlock]; ROWS] =
            std::array::from_fn(|i| x.row(first + i.min(count - 1)));
        let rows = rows.map(<[_]>::as_ptr);
        // SAFETY: the machine supports the level; `check` has compared the lengths.
        unsafe { level.multiply_format(format, &rows[..count], group, &mut out) }
        let products = products[first * LANES..].chunks_mut(LANES);
        products.zip(&out[..count]).for_each(|(to, from)| to.copy_from_slice(&from[..to.len()]));
        first += count;
    }
}

impl InstructionSet {
    /// Returns the fastest instruction set of this machine.
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

    /// Returns all instruction sets of this machine.
    #[cfg(test)]
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let levels = [Self::Portable, Self::Avx2, Self::Avx512Vnni];
        levels.into_iter().filter(|&level| level <= Self::best())
    }

    /// # Safety
    /// The machine must support this instruction set. Every row must have the group's number of
    /// blocks, and the group the format's numbers of lines and scales.
    unsafe fn multiply<F: Format>(
        self,
        rows: &[ActivationRow],
        group: OutputGroup<'_>,
        out: &mut RowProducts,
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

/// Multiplies 1, 2 or 4 rows.
///
/// # Safety
/// The conditions are those of [`InstructionSet::multiply`].
#[inline(always)]
unsafe fn multiply_rows<I: Instructions, F: Format>(
    rows: &[ActivationRow],
    group: OutputGroup<'_>,
    out: &mut RowProducts,
) {
    unsafe {
        match *rows {
            [a, b, c, d] => multiply_n::<I, F, 4>([a, b, c, d], group, out),
            [a, b] => multiply_n::<I, F, 2>([a, b], group, out),
            [a] => multiply_n::<I, F, 1>([a], group, out),
            _ => unreachable!("expected 1, 2 or 4 rows, found {}", rows.len()),
        }
    }
}

#[inline(always)]
unsafe fn multiply_n<I: Instructions, F: Format, const N: usize>(
    rows: [ActivationRow; N],
    group: OutputGroup<'_>,
    out: &mut RowProducts,
) {
    unsafe {
        let (mut sums, mut offsets) = ([I::floats(0.0); N], [I::floats(0.0); N]);
        for block in 0..group.quanta.len() / F::FORMAT.lines() {
            let x = rows.map(|row| row.add(block));
            let quanta = group.quanta.as_ptr().add(F::FORMAT.lines() * block);
            if F::FORMAT.scale_factors() == 2 {
                let [low, high] = dot_bits::<I, F, N, 2>(x, quanta);
                add_scaled::<I, N>(x, scale::<I, F>(&group, 2 * block), low, &mut sums);
                add_scaled::<I, N>(x, scale::<I, F>(&group, 2 * block + 1), high, &mut sums);
            } else {
                let dots = match (F::FORMAT.codebook(), F::FORMAT.high_bits()) {
                    (Some(codebook), _) => dot_codes::<I, F, N>(x, quanta, codebook),
                    (None, 0) => dot_nibbles::<I, F, N>(x, quanta),
                    (None, 4) => dot_bytes::<I, N>(x, quanta),
                    _ => {
                        let [dots] = dot_bits::<I, F, N, 1>(x, quanta);
                        dots
                    }
                };
                add_scaled::<I, N>(x, scale::<I, F>(&group, block), dots, &mut sums);
            }
            if F::FORMAT.has_offsets() {
                let offset = offset::<I, F>(&group, block);
                for n in 0..N {
                    offsets[n] = I::fma(offset, I::floats((*x[n]).total), offsets[n]);
                }
            }
        }
        for n in 0..N {
            I::store(&mut out[n], I::add(sums[n], offsets[n]));
        }
    }
}

/// Scales of a block, or of half a block if the format has factors for each half.
#[inline(always)]
unsafe fn scale<I: Instructions, F: Format>(group: &OutputGroup<'_>, i: usize) -> I::Floats {
    unsafe {
        if F::FORMAT.has_exponents() {
            return I::load_exponents(group.exponents.as_ptr().add(i));
        }
        if !F::FORMAT.is_nested() {
            return I::load_numbers(group.scales.as_ptr().add(i));
        }
        let parts = SUPER_BLOCK * F::FORMAT.scale_factors();
        let factors = I::load_factors(group.scale_factors.as_ptr().add(i));
        I::mul(I::load_numbers(group.scales.as_ptr().add(i / parts)), factors)
    }
}

#[inline(always)]
unsafe fn offset<I: Instructions, F: Format>(group: &OutputGroup<'_>, block: usize) -> I::Floats {
    unsafe {
        if !F::FORMAT.is_nested() {
            return I::load_numbers(group.offsets.as_ptr().add(block));
        }
        let factors = I::load_factors(group.offset_factors.as_ptr().add(block));
        I::mul(I::load_numbers(group.offsets.as_ptr().add(block / SUPER_BLOCK)), factors)
    }
}

/// Adds the dot products of a block, or of half a block, to the sums.
#[inline(always)]
unsafe fn add_scaled<I: Instructions, const N: usize>(
    x: [ActivationRow; N],
    scale: I::Floats,
    dots: [[I::Integers; DIGITS]; N],
    sums: &mut [I::Floats; N],
) {
    unsafe {
        for n in 0..N {
            let [high, middle, low] = dots[n];
            let rest = I::to_floats(I::next_digit(middle, low));
            let dot = I::fma(I::to_floats(high), I::floats((BASE * BASE) as f32), rest);
            let scale = I::mul(scale, I::floats((*x[n]).scale));
            sums[n] = I::fma(scale, dot, sums[n]);
        }
    }
}
