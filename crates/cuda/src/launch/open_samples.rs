//! First part of every sample.

use vattention_core::Result;

use super::{Array, Progress, StepNumbers, Work, expect};
use crate::kernels::BUDGET_CHECK;
use crate::{Device, Grid, Program};

/// Threads in a block, as in `budget_check.cu`.
const THREADS: u32 = 128;

/// Begins samples of a given size.
#[derive(Clone, Debug)]
pub struct OpenSamples<D: Device> {
    module: D::Module,
}

impl<D: Device> OpenSamples<D> {
    /// Returns the program to compile.
    pub fn program() -> Program {
        Program { source: BUDGET_CHECK, constants: super::budget_check::constants() }
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D) -> Result<Self> {
        Ok(Self { module: device.compile(&Self::program())? })
    }

    /// Adds a launch that sets the first part of each list's sample, as core's sampler does. The
    /// sample is drawn from all visible tokens but `certain_lengths` `[lists]` of them. If
    /// `checked`, a check of that part follows; otherwise it is the only part.
    ///
    /// O(lists).
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        certain_lengths: &Array<D, u32>,
        progress: &Progress<D>,
        checked: bool,
    ) -> Result<()> {
        let lists = progress.lists();
        expect("certain lists", lists, certain_lengths.len())?;
        expect("room for a sample", step.capacity, progress.capacity())?;
        let grid = Grid { blocks: [lists.div_ceil(THREADS as usize) as u32, 1], threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            certain_lengths.argument(),
            progress.numbers.argument(),
            lists.into(),
            step.capacity.into(),
            u32::from(checked).into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There is a number of each kind for
        // each list.
        unsafe { work.add(&self.module, "open_samples", grid, arguments) };
        Ok(())
    }
}
