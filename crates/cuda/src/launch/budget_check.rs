//! Whether samples are large enough, and which part of them is to be drawn next.

use vattention_core::{Error, Result, sample::LAGS};

use super::attend::ITEM;
use super::bounds::SPAN;
use super::look::MOMENTS;
use super::{
    Array, Given, Looked, Now, Progress, Proofs, SampleMoments, Sums, Work, along_y, expect,
};
use crate::formula::{Denominator, Formula, Numerator, Population};
use crate::kernels::BUDGET_CHECK;
use crate::{Device, Grid, Program};

/// As `budget_check.cu` says.
const THREADS: u32 = 128;

/// Says how large samples are to be, by a [`Formula`].
#[derive(Clone, Debug)]
pub struct BudgetCheck<D: Device> {
    module: D::Module,
    /// `[5 + 3 splits]`: epsilon, what numerator, denominator and population are, and the allowance; cap,
    /// kappa and z of each.
    form: Array<D, f64>,
    splits: usize,
    needs_bound: bool,
    needs_sample: bool,
}

/// What `budget_check.cu` is compiled with.
pub(super) fn constants() -> Vec<(&'static str, String)> {
    vec![("MOMENTS", MOMENTS.to_string()), ("LAGS", LAGS.to_string())]
}

impl<D: Device> BudgetCheck<D> {
    /// What is compiled.
    pub fn program() -> Program {
        Program { source: BUDGET_CHECK, constants: constants() }
    }

    /// Compiles it, for a formula.
    ///
    /// # Errors
    /// If it cannot be compiled, or there is no memory.
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
    /// `group` readers over its `certain_lengths` `[lists]` tokens, and from `proofs`: each is drawn
    /// at once, as core's sampler does.
    ///
    /// O(group · splits) for each list.
    ///
    /// # Errors
    /// If the formula needs a sample, or proofs that are not there, or a size does not fit another.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn open(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
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
        expect("room for a sample", now.capacity, capacity)?;
        expect_sums("certain sums", lists * group, certain)?;
        let [largest, _, spans] = self.proved(now, proofs, lists, group)?;
        let grid = Grid { blocks: [along_y("lists", lists)?, 1], threads: THREADS };
        let given = [
            now.numbers.given(),
            certain_lengths.given(),
            self.form.given(),
            certain.numbers.given(),
            largest,
            progress.numbers.given(),
            group.into(),
            capacity.into(),
            self.splits.into(),
            SPAN.into(),
            spans,
            certain.value_dim.into(),
        ];
        // SAFETY: the arguments are those of the kernel. There are sums and bounds of each reader of
        // each list, and a number of each kind for each list.
        unsafe { work.add(&self.module, "open_proved", grid, given) };
        Ok(())
    }

    /// Adds a launch that reads what the look at all that is drawn has found, and says of each list
    /// which part of its sample is drawn next, as core's sampler does: none if it is large enough, or
    /// has been before. After the `last` look there is no other.
    ///
    /// O(group · drawn / 256) numbers read for each list.
    ///
    /// # Errors
    /// If a size does not fit another, or there are no `proofs` and the formula needs them.
    #[allow(unsafe_code, reason = "the only start of this kernel")]
    pub(crate) fn add(
        &self,
        work: &mut Work<D>,
        now: &Now<D>,
        (looked, moments): (&Looked<'_, D>, &SampleMoments<D>),
        proofs: Option<&Proofs<'_, D>>,
        progress: &Progress<D>,
        last: bool,
    ) -> Result<()> {
        let (lists, capacity) = (progress.lists(), progress.capacity());
        let &SampleMoments { ref numbers, group, items } = moments;
        let &Looked { certain_lengths, certain, sample, .. } = looked;
        expect("certain lists", lists, certain_lengths.len())?;
        expect("room for a sample", now.capacity, capacity)?;
        expect("items of moments", capacity.div_ceil(ITEM), items)?;
        expect("moments", lists * group * items * MOMENTS, numbers.len())?;
        expect_sums("certain sums", lists * group, certain)?;
        expect_sums("sums of the sample", lists * group, sample)?;
        expect("elements of a value", certain.value_dim, sample.value_dim)?;
        let [largest, longest, spans] = self.proved(now, proofs, lists, group)?;
        let grid = Grid { blocks: [along_y("lists", lists)?, 1], threads: THREADS };
        let given = [
            now.numbers.given(),
            certain_lengths.given(),
            numbers.given(),
            self.form.given(),
            certain.numbers.given(),
            sample.numbers.given(),
            largest,
            longest,
            progress.numbers.given(),
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
        // SAFETY: the arguments are those of the kernel. There are moments of each reader of each
        // list, for as many items as a sample can have, and sums and, if there are any, bounds.
        unsafe { work.add(&self.module, "budget_check", grid, given) };
        Ok(())
    }

    /// The bounds, the largest norms and the spans of bounds that kernels are given: nothing if the
    /// formula needs none.
    fn proved(
        &self,
        now: &Now<D>,
        proofs: Option<&Proofs<'_, D>>,
        lists: usize,
        group: usize,
    ) -> Result<[Given<D>; 3]> {
        if !self.needs_bound {
            return Ok([Given::maybe::<f32>(None), Given::maybe::<f64>(None), 0_u32.into()]);
        }
        let Some(&Proofs { bounds, longest }) = proofs else {
            return Err(Error::shape("bounds", "one of each reader", "none"));
        };
        expect("rows of bounds", lists * group, bounds.rows)?;
        now.expect_room("bounds", bounds.capacity)?;
        expect("largest norms", lists, longest.len())?;
        Ok([bounds.numbers.given(), longest.given(), bounds.spans.into()])
    }
}

/// Fails unless there are sums of `readers` readers.
fn expect_sums<D: Device>(what: &str, readers: usize, sums: &Sums<D>) -> Result<()> {
    expect(&format!("elements of {what}"), readers * (2 + sums.value_dim), sums.numbers.len())
}

/// What a formula says beside the splits, as `budget.cuh` numbers it.
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
