//! The kernels of a step, in order.

use std::sync::Mutex;

use vattention_core::Result;

use super::Routine;
use super::inputs::{self, Inputs};
use super::kind::{RoutineKind, Stage};
use super::outputs::{self, Outputs, SampleOutputs};
use super::stage::{CodesOnDevice, SpansOnDevice, StageOnDevice};
use crate::Device;
use crate::formula::Formula;
use crate::launch::{
    Array, Attend, Bounding, Bounds, BudgetCheck, CombineSums, Draw, Drawing, Encode, Encoding,
    ListTaken, Lists, Logits, Look, Looked, Open, Proofs, Ranked, Records, SampleMoments,
    ScoreCodes, ScoreLogits, ScorePages, Scores, Select, Selecting, Take, Taken, Work,
};
use crate::plan::CodesStage;

impl<D: Device> Routine<D> {
    /// Records the kernels of a step.
    pub(super) fn new(device: &D, kind: RoutineKind) -> Result<Self> {
        let (inputs, outputs) = (Inputs::new(&kind), Outputs::new(&kind));
        let given = inputs.on_device(device, kind.capacity)?;
        let said = outputs.on_device(device, &kind)?;
        let attend = Attend::new(device, kind.layout, kind.readers())?;
        let mut recording = Recording {
            device,
            kind: &kind,
            given: &given,
            said: &said,
            taken: Taken::new(device, kind.rows(), kind.capacity)?,
            bounds: None,
            lists: Lists::room_of(device, said.taken.clone(), kind.capacity)?,
            records: attend.records(kind.lists(), kind.capacity)?,
            attend,
            combine: CombineSums::new(device)?,
            work: Work::new(device),
        };
        recording.pick()?;
        recording.read_taken()?;
        if let Some(sample) = &said.sample {
            recording.sample(sample)?;
        }
        recording.count()?;
        let Recording { lists, work, .. } = recording;
        let progress = said.sample.map(|sample| sample.progress);
        let (given, said) = (given.all, said.all);
        let work = Mutex::new(work.record()?);
        Ok(Self { kind, inputs, outputs, work, given, said, lists, progress })
    }
}

/// What has been recorded so far.
struct Recording<'a, D: Device> {
    device: &'a D,
    kind: &'a RoutineKind,
    given: &'a inputs::OnDevice<D>,
    said: &'a outputs::OutputsOnDevice<D>,
    /// What the selectors took, as bits and as lists.
    taken: Taken<D>,
    /// On the logits of the others, of each row, once they have been found.
    bounds: Option<Bounds<D>>,
    lists: Lists<D>,
    attend: Attend<D>,
    combine: CombineSums<D>,
    /// Between the two.
    records: Records<D>,
    work: Work<D>,
}

impl<D: Device> Recording<'_, D> {
    /// Every selector, in order.
    fn pick(&mut self) -> Result<()> {
        let take = Take::new(self.device)?;
        let nothing = Array::zeros(self.device, 0)?;
        for (i, (stage, given)) in self.kind.stages.iter().zip(&self.given.stages).enumerate() {
            // What an earlier step has taken is forgotten.
            let fresh = i == 0;
            let ranges = if let StageOnDevice::Ranges(ranges) = given { ranges } else { &nothing };
            if fresh || !ranges.is_empty() {
                take.add(&mut self.work, &self.given.now, ranges, &self.taken, fresh)?;
            }
            let last = self.kind.last_bound() == Some(i);
            self.pick_best(stage, given, last)?;
        }
        Ok(())
    }

    /// The best by a score, if there is one, and how good the others can be, if that is to be known.
    fn pick_best(&mut self, stage: &Stage, given: &StageOnDevice<D>, bounds: bool) -> Result<()> {
        let (now, rows, capacity) = (&self.given.now, self.kind.rows(), self.kind.capacity);
        match (stage, given) {
            (_, StageOnDevice::Logits { counts, queries }) => {
                let scores = Scores::new(self.device, rows, capacity)?;
                let sharing = self.kind.rows_of_head();
                let score = ScoreLogits::new(self.device, self.kind.layout, sharing)?;
                score.add(&mut self.work, now, &self.given.row_tables, queries, &scores)?;
                self.select::<f32>(&scores, counts, bounds)
            }
            (
                &Stage::Pages { page, .. },
                StageOnDevice::Pages { counts, queries, bounds, kept },
            ) => {
                let scores = Scores::of_pages(self.device, rows, capacity, page)?;
                let sharing = self.kind.rows_of_head();
                let score = ScorePages::new(self.device, self.kind.layout, sharing, page)?;
                let SpansOnDevice { tables, addresses, known } = kept;
                let bounding = Bounding { tables, known, bounds: addresses };
                score.add_bounds(&mut self.work, now, &bounding)?;
                score.add(&mut self.work, now, bounds, queries, &scores)?;
                self.select::<f32>(&scores, counts, false)
            }
            (Stage::Codes(stage), StageOnDevice::Codes(given)) => self.pick_by_codes(stage, given),
            _ => Ok(()),
        }
    }

    /// The best by codes, which are made before.
    fn pick_by_codes(&mut self, stage: &CodesStage, given: &CodesOnDevice<D>) -> Result<()> {
        let (now, layout) = (&self.given.now, self.kind.layout);
        let CodesOnDevice { counts, queries, query_networks, codes, kept, key_networks } = given;
        let SpansOnDevice { tables, addresses, known } = kept;
        let encoding = Encoding { tables, networks: key_networks, known, codes: addresses };
        Encode::new(self.device, layout, &stage.key)?.add_keys(&mut self.work, now, &encoding)?;
        let words = codes.len() * stage.bits().div_ceil(32);
        let query_codes = Array::zeros(self.device, words)?;
        let encode = Encode::new(self.device, layout, &stage.query)?;
        encode.add_queries(&mut self.work, queries, query_networks, &query_codes)?;
        let scores = Scores::new(self.device, self.kind.rows(), self.kind.capacity)?;
        let score = ScoreCodes::new(self.device)?;
        score.add(&mut self.work, now, codes, stage.bits(), &query_codes, &scores)?;
        self.select::<u16>(&scores, counts, false)
    }

    fn select<S: Ranked>(
        &mut self,
        scores: &Scores<D, S>,
        counts: &Array<D, u32>,
        bounds: bool,
    ) -> Result<()> {
        let (now, rows, capacity) = (&self.given.now, self.kind.rows(), self.kind.capacity);
        let select = Select::<D, S>::of_pages(self.device, scores.page())?;
        let selecting = Selecting::new(self.device, rows, capacity)?;
        select.add(&mut self.work, now, scores, counts, &self.taken, &selecting)?;
        if bounds {
            let bounds = Bounds::new(self.device, rows, capacity)?;
            select.add_best_left(&mut self.work, now, scores, &self.taken, &bounds)?;
            self.bounds = Some(bounds);
        }
        Ok(())
    }

    /// Attention over what the selectors took.
    fn read_taken(&mut self) -> Result<()> {
        let given = self.given;
        let list = ListTaken::new(self.device)?;
        let counts = list.counts(self.kind.lists(), self.kind.capacity)?;
        let members = self.kind.members();
        list.add(&mut self.work, &given.now, &self.taken, members, &self.lists, &counts)?;
        let (lists, records) = (&self.lists, &self.records);
        let (tables, queries) = (&given.list_tables, &given.queries);
        self.attend.add(&mut self.work, tables, lists, queries, records, None)?;
        self.combine.add(&mut self.work, records, lists, &self.said.certain, false)
    }

    /// A sample of the rest, part by part.
    fn sample(&mut self, sample: &SampleOutputs<D>) -> Result<()> {
        let (kind, now, progress) = (self.kind, &self.given.now, &sample.progress);
        let budget = kind.sample.as_ref().and_then(|sample| sample.budget.as_ref());
        let looks = kind.sample.as_ref().map_or(0, |sample| sample.checks);
        let checking = budget
            .filter(|_| looks > 0)
            .map(|budget| Checking::new(self.device, kind, budget))
            .transpose()?;
        let (draw, members) = (Draw::new(self.device)?, kind.members());
        let drawing = Drawing::new(self.device, &self.given.orders, kind.capacity)?;
        draw.add_count(&mut self.work, now, &self.taken, members, &drawing)?;
        if let Some(budget) = budget.filter(|_| looks == 0) {
            self.open_proved(budget, sample)?;
        } else {
            let open = Open::new(self.device)?;
            open.add(&mut self.work, now, &self.said.taken, progress, looks > 0)?;
        }
        for look in 0..=looks {
            draw.add_draw(&mut self.work, now, &self.taken, members, &drawing, progress)?;
            self.read_part(sample, checking.as_ref(), look > 0)?;
            if let Some(checking) = checking.as_ref().filter(|_| look < looks) {
                self.check(checking, sample, look + 1 == looks)?;
            }
        }
        let take = Take::new(self.device)?;
        take.add_drawn(&mut self.work, progress, &self.taken, members)
    }

    /// A sample whose size follows from what the selectors took and left.
    fn open_proved(&mut self, budget: &Formula, sample: &SampleOutputs<D>) -> Result<()> {
        let check = BudgetCheck::new(self.device, budget)?;
        let (now, said, readers) = (&self.given.now, self.said, self.kind.readers());
        let proofs = proofs(self.bounds.as_ref(), self.given);
        let certain = (&said.certain, &said.taken);
        check.open(&mut self.work, now, certain, proofs.as_ref(), &sample.progress, readers)
    }

    /// Attention over the part that was drawn last.
    fn read_part(
        &mut self,
        sample: &SampleOutputs<D>,
        checking: Option<&Checking<D>>,
        more: bool,
    ) -> Result<()> {
        let (tables, queries) = (&self.given.list_tables, &self.given.queries);
        let part = sample.progress.part();
        let first = sample.progress.first();
        let logits = checking.map(|checking| checking.logits.beginning_at(&first));
        self.attend.add(&mut self.work, tables, &part, queries, &self.records, logits.as_ref())?;
        self.combine.add(&mut self.work, &self.records, &part, &sample.sums, more)
    }

    /// A look at the sample, which says what part of it is drawn next.
    fn check(
        &mut self,
        checking: &Checking<D>,
        sample: &SampleOutputs<D>,
        last: bool,
    ) -> Result<()> {
        let Checking { look, check, moments, logits } = checking;
        let now = &self.given.now;
        let looked = Looked {
            tables: &self.given.list_tables,
            units: &self.given.units,
            certain_lengths: &self.said.taken,
            certain: &self.said.certain,
            sample: &sample.sums,
            logits,
        };
        look.add(&mut self.work, now, &looked, &sample.progress, moments)?;
        let proofs = proofs(self.bounds.as_ref(), self.given);
        let progress = &sample.progress;
        check.add(&mut self.work, now, (&looked, moments), proofs.as_ref(), progress, last)
    }

    /// How many rows of each KV head were read.
    fn count(&mut self) -> Result<()> {
        let (now, rows) = (&self.given.now, self.kind.rows_of_head());
        let list = ListTaken::new(self.device)?;
        let counts = list.counts(self.kind.shape.kv_heads, self.kind.capacity)?;
        list.add_total(&mut self.work, now, &self.taken, rows, &self.said.read, &counts)
    }
}

/// What is proved of the tokens that are left, if their bounds have been found.
fn proofs<'a, D: Device>(
    bounds: Option<&'a Bounds<D>>,
    given: &'a inputs::OnDevice<D>,
) -> Option<Proofs<'a, D>> {
    bounds.map(|bounds| Proofs { bounds, longest: &given.longest })
}

/// What checks a sample.
struct Checking<D: Device> {
    look: Look<D>,
    check: BudgetCheck<D>,
    moments: SampleMoments<D>,
    /// Of the sample.
    logits: Logits<D>,
}

impl<D: Device> Checking<D> {
    fn new(device: &D, kind: &RoutineKind, budget: &Formula) -> Result<Self> {
        let look = Look::new(device, kind.layout)?;
        let moments = look.moments(kind.lists(), kind.readers(), kind.capacity)?;
        let logits = Logits::new(device, kind.lists(), kind.readers(), kind.capacity)?;
        Ok(Self { look, check: BudgetCheck::new(device, budget)?, moments, logits })
    }
}
