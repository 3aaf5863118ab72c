//! The first part of every sample.

use vattention_core::Result;

use super::{Array, Now, Progress, Work, expect};
use crate::kernels::BUDGET_CHECK;
use crate::{Device, Grid, Program};

/// As `budget_check.cu` says.
const THREADS: u32 = 128;

/// Begins samples.
#[derive(Clone, Debug)]
pub struct Open<D: Device> {
    module: D::Module,
}

impl<D: Device> Open<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: BUDGET_CHECK, constants: super::budget_check::constants() }
    }

    /// Compiles it.
    ///
    /// # Errors
    /// If it cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program())? })
    }

    /// Adds a launch that says of each list which part of its sample is drawn first, as core's
    /// sampler does; all other tokens than `certain_lengths` `[lists]` may be. If `looked`, that part
    /// is looked at; if not, there is no other.
    ///
    /// O(lists).
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        certain_lengths: &Array<D, u32>,
        progress: &Progress<D>,
        looked: bool,
    ) -> Result<()> {
        let lists = progress.lists();
        expect("certain lists", lists, certain_lengths.len())?;
        expect("room for a sample", now.capacity, progress.capacity())?;
        let grid = Grid { blocks: [lists.div_ceil(THREADS as usize) as u32, 1], threads: THREADS };
        let given = [
            now.numbers.given(),
            certain_lengths.given(),
            progress.numbers.given(),
            lists.into(),
            now.capacity.into(),
            u32::from(looked).into(),
        ];
        // SAFETY: the arguments are those of the kernel. There is a number of each kind for each
        // list.
        unsafe { work.add(&self.module, "open_samples", grid, given) };
        Ok(())
    }
}
