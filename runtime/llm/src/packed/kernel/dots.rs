//! Integer dot products of a block of sixteen outputs with the digits of each row.

use super::super::BLOCK;
use super::{ActivationRow, CacheLine, DIGITS, Format, Instructions};

/// Integer dot products of a block of nibbles with each row's three kinds of digits, minus the
/// contribution of the zero point.
#[inline(always)]
pub(super) unsafe fn dot_nibbles<I: Instructions, F: Format, const N: usize>(
    x: [ActivationRow; N],
    quanta: *const CacheLine,
) -> [[I::Integers; DIGITS]; N] {
    unsafe {
        let mut sums = [[I::zero_nibble_sums(); DIGITS]; N];
        for line in 0..4 {
            I::prefetch(quanta.add(line));
            let bytes = I::load(quanta.add(line));
            let (low, high) = (I::low_nibbles(bytes), I::high_nibbles(bytes));
            for n in 0..N {
                for digit in 0..DIGITS {
                    let sum = I::dot_nibbles(sums[n][digit], low, word(x[n], digit, line));
                    sums[n][digit] = I::dot_nibbles(sum, high, word(x[n], digit, 4 + line));
                }
            }
        }
        let mut dots = [[I::integers(0); DIGITS]; N];
        for n in 0..N {
            for digit in 0..DIGITS {
                dots[n][digit] = I::finish(sums[n][digit]);
            }
            subtract_zero::<I>(&mut dots[n], F::FORMAT.zero().into(), (*x[n]).sum());
        }
        dots
    }
}

/// Computes [`dot_nibbles`] for integers of five or six bits, of the whole block or of each half.
#[inline(always)]
pub(super) unsafe fn dot_bits<I: Instructions, F: Format, const N: usize, const PARTS: usize>(
    x: [ActivationRow; N],
    quanta: *const CacheLine,
) -> [[[I::Integers; DIGITS]; N]; PARTS] {
    unsafe {
        let bits = F::FORMAT.high_bits();
        let mut dots = [[[I::integers(0); DIGITS]; N]; PARTS];
        for line in 0..bits {
            I::prefetch(quanta.add(4 + line));
        }
        for line in 0..4 {
            I::prefetch(quanta.add(line));
            let bytes = I::load(quanta.add(line));
            for half in 0..2 {
                let low = if half == 0 { I::low_nibbles(bytes) } else { I::high_nibbles(bytes) };
                let i = 4 * half + line;
                let high = I::load(quanta.add(4 + i * bits / 8));
                let q = if bits == 1 {
                    I::join_bits::<1>(low, high, i % 8)
                } else {
                    I::join_bits::<2>(low, high, 2 * i % 8)
                };
                let dots = &mut dots[half * (PARTS - 1)];
                for n in 0..N {
                    for digit in 0..DIGITS {
                        dots[n][digit] = I::dot_six_bits(dots[n][digit], q, word(x[n], digit, i));
                    }
                }
            }
        }
        for part in 0..PARTS {
            for n in 0..N {
                let sums = if PARTS == 1 { (*x[n]).sum() } else { (*x[n]).sums[part] };
                subtract_zero::<I>(&mut dots[part][n], F::FORMAT.zero().into(), sums);
            }
        }
        dots
    }
}

/// Computes [`dot_nibbles`] for bytes.
#[inline(always)]
pub(super) unsafe fn dot_bytes<I: Instructions, const N: usize>(
    x: [ActivationRow; N],
    quanta: *const CacheLine,
) -> [[I::Integers; DIGITS]; N] {
    unsafe {
        let mut dots = [[I::integers(0); DIGITS]; N];
        for line in 0..8 {
            I::prefetch(quanta.add(line));
            let bytes = I::load(quanta.add(line));
            for n in 0..N {
                for digit in 0..DIGITS {
                    let x = word(x[n], digit, line);
                    dots[n][digit] = I::dot_bytes(dots[n][digit], bytes, x);
                }
            }
        }
        for n in 0..N {
            subtract_zero::<I>(&mut dots[n], I::BYTE_ZERO, (*x[n]).sum());
        }
        dots
    }
}

/// Computes [`dot_nibbles`] for the integers of a codebook.
#[inline(always)]
pub(super) unsafe fn dot_codes<I: Instructions, F: Format, const N: usize>(
    x: [ActivationRow; N],
    quanta: *const CacheLine,
    codebook: &[u8; 16],
) -> [[I::Integers; DIGITS]; N] {
    // Integers that lie between zero and twice their zero point.
    let six_bits = F::FORMAT.zero() < 32;
    unsafe {
        let mut dots = [[I::integers(0); DIGITS]; N];
        for line in 0..4 {
            I::prefetch(quanta.add(line));
            let bytes = I::load(quanta.add(line));
            for half in 0..2 {
                let codes = if half == 0 { I::low_nibbles(bytes) } else { I::high_nibbles(bytes) };
                let q = I::look_up(codebook, codes);
                for n in 0..N {
                    for digit in 0..DIGITS {
                        let (sum, x) = (dots[n][digit], word(x[n], digit, 4 * half + line));
                        dots[n][digit] = if six_bits {
                            I::dot_six_bits(sum, q, x)
                        } else {
                            I::dot_bytes(sum, q, x)
                        };
                    }
                }
            }
        }
        let zero = if six_bits { F::FORMAT.zero().into() } else { I::BYTE_ZERO };
        for n in 0..N {
            subtract_zero::<I>(&mut dots[n], zero, (*x[n]).sum());
        }
        dots
    }
}

/// Four consecutive digits of one kind.
#[inline(always)]
unsafe fn word(x: ActivationRow, digit: usize, i: usize) -> [i8; 4] {
    unsafe {
        let digits: *const [[i8; 4]; BLOCK / 4] = (&raw const (*x).digits[digit]).cast();
        (*digits)[i]
    }
}

/// Subtracts the contribution of the zero point from dot products, given the sums of the digits.
#[inline(always)]
unsafe fn subtract_zero<I: Instructions>(
    dots: &mut [I::Integers; DIGITS],
    zero: i32,
    sums: [i32; DIGITS],
) {
    if zero != 0 {
        for digit in 0..DIGITS {
            dots[digit] = unsafe { I::sub(dots[digit], I::integers(zero * sums[digit])) };
        }
    }
}
