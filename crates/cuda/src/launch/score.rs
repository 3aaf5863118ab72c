//! Scores of tokens by the hash codes of their keys.

use vattention_core::{Error, Result};

use super::codes::{TOKENS_OF_THREAD, padded_capacity};
use super::taken::stride;
use super::{Array, DeviceCodes, DeviceScores, StepNumbers, Work, along_y, expect};
use crate::kernels::SCORE;
use crate::{Device, Grid, Program};

/// Threads in a block, as in `score.cu`.
const THREADS: usize = 256;

/// Counts the bits in which the codes of tokens agree with those of queries.
#[derive(Clone, Debug)]
pub struct ScoreCodes<D: Device> {
    device: D,
    module: D::Module,
}

impl<D: Device> ScoreCodes<D> {
    /// Returns the program to compile.
    pub fn program() -> Program {
        Program { source: SCORE, constants: Vec::new() }
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// Adds a launch that computes the score of each visible token for each row: the number of bits
    /// in which its code agrees with the row's query codes, summed over the row's members. `codes`
    /// is `[rows, members]`, and the work shares ownership of them; `queries` is `[rows, members,
    /// words]`.
    ///
    /// O(rows · members · words · visible).
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, sums exceed 16 bits, or there is no memory.
    pub fn add_codes(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        codes: &[&DeviceCodes<D>],
        queries: &Array<D, u32>,
        scores: &DeviceScores<D, u16>,
    ) -> Result<()> {
        let bits = codes.first().map_or(0, |codes| codes.bits());
        for codes in codes {
            expect("bits of codes", bits, codes.bits())?;
            expect("room for codes", padded_capacity(step.capacity), codes.capacity())?;
            work.keep(codes.packed());
        }
        let addresses: Vec<u64> = codes.iter().map(|codes| codes.address()).collect();
        let addresses = Array::new(&self.device, &addresses)?;
        self.add(work, step, &addresses, bits, queries, scores)
    }

    /// Adds the same launch for addresses of [`DeviceCodes`], `[rows, members]`, that must be valid
    /// when the kernel runs, with codes of `bits` bits and this capacity.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, or sums exceed 16 bits.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        codes: &Array<D, u64>,
        bits: usize,
        queries: &Array<D, u32>,
        scores: &DeviceScores<D, u16>,
    ) -> Result<()> {
        let (rows, words) = (scores.rows, bits.div_ceil(32));
        let members = members(rows, codes.len())?;
        step.expect_room("scores", scores.capacity)?;
        expect("words of query codes", codes.len() * words, queries.len())?;
        if u16::try_from(members * bits).is_err() {
            return Err(Error::shape("bits of all members", "at most 65535", members * bits));
        }
        let blocks = step.capacity.div_ceil(THREADS * TOKENS_OF_THREAD) as u32;
        let grid = Grid { blocks: [blocks, along_y("rows", rows)?], threads: THREADS as u32 };
        let arguments = [
            step.numbers.argument(),
            codes.argument(),
            queries.argument(),
            scores.numbers.argument(),
            members.into(),
            words.into(),
            bits.into(),
            step.capacity.into(),
            padded_capacity(step.capacity).into(),
            stride(step.capacity).into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. All codes have room for the visible
        // tokens, rounded up as the kernel reads them, and there is a score for each.
        unsafe { work.add(&self.module, "score", grid, arguments) };
        Ok(())
    }
}

/// Number of codes of each row.
fn members(rows: usize, codes: usize) -> Result<usize> {
    let members = codes.checked_div(rows).unwrap_or(0);
    if members * rows == codes && (members > 0 || rows == 0) {
        return Ok(members);
    }
    Err(Error::shape("codes", format_args!("the same number for each of {rows} rows"), codes))
}
