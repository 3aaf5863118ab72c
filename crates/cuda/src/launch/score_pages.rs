//! Scores of pages: upper bounds on the products of queries with the keys of a page.

use vattention_core::{Error, Result};

use super::logits::check_sharing;
use super::{
    Array, DeviceScores, MOST_BLOCKS, PageBounds, Pages, RowLayout, StepNumbers, Work, along_y,
    expect,
};
use crate::kernels::PAGES;
use crate::{Device, Grid, Program};

/// Threads in a block, elements of a chunk and pages of a block, as in `keys.cuh` and `pages.cu`.
const THREADS: u32 = 128;
const CHUNK: usize = 8;
const SPAN: usize = 256;

/// Scores pages of tokens by their bounds, compiled for rows of one layout and pages of one size.
#[derive(Clone, Debug)]
pub struct ScorePages<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
    sharing: usize,
    page: usize,
}

/// Inputs and outputs of the bounds of pages, one element per KV head, all on the device.
#[derive(Debug)]
pub(crate) struct PageArrays<'a, D: Device> {
    /// Addresses of tables of pages of rows.
    pub(crate) tables: &'a Array<D, u64>,
    /// Number of first pages that have bounds.
    pub(crate) indexed: &'a Array<D, u32>,
    /// Addresses of [`PageBounds`].
    pub(crate) bounds: &'a Array<D, u64>,
}

impl<D: Device> ScorePages<D> {
    /// Returns the program to compile for these rows, where `sharing` consecutive rows of scores
    /// read the same keys, and for pages of `page` tokens.
    ///
    /// # Errors
    /// If `sharing` is not in 1 to 16, or the page is empty.
    pub fn program(layout: RowLayout, sharing: usize, page: usize) -> Result<Program> {
        check_sharing(sharing)?;
        if page == 0 {
            return Err(Error::shape("tokens of a page", "at least 1", page));
        }
        let mut constants = layout.constants();
        constants.extend([("GROUP", sharing.to_string()), ("PAGE", page.to_string())]);
        Ok(Program { source: PAGES, constants })
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If [`program`](Self::program) fails, or the program cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, sharing: usize, page: usize) -> Result<Self> {
        let module = device.compile(&Self::program(layout, sharing, page)?)?;
        Ok(Self { device: device.clone(), module, layout, sharing, page })
    }

    /// Adds launches that compute the bounds of all pages with visible tokens, except for the first
    /// pages of each head, which have bounds already; then the score of each page for each row: the
    /// largest product that a key within the bounds can have.
    ///
    /// `queries` are `[2, rows, head_dim]`: the score adds, over channels, the smallest key times
    /// the first query and the largest key times the second one. `sharing` consecutive rows use one
    /// of the `heads` `[rows / sharing]`: the rows, the bounds, and the number of pages that have
    /// bounds. The work shares ownership of the heads.
    ///
    /// O(new tokens · head_dim) for each head, and O(rows · pages · head_dim).
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, or there is no memory.
    pub fn add_heads(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        heads: &[(&Pages<D>, &PageBounds<D>, u32)],
        queries: &Array<D, f32>,
        scores: &DeviceScores<D, f32>,
    ) -> Result<()> {
        let dimensions = (self.layout, self.page, step.capacity);
        for (rows, bounds, _) in heads {
            rows.keep_for(work, self.layout, step.capacity)?;
            if bounds.dimensions() != dimensions {
                let expected = format!("{dimensions:?}");
                return Err(Error::shape("bounds of a head", expected, bounds.dimensions()));
            }
            work.keep(bounds.numbers());
        }
        let array = |addresses: Vec<u64>| Array::new(&self.device, &addresses);
        let indexed: Vec<u32> = heads.iter().map(|head| head.2).collect();
        let arrays = PageArrays {
            tables: &array(heads.iter().map(|head| head.0.table()).collect())?,
            indexed: &Array::new(&self.device, &indexed)?,
            bounds: &array(heads.iter().map(|head| head.1.address()).collect())?,
        };
        self.add_bounds(work, step, &arrays)?;
        let repeat =
            |head: &(_, &PageBounds<D>, _)| std::iter::repeat_n(head.1.address(), self.sharing);
        let bounds = array(heads.iter().flat_map(repeat).collect())?;
        self.add(work, step, &bounds, queries, scores)
    }

    /// Adds a launch that computes bounds, for addresses that must be valid when the kernel runs:
    /// bounds with this capacity, and tables with pages for the visible tokens.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add_bounds(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        arrays: &PageArrays<'_, D>,
    ) -> Result<()> {
        let PageArrays { tables, indexed, bounds } = arrays;
        expect("tables", bounds.len(), tables.len())?;
        expect("counts of indexed pages", bounds.len(), indexed.len())?;
        let at_a_time = THREADS as usize / (self.layout.value_offset() / CHUNK);
        let blocks = step.capacity.div_ceil(self.page).div_ceil(at_a_time).min(MOST_BLOCKS) as u32;
        let grid = Grid { blocks: [blocks, along_y("heads", bounds.len())?], threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            tables.argument(),
            indexed.argument(),
            bounds.argument(),
            step.capacity.into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. The pages have the visible rows, and
        // there is room for the bounds of each.
        unsafe { work.add(&self.module, "bound_pages", grid, arguments) };
        Ok(())
    }

    /// Adds a launch that scores pages by bounds, for addresses `[rows]` that must be valid when
    /// the kernel runs. Rows that share keys have the same address.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        bounds: &Array<D, u64>,
        queries: &Array<D, f32>,
        scores: &DeviceScores<D, f32>,
    ) -> Result<()> {
        let along = scores.blocks_of(self.sharing)?;
        expect("bounds", scores.rows, bounds.len())?;
        expect("elements of queries", 2 * scores.rows * self.layout.head_dim(), queries.len())?;
        expect("tokens that share a score", self.page, scores.page)?;
        step.expect_room("scores", scores.capacity)?;
        let blocks = [step.capacity.div_ceil(self.page).div_ceil(SPAN) as u32, along];
        let grid = Grid { blocks, threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            bounds.argument(),
            queries.argument(),
            scores.numbers.argument(),
            step.capacity.into(),
            scores.stride().into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There are bounds of each page with
        // visible tokens, and a score for each row that shares them.
        unsafe { work.add(&self.module, "score_pages", grid, arguments) };
        Ok(())
    }
}
