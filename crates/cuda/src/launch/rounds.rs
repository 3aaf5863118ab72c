//! Samples in given orders, by themselves: all that a step does with them but the draw.

use vattention_core::{Error, Result, step::Softmax};

use super::{
    Array, Attend, Bounds, BudgetCheck, CombineSums, Logits, Look, Looked, Now, Open, Pages,
    Progress, Progressed, Proofs, Recorded, RowLayout, SampleMoments, Sums, Work, expect,
};
use crate::Device;
use crate::formula::ClosedForm;

/// Samples of one list of each head, recorded once: opened, read, checked round by round.
#[derive(Debug)]
pub struct Rounds<D: Device> {
    work: Recorded<D>,
    /// Read by what is recorded.
    _heads: Vec<Pages<D>>,
    arrays: Arrays<D>,
    group: usize,
    layout: RowLayout,
}

#[derive(Debug)]
struct Arrays<D: Device> {
    now: Now<D>,
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

/// One list, before anything is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// `[group, head_dim]`
    pub queries: &'a [f32],
    /// The sums of each query head over the tokens that the list has for certain, `[group]`.
    pub certain: &'a [Softmax],
    /// All other tokens, in the order in which they are drawn.
    pub order: &'a [u32],
    /// The largest norm of a value, above 0.
    pub longest: f64,
    /// What no other token's logit exceeds, of each query head, `[group]`, for formulas that need it.
    pub bounds: &'a [f32],
}

impl<D: Device> Rounds<D> {
    /// For groups of query heads that each read one list of one of the `heads`, of at most `capacity`
    /// tokens. There are `rounds` looks at most, and none if the form needs no sample. With them come
    /// the moments of the last look.
    ///
    /// # Errors
    /// If a size does not fit another, there is no memory, or a kernel cannot be compiled.
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
        let moments = Look::new(device, layout)?.moments(heads.len(), group, capacity)?;
        let mut work = Work::new(device);
        match form {
            ClosedForm::Size(_) => {
                let Arrays { now, certain_lengths, progress, .. } = &arrays;
                Open::new(device)?.add(&mut work, now, certain_lengths, progress, false)?;
                arrays.read_part(device, &mut work, layout, group, false)?;
            }
            ClosedForm::Formula { formula, .. } if rounds == 0 => {
                let Arrays { now, certain, certain_lengths, progress, .. } = &arrays;
                let check = BudgetCheck::new(device, formula)?;
                let (certain, proofs) = ((certain, certain_lengths), arrays.proofs());
                check.open(&mut work, now, certain, Some(&proofs), progress, group)?;
                arrays.read_part(device, &mut work, layout, group, false)?;
            }
            ClosedForm::Formula { formula, .. } => {
                let check = BudgetCheck::new(device, formula)?;
                let look = Look::new(device, layout)?;
                arrays.looked(
                    device,
                    &mut work,
                    (layout, group),
                    (&look, &check, &moments),
                    rounds,
                )?;
            }
        }
        let rounds = Self { work: work.record()?, _heads: heads, arrays, group, layout };
        Ok((rounds, moments))
    }

    /// Draws for lists that see `visible` tokens, or as many as there is room for, and are first looked at when they have `base`; without
    /// looks, that is how many are drawn.
    ///
    /// # Errors
    /// If a size does not fit another, or the device fails.
    pub fn run(
        &self,
        visible: usize,
        base: usize,
        lists: &[Opened<'_>],
    ) -> Result<Vec<Progressed>> {
        let Arrays { now, queries, units, longest, certain_lengths, progress, .. } = &self.arrays;
        let (capacity, head_dim) = (progress.capacity(), self.layout.head_dim());
        expect("lists", progress.lists(), lists.len())?;
        now.numbers.write(&Now::<D>::numbers(visible, [0; 2], base), 0)?;
        let seen = visible.min(capacity);
        for (i, list) in lists.iter().enumerate() {
            let beyond = list.order.iter().any(|&token| token as usize >= capacity);
            if beyond || list.order.len() > seen {
                let expected = format_args!("at most {seen} tokens below {capacity}");
                return Err(Error::shape("order", expected, list.order.len()));
            }
            expect("queries", self.group * head_dim, list.queries.len())?;
            queries.write(list.queries, i * self.group * head_dim)?;
            units.write(&[(1.0 / list.longest) as f32], i)?;
            longest.write(&[list.longest], i)?;
            certain_lengths.write(&[(seen - list.order.len()) as u32], i)?;
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

    /// The sums over each sample, of each query head.
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
        let (lists, readers) = (heads.len(), heads.len() * group);
        let tables: Vec<u64> = heads.iter().map(Pages::table).collect();
        Ok(Self {
            now: Now::new(Array::zeros(device, Now::<D>::LEN)?, capacity)?,
            tables: Array::new(device, &tables)?,
            queries: Array::zeros(device, readers * layout.head_dim())?,
            units: Array::zeros(device, lists)?,
            longest: Array::zeros(device, lists)?,
            bounds: Bounds::new(device, readers, capacity)?,
            certain_lengths: Array::zeros(device, lists)?,
            certain: Sums::new(device, readers, layout.value_dim())?,
            sample: Sums::new(device, readers, layout.value_dim())?,
            logits: Logits::new(device, lists, group, capacity)?,
            progress: Progress::new(device, lists, capacity)?,
        })
    }

    fn proofs(&self) -> Proofs<'_, D> {
        Proofs { bounds: &self.bounds, longest: &self.longest }
    }

    /// All rounds, and the part that the last one asks for.
    fn looked(
        &self,
        device: &D,
        work: &mut Work<D>,
        (layout, group): (RowLayout, usize),
        (look, check, moments): (&Look<D>, &BudgetCheck<D>, &SampleMoments<D>),
        rounds: usize,
    ) -> Result<()> {
        let Self { now, certain_lengths, progress, .. } = self;
        let looked = Looked {
            tables: &self.tables,
            units: &self.units,
            certain_lengths,
            certain: &self.certain,
            sample: &self.sample,
            logits: &self.logits,
        };
        Open::new(device)?.add(work, now, certain_lengths, progress, true)?;
        for round in 1..=rounds {
            self.read_part(device, work, layout, group, round > 1)?;
            look.add(work, now, &looked, progress, moments)?;
            let proofs = self.proofs();
            check.add(work, now, (&looked, moments), Some(&proofs), progress, round == rounds)?;
        }
        self.read_part(device, work, layout, group, true)
    }

    /// Reads the part to be drawn, and adds it to the sums if there are `more`.
    fn read_part(
        &self,
        device: &D,
        work: &mut Work<D>,
        layout: RowLayout,
        group: usize,
        more: bool,
    ) -> Result<()> {
        let Self { tables, queries, sample, progress, .. } = self;
        let attend = Attend::new(device, layout, group)?;
        let part = progress.part();
        let records = attend.records(progress.lists(), progress.capacity())?;
        let logits = self.logits.beginning_at(&progress.first());
        attend.add(work, tables, &part, queries, &records, Some(&logits))?;
        CombineSums::new(device)?.add(work, &records, &part, sample, more)
    }
}
