//! Scores of tokens, by the hash codes of their keys.

use vattention_core::{Error, Result};

use super::taken::stride;
use super::{Array, along_y, expect};
use crate::kernels::SCORE;
use crate::{Argument, Device, Grid, Kernel, Program};

/// As `score.cu` says.
const THREADS: u32 = 256;
const TOKENS_OF_THREAD: usize = 4;

/// A score for each visible token of each row, larger is better.
#[derive(Debug)]
pub struct Scores<D: Device, S> {
    /// `[rows, stride]`
    pub(super) numbers: Array<D, S>,
    pub(super) rows: usize,
    pub(super) visible: usize,
}

impl<D: Device, S: super::Ranked> Scores<D, S> {
    /// Scores of the host, `[rows, visible]`.
    ///
    /// # Errors
    /// If they are no such rows, or there is no memory.
    pub fn new(device: &D, rows: usize, visible: usize, scores: &[S]) -> Result<Self> {
        expect("scores", rows * visible, scores.len())?;
        let numbers = Array::zeros(device, rows * stride(visible))?;
        for row in 0..rows {
            numbers.write(&scores[row * visible..][..visible], row * stride(visible))?;
        }
        Ok(Self { numbers, rows, visible })
    }

    /// All scores, `[rows, visible]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<S>> {
        let numbers = self.numbers.read()?;
        let row = |row| &numbers[row * stride(self.visible)..][..self.visible];
        Ok((0..self.rows).flat_map(row).copied().collect())
    }
}

/// The codes of tokens, with room for more.
#[derive(Debug)]
pub struct Codes<D: Device> {
    /// The first words of all codes, then the second words, and so on, `[words, capacity]`.
    packed: Array<D, u32>,
    bits: usize,
    capacity: usize,
}

impl<D: Device> Codes<D> {
    /// Room for codes of so many bits.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, bits: usize, tokens: usize) -> Result<Self> {
        let capacity = tokens.next_multiple_of(TOKENS_OF_THREAD);
        let packed = Array::zeros(device, bits.div_ceil(32) * capacity)?;
        Ok(Self { packed, bits, capacity })
    }

    /// Writes one word of each code of some tokens from `first` on. Bits beyond those of a code are 0.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there is no such word, or no room.
    pub fn write(&self, word: usize, first: usize, codes: &[u32]) -> Result<()> {
        assert!(first + codes.len() <= self.capacity, "room for {} codes", self.capacity);
        self.packed.write(codes, word * self.capacity + first)
    }

    fn words(&self) -> usize {
        self.bits.div_ceil(32)
    }
}

/// Counts the bits that the codes of tokens have in common with those of queries.
#[derive(Clone, Debug)]
pub struct Score<D: Device> {
    device: D,
    module: D::Module,
}

impl<D: Device> Score<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: SCORE, constants: Vec::new() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// The score of each visible token to each row: the bits in which its code agrees with the
    /// row's, summed over the row's members. `codes` `[rows, members]` are of the same size;
    /// `queries` `[rows, members, words]`.
    ///
    /// O(rows · members · words · visible).
    ///
    /// # Errors
    /// If a size does not fit another, sums exceed 16 bits, or the device fails.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn run(
        &self,
        codes: &[&Codes<D>],
        queries: &[u32],
        members: usize,
        visible: usize,
    ) -> Result<Scores<D, u16>> {
        let rows = codes.len() / members.max(1);
        let (bits, words, capacity) =
            codes.first().map_or((0, 0, 0), |codes| (codes.bits, codes.words(), codes.capacity));
        check(codes, queries, members, visible)?;
        let scores = Array::zeros(&self.device, rows * stride(visible))?;
        let addresses: Vec<u64> = codes.iter().map(|codes| codes.packed.address()).collect();
        let (addresses, queries) =
            (Array::new(&self.device, &addresses)?, Array::new(&self.device, queries)?);
        let numbers = [members, words, bits, capacity, visible, stride(visible)];
        let arguments: Vec<Argument> = [addresses.address(), queries.address(), scores.address()]
            .map(Argument::Address)
            .into_iter()
            .chain(numbers.map(|number| Argument::U32(number as u32)))
            .collect();
        let across = visible.div_ceil(THREADS as usize * TOKENS_OF_THREAD) as u32;
        let blocks = [across, along_y("rows", rows)?];
        if blocks.iter().all(|&count| count > 0) {
            let grid = Grid { blocks, threads: THREADS };
            // SAFETY: the arguments are those of the kernel. All codes have room for the visible
            // tokens, rounded up as the kernel reads them, and there is a score for each.
            unsafe {
                self.device.launch(&Kernel {
                    module: self.module.clone(),
                    name: "score",
                    grid,
                    arguments,
                })
            }?;
        }
        Ok(Scores { numbers: scores, rows, visible })
    }
}

fn check<D: Device>(
    codes: &[&Codes<D>],
    queries: &[u32],
    members: usize,
    visible: usize,
) -> Result<()> {
    let Some(first) = codes.first() else { return expect("query codes", 0, queries.len()) };
    if members == 0 || !codes.len().is_multiple_of(members) {
        return Err(Error::shape("codes", format_args!("a multiple of {members}"), codes.len()));
    }
    for codes in codes {
        expect("bits of codes", first.bits, codes.bits)?;
        expect("room for codes", first.capacity, codes.capacity)?;
    }
    expect("words of query codes", codes.len() * first.words(), queries.len())?;
    if visible > first.capacity {
        let expected = format_args!("at most {}", first.capacity);
        return Err(Error::shape("visible tokens", expected, visible));
    }
    if u16::try_from(members * first.bits).is_err() {
        return Err(Error::shape("bits of all members", "at most 65535", members * first.bits));
    }
    Ok(())
}
