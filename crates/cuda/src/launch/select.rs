//! The best of many scores.

use std::marker::PhantomData;

use vattention_core::Result;

use super::bounds::SPAN;
use super::taken::stride;
use super::{Array, Bounds, Given, Now, Ranked, Scores, Taken, Work, along_y, expect};
use crate::kernels::SELECT;
use crate::{Device, Grid, Program};

/// As `select.cu` says.
const THREADS: u32 = 256;

/// Values of a digit.
const VALUES: usize = 256;

/// Takes the best of the tokens not taken yet.
#[derive(Clone, Debug)]
pub struct Select<D: Device, S> {
    module: D::Module,
    page: usize,
    of: PhantomData<S>,
}

/// What a selection keeps while it goes over the scores. Others may use it before and after.
#[derive(Debug)]
pub struct Selecting<D: Device> {
    /// Where the best end, `[rows, 2]`.
    cuts: Array<D, u32>,
    /// How often each digit occurs, `[rows, 256]`: zeros before and after.
    digits: Array<D, u32>,
    /// Tokens that equal the cut, `[rows, spans]`.
    equals: Array<D, u32>,
    rows: usize,
    capacity: usize,
}

/// What kernels go over.
struct Over<'a, D: Device, S> {
    now: &'a Now<D>,
    scores: &'a Scores<D, S>,
    taken: &'a Taken<D>,
}

impl<D: Device> Selecting<D> {
    /// Room for `rows` rows of `capacity` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        let room = |count| Array::zeros(device, rows * count);
        Ok(Self {
            cuts: room(2)?,
            digits: room(VALUES)?,
            equals: room(capacity.div_ceil(SPAN))?,
            rows,
            capacity,
        })
    }
}

impl<D: Device, S: Ranked> Select<D, S> {
    /// What is compiled for scores that `page` tokens one after the other share.
    pub fn program(page: usize) -> Program {
        let constants = vec![("SCORE", S::NAME.to_owned()), ("PAGE", page.to_string())];
        Program { source: SELECT, constants }
    }

    /// Compiles it for tokens that have scores of their own.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Self::of_pages(device, 1)
    }

    /// Compiles it for scores that `page` tokens share.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn of_pages(device: &D, page: usize) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program(page))?, page, of: PhantomData })
    }

    /// Adds launches that take, of each row, the `counts[row]` best visible tokens not taken yet,
    /// lower index first among equals, as [`Picks::take_top`] does. `counts` `[rows]`.
    ///
    /// They go over the scores once for each byte of one, and twice more.
    ///
    /// # Errors
    /// If a size does not fit another.
    ///
    /// [`Picks::take_top`]: vattention_core::Picks::take_top
    pub fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        scores: &Scores<D, S>,
        counts: &Array<D, u32>,
        taken: &Taken<D>,
        selecting: &Selecting<D>,
    ) -> Result<()> {
        expect("rows of scores", taken.rows(), scores.rows)?;
        expect("tokens that share a score", self.page, scores.page)?;
        expect("rows of a selection", taken.rows(), selecting.rows)?;
        expect("counts of tokens to take", taken.rows(), counts.len())?;
        now.expect_room("bits", taken.capacity())?;
        now.expect_room("scores", scores.capacity)?;
        now.expect_room("a selection", selecting.capacity)?;
        let over = Over { now, scores, taken };
        let Selecting { cuts, digits, equals, .. } = selecting;
        for digit in (0..size_of::<S>()).rev() {
            let more = [cuts.given(), digits.given(), digit.into()];
            self.over_scores(work, "count_digits", &over, more)?;
            self.narrow(work, counts, selecting, digit)?;
        }
        self.over_scores(work, "count_equals", &over, [cuts.given(), equals.given()])?;
        self.over_scores(work, "mark", &over, [cuts.given(), equals.given()])
    }

    /// Adds a launch that finds the best score of each row among the tokens that are not taken by
    /// then.
    ///
    /// It goes over the scores once.
    ///
    /// # Errors
    /// If a size does not fit another.
    pub fn add_best_left(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        scores: &Scores<D, S>,
        taken: &Taken<D>,
        bounds: &Bounds<D>,
    ) -> Result<()> {
        expect("rows of scores", taken.rows(), scores.rows)?;
        expect("rows of bounds", taken.rows(), bounds.rows)?;
        expect("tokens that share a score", self.page, scores.page)?;
        now.expect_room("bits", taken.capacity())?;
        now.expect_room("scores", scores.capacity)?;
        now.expect_room("bounds", bounds.capacity)?;
        let over = Over { now, scores, taken };
        self.over_scores(work, "best_left", &over, [bounds.numbers.given()])
    }

    /// Adds a kernel over all scores, which is given `more` besides.
    #[allow(unsafe_code, reason = "the only start of these kernels")]
    fn over_scores<const N: usize>(
        &self,
        work: &mut Work<D>,
        kernel: &'static str,
        over: &Over<'_, D, S>,
        more: [Given<D>; N],
    ) -> Result<()> {
        let Over { now, scores, taken } = *over;
        let blocks = now.capacity.div_ceil(SPAN) as u32;
        let grid = Grid { blocks: [blocks, along_y("rows", scores.rows)?], threads: THREADS };
        let first = [now.numbers.given(), scores.numbers.given(), taken.bits.given()];
        let last = [now.capacity, stride(now.capacity)].map(Given::from);
        let given = first.into_iter().chain(more).chain(last);
        // SAFETY: the arguments are those of the kernels. Scores and bits are of as many rows and
        // tokens, as the callers have checked, and what else they read and write has room for the
        // cut and each digit of each row, or each span of it.
        unsafe { work.add(&self.module, kernel, grid, given) };
        Ok(())
    }

    /// Finds the next digit of the cut.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    fn narrow(
        &self,
        work: &mut Work<D>,
        counts: &Array<D, u32>,
        selecting: &Selecting<D>,
        digit: usize,
    ) -> Result<()> {
        let grid = Grid { blocks: [along_y("rows", counts.len())?, 1], threads: THREADS };
        let Selecting { cuts, digits, .. } = selecting;
        let given = [counts.given(), cuts.given(), digits.given(), digit.into()];
        // SAFETY: the arguments are those of the kernel, of as many rows.
        unsafe { work.add(&self.module, "narrow", grid, given) };
        Ok(())
    }
}
