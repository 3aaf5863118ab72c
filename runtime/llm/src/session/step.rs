//! Decode steps: tokens whose attention follows the pipeline.

use std::time::Instant;

use ndarray::{Array3, ArrayView3, Axis, s};
use vattention_backends::{keep_awake, process};
use vattention_core::{Attention, Output, Shape, TokenClass, engine::SequencePoint};

use super::Session;
use crate::inputs::LinearInputs;
use crate::linear::LinearScratch;
use crate::matrix::MOST_EQUAL_ROWS;
use crate::prefill::check_finite;
use crate::{Error, LayerReport, Model, Result};

/// Largest number of tokens whose linear maps are batched, which bounds memory.
const MAX_BATCH: usize = 256;

impl Session<'_> {
    /// Adds one token, which attends by the pipeline in every layer, and returns the logits after
    /// it, `[vocab_size]`. Afterwards [`reports`](Self::reports) describes this step.
    ///
    /// # Errors
    /// [`Error::Input`] if the vocabulary lacks the token or the context is full; the sequence is
    /// then unchanged. If a layer fails, the sequence is lost.
    pub fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        Self::step_batch(&mut [(self, token)]).pop().expect("a result for each sequence")
    }

    /// Adds one token to each of several sequences of one model, like [`step`](Self::step). The
    /// results are in the order of `batch`, and bitwise equal to those of single steps.
    ///
    /// Cost: each weight is read once per 16 sequences; attention costs as much as in single steps.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step), for each sequence.
    pub fn step_batch(batch: &mut [(&mut Self, u32)]) -> Vec<Result<Vec<f32>>> {
        let mut results = Vec::with_capacity(batch.len());
        for batch in batch.chunks_mut(MOST_EQUAL_ROWS) {
            let tokens = batch
                .iter_mut()
                .map(|(session, token)| StepTokens::new(session, std::slice::from_ref(token)));
            results.extend(run(tokens.collect()));
        }
        results
    }

    /// Adds several tokens whose values are known in advance, such as a question about a context.
    /// In each layer, the tokens attend one after the other, like in [`step`](Self::step); the
    /// linear maps are computed for up to 256 tokens together. The results of up to 16 tokens are
    /// bitwise equal to those of single steps; the results of more tokens differ by rounding.
    /// Returns the logits after the last token, `[vocab_size]`, or `logits` if `tokens` is empty.
    ///
    /// Cost: each weight is read once per 256 tokens.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn steps(&mut self, mut logits: Vec<f32>, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_not_lost()?;
        self.model.check(tokens, self.len)?;
        for tokens in tokens.chunks(MAX_BATCH) {
            let mut results = run(vec![StepTokens::new(self, tokens)]);
            logits = results.pop().expect("a result for each sequence")?;
        }
        Ok(logits)
    }

    /// Adds at most 16 tokens to the layers like [`steps`](Self::steps), and returns the record of
    /// each. The sequence has its old length and counts as lost until the caller has chosen the
    /// tokens that stay.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub(super) fn recorded_steps(&mut self, tokens: &[u32]) -> Result<Vec<StepRecord>> {
        let mut new = StepTokens::new(self, tokens);
        new.records.resize_with(tokens.len(), StepRecord::default);
        if let Some(failure) = new.failure {
            return Err(failure);
        }
        let logits = keep_awake(|| compute_logits(new.session.model, &mut [&mut new]));
        new.finish_records(&logits)
    }
}

/// Result of the step of one token in a pass, and the points of the layers after it.
#[derive(Debug, Default)]
pub(super) struct StepRecord {
    /// Logits, `[vocab_size]`, which may not be finite.
    pub(super) logits: Vec<f32>,
    /// Reports of the layers.
    pub(super) reports: Vec<LayerReport>,
    /// Points of the layers.
    pub(super) points: Vec<SequencePoint>,
}

/// New tokens of one sequence, at least one.
struct StepTokens<'b, 'm> {
    session: &'b mut Session<'m>,
    tokens: &'b [u32],
    classes: Option<Vec<TokenClass>>,
    /// Record of each token; empty if only the results after the last one are needed.
    records: Vec<StepRecord>,
    /// True if a layer may have stored the tokens.
    started: bool,
    /// Reason why the tokens cannot be added.
    failure: Option<Error>,
}

impl<'b, 'm> StepTokens<'b, 'm> {
    /// Checks the tokens, and records an error about them as the failure.
    fn new(session: &'b mut Session<'m>, tokens: &'b [u32]) -> Self {
        let checked = session.check_not_lost();
        let failure = checked.and_then(|()| session.model.check(tokens, session.len)).err();
        let classes = if failure.is_none() { session.classify(tokens) } else { None };
        Self { session, tokens, classes, records: Vec::new(), started: false, failure }
    }

    /// Computes a layer's attention for the tokens, one after the other. `rows` are the queries,
    /// keys and values of the tokens; `attended` is `[tokens, query_heads, value_dim]`.
    fn attend(&mut self, layer: usize, rows: [ArrayView3<'_, f32>; 3], attended: &mut [f32]) {
        let rotations = self.session.rotations.clone();
        let rotated = rotations.as_ref().map(|rotations| rotations.rotate_rows(rows));
        let rows = rotated.as_ref().map_or(rows, |rows| rows.each_ref().map(|rows| rows.view()));
        let width = attended.len() / self.tokens.len();
        let window = self.session.model.config().window(layer);
        let mut last = None;
        for (token, attended) in attended.chunks_exact_mut(width).enumerate() {
            let begin = Instant::now();
            let class = self.classes.as_ref().map(|classes| &classes[token..=token]);
            let rows = rows.map(|rows| token_rows(rows, token));
            let attention = self.session.layers[layer].as_mut();
            let result = attend(attention, rows, class).and_then(|output| {
                attended.iter_mut().zip(&output.out).for_each(|(to, from)| *to = *from);
                let report = LayerReport::new(output, begin.elapsed(), window);
                match self.records.get_mut(token) {
                    Some(record) => record.add_layer(report, attention.checkpoint()?),
                    None => last = Some(report),
                }
                Ok(())
            });
            if let Err(source) = result {
                self.failure = Some(Error::Attention { layer, source });
                return;
            }
        }
        if let Some(rotations) = rotations {
            rotations.restore_outputs(attended, self.session.model.config().shape.value_dim);
        }
        self.session.reports.extend(last);
    }

    /// Number of tokens whose logits are needed, the last ones.
    fn count_logits(&self) -> usize {
        self.records.len().max(1)
    }

    /// Completes a recorded pass with the logits of its tokens.
    fn finish_records(mut self, logits: &[f32]) -> Result<Vec<StepRecord>> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let width = logits.len() / self.records.len();
        for (record, logits) in self.records.iter_mut().zip(logits.chunks_exact(width)) {
            record.logits = logits.to_vec();
        }
        Ok(self.records)
    }

    /// Completes the step with the logits of the sequence. After a failure, some layers have stored
    /// the tokens and others have not, so the sequence is lost.
    fn finish(self, logits: &[f32]) -> Result<Vec<f32>> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let logits = check_finite(logits.to_vec())?;
        self.session.lost = false;
        self.session.len += self.tokens.len();
        Ok(logits)
    }
}

impl StepRecord {
    fn add_layer(&mut self, report: LayerReport, point: SequencePoint) {
        self.reports.push(report);
        self.points.push(point);
    }
}

/// Returns the rows of one token, `[heads, 1, dim]`, from `[tokens, heads, dim]`.
fn token_rows(rows: ArrayView3<'_, f32>, token: usize) -> ArrayView3<'_, f32> {
    rows.index_axis_move(Axis(0), token).insert_axis(Axis(1))
}

/// Appends one token's key and value to a layer's attention, and attends.
fn attend(
    attention: &mut dyn Attention,
    [queries, keys, values]: [ArrayView3<'_, f32>; 3],
    class: Option<&[TokenClass]>,
) -> vattention_core::Result<Output> {
    attention.append_rows(keys.into(), values.into(), class)?;
    attention.attend(queries, None)
}

/// Adds tokens to sequences of one model, and returns the logits of each sequence.
fn run(mut batch: Vec<StepTokens<'_, '_>>) -> Vec<Result<Vec<f32>>> {
    let logits = keep_awake(|| {
        let mut active: Vec<_> = batch.iter_mut().filter(|it| it.failure.is_none()).collect();
        match active.first().map(|first| first.session.model) {
            Some(model) => compute_logits(model, &mut active),
            None => Vec::new(),
        }
    });
    let mut logits = logits.as_slice();
    let finish = |new: StepTokens<'_, '_>| {
        if !new.started {
            return Err(new.failure.expect("tokens that were refused"));
        }
        let (own_logits, rest) = logits.split_at(new.session.model.config().vocab_size);
        logits = rest;
        new.finish(own_logits)
    };
    batch.into_iter().map(finish).collect()
}

/// Adds the tokens of all sequences, and returns the logits of those whose logits are needed.
fn compute_logits(model: &Model, batch: &mut [&mut StepTokens<'_, '_>]) -> Vec<f32> {
    let x = run_layers(model, batch);
    model.logits(&select_last_rows(&x, batch))
}

/// Runs all layers for the tokens of all sequences, and returns the output of the last layer,
/// `[tokens, hidden_size]`.
fn run_layers(model: &Model, batch: &mut [&mut StepTokens<'_, '_>]) -> Vec<f32> {
    let mut x = Vec::new();
    for new in &mut *batch {
        new.started = true;
        new.session.lost = true;
        new.session.reports.clear();
        x.extend(model.embed(new.tokens));
    }
    let positions = batch.iter().flat_map(|new| {
        let first = new.session.len;
        first..first + new.tokens.len()
    });
    let tables = model.tables(positions);
    let mut rows = TokenRows::new(&model.config().shape, x.len() / model.config().hidden_size);
    let mut scratch = LinearScratch::default();
    let mut normed = vec![0.0; x.len()];
    for (number, layer) in model.layers.iter().enumerate() {
        layer.normalise_input(&x, &mut normed);
        let inputs = LinearInputs::new(&normed, rows.count);
        layer.project(&inputs, layer.positions(&tables), rows.projected(), &mut scratch);
        rows.attend(number, batch);
        layer.finish(&mut x, &rows.attended, &mut normed, &mut scratch);
    }
    x
}

/// Returns the rows of `x`, `[tokens, hidden_size]`, of the tokens whose logits are needed.
fn select_last_rows(x: &[f32], batch: &[&mut StepTokens<'_, '_>]) -> Vec<f32> {
    let tokens: usize = batch.iter().map(|new| new.tokens.len()).sum();
    let hidden = x.len() / tokens;
    let (mut selected, mut end) = (Vec::new(), 0);
    for new in batch {
        end += new.tokens.len();
        selected.extend_from_slice(&x[(end - new.count_logits()) * hidden..end * hidden]);
    }
    selected
}

/// Queries, keys, values and attention outputs of the tokens of a batch in one layer.
struct TokenRows {
    /// Number of tokens of all sequences.
    count: usize,
    /// `[tokens, query_heads, head_dim]`
    queries: Array3<f32>,
    /// `[tokens, kv_heads, head_dim]`
    keys: Array3<f32>,
    /// `[tokens, kv_heads, value_dim]`
    values: Array3<f32>,
    /// `[tokens, query_heads, value_dim]`
    attended: Vec<f32>,
}

impl TokenRows {
    fn new(shape: &Shape, count: usize) -> Self {
        let rows = |heads, dim| Array3::zeros((count, heads, dim));
        Self {
            count,
            queries: rows(shape.query_heads, shape.head_dim),
            keys: rows(shape.kv_heads, shape.head_dim),
            values: rows(shape.kv_heads, shape.value_dim),
            attended: vec![0.0; count * shape.query_heads * shape.value_dim],
        }
    }

    fn projected(&mut self) -> [&mut [f32]; 3] {
        [&mut self.queries, &mut self.keys, &mut self.values]
            .map(|rows| rows.as_slice_mut().expect("arrays in standard order"))
    }

    /// Computes a layer's attention for all sequences in parallel. The output of a sequence that
    /// fails is not meaningful.
    fn attend(&mut self, layer: usize, batch: &mut [&mut StepTokens<'_, '_>]) {
        let Self { count, queries, keys, values, attended } = self;
        let width = attended.len() / *count;
        let mut work = Vec::with_capacity(batch.len());
        let (mut first, mut rest) = (0, attended.as_mut_slice());
        for new in batch {
            let end = first + new.tokens.len();
            let (part, after) = rest.split_at_mut(new.tokens.len() * width);
            let rows = [&*queries, &*keys, &*values].map(|rows| rows.slice(s![first..end, .., ..]));
            work.push((&mut **new, rows, part));
            (first, rest) = (end, after);
        }
        process(work, |(new, rows, attended)| {
            if new.failure.is_none() {
                new.attend(layer, rows, attended);
            }
        });
    }
}
