//! The measured kernels, and checks of their results.

use vattention_core::{Result, Storage};
use vattention_cuda::Device;
use vattention_cuda::launch::{
    Array, AttendLists, CombineSums, DeviceCodes, DeviceScores, ListTaken, Lists, Pages, RowLayout,
    ScoreCodes, Select, SelectBuffers, StepNumbers, Sums, Take, Taken, Work,
};

use super::data::{self, BITS, LOG2_PAGE};
use super::shape::{BatchShape, DIM, GROUP};

/// Layout of the rows.
pub(crate) fn layout() -> Result<RowLayout> {
    RowLayout::new(Storage::Bf16, DIM, DIM, LOG2_PAGE)
}

/// Kernels, and a check that their results are plausible, so that no idle kernel is timed.
pub(crate) struct CheckedWork<'a, D: Device> {
    pub(crate) work: Work<D>,
    pub(crate) check: Box<dyn Fn() -> Result<bool> + 'a>,
}

/// Attention over lists, with the merge of their items.
pub(crate) fn attend<'a, D: Device>(
    device: &D,
    heads: &[Pages<D>],
    lists: &Lists<D>,
) -> Result<CheckedWork<'a, D>> {
    let attend = AttendLists::new(device, layout()?, GROUP)?;
    let queries: Vec<f32> = data::noise(3, heads.len() * GROUP * DIM).map(|x| x / 16.0).collect();
    let queries = Array::new(device, &queries)?;
    let records = attend.records(lists.len(), lists.longest())?;
    let sums = Sums::new(device, heads.len() * GROUP, DIM)?;
    let heads: Vec<&Pages<D>> = heads.iter().collect();
    let mut work = Work::new(device);
    attend.add_heads(&mut work, &heads, lists, &queries, &records, None)?;
    CombineSums::new(device)?.add(&mut work, &records, lists, &sums, false)?;
    // Logits differ by little, so a denominator is somewhat smaller than the list's length.
    let tokens = lists.longest() as f64;
    let about = move |denominator: f64| (tokens / 8.0..=tokens).contains(&denominator);
    let check = move || Ok(sums.read()?.iter().all(|sums| about(sums.denominator())));
    Ok(CheckedWork { work, check: Box::new(check) })
}

/// Inputs of selections: a code of each token for each query head.
pub(crate) struct SelectionInputs<'a, D: Device> {
    device: &'a D,
    shape: BatchShape,
    codes: Vec<DeviceCodes<D>>,
    /// Codes of the queries, `[query_heads]`.
    queries: Array<D, u32>,
    numbers: StepNumbers<D>,
    scores: DeviceScores<D, u16>,
}

impl<'a, D: Device> SelectionInputs<'a, D> {
    pub(crate) fn new(device: &'a D, shape: BatchShape) -> Result<Self> {
        let queries: Vec<u32> = data::words(2).take(shape.query_heads()).collect();
        let numbers = Array::new(device, &StepNumbers::<D>::numbers(shape.tokens, [2, 2], 0))?;
        Ok(Self {
            device,
            shape,
            codes: data::codes(device, shape)?,
            queries: Array::new(device, &queries)?,
            numbers: StepNumbers::new(numbers, shape.tokens)?,
            scores: DeviceScores::new(device, shape.query_heads(), shape.tokens)?,
        })
    }

    /// Bytes of all codes.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.query_heads() * self.shape.tokens * BITS / 8
    }

    /// Scores every token.
    pub(crate) fn score(&self) -> Result<CheckedWork<'_, D>> {
        let mut work = Work::new(self.device);
        self.add_scores(&mut work)?;
        let check = || {
            let scores = self.scores.read(self.shape.tokens)?;
            let sum: f64 = scores.iter().copied().map(f64::from).sum();
            // Half of the bits of random codes agree.
            Ok((sum / scores.len() as f64 / BITS as f64 - 0.5).abs() < 0.1)
        };
        Ok(CheckedWork { work, check: Box::new(check) })
    }

    fn add_scores(&self, work: &mut Work<D>) -> Result<()> {
        let codes: Vec<&DeviceCodes<D>> = self.codes.iter().collect();
        let score = ScoreCodes::new(self.device)?;
        score.add_codes(work, &self.numbers, &codes, &self.queries, &self.scores)
    }

    /// Scores every token, takes the best of each query head, one of every `step` tokens, and lists
    /// the tokens that the query heads of each KV head took.
    pub(crate) fn select(&self, step: usize) -> Result<CheckedWork<'_, D>> {
        let Self { device, shape, ref numbers, ref scores, .. } = *self;
        let (rows, tokens) = (shape.query_heads(), shape.tokens);
        let taken = Taken::new(device, rows, tokens)?;
        let counts = Array::new(device, &data::counts(shape, step))?;
        let buffers = SelectBuffers::new(device, rows, tokens)?;
        let list = ListTaken::new(device)?;
        let lists = Lists::room(device, shape.lists(), tokens)?;
        let listed = list.counts(shape.lists(), tokens)?;
        let mut work = Work::new(device);
        Take::new(device)?.add(&mut work, numbers, &Array::zeros(device, 0)?, &taken, true)?;
        self.add_scores(&mut work)?;
        let select = Select::new(device)?;
        select.add(&mut work, numbers, scores, &counts, &taken, &buffers)?;
        list.add(&mut work, numbers, &taken, GROUP, &lists, &listed)?;
        let count = tokens / step;
        let check = move || {
            let union = |list: &Vec<u32>| (count..=GROUP * count).contains(&list.len());
            Ok(lists.read()?.iter().all(union))
        };
        Ok(CheckedWork { work, check: Box::new(check) })
    }
}
