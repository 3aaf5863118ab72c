//! Checks samples against their budgets, and decides which part is drawn next.

use vattention_core::{Error, Result, sample::LAGS};

use super::attend::ITEM;
use super::bounds::SPAN;
use super::moments::MOMENTS;
use super::{
    Array, LaunchArgument, MomentInputs, Progress, Proofs, SampleMoments, StepNumbers, Sums, Work,
    along_y, expect,
};
use crate::formula::{Denominator, Formula, Numerator, Population};
use crate::kernels::BUDGET_CHECK;
use crate::{Device, Grid, Program};

/// Threads in a block, as in `budget_check.cu`.
const THREADS: u32 = 128;

/// Computes the sample size of each list by a [`Formula`].
#[derive(Clone, Debug)]
pub struct BudgetCheck<D: Device> {
    module: D::Module,
    /// `[5 + 3 splits]`: epsilon, the codes of numerator, denominator and population, and the
    /// allowance; then cap, kappa and z of each split.
    form: Array<D, f64>,
    splits: usize,
    needs_bound: bool,
    needs_sample: bool,
}

/// Constants for the compilation of `budget_check.cu`.
pub(super) fn constants() -> Vec<(&'static str, String)> {
    vec![("MOMENTS", MOMENTS.to_string()), ("LAGS", LAGS.to_string())]
}

impl<D: Device> BudgetCheck<D> {
    /// Returns the program to compile.
    pub fn program() -> Program {
        Program { source: BUDGET_CHECK, constants: constants() }
    }

    /// Compiles the program, for a formula.
    ///
    /// # Errors
    /// If the program cannot be compiled, or there is no memory.
    pub fn new(device: &D, formula: &Formula) -> Result<Self> {
        let numbers = formula.splits.iter().flat_map(|split| [split.cap, split.kappa, split.z]);
        let form: Vec<f64> = parts(formula).into_iter().chain(numbers).collect();
        Ok(Self {
            module: device.compile(&Self::program())?,
            form: Array::new(device, &form)?,
            splits: formula.splits.len(),
            needs_bound: formula.needs_bound(),
            needs_sample: formula.needs_sample(),
        })
    }

    /// Adds a launch that begins samples whose size follows from `certain`, the sums of each list's
    /// `group` query heads over its `certain_lengths` `[lists]` always-read tokens, and from
    /// `proofs`. Each sample is drawn in one step, as by core's sampler.
    ///
    /// O(group · splits) for each list.
    ///
    /// # Errors
    /// If the formula needs a sample, or proofs that are missing, or the sizes of arguments do not
    /// agree.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn open(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        (certain, certain_lengths): (&Sums<D>, &Array<D, u32>),
        proofs: Option<&Proofs<'_, D>>,
        progress: &Progress<D>,
        group: usize,
    ) -> Result<()> {
        let (lists, capacity) = (progress.lists(), progress.capacity());
        if self.needs_sample {
            return Err(Error::shape("a budget", "one that needs no sample", "one that does"));
        }
        expect("certain lists", lists, certain_lengths.len())?;
        expect("room for a sample", step.capacity, capacity)?;
        expect_sums("certain sums", lists * group, certain)?;
        let [largest, _, spans] = self.proved(step, proofs, lists, group)?;
        let grid = Grid { blocks: [along_y("lists", lists)?, 1], threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            certain_lengths.argument(),
            self.form.argument(),
            certain.numbers.argument(),
            largest,
            progress.numbers.argument(),
            group.into(),
            capacity.into(),
            self.splits.into(),
            SPAN.into(),
            spans,
            certain.value_dim.into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There are sums and bounds of each
        // query head of each list, and a number of each kind for each list.
        unsafe { work.add(&self.module, "open_proved", grid, arguments) };
        Ok(())
    }

    /// Adds a launch that evaluates the moments of everything drawn so far, and decides for each
    /// list which part of its sample is drawn next, as core's sampler does. The part is empty if
    /// the sample is large enough now or was at an earlier check. No check follows the `last` one.
    ///
    /// It reads O(group · drawn / 256) numbers for each list.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, or the formula needs `proofs` and there are none.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        step: &StepNumbers<D>,
        (inputs, moments): (&MomentInputs<'_, D>, &SampleMoments<D>),
        proofs: Option<&Proofs<'_, D>>,
        progress: &Progress<D>,
        last: bool,
    ) -> Result<()> {
        let (lists, capacity) = (progress.lists(), progress.capacity());
        let &SampleMoments { ref numbers, group, items } = moments;
        let &MomentInputs { certain_lengths, certain, sample, .. } = inputs;
        expect("certain lists", lists, certain_lengths.len())?;
        expect("room for a sample", step.capacity, capacity)?;
        expect("items of moments", capacity.div_ceil(ITEM), items)?;
        expect("moments", lists * group * items * MOMENTS, numbers.len())?;
        expect_sums("certain sums", lists * group, certain)?;
        expect_sums("sums of the sample", lists * group, sample)?;
        expect("elements of a value", certain.value_dim, sample.value_dim)?;
        let [largest, longest, spans] = self.proved(step, proofs, lists, group)?;
        let grid = Grid { blocks: [along_y("lists", lists)?, 1], threads: THREADS };
        let arguments = [
            step.numbers.argument(),
            certain_lengths.argument(),
            numbers.argument(),
            self.form.argument(),
            certain.numbers.argument(),
            sample.numbers.argument(),
            largest,
            longest,
            progress.numbers.argument(),
            group.into(),
            ITEM.into(),
            items.into(),
            capacity.into(),
            self.splits.into(),
            SPAN.into(),
            spans,
            certain.value_dim.into(),
            u32::from(last).into(),
        ];
        // SAFETY: the arguments match the kernel's parameters. There are moments of each query head
        // of each list, for as many items as a sample can have, and sums and, if there are any,
        // bounds.
        unsafe { work.add(&self.module, "budget_check", grid, arguments) };
        Ok(())
    }

    /// Kernel arguments for the bounds, the largest norms and the number of spans; null if the
    /// formula needs none.
    fn proved(
        &self,
        step: &StepNumbers<D>,
        proofs: Option<&Proofs<'_, D>>,
        lists: usize,
        group: usize,
    ) -> Result<[LaunchArgument<D>; 3]> {
        if !self.needs_bound {
            return Ok([
                LaunchArgument::optional::<f32>(None),
                LaunchArgument::optional::<f64>(None),
                0_u32.into(),
            ]);
        }
        let Some(&Proofs { bounds, longest }) = proofs else {
            return Err(Error::shape("bounds", "one of each query head", "none"));
        };
        expect("rows of bounds", lists * group, bounds.rows)?;
        step.expect_room("bounds", bounds.capacity)?;
        expect("largest norms", lists, longest.len())?;
        Ok([bounds.numbers.argument(), longest.argument(), bounds.spans.into()])
    }
}

/// Fails unless there are sums of this number of query heads.
fn expect_sums<D: Device>(what: &str, query_heads: usize, sums: &Sums<D>) -> Result<()> {
    expect(&format!("elements of {what}"), query_heads * (2 + sums.value_dim), sums.numbers.len())
}

/// Numbers in front of the splits, with enums encoded as in `budget.cuh`.
fn parts(formula: &Formula) -> [f64; 5] {
    let numerator = match formula.numerator {
        Numerator::Output => 0.0,
        Numerator::Estimated => 1.0,
        Numerator::Bounded => 2.0,
    };
    let denominator = match formula.denominator {
        Denominator::Estimated => 0.0,
        Denominator::Bounded => 1.0,
        Denominator::Proved => 2.0,
    };
    let population = match formula.population {
        Population::Infinite => 0.0,
        Population::Finite => 1.0,
        Population::Serfling => 2.0,
    };
    [formula.epsilon, numerator, denominator, population, formula.allowance]
}
