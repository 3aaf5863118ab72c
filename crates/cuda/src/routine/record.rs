//! Recording of the kernels of a step, in order.

use std::sync::Mutex;

use vattention_core::Result;

use super::Routine;
use super::inputs::{Inputs, InputsOnDevice};
use super::kind::{RoutineKind, Stage};
use super::outputs::{Outputs, OutputsOnDevice, SampleOutputs};
use super::stage::{CodesOnDevice, SpansOnDevice, StageOnDevice};
use crate::Device;
use crate::formula::Formula;
use crate::launch::{
    Array, AttendLists, Bounds, BudgetCheck, CombineSums, ComputeMoments, DeviceScores, Draw,
    DrawInputs, Encode, Encoding, ListTaken, Lists, Logits, MomentInputs, OpenSamples, PageArrays,
    Proofs, Records, SampleMoments, ScoreCodes, ScoreLogits, ScorePages, ScoreType, Select,
    SelectBuffers, Take, Taken, Work,
};
use crate::plan::CodesStage;

impl<D: Device> Routine<D> {
    /// Records the kernels of a step.
    pub(super) fn new(device: &D, kind: RoutineKind) -> Result<Self> {
        let (inputs, outputs) = (Inputs::new(&kind), Outputs::new(&kind));
        let step_inputs = inputs.on_device(device, kind.capacity)?;
        let step_outputs = outputs.on_device(device, &kind)?;
        let attend = AttendLists::new(device, kind.layout, kind.heads_per_list())?;
        let mut recording = Recording {
            device,
            kind: &kind,
            inputs: &step_inputs,
            outputs: &step_outputs,
            taken: Taken::new(device, kind.rows(), kind.capacity)?,
            bounds: None,
            lists: Lists::room_of(device, step_outputs.taken.clone(), kind.capacity)?,
            records: attend.records(kind.lists(), kind.capacity)?,
            attend,
            combine: CombineSums::new(device)?,
            work: Work::new(device),
        };
        recording.pick()?;
        recording.read_taken()?;
        if let Some(sample) = &step_outputs.sample {
            recording.sample(sample)?;
        }
        recording.count()?;
        let Recording { lists, work, .. } = recording;
        let progress = step_outputs.sample.map(|sample| sample.progress);
        let (input_words, output_words) = (step_inputs.all, step_outputs.all);
        let work = Mutex::new(work.record()?);
        Ok(Self { kind, inputs, outputs, work, input_words, output_words, lists, progress })
    }
}

/// Kernels recorded so far, and the arrays that they share.
struct Recording<'a, D: Device> {
    device: &'a D,
    kind: &'a RoutineKind,
    inputs: &'a InputsOnDevice<D>,
    outputs: &'a OutputsOnDevice<D>,
    /// Taken tokens, as bits; `lists` has the always-read ones.
    taken: Taken<D>,
    /// Upper bounds on the untaken logits of each row, once a kernel computes them.
    bounds: Option<Bounds<D>>,
    lists: Lists<D>,
    attend: AttendLists<D>,
    combine: CombineSums<D>,
    /// Partial sums between `attend` and `combine`.
    records: Records<D>,
    work: Work<D>,
}

impl<D: Device> Recording<'_, D> {
    /// Adds the selectors, in order.
    fn pick(&mut self) -> Result<()> {
        let take = Take::new(self.device)?;
        let nothing = Array::zeros(self.device, 0)?;
        for (i, (stage, inputs)) in self.kind.stages.iter().zip(&self.inputs.stages).enumerate() {
            // The first launch clears the tokens taken at the previous step.
            let fresh = i == 0;
            let ranges = if let StageOnDevice::Ranges(ranges) = inputs { ranges } else { &nothing };
            if fresh || !ranges.is_empty() {
                take.add(&mut self.work, &self.inputs.step, ranges, &self.taken, fresh)?;
            }
            let last = self.kind.last_bound() == Some(i);
            self.pick_best(stage, inputs, last)?;
        }
        Ok(())
    }

    /// Adds the selection by a score, if the stage has one. With `bounds`, it also computes the
    /// upper bounds on the untaken logits.
    fn pick_best(&mut self, stage: &Stage, inputs: &StageOnDevice<D>, bounds: bool) -> Result<()> {
        let (step, rows, capacity) = (&self.inputs.step, self.kind.rows(), self.kind.capacity);
        match (stage, inputs) {
            (_, StageOnDevice::Logits { counts, queries }) => {
                let scores = DeviceScores::new(self.device, rows, capacity)?;
                let sharing = self.kind.rows_of_head();
                let score = ScoreLogits::new(self.device, self.kind.layout, sharing)?;
                score.add(&mut self.work, step, &self.inputs.row_tables, queries, &scores)?;
                self.select::<f32>(&scores, counts, bounds)
            }
            (
                &Stage::Pages { page, .. },
                StageOnDevice::Pages { counts, queries, bounds, index },
            ) => {
                let scores = DeviceScores::for_pages(self.device, rows, capacity, page)?;
                let sharing = self.kind.rows_of_head();
                let score = ScorePages::new(self.device, self.kind.layout, sharing, page)?;
                let SpansOnDevice { tables, addresses, indexed } = index;
                let arrays = PageArrays { tables, indexed, bounds: addresses };
                score.add_bounds(&mut self.work, step, &arrays)?;
                score.add(&mut self.work, step, bounds, queries, &scores)?;
                self.select::<f32>(&scores, counts, false)
            }
            (Stage::Codes(stage), StageOnDevice::Codes(inputs)) => {
                self.pick_by_codes(stage, inputs)
            }
            _ => Ok(()),
        }
    }

    /// Adds the encoding of keys and queries, and the selection by their codes.
    fn pick_by_codes(&mut self, stage: &CodesStage, inputs: &CodesOnDevice<D>) -> Result<()> {
        let (step, layout) = (&self.inputs.step, self.kind.layout);
        let CodesOnDevice { counts, queries, query_networks, codes, index, key_networks } = inputs;
        let SpansOnDevice { tables, addresses, indexed } = index;
        let encoding = Encoding { tables, networks: key_networks, indexed, codes: addresses };
        Encode::new(self.device, layout, &stage.key)?.add_keys(&mut self.work, step, &encoding)?;
        let words = codes.len() * stage.bits().div_ceil(32);
        let query_codes = Array::zeros(self.device, words)?;
        let encode = Encode::new(self.device, layout, &stage.query)?;
        encode.add_queries(&mut self.work, queries, query_networks, &query_codes)?;
        let scores = DeviceScores::new(self.device, self.kind.rows(), self.kind.capacity)?;
        let score = ScoreCodes::new(self.device)?;
        score.add(&mut self.work, step, codes, stage.bits(), &query_codes, &scores)?;
        self.select::<u16>(&scores, counts, false)
    }

    fn select<S: ScoreType>(
        &mut self,
        scores: &DeviceScores<D, S>,
        counts: &Array<D, u32>,
        bounds: bool,
    ) -> Result<()> {
        let (step, rows, capacity) = (&self.inputs.step, self.kind.rows(), self.kind.capacity);
        let select = Select::<D, S>::for_pages(self.device, scores.page())?;
        let buffers = SelectBuffers::new(self.device, rows, capacity)?;
        select.add(&mut self.work, step, scores, counts, &self.taken, &buffers)?;
        if bounds {
            let bounds = Bounds::new(self.device, rows, capacity)?;
            select.add_best_left(&mut self.work, step, scores, &self.taken, &bounds)?;
            self.bounds = Some(bounds);
        }
        Ok(())
    }

    /// Adds attention over the always-read tokens.
    fn read_taken(&mut self) -> Result<()> {
        let inputs = self.inputs;
        let list = ListTaken::new(self.device)?;
        let counts = list.counts(self.kind.lists(), self.kind.capacity)?;
        let members = self.kind.members();
        list.add(&mut self.work, &inputs.step, &self.taken, members, &self.lists, &counts)?;
        let (lists, records) = (&self.lists, &self.records);
        let (tables, queries) = (&inputs.list_tables, &inputs.queries);
        self.attend.add(&mut self.work, tables, lists, queries, records, None)?;
        self.combine.add(&mut self.work, records, lists, &self.outputs.certain, false)
    }

    /// Adds a sample of the untaken tokens, part by part.
    fn sample(&mut self, sample: &SampleOutputs<D>) -> Result<()> {
        let (kind, step, progress) = (self.kind, &self.inputs.step, &sample.progress);
        let budget = kind.sample.as_ref().and_then(|sample| sample.budget.as_ref());
        let checks = kind.sample.as_ref().map_or(0, |sample| sample.checks);
        let checking = budget
            .filter(|_| checks > 0)
            .map(|budget| CheckKernels::new(self.device, kind, budget))
            .transpose()?;
        let (draw, members) = (Draw::new(self.device)?, kind.members());
        let inputs = DrawInputs::new(self.device, &self.inputs.orders, kind.capacity)?;
        draw.add_count(&mut self.work, step, &self.taken, members, &inputs)?;
        if let Some(budget) = budget.filter(|_| checks == 0) {
            self.open_proved(budget, sample)?;
        } else {
            let open = OpenSamples::new(self.device)?;
            open.add(&mut self.work, step, &self.outputs.taken, progress, checks > 0)?;
        }
        for round in 0..=checks {
            draw.add_draw(&mut self.work, step, &self.taken, members, &inputs, progress)?;
            self.read_part(sample, checking.as_ref(), round > 0)?;
            if let Some(checking) = checking.as_ref().filter(|_| round < checks) {
                self.check(checking, sample, round + 1 == checks)?;
            }
        }
        let take = Take::new(self.device)?;
        take.add_drawn(&mut self.work, progress, &self.taken, members)
    }

    /// Begins a sample whose size follows from the always-read tokens and the bounds on the others.
    fn open_proved(&mut self, budget: &Formula, sample: &SampleOutputs<D>) -> Result<()> {
        let check = BudgetCheck::new(self.device, budget)?;
        let (step, outputs, heads) = (&self.inputs.step, self.outputs, self.kind.heads_per_list());
        let proofs = proofs(self.bounds.as_ref(), self.inputs);
        let certain = (&outputs.certain, &outputs.taken);
        check.open(&mut self.work, step, certain, proofs.as_ref(), &sample.progress, heads)
    }

    /// Adds attention over the part that was drawn last.
    fn read_part(
        &mut self,
        sample: &SampleOutputs<D>,
        checking: Option<&CheckKernels<D>>,
        more: bool,
    ) -> Result<()> {
        let (tables, queries) = (&self.inputs.list_tables, &self.inputs.queries);
        let part = sample.progress.part();
        let first = sample.progress.first();
        let logits = checking.map(|checking| checking.logits.beginning_at(&first));
        self.attend.add(&mut self.work, tables, &part, queries, &self.records, logits.as_ref())?;
        self.combine.add(&mut self.work, &self.records, &part, &sample.sums, more)
    }

    /// Adds a check of the sample, which decides what part is drawn next.
    fn check(
        &mut self,
        checking: &CheckKernels<D>,
        sample: &SampleOutputs<D>,
        last: bool,
    ) -> Result<()> {
        let CheckKernels { compute, check, moments, logits } = checking;
        let step = &self.inputs.step;
        let inputs = MomentInputs {
            tables: &self.inputs.list_tables,
            units: &self.inputs.units,
            certain_lengths: &self.outputs.taken,
            certain: &self.outputs.certain,
            sample: &sample.sums,
            logits,
        };
        compute.add(&mut self.work, step, &inputs, &sample.progress, moments)?;
        let proofs = proofs(self.bounds.as_ref(), self.inputs);
        let progress = &sample.progress;
        check.add(&mut self.work, step, (&inputs, moments), proofs.as_ref(), progress, last)
    }

    /// Adds the count of distinct rows that were read of each KV head.
    fn count(&mut self) -> Result<()> {
        let (step, rows) = (&self.inputs.step, self.kind.rows_of_head());
        let list = ListTaken::new(self.device)?;
        let counts = list.counts(self.kind.shape.kv_heads, self.kind.capacity)?;
        list.add_total(&mut self.work, step, &self.taken, rows, &self.outputs.read, &counts)
    }
}

/// Inputs of formulas that need bounds, if the bounds are computed.
fn proofs<'a, D: Device>(
    bounds: Option<&'a Bounds<D>>,
    inputs: &'a InputsOnDevice<D>,
) -> Option<Proofs<'a, D>> {
    bounds.map(|bounds| Proofs { bounds, longest: &inputs.longest })
}

/// Kernels and arrays for the checks of a sample.
struct CheckKernels<D: Device> {
    compute: ComputeMoments<D>,
    check: BudgetCheck<D>,
    moments: SampleMoments<D>,
    /// Logits of the sample.
    logits: Logits<D>,
}

impl<D: Device> CheckKernels<D> {
    fn new(device: &D, kind: &RoutineKind, budget: &Formula) -> Result<Self> {
        let compute = ComputeMoments::new(device, kind.layout)?;
        let moments = compute.moments(kind.lists(), kind.heads_per_list(), kind.capacity)?;
        let logits = Logits::new(device, kind.lists(), kind.heads_per_list(), kind.capacity)?;
        Ok(Self { compute, check: BudgetCheck::new(device, budget)?, moments, logits })
    }
}
