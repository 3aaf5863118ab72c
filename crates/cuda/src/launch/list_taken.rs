//! From the bits of taken tokens to lists.

use vattention_core::{Error, Result};

use super::{Array, Lists, Now, Taken, Work, along_y, expect};
use crate::kernels::LIST;
use crate::{Device, Grid, Program};

/// As `list.cu` says.
const THREADS: u32 = 256;
const SPAN: usize = 8192;

/// Lists taken tokens, or only counts them.
#[derive(Clone, Debug)]
pub struct ListTaken<D: Device> {
    device: D,
    module: D::Module,
}

impl<D: Device> ListTaken<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: LIST, constants: Vec::new() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { device: device.clone(), module: device.compile(&Self::program())? })
    }

    /// Room for the counts of `lists` lists of tokens below `capacity`, `[lists, blocks]`.
    /// Others may use it before and after.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn counts(&self, lists: usize, capacity: usize) -> Result<Array<D, u32>> {
        Array::zeros(&self.device, lists * capacity.div_ceil(SPAN))
    }

    /// Adds launches that list the visible tokens that `members` rows one after the other have
    /// taken, ascending, each once.
    ///
    /// O(rows · visible / 32).
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        taken: &Taken<D>,
        members: usize,
        lists: &Lists<D>,
        counts: &Array<D, u32>,
    ) -> Result<()> {
        let grid = self.add_count(work, now, taken, members, counts)?;
        expect("lists", taken.lists(members)?, lists.len())?;
        expect("room for tokens of all lists", lists.len() * now.capacity, lists.total())?;
        if !lists.is_empty() {
            now.expect_room("the longest list", lists.longest())?;
        }
        if let Some(rows) = lists.rows.iter().find(|&&rows| rows < now.capacity) {
            return Err(Error::shape("rows of a list", now.capacity, rows));
        }
        let Some(tokens) = &lists.tokens else { return expect("tokens", lists.total(), 0) };
        let given = [
            now.numbers.given(),
            taken.bits.given(),
            counts.given(),
            lists.starts.given(),
            tokens.given(),
            lists.lengths.given(),
            members.into(),
            now.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments are those of the kernel. There are as many words of bits, a count
        // for each block of each list, and room for all tokens of each.
        unsafe { work.add(&self.module, "list_taken", grid, given) };
        Ok(())
    }

    /// Adds launches that only count them, into `totals` `[lists]`.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub fn add_total(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        taken: &Taken<D>,
        members: usize,
        totals: &Array<D, u32>,
        counts: &Array<D, u32>,
    ) -> Result<()> {
        let [blocks, lists] = self.add_count(work, now, taken, members, counts)?.blocks;
        expect("totals", lists as usize, totals.len())?;
        let grid = Grid { blocks: [lists, 1], threads: THREADS };
        let given = [
            now.numbers.given(),
            counts.given(),
            totals.given(),
            now.capacity.into(),
            blocks.into(),
        ];
        // SAFETY: the arguments are those of the kernel. There is a count for each block of each
        // list.
        unsafe { work.add(&self.module, "sum_counts", grid, given) };
        Ok(())
    }

    /// Adds a launch that counts them in each block of a grid, which it says.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    fn add_count(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        taken: &Taken<D>,
        members: usize,
        counts: &Array<D, u32>,
    ) -> Result<Grid> {
        let lists = taken.lists(members)?;
        now.expect_room("bits", taken.capacity())?;
        let blocks = now.capacity.div_ceil(SPAN);
        expect("room for counts", lists * blocks, counts.len())?;
        let grid = Grid { blocks: [blocks as u32, along_y("lists", lists)?], threads: THREADS };
        let given = [
            now.numbers.given(),
            taken.bits.given(),
            counts.given(),
            members.into(),
            now.capacity.into(),
            taken.words_of_row().into(),
        ];
        // SAFETY: the arguments are those of the kernel. There are as many words of bits, and a
        // count for each block of each list.
        unsafe { work.add(&self.module, "count_taken", grid, given) };
        Ok(grid)
    }
}
