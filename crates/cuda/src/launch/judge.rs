//! Whether samples are large enough, and which part of them is to be drawn next.

use vattention_core::{Formula, LAGS, Numerator, Result};

use super::attend::ITEM;
use super::look::MOMENTS;
use super::{Array, Moments, Now, Progress, Work, along_y, expect};
use crate::kernels::JUDGE;
use crate::{Device, Grid, Program};

/// As `judge.cu` says.
const THREADS: u32 = 128;

/// Judges what looks have found, by a [`Formula`].
#[derive(Clone, Debug)]
pub struct Judge<D: Device> {
    module: D::Module,
    /// `[4 + 3 splits]`: epsilon, and what numerator and correction are; cap, kappa and z of each.
    form: Array<D, f64>,
    splits: usize,
}

/// What `judge.cu` is compiled with.
pub(super) fn constants() -> Vec<(&'static str, String)> {
    vec![("MOMENTS", MOMENTS.to_string()), ("LAGS", LAGS.to_string())]
}

impl<D: Device> Judge<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: JUDGE, constants: constants() }
    }

    /// Compiles it, for a formula.
    ///
    /// # Errors
    /// If it cannot be compiled, or there is no memory.
    pub fn new(device: &D, formula: &Formula) -> Result<Self> {
        let Formula { numerator, epsilon, ref splits, finite } = *formula;
        let of_output = numerator == Numerator::Output;
        let debiased = numerator != Numerator::AsEstimated;
        let flags = [of_output, debiased, finite].map(|flag| f64::from(u8::from(flag)));
        let numbers = splits.iter().flat_map(|split| [split.cap, split.kappa, split.z]);
        let form: Vec<f64> = std::iter::once(epsilon).chain(flags).chain(numbers).collect();
        let module = device.compile(&Self::program())?;
        Ok(Self { module, form: Array::new(device, &form)?, splits: splits.len() })
    }

    /// Adds a launch that reads what the look at all that is drawn has found, and says of each list
    /// which part of its sample is drawn next, as core's sampler does: none if it is large enough, or
    /// has been before. After the `last` look there is no other.
    ///
    /// O(group · drawn / 256) numbers read for each list.
    ///
    /// # Errors
    /// If a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        certain_lengths: &Array<D, u32>,
        moments: &Moments<D>,
        progress: &Progress<D>,
        last: bool,
    ) -> Result<()> {
        let (lists, capacity) = (progress.lists(), progress.capacity());
        let &Moments { ref numbers, group, items } = moments;
        expect("certain lists", lists, certain_lengths.len())?;
        expect("room for a sample", now.capacity, capacity)?;
        expect("items of moments", capacity.div_ceil(ITEM), items)?;
        expect("moments", lists * group * items * MOMENTS, numbers.len())?;
        let grid = Grid { blocks: [along_y("lists", lists)?, 1], threads: THREADS };
        let given = [
            now.numbers.given(),
            certain_lengths.given(),
            numbers.given(),
            self.form.given(),
            progress.numbers.given(),
            group.into(),
            ITEM.into(),
            items.into(),
            capacity.into(),
            self.splits.into(),
            u32::from(last).into(),
        ];
        // SAFETY: the arguments are those of the kernel. There are moments of each reader of each
        // list, for as many items as a sample can have.
        unsafe { work.add(&self.module, "judge", grid, given) };
        Ok(())
    }
}
