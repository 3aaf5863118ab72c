//! Selection of the tokens with the largest scores.

use std::marker::PhantomData;

use vattention_core::Result;

use super::bounds::SPAN;
use super::taken::stride;
use super::{
    Array, Bounds, DeviceScores, LaunchArgument, ScoreType, StepNumbers, Taken, Work, along_y,
    expect,
};
use crate::kernels::SELECT;
use crate::{Device, Grid, Program};

/// Threads in a block, as in `select.cu`.
const THREADS: u32 = 256;

/// Number of values of a digit.
const VALUES: usize = 256;

/// Takes the untaken tokens with the largest scores.
#[derive(Clone, Debug)]
pub struct Select<D: Device, S> {
    module: D::Module,
    page: usize,
    score: PhantomData<S>,
}

/// Memory for the intermediate results of a selection, which other launches may use before and
/// after.
#[derive(Debug)]
pub struct SelectBuffers<D: Device> {
    /// Smallest score that is selected, and the number of tokens with it to take, `[rows, 2]`.
    cuts: Array<D, u32>,
    /// Histogram of digits, `[rows, 256]`, zero before and after a selection.
    digits: Array<D, u32>,
    /// Number of tokens whose score equals the cut, `[rows, spans]`.
    equals: Array<D, u32>,
    rows: usize,
    capacity: usize,
}

/// Arrays that every kernel of a selection scans.
struct ScoreScan<'a, D: Device, S> {
    step: &'a StepNumbers<D>,
    scores: &'a DeviceScores<D, S>,
    taken: &'a Taken<D>,
}

impl<D: Device> SelectBuffers<D> {
    /// Allocates memory for `rows` rows of `capacity` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        let allocate = |count| Array::zeros(device, rows * count);
        Ok(Self {
            cuts: allocate(2)?,
            digits: allocate(VALUES)?,
            equals: allocate(capacity.div_ceil(SPAN))?,
            rows,
            capacity,
        })
    }
}

impl<D: Device, S: ScoreType> Select<D, S> {
    /// Returns the program to compile for scores that `page` consecutive tokens share.
    pub fn program(page: usize) -> Program {
        let constants = vec![("SCORE", S::NAME.to_owned()), ("PAGE", page.to_string())];
        Program { source: SELECT, constants }
    }

    /// Compiles the program for tokens with individual scores.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Self::for_pages(device, 1)
    }

    /// Compiles the program for scores that `page` tokens share.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn for_pages(device: &D, page: usize) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program(page))?, page, score: PhantomData })
    }

    /// Adds launches that take the `counts[row]` untaken visible tokens with the largest scores of
    /// each row, lower index first among equals, as [`Picks::take_top`] does. `counts` is `[rows]`.
    ///
    /// The launches scan the scores once for each byte of a score, and twice more.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    ///
    /// [`Picks::take_top`]: vattention_core::Picks::take_top
    pub fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        scores: &DeviceScores<D, S>,
        counts: &Array<D, u32>,
        taken: &Taken<D>,
        buffers: &SelectBuffers<D>,
    ) -> Result<()> {
        expect("rows of scores", taken.rows(), scores.rows)?;
        expect("tokens that share a score", self.page, scores.page)?;
        expect("rows of a selection", taken.rows(), buffers.rows)?;
        expect("counts of tokens to take", taken.rows(), counts.len())?;
        step.expect_room("bits", taken.capacity())?;
        step.expect_room("scores", scores.capacity)?;
        step.expect_room("a selection", buffers.capacity)?;
        let scan = ScoreScan { step, scores, taken };
        let SelectBuffers { cuts, digits, equals, .. } = buffers;
        for digit in (0..size_of::<S>()).rev() {
            let more = [cuts.argument(), digits.argument(), digit.into()];
            self.add_scan(work, "count_digits", &scan, more)?;
            self.narrow(work, counts, buffers, digit)?;
        }
        self.add_scan(work, "count_equals", &scan, [cuts.argument(), equals.argument()])?;
        self.add_scan(work, "mark", &scan, [cuts.argument(), equals.argument()])
    }

    /// Adds a launch that computes the largest score of each row among the tokens that are untaken
    /// when it runs.
    ///
    /// The launch scans the scores once.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    pub fn add_best_left(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        scores: &DeviceScores<D, S>,
        taken: &Taken<D>,
        bounds: &Bounds<D>,
    ) -> Result<()> {
        expect("rows of scores", taken.rows(), scores.rows)?;
        expect("rows of bounds", taken.rows(), bounds.rows)?;
        expect("tokens that share a score", self.page, scores.page)?;
        step.expect_room("bits", taken.capacity())?;
        step.expect_room("scores", scores.capacity)?;
        step.expect_room("bounds", bounds.capacity)?;
        let scan = ScoreScan { step, scores, taken };
        self.add_scan(work, "best_left", &scan, [bounds.numbers.argument()])
    }

    /// Adds a launch of a kernel that scans all scores and has the parameters `more`.
    #[allow(unsafe_code, reason = "the only start of these kernels")]
    fn add_scan<const N: usize>(
        &self,
        work: &mut Work<D>,
        kernel: &'static str,
        scan: &ScoreScan<'_, D, S>,
        more: [LaunchArgument<D>; N],
    ) -> Result<()> {
        let ScoreScan { step, scores, taken } = *scan;
        let blocks = step.capacity.div_ceil(SPAN) as u32;
        let grid = Grid { blocks: [blocks, along_y("rows", scores.rows)?], threads: THREADS };
        let first = [step.numbers.argument(), scores.numbers.argument(), taken.bits.argument()];
        let last = [step.capacity, stride(step.capacity)].map(LaunchArgument::from);
        let arguments = first.into_iter().chain(more).chain(last);
        // SAFETY: the arguments match the kernels' parameters. The callers have checked that scores
        // and bits have the same rows and tokens, and the arrays in `more` have room for the cut
        // and each digit of each row, or for each span of it.
        unsafe { work.add(&self.module, kernel, grid, arguments) };
        Ok(())
    }

    /// Adds a launch that finds the next digit of the cut.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    fn narrow(
        &self,
        work: &mut Work<D>,
        counts: &Array<D, u32>,
        buffers: &SelectBuffers<D>,
        digit: usize,
    ) -> Result<()> {
        let grid = Grid { blocks: [along_y("rows", counts.len())?, 1], threads: THREADS };
        let SelectBuffers { cuts, digits, .. } = buffers;
        let arguments = [counts.argument(), cuts.argument(), digits.argument(), digit.into()];
        // SAFETY: the arguments match the kernel's parameters, with the same number of rows.
        unsafe { work.add(&self.module, "narrow", grid, arguments) };
        Ok(())
    }
}
