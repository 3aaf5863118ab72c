//! Decode steps and their rows, as selectors see them.

use std::borrow::Cow;
use std::sync::OnceLock;

use ndarray::ArrayView2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::step::{Site, Softmax, SoftmaxForm, StepThreads, Stream, Tokens};

/// One KV head at one decode step: the queries of its group and the tokens they may read.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// KV head, layer and sequence.
    pub site: &'a Site,
    /// Queries of the group, `[group · head_dim]`, already multiplied by the softmax scale.
    pub queries: &'a [f32],
    /// Keys, `[tokens, head_dim]`.
    pub keys: Tokens<'a>,
    /// Values, `[tokens, value_dim]`.
    pub values: Tokens<'a>,
    /// Number of tokens that may be read, which are `0..visible`; at least 1, at most `keys.len()`.
    pub visible: usize,
    /// Number of the step: the number of queries of the sequence before this one.
    pub step: u32,
    /// Soft cap of the logits, and attention sinks of the group's query heads.
    pub form: SoftmaxForm<'a>,
    /// Threads among which selectors and sampler may divide their work.
    pub threads: StepThreads<'a>,
}

/// Stream purpose of a row that is not passed to a selector. The sampler's purpose is 0.
const NO_SELECTOR: u16 = u16::MAX;

impl<'a> Step<'a> {
    /// First step of a sequence, on the calling thread, whose queries may read all tokens. The
    /// softmax has neither a soft cap nor sinks.
    pub fn new(site: &'a Site, queries: &'a [f32], keys: Tokens<'a>, values: Tokens<'a>) -> Self {
        let (visible, form, threads) = (keys.len(), SoftmaxForm::default(), StepThreads::default());
        Self { site, queries, keys, values, visible, step: 0, form, threads }
    }

    /// Row of one member of the group.
    pub fn row(&self, member: usize) -> Row<'a> {
        Row { step: *self, member, purpose: NO_SELECTOR, logits: None }
    }

    /// Rows of all members of the group.
    pub fn rows(&self) -> Vec<Row<'a>> {
        (0..self.site.shape.group()).map(|member| self.row(member)).collect()
    }
}

/// One query head at one decode step.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    step: Step<'a>,
    member: usize,
    purpose: u16,
    logits: Option<&'a GroupLogits>,
}

/// Logits of all rows of a step, `[group, visible]`. They are computed together when the first row
/// needs its own, so that a key is read once for every four rows.
#[derive(Debug, Default)]
pub(crate) struct GroupLogits(OnceLock<Vec<f32>>);

impl GroupLogits {
    /// Returns true if the logits have been computed.
    fn is_computed(&self) -> bool {
        self.0.get().is_some()
    }

    /// Logits of one member of the group, `[visible]`.
    fn member_logits(&self, step: &Step<'_>, member: usize) -> &[f32] {
        let all = self.0.get_or_init(|| {
            let mut all = vec![0.0; step.site.shape.group() * step.visible];
            step.keys.dots(0..step.visible, step.queries, &mut all);
            step.form.cap(&mut all);
            all
        });
        &all[member * step.visible..][..step.visible]
    }
}

impl<'a> Row<'a> {
    /// KV head, layer and sequence of the row.
    pub fn site(&self) -> &'a Site {
        self.step.site
    }

    /// Index of the query head in its group.
    pub fn member(&self) -> usize {
        self.member
    }

    /// Query of this query head, `[head_dim]`, multiplied by the softmax scale.
    pub fn query(&self) -> &'a [f32] {
        let dim = self.step.site.shape.head_dim;
        &self.step.queries[self.member * dim..][..dim]
    }

    /// Queries of the whole group, `[group, head_dim]`, multiplied by the softmax scale.
    pub fn group(&self) -> ArrayView2<'a, f32> {
        let shape = self.step.site.shape;
        ArrayView2::from_shape((shape.group(), shape.head_dim), self.step.queries)
            .expect("a step holds group · head_dim numbers")
    }

    /// Sum of the group's queries, `[head_dim]`, multiplied by the softmax scale.
    pub fn group_query(&self) -> Vec<f32> {
        self.group().sum_axis(ndarray::Axis(0)).to_vec()
    }

    /// Rows of all query heads of the group, including this one.
    pub fn members(&self) -> impl Iterator<Item = Self> {
        let row = *self;
        (0..row.step.site.shape.group()).map(move |member| Row { member, ..row })
    }

    /// Keys of the visible tokens, `[visible, head_dim]`.
    pub fn keys(&self) -> Tokens<'a> {
        self.step.keys.range(0..self.step.visible)
    }

    /// Values of the visible tokens, `[visible, value_dim]`.
    pub fn values(&self) -> Tokens<'a> {
        self.step.values.range(0..self.step.visible)
    }

    /// Number of tokens that this row may read, which are `0..visible`.
    pub fn visible(&self) -> usize {
        self.step.visible
    }

    /// Number of the step: the number of queries of the sequence before this one.
    pub fn step(&self) -> u32 {
        self.step.step
    }

    /// Form of the softmax: the soft cap of the logits, and the group's attention sinks.
    pub fn form(&self) -> SoftmaxForm<'a> {
        self.step.form
    }

    /// Threads among which the work for this row may be divided.
    pub fn threads(&self) -> StepThreads<'a> {
        self.step.threads
    }

    /// Logit of this query head's attention sink, if there is one.
    pub fn sink_logit(&self) -> Option<f32> {
        self.step.form.sink_logit(self.member)
    }

    /// Sums over no tokens: those of the attention sink, if there is one.
    pub fn empty_sums(&self) -> Softmax {
        self.step.form.empty_sums(self.member, self.step.values.dim())
    }

    /// Logit of one visible token: `q·k` with the scaled query, capped if the layer caps logits.
    pub fn logit(&self, token: usize) -> f32 {
        self.step.form.cap_one(self.step.keys.dot(token, self.query()))
    }

    /// Logits of some visible tokens, `[tokens]`. While selectors run, all logits of the group are
    /// computed in order and shared if `tokens.len()` times the group's size is at least `visible`.
    pub fn logits_of(&self, tokens: &[usize]) -> Vec<f32> {
        let group = self.site().shape.group();
        if let Some(shared) = self.logits
            && (shared.is_computed() || tokens.len() * group >= self.visible())
        {
            let logits = shared.member_logits(&self.step, self.member);
            return tokens.iter().map(|&token| logits[token]).collect();
        }
        let mut logits = vec![0.0; tokens.len()];
        self.step.keys.dots_of(tokens, self.query(), &mut logits);
        self.step.form.cap(&mut logits);
        logits
    }

    /// Writes the logits of the visible tokens to `out` `[visible]`. While selectors run, the first
    /// row of a step that calls this method computes the logits of all rows.
    ///
    /// # Panics
    /// Panics if `out` has another length.
    pub fn logits(&self, out: &mut [f32]) {
        if let Some(logits) = self.logits {
            out.copy_from_slice(logits.member_logits(&self.step, self.member));
        } else {
            self.step.keys.dots(0..self.visible(), self.query(), out);
            self.step.form.cap(out);
        }
    }

    /// Scores by which a selector ranks the visible tokens, `[visible]`. O(visible · head_dim).
    /// While selectors run, the logits are shared by the rows of a step, and are borrowed.
    pub fn scores(&self, score: Score) -> Cow<'a, [f32]> {
        if let (Score::Head, Some(logits)) = (score, self.logits) {
            return Cow::Borrowed(logits.member_logits(&self.step, self.member));
        }
        let mut scores = vec![0.0; self.visible()];
        match score {
            Score::Head => self.logits(&mut scores),
            Score::Group => {
                self.step.keys.dots(0..self.visible(), &self.group_query(), &mut scores);
            }
        }
        Cow::Owned(scores)
    }

    /// Random numbers of this row for the selector that it is passed to. The pipeline sets their
    /// purpose, so that no selector shares random numbers with another or with the sampler.
    pub fn stream(&self) -> Stream {
        Stream::new(self.step.site, self.purpose, self.step.step, self.member)
    }

    /// Returns the same row, which shares `logits` with the other rows of its step.
    pub(crate) fn sharing(self, logits: &'a GroupLogits) -> Self {
        Self { logits: Some(logits), ..self }
    }

    /// Returns the same row for the selector at `index` of the pipeline.
    pub(crate) fn for_selector(mut self, index: usize) -> Self {
        self.purpose = index as u16 + 1;
        self
    }
}

/// Scores by which a selector ranks all visible tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// The query head's own scores: logits, or predictions of them.
    #[default]
    Head,
    /// Scores summed over the query heads of the KV head, so that all pick the same tokens. Logits
    /// are summed without their soft cap, which would not change the ranking of one query head.
    Group,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Shape;

    #[test]
    fn rows_see_their_own_query_and_the_visible_tokens() {
        let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 2, value_dim: 1 };
        let site = Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape };
        let (keys, values) = ([1.0_f32, 0.0, 0.0, 1.0, 5.0, 5.0], [0.0_f32; 3]);
        let step = Step {
            visible: 2,
            step: 4,
            ..Step::new(
                &site,
                &[2.0, 3.0, 10.0, 20.0],
                Tokens::new(&keys, 3, 2),
                Tokens::new(&values, 3, 1),
            )
        };
        let row = step.row(1);
        assert_eq!(row.query(), [10.0, 20.0]);
        assert_eq!(*row.scores(Score::Head), [10.0, 20.0]);
        let shared = GroupLogits::default();
        for row in step.rows() {
            assert_eq!(row.sharing(&shared).scores(Score::Head), row.scores(Score::Head));
        }
        assert_eq!(*row.scores(Score::Group), [12.0, 23.0]);
        assert_eq!((row.keys().len(), row.values().len()), (2, 2));
        let selector = row.for_selector(0);
        let sampler = Stream::new(&site, 0, 4, 1);
        assert_ne!(selector.stream(), sampler, "purpose 0 is the sampler's");
        assert_ne!(row.stream(), sampler);
        assert_ne!(selector.stream(), row.for_selector(1).stream());
    }
}
