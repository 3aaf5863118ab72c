//! One decode step as a selector sees it.

use std::borrow::Cow;
use std::sync::OnceLock;

use ndarray::ArrayView2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::step::{Site, Stream, Tokens};

/// One KV head at one decode step: the queries of its group and the tokens they may read.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The KV head.
    pub site: &'a Site,
    /// The queries of the group, `[group · head_dim]`, already multiplied by the softmax scale.
    pub queries: &'a [f32],
    /// Keys, `[tokens, head_dim]`.
    pub keys: Tokens<'a>,
    /// Values, `[tokens, value_dim]`.
    pub values: Tokens<'a>,
    /// Tokens that may be read: `0..visible`, at least 1, at most `keys.len()`.
    pub visible: usize,
    /// Queries answered before this one.
    pub step: u32,
}

/// The purpose of a row outside any selector: never the sampler's, which is 0.
const NOBODY: u16 = u16::MAX;

impl<'a> Step<'a> {
    /// The row of one member of the group.
    pub fn row(&self, member: usize) -> Row<'a> {
        Row { step: *self, member, purpose: NOBODY, logits: None }
    }

    /// The rows of all members.
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

/// The logits of all rows of a step, `[group, visible]`, computed when the first row asks for its own: so a key is read once
/// for every four rows.
#[derive(Debug, Default)]
pub(crate) struct GroupLogits(OnceLock<Vec<f32>>);

impl GroupLogits {
    /// Returns true if a row has asked for its logits.
    fn is_computed(&self) -> bool {
        self.0.get().is_some()
    }

    /// Those of one member of the group.
    fn member_logits(&self, step: &Step<'_>, member: usize) -> &[f32] {
        let all = self.0.get_or_init(|| {
            let mut all = vec![0.0; step.site.shape.group() * step.visible];
            step.keys.dots(0..step.visible, step.queries, &mut all);
            all
        });
        &all[member * step.visible..][..step.visible]
    }
}

impl<'a> Row<'a> {
    /// The KV head that this row reads.
    pub fn site(&self) -> &'a Site {
        self.step.site
    }

    /// The query head's index in its group.
    pub fn member(&self) -> usize {
        self.member
    }

    /// This query head's query `[head_dim]`, scaled.
    pub fn query(&self) -> &'a [f32] {
        let dim = self.step.site.shape.head_dim;
        &self.step.queries[self.member * dim..][..dim]
    }

    /// The queries of the whole group, `[group, head_dim]`, scaled.
    pub fn group(&self) -> ArrayView2<'a, f32> {
        let shape = self.step.site.shape;
        ArrayView2::from_shape((shape.group(), shape.head_dim), self.step.queries)
            .expect("a step holds group · head_dim numbers")
    }

    /// The sum of the group's queries, `[head_dim]`, scaled.
    pub fn query_of_group(&self) -> Vec<f32> {
        self.group().sum_axis(ndarray::Axis(0)).to_vec()
    }

    /// The rows of all query heads of the group, this one included.
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

    /// Tokens that this row may read: `0..visible`.
    pub fn visible(&self) -> usize {
        self.step.visible
    }

    /// Queries answered before this one.
    pub fn step(&self) -> u32 {
        self.step.step
    }

    /// The scaled `q·k` of one visible token.
    pub fn logit(&self, token: usize) -> f32 {
        self.step.keys.dot(token, self.query())
    }

    /// The logits of some visible tokens, `[tokens]`. While selectors choose, and if the rows of the
    /// step together ask for as many as there are, all are multiplied in order and shared.
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
        logits
    }

    /// The logits of the visible tokens, into `out` `[visible]`. While selectors choose, the first row of a step that asks
    /// multiplies the keys for all rows.
    ///
    /// # Panics
    /// If `out` is not as long.
    pub fn logits(&self, out: &mut [f32]) {
        match self.logits {
            Some(logits) => out.copy_from_slice(logits.member_logits(&self.step, self.member)),
            None => self.step.keys.dots(0..self.visible(), self.query(), out),
        }
    }

    /// The scores by which a selector ranks the visible tokens, `[visible]`. O(visible · head_dim).
    /// Scores that the rows of a step share are borrowed.
    pub fn scores(&self, by: Score) -> Cow<'a, [f32]> {
        if let (Score::Head, Some(logits)) = (by, self.logits) {
            return Cow::Borrowed(logits.member_logits(&self.step, self.member));
        }
        let mut scores = vec![0.0; self.visible()];
        match by {
            Score::Head => self.logits(&mut scores),
            Score::Group => {
                self.step.keys.dots(0..self.visible(), &self.query_of_group(), &mut scores);
            }
        }
        Cow::Owned(scores)
    }

    /// This row's own random numbers for its selector.
    pub fn stream(&self) -> Stream {
        Stream::new(self.step.site, self.purpose, self.step.step, self.member)
    }

    /// The same row, one of several that share their `logits`.
    pub(crate) fn sharing(self, logits: &'a GroupLogits) -> Self {
        Self { logits: Some(logits), ..self }
    }

    /// The same row for the selector at `index` of the pipeline.
    pub(crate) fn for_selector(mut self, index: usize) -> Self {
        self.purpose = index as u16 + 1;
        self
    }
}

/// What a selector that scores every token ranks by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// The query head's own scores.
    #[default]
    Head,
    /// Scores summed over the query heads of the KV head, so that all pick the same tokens.
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
            site: &site,
            queries: &[2.0, 3.0, 10.0, 20.0],
            keys: Tokens::new(&keys, 3, 2),
            values: Tokens::new(&values, 3, 1),
            visible: 2,
            step: 4,
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
