//! Moments of samples, from which their statistics follow.

use vattention_core::{Result, sample::LAGS};

use super::attend::ITEM;
use super::{Array, Logits, Progress, RowLayout, StepNumbers, Sums, Work, along_y, expect};
use crate::kernels::SAMPLE_MOMENTS;
use crate::{Device, Grid, Program};

/// Threads in a block, as in `look.cu`.
const THREADS: u32 = 128;
const _: () = assert!(LAGS == 4, "the kernel sums four products at a time");

/// Number of moments of an item.
pub(super) const MOMENTS: usize = 8;

/// Computes moments of samples, compiled for rows of one layout.
#[derive(Clone, Debug)]
pub struct ComputeMoments<D: Device> {
    device: D,
    module: D::Module,
    layout: RowLayout,
}

/// Inputs of moments. A sample's tokens are rows of one KV head, and a group of query heads uses
/// them.
#[derive(Clone, Copy, Debug)]
pub struct MomentInputs<'a, D: Device> {
    /// Address of the page table of each list's KV head, `[lists]`.
    pub tables: &'a Array<D, u64>,
    /// Approximate inverse of the largest norm of a value of that KV head, `[lists]`, above 0.
    pub units: &'a Array<D, f32>,
    /// Number of always-read tokens of each list, `[lists]`.
    pub certain_lengths: &'a Array<D, u32>,
    /// Sums over the always-read tokens, of each query head.
    pub certain: &'a Sums<D>,
    /// Sums over the sample, of each query head, with weight 1 for each token.
    pub sample: &'a Sums<D>,
    /// Logits of the sample, from place 0 on.
    pub logits: &'a Logits<D>,
}

/// Moments of samples, the input of [`BudgetCheck`](super::BudgetCheck).
#[derive(Clone, Debug)]
pub struct SampleMoments<D: Device> {
    /// `[lists, group, items, MOMENTS]`
    pub(super) numbers: Array<D, f64>,
    pub(super) group: usize,
    /// Items for which each list has memory.
    pub(super) items: usize,
}

impl<D: Device> SampleMoments<D> {
    /// Returns the moments of each item, `[lists · group][items]`: `D^` and `|N^|²`, which only the
    /// first item has; the squared deviations of `e`, of `e v` and of `w`; the squared lagged
    /// products of differences of `w`; the fourth powers of the deviations of `e` and of `w`. The
    /// moments of items without tokens are undefined.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<Vec<[f64; MOMENTS]>>> {
        let numbers = self.numbers.read()?;
        let (items, _) = numbers.as_chunks();
        Ok(items.chunks_exact(self.items).map(<[_]>::to_vec).collect())
    }
}

impl<D: Device> ComputeMoments<D> {
    /// Returns the program to compile for these rows.
    pub fn program(layout: RowLayout) -> Program {
        let mut constants = layout.constants();
        constants.extend([
            ("VALUE_DIM", layout.value_dim().to_string()),
            ("ITEM", ITEM.to_string()),
            ("MOMENTS", MOMENTS.to_string()),
        ]);
        Program { source: SAMPLE_MOMENTS, constants }
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn new(device: &D, layout: RowLayout) -> Result<Self> {
        let module = device.compile(&Self::program(layout))?;
        Ok(Self { device: device.clone(), module, layout })
    }

    /// Allocates the moments of `lists` lists of at most `capacity` tokens, for `group` query heads
    /// each.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn moments(&self, lists: usize, group: usize, capacity: usize) -> Result<SampleMoments<D>> {
        let items = capacity.div_ceil(ITEM);
        let numbers = Array::zeros(&self.device, lists * group * items * MOMENTS)?;
        Ok(SampleMoments { numbers, group, items })
    }

    /// Adds a launch that computes the moments of all drawn tokens of the unfinished lists.
    ///
    /// O(drawn · group · value_dim): each query head reads the values once.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        inputs: &MomentInputs<'_, D>,
        progress: &Progress<D>,
        moments: &SampleMoments<D>,
    ) -> Result<()> {
        let (lists, capacity, group) = (progress.lists(), progress.capacity(), moments.group);
        let (query_heads, logits) = (lists * group, inputs.logits);
        let sums = query_heads * (2 + self.layout.value_dim());
        expect("room for a sample", step.capacity, capacity)?;
        expect("tables", lists, inputs.tables.len())?;
        expect("units", lists, inputs.units.len())?;
        expect("certain lists", lists, inputs.certain_lengths.len())?;
        expect("elements of certain sums", sums, inputs.certain.numbers.len())?;
        expect("elements of sums of the sample", sums, inputs.sample.numbers.len())?;
        expect("places of logits", capacity, logits.places)?;
        expect("logits", query_heads * logits.places, logits.numbers.len())?;
        expect("items of moments", capacity.div_ceil(ITEM), moments.items)?;
        expect("moments", query_heads * moments.items * MOMENTS, moments.numbers.len())?;
        let blocks = [moments.items as u32, along_y("query heads", query_heads)?];
        let arguments = [
            step.numbers.argument(),
            inputs.tables.argument(),
            progress.tokens.argument(),
            progress.end().argument(),
            progress.done().argument(),
            inputs.certain_lengths.argument(),
            inputs.units.argument(),
            inputs.certain.numbers.argument(),
            inputs.sample.numbers.argument(),
            logits.numbers.argument(),
            moments.numbers.argument(),
            group.into(),
            capacity.into(),
            logits.places.into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. Samples have at most `capacity`
        // tokens, for which there are logits and, item by item, room for moments, of each query
        // head.
        unsafe { work.add(&self.module, "look", Grid { blocks, threads: THREADS }, arguments) };
        Ok(())
    }
}
