//! Tokens that are taken by position, without scores.

use vattention_core::{Error, Result};

use super::{Array, Progress, StepNumbers, Taken, Work, along_y, expect};
use crate::kernels::TAKE;
use crate::{Device, Grid, Program};

/// Threads in a block, as in `take.cu`.
const THREADS: u32 = 256;

/// Takes ranges of tokens, and drawn tokens.
#[derive(Clone, Debug)]
pub struct Take<D: Device> {
    module: D::Module,
}

impl<D: Device> Take<D> {
    /// Returns the program to compile.
    pub fn program() -> Program {
        Program { source: TAKE, constants: Vec::new() }
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program())? })
    }

    /// Adds a launch that takes ranges of visible tokens, `ranges` `[rows, count, 2]`: first token
    /// and end of each. With `fresh`, tokens taken before become untaken.
    ///
    /// O(rows · count · capacity / 32).
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        ranges: &Array<D, u32>,
        taken: &Taken<D>,
        fresh: bool,
    ) -> Result<()> {
        let count = ranges.len() / (2 * taken.rows()).max(1);
        if ranges.len() != 2 * taken.rows() * count {
            let expected = format_args!("the same number for each of {} rows", taken.rows());
            return Err(Error::shape("ends of ranges", expected, ranges.len()));
        }
        step.expect_room("bits", taken.capacity())?;
        let words = taken.words_of_row();
        let blocks = [(words as u32).div_ceil(THREADS), along_y("rows", taken.rows())?];
        let grid = Grid { blocks, threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            ranges.argument(),
            taken.bits.argument(),
            count.into(),
            u32::from(fresh).into(),
            step.capacity.into(),
            words.into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There are `count` ranges of each
        // row, and `words` words of bits.
        unsafe { work.add(&self.module, "take_ranges", grid, arguments) };
        Ok(())
    }

    /// Adds a launch that takes, in the first of each list's `members` rows, the tokens drawn for
    /// the list. The union of the list's rows then holds all tokens that were read.
    ///
    /// O(drawn).
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
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
        let arguments = [
            progress.end().argument(),
            progress.tokens.argument(),
            taken.bits.argument(),
            members.into(),
            taken.capacity().into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. The tokens of samples are below
        // their capacity, for which there are bits.
        unsafe { work.add(&self.module, "take_drawn", grid, arguments) };
        Ok(())
    }
}
