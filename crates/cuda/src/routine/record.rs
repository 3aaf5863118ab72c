//! The kernels of a step, in order.

use std::sync::Mutex;

use vattention_core::{ClosedForm, Result};

use super::Routine;
use super::inputs::{self, Inputs, StageOnDevice};
use super::kind::{Kind, Stage};
use super::outputs::{self, Outputs, Sample};
use crate::Device;
use crate::launch::{
    Array, Attend, Combine, CountTaken, Judge, ListTaken, Lists, LogitScores, Logits, Look, Open,
    Ranked, Records, Sample as Draw, Score, Scores, Select, Selecting, Take, Taken, Work,
};

impl<D: Device> Routine<D> {
    /// Records the kernels of a step.
    pub(super) fn new(device: &D, kind: Kind) -> Result<Self> {
        let (inputs, outputs) = (Inputs::new(&kind), Outputs::new(&kind));
        let given = inputs.on_device(device, kind.capacity)?;
        let said = outputs.on_device(device, &kind)?;
        let mut recording = Recording {
            device,
            kind: &kind,
            given: &given,
            said: &said,
            taken: Taken::new(device, kind.rows(), kind.capacity)?,
            lists: Lists::room(device, &said.taken, kind.capacity)?,
            reader: Reader::new(device, &kind)?,
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
    kind: &'a Kind,
    given: &'a inputs::OnDevice<D>,
    said: &'a outputs::OnDevice<D>,
    taken: Taken<D>,
    lists: Lists<D>,
    reader: Reader<D>,
    work: Work<D>,
}

/// What reads rows.
struct Reader<D: Device> {
    attend: Attend<D>,
    combine: Combine<D>,
    records: Records<D>,
}

impl<D: Device> Reader<D> {
    fn new(device: &D, kind: &Kind) -> Result<Self> {
        let attend = Attend::new(device, kind.layout, kind.readers())?;
        let records = attend.records(kind.lists(), kind.capacity)?;
        Ok(Self { attend, combine: Combine::new(device)?, records })
    }
}

impl<D: Device> Recording<'_, D> {
    /// Every selector, in order.
    fn pick(&mut self) -> Result<()> {
        let take = Take::new(self.device)?;
        let mut fresh = true;
        for (stage, given) in self.kind.stages.iter().zip(&self.given.stages) {
            match given {
                StageOnDevice::Ranges(ranges) => {
                    take.add(&mut self.work, &self.given.now, ranges, &self.taken, fresh)?;
                }
                _ if fresh => take.clear(&mut self.work, &self.given.now, &self.taken)?,
                _ => {}
            }
            fresh = false;
            self.pick_best(stage, given)?;
        }
        Ok(())
    }

    /// The best by a score.
    fn pick_best(&mut self, stage: &Stage, given: &StageOnDevice<D>) -> Result<()> {
        let (now, rows, capacity) = (&self.given.now, self.kind.rows(), self.kind.capacity);
        match (stage, given) {
            (_, StageOnDevice::Logits { counts, queries }) => {
                let scores = Scores::room(self.device, rows, capacity)?;
                let sharing = self.kind.rows_of_head();
                let score = LogitScores::new(self.device, self.kind.layout, sharing)?;
                score.add(&mut self.work, now, &self.given.row_tables, queries, &scores)?;
                self.select::<f32>(&scores, counts)
            }
            (&Stage::Codes { bits, .. }, StageOnDevice::Codes { counts, keys, queries }) => {
                let scores = Scores::room(self.device, rows, capacity)?;
                let members = stage.compared(self.kind.shape.group());
                let score = Score::new(self.device)?;
                score.add(&mut self.work, now, keys, bits, queries, members, &scores)?;
                self.select::<u16>(&scores, counts)
            }
            _ => Ok(()),
        }
    }

    fn select<S: Ranked>(&mut self, scores: &Scores<D, S>, counts: &Array<D, u32>) -> Result<()> {
        let select = Select::<D, S>::new(self.device)?;
        let scratch = Selecting::new(self.device, self.kind.rows(), self.kind.capacity)?;
        select.add(&mut self.work, &self.given.now, scores, counts, &self.taken, &scratch)
    }

    /// Attention over what the selectors took.
    fn read_taken(&mut self) -> Result<()> {
        let list = ListTaken::new(self.device)?;
        list.add(&mut self.work, &self.given.now, &self.taken, self.kind.members(), &self.lists)?;
        let Reader { attend, combine, records } = &self.reader;
        let (tables, queries) = (&self.given.list_tables, &self.given.queries);
        attend.add(&mut self.work, tables, &self.lists, queries, records, None)?;
        combine.add(&mut self.work, records, &self.lists, &self.said.certain, false)
    }

    /// A sample of the rest, part by part.
    fn sample(&mut self, sample: &Sample<D>) -> Result<()> {
        let Kind { capacity, .. } = *self.kind;
        let kind = self.kind.sample.as_ref();
        let budget = kind.and_then(|kind| kind.budget.as_ref());
        let looks = kind.map_or(0, |kind| kind.looks);
        let draw = Draw::new(self.device)?;
        let counts = draw.counts(self.kind.lists(), capacity)?;
        let (now, orders, members) = (&self.given.now, &self.given.orders, self.kind.members());
        let progress = &sample.progress;
        draw.count(&mut self.work, now, orders, &self.taken, members, &counts)?;
        Open::new(self.device)?.add(
            &mut self.work,
            now,
            &self.said.taken,
            progress,
            budget.is_some(),
        )?;
        let logits = Logits::new(self.device, self.kind.lists(), self.kind.readers(), capacity)?;
        let judge = budget.map(|budget| Judging::new(self, budget)).transpose()?;
        for look in 0..=looks {
            draw.draw(&mut self.work, now, orders, &self.taken, members, &counts, progress)?;
            self.read_part(sample, &logits, look > 0)?;
            if let (Some(judge), true) = (&judge, look < looks) {
                judge.add(self, sample, &logits, look + 1 == looks)?;
            }
        }
        draw.mark(&mut self.work, progress, &self.taken, members)
    }

    /// Attention over the part that was drawn last.
    fn read_part(&mut self, sample: &Sample<D>, logits: &Logits<D>, more: bool) -> Result<()> {
        let Reader { attend, combine, records } = &self.reader;
        let (tables, queries) = (&self.given.list_tables, &self.given.queries);
        let part = sample.progress.part();
        let logits = logits.beginning_at(&sample.progress.first());
        attend.add(&mut self.work, tables, &part, queries, records, Some(&logits))?;
        combine.add(&mut self.work, records, &part, &sample.sums, more)
    }

    /// How many rows of each KV head were read.
    fn count(&mut self) -> Result<()> {
        let count = CountTaken::new(self.device)?;
        count.add(&mut self.work, &self.taken, self.kind.rows_of_head(), &self.said.read)
    }
}

/// What judges a sample.
struct Judging<D: Device> {
    look: Look<D>,
    judge: Judge<D>,
}
