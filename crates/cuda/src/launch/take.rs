//! Tokens that are taken without a look at scores.

use vattention_core::{Error, Result};

use super::{Array, Now, Progress, Taken, Work, along_y, expect};
use crate::kernels::TAKE;
use crate::{Device, Grid, Program};

/// As `take.cu` says.
const THREADS: u32 = 256;

/// Takes ranges of tokens, and those that were drawn.
#[derive(Clone, Debug)]
pub struct Take<D: Device> {
    module: D::Module,
}

impl<D: Device> Take<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: TAKE, constants: Vec::new() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program())? })
    }

    /// Adds a launch that takes ranges of visible tokens, `ranges` `[rows, count, 2]`: first and
    /// end of each. If `fresh`, nothing else is taken afterwards.
    ///
    /// O(rows · count · capacity / 32).
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        ranges: &Array<D, u32>,
        taken: &Taken<D>,
        fresh: bool,
    ) -> Result<()> {
        let count = ranges.len() / (2 * taken.rows()).max(1);
        if ranges.len() != 2 * taken.rows() * count {
            let expected = format_args!("as many for each of {} rows", taken.rows());
            return Err(Error::shape("ends of ranges", expected, ranges.len()));
        }
        now.expect_room("bits", taken.capacity())?;
        let words = taken.words_of_row();
        let blocks = [(words as u32).div_ceil(THREADS), along_y("rows", taken.rows())?];
        let grid = Grid { blocks, threads: THREADS };
        let given = [
            now.numbers.given(),
            ranges.given(),
            taken.bits.given(),
            count.into(),
            u32::from(fresh).into(),
            now.capacity.into(),
            words.into(),
        ];
        // SAFETY: the arguments are those of the kernel. There are `count` ranges of each row, and
        // as many words.
        unsafe { work.add(&self.module, "take_ranges", grid, given) };
        Ok(())
    }

    /// Adds a launch that takes, in the first of each list's `members` rows, the tokens that have
    /// been drawn for the list: the union of its rows is then all that it has read.
    ///
    /// O(drawn).
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add_drawn(
        &self,
        work: &mut Work<D>,
        progress: &Progress<D>,
        taken: &Taken<D>,
        members: usize,
    ) -> Result<()> {
        let lists = taken.lists(members)?;
        expect("samples", lists, progress.lists())?;
        expect("room for tokens of samples", taken.capacity(), progress.capacity())?;
        let blocks = [(taken.capacity() as u32).div_ceil(THREADS), along_y("lists", lists)?];
        let grid = Grid { blocks, threads: THREADS };
        let given = [
            progress.end().given(),
            progress.tokens.given(),
            taken.bits.given(),
            members.into(),
            taken.capacity().into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments are those of the kernel. The tokens of samples are below their
        // capacity, for which there are bits.
        unsafe { work.add(&self.module, "take_drawn", grid, given) };
        Ok(())
    }
}
