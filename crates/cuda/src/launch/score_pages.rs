//! The largest products that queries can have with the keys of a page, as scores.

use vattention_core::{Error, Result};

use super::logits::check_sharing;
use super::{Array, MOST_BLOCKS, Now, PageBounds, Pages, RowLayout, Scores, Work, along_y, expect};
use crate::kernels::PAGES;
use crate::{Device, Grid, Program};

/// As `keys.cuh` and `pages.cu` say.
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

/// Which pages get bounds, and where they are, all of it on the device, for each head.
#[derive(Debug)]
pub(crate) struct Bounding<'a, D: Device> {
    /// Tables of pages of rows.
    pub(crate) tables: &'a Array<D, u64>,
    /// How many of the first pages have bounds.
    pub(crate) known: &'a Array<D, u32>,
    /// [`PageBounds`].
    pub(crate) bounds: &'a Array<D, u64>,
}

impl<D: Device> ScorePages<D> {
    /// What is compiled for such rows, of which `sharing` rows of scores one after the other read the
    /// same ones, in pages of `page` tokens.
    ///
    /// # Errors
    /// If they are not 1 to 16, or the page is empty.
    pub fn program(layout: RowLayout, sharing: usize, page: usize) -> Result<Program> {
        check_sharing(sharing)?;
        if page == 0 {
            return Err(Error::shape("tokens of a page", "at least 1", page));
        }
        let mut constants = layout.constants();
        constants.extend([("GROUP", sharing.to_string()), ("PAGE", page.to_string())]);
        Ok(Program { source: PAGES, constants })
    }

    /// Compiles it.
    ///
    /// # Errors
    /// As [`program`](Self::program), or if it cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, sharing: usize, page: usize) -> Result<Self> {
        let module = device.compile(&Self::program(layout, sharing, page)?)?;
        Ok(Self { device: device.clone(), module, layout, sharing, page })
    }

    /// Adds launches that find the bounds of all pages with visible tokens but the `known` first ones of
    /// each head, and then the largest product that each page may have with each row: of each channel the
    /// least key times a number of the first `queries`, and the largest key times one of the second,
    /// `[2, rows, head_dim]`. Rows one after the other share a head, `heads` and `bounds`
    /// `[rows / sharing]`, which are kept.
    ///
    /// O(new · head_dim) for each head, and O(rows · pages · head_dim).
    ///
    /// # Errors
    /// If a size does not fit another, or there is no memory.
    pub fn add_heads(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        heads: &[(&Pages<D>, &PageBounds<D>, u32)],
        queries: &Array<D, f32>,
        scores: &Scores<D, f32>,
    ) -> Result<()> {
        let of = (self.layout, self.page, now.capacity);
        for (rows, bounds, _) in heads {
            rows.keep_for(work, self.layout, now.capacity)?;
            if bounds.of() != of {
                return Err(Error::shape("bounds of a head", format!("{of:?}"), bounds.of()));
            }
            work.keep(bounds.numbers());
        }
        let array = |addresses: Vec<u64>| Array::new(&self.device, &addresses);
        let known: Vec<u32> = heads.iter().map(|head| head.2).collect();
        let bounding = Bounding {
            tables: &array(heads.iter().map(|head| head.0.table()).collect())?,
            known: &Array::new(&self.device, &known)?,
            bounds: &array(heads.iter().map(|head| head.1.address()).collect())?,
        };
        self.add_bounds(work, now, &bounding)?;
        let repeat =
            |head: &(_, &PageBounds<D>, _)| std::iter::repeat_n(head.1.address(), self.sharing);
        let bounds = array(heads.iter().flat_map(repeat).collect())?;
        self.add(work, now, &bounds, queries, scores)
    }

    /// Adds a launch that finds bounds of what will have been written by then: in the room of all
    /// tokens, of pages with the visible ones.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add_bounds(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        bounding: &Bounding<'_, D>,
    ) -> Result<()> {
        let Bounding { tables, known, bounds } = bounding;
        expect("tables", bounds.len(), tables.len())?;
        expect("counts of known pages", bounds.len(), known.len())?;
        let at_a_time = THREADS as usize / (self.layout.value_offset() / CHUNK);
        let blocks = now.capacity.div_ceil(self.page).div_ceil(at_a_time).min(MOST_BLOCKS) as u32;
        let grid = Grid { blocks: [blocks, along_y("heads", bounds.len())?], threads: THREADS };
        let given = [
            now.numbers.given(),
            tables.given(),
            known.given(),
            bounds.given(),
            now.capacity.into(),
        ];
        // SAFETY: the arguments are those of the kernel. The pages have the visible rows, and there
        // is room for the bounds of each.
        unsafe { work.add(&self.module, "bound_pages", grid, given) };
        Ok(())
    }

    /// Adds a launch that scores pages by bounds whose addresses, `[rows]`, will have been written by
    /// then: the same for as many rows as share them.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        bounds: &Array<D, u64>,
        queries: &Array<D, f32>,
        scores: &Scores<D, f32>,
    ) -> Result<()> {
        let along = scores.blocks_of(self.sharing)?;
        expect("bounds", scores.rows, bounds.len())?;
        expect("elements of queries", 2 * scores.rows * self.layout.head_dim(), queries.len())?;
        expect("tokens that share a score", self.page, scores.page)?;
        now.expect_room("scores", scores.capacity)?;
        let blocks = [now.capacity.div_ceil(self.page).div_ceil(SPAN) as u32, along];
        let grid = Grid { blocks, threads: THREADS };
        let given = [
            now.numbers.given(),
            bounds.given(),
            queries.given(),
            scores.numbers.given(),
            now.capacity.into(),
            scores.stride().into(),
        ];
        // SAFETY: the arguments are those of the kernel. There are bounds of each page with visible
        // tokens, and a score for each, of as many rows as the grid's blocks share.
        unsafe { work.add(&self.module, "score_pages", grid, given) };
        Ok(())
    }
}
