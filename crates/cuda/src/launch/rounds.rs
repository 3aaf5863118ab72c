//! Samples in given orders, for tests: all work of a step on samples, except the draw.

use vattention_core::{Error, Result, step::Softmax};

use super::{
    Array, AttendLists, Bounds, BudgetCheck, CombineSums, ComputeMoments, Logits, MomentInputs,
    OpenSamples, Pages, Progress, Proofs, RecordedWork, RowLayout, SampleMoments, SampleState,
    StepNumbers, Sums, Work, expect,
};
use crate::Device;
use crate::formula::ClosedForm;

/// Recorded sampling for one list of each KV head: samples are opened, read and checked in rounds.
#[derive(Debug)]
pub struct Rounds<D: Device> {
    work: RecordedWork<D>,
    /// Memory that the recorded work reads.
    _heads: Vec<Pages<D>>,
    arrays: Arrays<D>,
    group: usize,
    layout: RowLayout,
}

#[derive(Debug)]
struct Arrays<D: Device> {
    step: StepNumbers<D>,
    tables: Array<D, u64>,
    queries: Array<D, f32>,
    units: Array<D, f32>,
    longest: Array<D, f64>,
    bounds: Bounds<D>,
    certain_lengths: Array<D, u32>,
    certain: Sums<D>,
    sample: Sums<D>,
    logits: Logits<D>,
    progress: Progress<D>,
}

/// One list before anything is drawn.
#[derive(Clone, Copy, Debug)]
pub struct UnsampledList<'a> {
    /// `[group, head_dim]`
    pub queries: &'a [f32],
    /// Sums of each query head over the always-read tokens of the list, `[group]`.
    pub certain: &'a [Softmax],
    /// All other tokens, in draw order.
    pub order: &'a [u32],
    /// Largest norm of a value, above 0.
    pub longest: f64,
    /// Upper bound on the logits of all other tokens, by query head, `[group]`, for formulas that
    /// need it.
    pub bounds: &'a [f32],
}

impl<D: Device> Rounds<D> {
    /// Records work for groups of query heads that each use one list of one of the `heads`, of at
    /// most `capacity` tokens, with up to `rounds` checks; `rounds` is 0 for a formula that needs
    /// no sample. Also returns the array of moments, which the last check of each run writes.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, there is no memory, or a kernel cannot be compiled.
    pub fn new(
        device: &D,
        layout: RowLayout,
        group: usize,
        heads: Vec<Pages<D>>,
        capacity: usize,
        (form, rounds): (&ClosedForm, usize),
    ) -> Result<(Self, SampleMoments<D>)> {
        for head in &heads {
            if head.layout() != layout || head.rows() < capacity {
                return Err(Error::shape("rows", format!("{capacity} as {layout:?}"), head.rows()));
            }
        }
        let arrays = Arrays::new(device, layout, group, &heads, capacity)?;
        let moments = ComputeMoments::new(device, layout)?.moments(heads.len(), group, capacity)?;
        let mut work = Work::new(device);
        match form {
            ClosedForm::Size(_) => {
                let Arrays { step, certain_lengths, progress, .. } = &arrays;
                OpenSamples::new(device)?.add(&mut work, step, certain_lengths, progress, false)?;
                arrays.read_part(device, &mut work, layout, group, false)?;
            }
            ClosedForm::Formula { formula, .. } if rounds == 0 => {
                let Arrays { step, certain, certain_lengths, progress, .. } = &arrays;
                let check = BudgetCheck::new(device, formula)?;
                let (certain, proofs) = ((certain, certain_lengths), arrays.proofs());
                check.open(&mut work, step, certain, Some(&proofs), progress, group)?;
                arrays.read_part(device, &mut work, layout, group, false)?;
            }
            ClosedForm::Formula { formula, .. } => {
                let check = BudgetCheck::new(device, formula)?;
                let compute = ComputeMoments::new(device, layout)?;
                arrays.add_rounds(
                    device,
                    &mut work,
                    (layout, group),
                    (&compute, &check, &moments),
                    rounds,
                )?;
            }
        }
        let rounds = Self { work: work.record()?, _heads: heads, arrays, group, layout };
        Ok((rounds, moments))
    }

    /// Runs the recorded work for lists that see `visible` tokens, at most `capacity` of them. The
    /// first check is at a sample size of `base`; without checks `base` is the final size.
    ///
    /// # Errors
    /// If the sizes of arguments do not agree, or the device fails.
    pub fn run(
        &self,
        visible: usize,
        base: usize,
        lists: &[UnsampledList<'_>],
    ) -> Result<Vec<SampleState>> {
        let Arrays { step, queries, units, longest, certain_lengths, progress, .. } = &self.arrays;
        let (capacity, head_dim) = (progress.capacity(), self.layout.head_dim());
        expect("lists", progress.lists(), lists.len())?;
        step.numbers.write(&StepNumbers::<D>::numbers(visible, [0; 2], base), 0)?;
        let visible = visible.min(capacity);
        for (i, list) in lists.iter().enumerate() {
            let beyond = list.order.iter().any(|&token| token as usize >= capacity);
            if beyond || list.order.len() > visible {
                let expected = format_args!("at most {visible} tokens below {capacity}");
                return Err(Error::shape("order", expected, list.order.len()));
            }
            expect("queries", self.group * head_dim, list.queries.len())?;
            queries.write(list.queries, i * self.group * head_dim)?;
            units.write(&[(1.0 / list.longest) as f32], i)?;
            longest.write(&[list.longest], i)?;
            certain_lengths.write(&[(visible - list.order.len()) as u32], i)?;
            progress.tokens.write(list.order, i * capacity)?;
            self.write_certain(i, list.certain)?;
        }
        self.arrays
            .bounds
            .write(&lists.iter().flat_map(|list| list.bounds).copied().collect::<Vec<_>>())?;
        self.work.replay()?;
        progress.read()
    }

    fn write_certain(&self, list: usize, certain: &[Softmax]) -> Result<()> {
        expect("certain sums", self.group, certain.len())?;
        let numbers =
            |sums: &Softmax| [&[sums.shift(), sums.denominator()], sums.numerator()].concat();
        let numbers: Vec<f64> = certain.iter().flat_map(numbers).collect();
        expect(
            "elements of certain sums",
            self.group * (2 + self.layout.value_dim()),
            numbers.len(),
        )?;
        self.arrays.certain.numbers.write(&numbers, list * numbers.len())
    }

    /// Returns the sums over each sample, of each query head.
    ///
    /// # Errors
    /// If the device fails.
    pub fn sample(&self) -> Result<Vec<Softmax>> {
        self.arrays.sample.read()
    }
}

impl<D: Device> Arrays<D> {
    fn new(
        device: &D,
        layout: RowLayout,
        group: usize,
        heads: &[Pages<D>],
        capacity: usize,
    ) -> Result<Self> {
        let (lists, query_heads) = (heads.len(), heads.len() * group);
        let tables: Vec<u64> = heads.iter().map(Pages::table).collect();
        Ok(Self {
            step: StepNumbers::new(Array::zeros(device, StepNumbers::<D>::LEN)?, capacity)?,
            tables: Array::new(device, &tables)?,
            queries: Array::zeros(device, query_heads * layout.head_dim())?,
            units: Array::zeros(device, lists)?,
            longest: Array::zeros(device, lists)?,
            bounds: Bounds::new(device, query_heads, capacity)?,
            certain_lengths: Array::zeros(device, lists)?,
            certain: Sums::new(device, query_heads, layout.value_dim())?,
            sample: Sums::new(device, query_heads, layout.value_dim())?,
            logits: Logits::new(device, lists, group, capacity)?,
            progress: Progress::new(device, lists, capacity)?,
        })
    }

    fn proofs(&self) -> Proofs<'_, D> {
        Proofs { bounds: &self.bounds, longest: &self.longest }
    }

    /// Adds all rounds, and the attention to the part that the last one requests.
    fn add_rounds(
        &self,
        device: &D,
        work: &mut Work<D>,
        (layout, group): (RowLayout, usize),
        (compute, check, moments): (&ComputeMoments<D>, &BudgetCheck<D>, &SampleMoments<D>),
        rounds: usize,
    ) -> Result<()> {
        let Self { step, certain_lengths, progress, .. } = self;
        let inputs = MomentInputs {
            tables: &self.tables,
            units: &self.units,
            certain_lengths,
            certain: &self.certain,
            sample: &self.sample,
            logits: &self.logits,
        };
        OpenSamples::new(device)?.add(work, step, certain_lengths, progress, true)?;
        for round in 1..=rounds {
            self.read_part(device, work, layout, group, round > 1)?;
            compute.add(work, step, &inputs, progress, moments)?;
            let proofs = self.proofs();
            check.add(work, step, (&inputs, moments), Some(&proofs), progress, round == rounds)?;
        }
        self.read_part(device, work, layout, group, true)
    }

    /// Adds attention to the part to be drawn. With `more`, the results are added to the sums;
    /// otherwise they replace the sums.
    fn read_part(
        &self,
        device: &D,
        work: &mut Work<D>,
        layout: RowLayout,
        group: usize,
        more: bool,
    ) -> Result<()> {
        let Self { tables, queries, sample, progress, .. } = self;
        let attend = AttendLists::new(device, layout, group)?;
        let part = progress.part();
        let records = attend.records(progress.lists(), progress.capacity())?;
        let logits = self.logits.beginning_at(&progress.first());
        attend.add(work, tables, &part, queries, &records, Some(&logits))?;
        CombineSums::new(device)?.add(work, &records, &part, sample, more)
    }
}
