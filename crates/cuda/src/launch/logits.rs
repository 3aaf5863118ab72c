//! Logits of all tokens, as scores.

use vattention_core::{Error, Result};

use super::taken::stride;
use super::{Array, Now, Pages, RowLayout, Scores, Work, expect};
use crate::kernels::LOGITS;
use crate::{Device, Grid, Program};

/// As `keys.cuh` and `logits.cu` say.
const THREADS: u32 = 128;
const SPAN: usize = 256;

/// The most rows of scores that the kernel has registers for.
const MOST_SHARING: usize = 16;

/// Scores tokens by their logits, compiled for rows of one layout.
#[derive(Clone, Debug)]
pub struct ScoreLogits<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
    sharing: usize,
}

/// Fails if the kernels of keys cannot score `sharing` rows at once.
pub(super) fn check_sharing(sharing: usize) -> Result<()> {
    if (1..=MOST_SHARING).contains(&sharing) {
        return Ok(());
    }
    let expected = format_args!("1 to {MOST_SHARING} on CUDA");
    Err(Error::shape("rows of scores that share keys", expected, sharing))
}

impl<D: Device> ScoreLogits<D> {
    /// What is compiled for such rows, of which `sharing` rows of scores one after the other read
    /// the same ones.
    ///
    /// # Errors
    /// If these are not 1 to 16.
    pub fn program(layout: RowLayout, sharing: usize) -> Result<Program> {
        check_sharing(sharing)?;
        let mut constants = layout.constants();
        constants.push(("GROUP", sharing.to_string()));
        Ok(Program { source: LOGITS, constants })
    }

    /// Compiles it.
    ///
    /// # Errors
    /// As [`program`](Self::program), or if it cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, sharing: usize) -> Result<Self> {
        let module = device.compile(&Self::program(layout, sharing)?)?;
        Ok(Self { device: device.clone(), module, layout, sharing })
    }

    /// Adds a launch that finds the logit of each visible token to each row, for `queries`
    /// `[rows, head_dim]`, scaled. Rows one after the other share a head, `heads`
    /// `[rows / sharing]`, which are kept.
    ///
    /// O(rows · visible · head_dim), each key read once for the rows that share it.
    ///
    /// # Errors
    /// If a size does not fit another, or there is no memory.
    pub fn add_heads(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        heads: &[&Pages<D>],
        queries: &Array<D, f32>,
        scores: &Scores<D, f32>,
    ) -> Result<()> {
        for head in heads {
            head.keep_for(work, self.layout, now.capacity)?;
        }
        let table = |head: &&Pages<D>| std::iter::repeat_n(head.table(), self.sharing);
        let tables: Vec<u64> = heads.iter().flat_map(table).collect();
        let tables = Array::new(&self.device, &tables)?;
        self.add(work, now, &tables, queries, scores)
    }

    /// The same of heads whose tables of pages, `[rows]`, will have been written by then: the same
    /// for as many rows as share them, with pages for the visible tokens.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        tables: &Array<D, u64>,
        queries: &Array<D, f32>,
        scores: &Scores<D, f32>,
    ) -> Result<()> {
        let along = scores.blocks_of(self.sharing)?;
        expect("tables", scores.rows, tables.len())?;
        expect("elements of queries", scores.rows * self.layout.head_dim(), queries.len())?;
        now.expect_room("scores", scores.capacity)?;
        let blocks = [now.capacity.div_ceil(SPAN) as u32, along];
        let grid = Grid { blocks, threads: THREADS };
        let given = [
            now.numbers.given(),
            tables.given(),
            queries.given(),
            scores.numbers.given(),
            now.capacity.into(),
            stride(now.capacity).into(),
        ];
        // SAFETY: the arguments are those of the kernel. The pages have the visible rows, and there
        // is a score for each, of as many rows as the grid's blocks share.
        unsafe { work.add(&self.module, "score_logits", grid, given) };
        Ok(())
    }
}
