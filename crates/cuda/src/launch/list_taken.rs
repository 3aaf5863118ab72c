//! Token lists from the bits of taken tokens.

use vattention_core::{Error, Result};

use super::{Array, Lists, StepNumbers, Taken, Work, along_y, expect};
use crate::kernels::LIST;
use crate::{Device, Grid, Program};

/// Threads in a block and tokens of a block, as in `list.cu`.
const THREADS: u32 = 256;
const SPAN: usize = 8192;

/// Lists or counts taken tokens.
#[derive(Clone, Debug)]
pub struct ListTaken<D: Device> {
    device: D,
    module: D::Module,
}

impl<D: Device> ListTaken<D> {
    /// Returns the program to compile.
    pub fn program() -> Program {
        Program { source: LIST, constants: Vec::new() }
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// Allocates the counts of `lists` lists of tokens below `capacity`, `[lists, blocks]`. The
    /// memory is scratch space that other launches may use before and after.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn counts(&self, lists: usize, capacity: usize) -> Result<Array<D, u32>> {
        Array::zeros(&self.device, lists * capacity.div_ceil(SPAN))
    }

    /// Adds launches that list the visible tokens that any of `members` consecutive rows has taken,
    /// ascending and without duplicates.
    ///
    /// O(rows · visible / 32).
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        taken: &Taken<D>,
        members: usize,
        lists: &Lists<D>,
        counts: &Array<D, u32>,
    ) -> Result<()> {
        let grid = self.add_count(work, step, taken, members, counts)?;
        expect("lists", taken.lists(members)?, lists.len())?;
        expect("room for tokens of all lists", lists.len() * step.capacity, lists.total())?;
        if !lists.is_empty() {
            step.expect_room("the longest list", lists.longest())?;
        }
        if let Some(rows) = lists.rows.iter().find(|&&rows| rows < step.capacity) {
            return Err(Error::shape("rows of a list", step.capacity, rows));
        }
        let Some(tokens) = &lists.tokens else { return expect("tokens", lists.total(), 0) };
        let arguments = [
            step.numbers.argument(),
            taken.bits.argument(),
            counts.argument(),
            lists.starts.argument(),
            tokens.argument(),
            lists.lengths.argument(),
            members.into(),
            step.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. The bits have `words_of_row` words
        // per row; there is a count for each block of each list, and room for all tokens of each.
        unsafe { work.add(&self.module, "list_taken", grid, arguments) };
        Ok(())
    }

    /// Adds launches that count the same tokens into `totals` `[lists]`.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add_total(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        taken: &Taken<D>,
        members: usize,
        totals: &Array<D, u32>,
        counts: &Array<D, u32>,
    ) -> Result<()> {
        let [blocks, lists] = self.add_count(work, step, taken, members, counts)?.blocks;
        expect("totals", lists as usize, totals.len())?;
        let grid = Grid { blocks: [lists, 1], threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            counts.argument(),
            totals.argument(),
            step.capacity.into(),
            blocks.into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There is a count for each block of
        // each list.
        unsafe { work.add(&self.module, "sum_counts", grid, arguments) };
        Ok(())
    }

    /// Adds a launch that counts the tokens in each block of a grid, and returns the grid.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    fn add_count(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        taken: &Taken<D>,
        members: usize,
        counts: &Array<D, u32>,
    ) -> Result<Grid> {
        let lists = taken.lists(members)?;
        step.expect_room("bits", taken.capacity())?;
        let blocks = step.capacity.div_ceil(SPAN);
        expect("room for counts", lists * blocks, counts.len())?;
        let grid = Grid { blocks: [blocks as u32, along_y("lists", lists)?], threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            taken.bits.argument(),
            counts.argument(),
            members.into(),
            step.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. The bits have `words_of_row` words
        // per row, and there is a count for each block of each list.
        unsafe { work.add(&self.module, "count_taken", grid, arguments) };
        Ok(grid)
    }
}
