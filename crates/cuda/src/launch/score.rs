//! Scores of tokens, by the hash codes of their keys.

use vattention_core::{Error, Result};

use super::codes::{TOKENS_OF_THREAD, room};
use super::taken::stride;
use super::{Array, DeviceCodes, Now, Scores, Work, along_y, expect};
use crate::kernels::SCORE;
use crate::{Device, Grid, Program};

/// As `score.cu` says.
const THREADS: usize = 256;

/// Counts the bits that the codes of tokens have in common with those of queries.
#[derive(Clone, Debug)]
pub struct ScoreCodes<D: Device> {
    device: D,
    module: D::Module,
}

impl<D: Device> ScoreCodes<D> {
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

    /// Adds a launch that finds the score of each visible token to each row: the bits in which its
    /// code agrees with the row's, summed over the row's members. `codes` `[rows, members]` are of
    /// the same size, and are kept; `queries` `[rows, members, words]`.
    ///
    /// O(rows · members · words · visible).
    ///
    /// # Errors
    /// If a size does not fit another, sums exceed 16 bits, or there is no memory.
    pub fn add_codes(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        codes: &[&DeviceCodes<D>],
        queries: &Array<D, u32>,
        scores: &Scores<D, u16>,
    ) -> Result<()> {
        let bits = codes.first().map_or(0, |codes| codes.bits());
        for codes in codes {
            expect("bits of codes", bits, codes.bits())?;
            expect("room for codes", room(now.capacity), codes.capacity())?;
            work.keep(codes.packed());
        }
        let addresses: Vec<u64> = codes.iter().map(|codes| codes.address()).collect();
        let addresses = Array::new(&self.device, &addresses)?;
        self.add(work, now, &addresses, bits, queries, scores)
    }

    /// The same of codes whose addresses, `[rows, members]`, will have been written by then: of
    /// [`DeviceCodes`] of as many bits, with room for as many tokens.
    ///
    /// # Errors
    /// If a size does not fit another, or sums exceed 16 bits.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        codes: &Array<D, u64>,
        bits: usize,
        queries: &Array<D, u32>,
        scores: &Scores<D, u16>,
    ) -> Result<()> {
        let (rows, words) = (scores.rows, bits.div_ceil(32));
        let members = members(rows, codes.len())?;
        now.expect_room("scores", scores.capacity)?;
        expect("words of query codes", codes.len() * words, queries.len())?;
        if u16::try_from(members * bits).is_err() {
            return Err(Error::shape("bits of all members", "at most 65535", members * bits));
        }
        let blocks = now.capacity.div_ceil(THREADS * TOKENS_OF_THREAD) as u32;
        let grid = Grid { blocks: [blocks, along_y("rows", rows)?], threads: THREADS as u32 };
        let given = [
            now.numbers.given(),
            codes.given(),
            queries.given(),
            scores.numbers.given(),
            members.into(),
            words.into(),
            bits.into(),
            now.capacity.into(),
            room(now.capacity).into(),
            stride(now.capacity).into(),
        ];
        // SAFETY: the arguments are those of the kernel. All codes have room for the visible
        // tokens, rounded up as the kernel reads them, and there is a score for each.
        unsafe { work.add(&self.module, "score", grid, given) };
        Ok(())
    }
}

/// How many codes each row has.
fn members(rows: usize, codes: usize) -> Result<usize> {
    let members = codes.checked_div(rows).unwrap_or(0);
    if members * rows == codes && (members > 0 || rows == 0) {
        return Ok(members);
    }
    Err(Error::shape("codes", format_args!("as many for each of {rows} rows"), codes))
}
