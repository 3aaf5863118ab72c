//! Scores of all tokens by their logits.

use vattention_core::{Error, Result};

use super::taken::stride;
use super::{Array, DeviceScores, Pages, RowLayout, StepNumbers, Work, expect};
use crate::kernels::LOGITS;
use crate::{Device, Grid, Program};

/// Threads in a block and tokens of a block, as in `keys.cuh` and `logits.cu`.
const THREADS: u32 = 128;
const SPAN: usize = 256;

/// Most rows of scores for which the kernel has registers.
const MOST_SHARING: usize = 16;

/// Scores tokens by their logits, compiled for rows of one layout.
#[derive(Clone, Debug)]
pub struct ScoreLogits<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
    sharing: usize,
}

/// Fails if the kernels of keys cannot score `sharing` rows in parallel.
pub(super) fn check_sharing(sharing: usize) -> Result<()> {
    if (1..=MOST_SHARING).contains(&sharing) {
        return Ok(());
    }
    let expected = format_args!("1 to {MOST_SHARING} on CUDA");
    Err(Error::shape("rows of scores that share keys", expected, sharing))
}

impl<D: Device> ScoreLogits<D> {
    /// Returns the program to compile for these rows, where `sharing` consecutive rows of scores
    /// read the same keys.
    ///
    /// # Errors
    /// If `sharing` is not in 1 to 16.
    pub fn program(layout: RowLayout, sharing: usize) -> Result<Program> {
        check_sharing(sharing)?;
        let mut constants = layout.constants();
        constants.push(("GROUP", sharing.to_string()));
        Ok(Program { source: LOGITS, constants })
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If [`program`](Self::program) fails, or the program cannot be compiled.
    pub fn new(device: &D, layout: RowLayout, sharing: usize) -> Result<Self> {
        let module = device.compile(&Self::program(layout, sharing)?)?;
        Ok(Self { device: device.clone(), module, layout, sharing })
    }

    /// Adds a launch that computes the logit of each visible token for each of the scaled `queries`
    /// `[rows, head_dim]`. `sharing` consecutive rows use one of the `heads` `[rows / sharing]`.
    /// The work shares ownership of the heads.
    ///
    /// O(rows · visible · head_dim). Each key is read once for the rows that share it.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, or there is no memory.
    pub fn add_heads(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        heads: &[&Pages<D>],
        queries: &Array<D, f32>,
        scores: &DeviceScores<D, f32>,
    ) -> Result<()> {
        for head in heads {
            head.keep_for(work, self.layout, step.capacity)?;
        }
        let table = |head: &&Pages<D>| std::iter::repeat_n(head.table(), self.sharing);
        let tables: Vec<u64> = heads.iter().flat_map(table).collect();
        let tables = Array::new(&self.device, &tables)?;
        self.add(work, step, &tables, queries, scores)
    }

    /// Adds the same launch for addresses of page tables, `[rows]`, that must be valid when the
    /// kernel runs. Rows that share keys have the same table, with pages for the visible tokens.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        tables: &Array<D, u64>,
        queries: &Array<D, f32>,
        scores: &DeviceScores<D, f32>,
    ) -> Result<()> {
        let along = scores.blocks_of(self.sharing)?;
        expect("tables", scores.rows, tables.len())?;
        expect("elements of queries", scores.rows * self.layout.head_dim(), queries.len())?;
        step.expect_room("scores", scores.capacity)?;
        let blocks = [step.capacity.div_ceil(SPAN) as u32, along];
        let grid = Grid { blocks, threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            tables.argument(),
            queries.argument(),
            scores.numbers.argument(),
            step.capacity.into(),
            stride(step.capacity).into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. The pages have the visible rows, and
        // there is a score for each row that shares them.
        unsafe { work.add(&self.module, "score_logits", grid, arguments) };
        Ok(())
    }
}
