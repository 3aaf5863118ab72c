//! Attention of a prompt's queries, for the selectors that learn from it.

use vattention_core::plugin::PromptQueries;

/// Attention of one query head and one query of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptRow<'a> {
    /// Position of the query.
    pub(crate) position: usize,
    /// Attention weight of each token.
    pub(crate) weights: &'a [f32],
    /// Attention weight of the attention sink, with which the weights sum to 1; 0 if there is none.
    pub(crate) sink: f64,
}

/// Visits the last `queries` queries of a prompt in order, and for each query all members of the
/// group. Calls `visit` with the softmax of the query's logits over those of the ascending `tokens`
/// that are not after its position, and over the attention sink.
///
/// Query `i` of `P` belongs to token `len − P + i` and sees the tokens up to and including its own.
/// O(queries · group · len · head_dim).
pub(crate) fn for_each_row(
    prompt: &PromptQueries<'_>,
    queries: usize,
    tokens: &[u32],
    mut visit: impl FnMut(PromptRow<'_>),
) {
    let (members, count, _) = prompt.queries.dim();
    let len = prompt.keys.len();
    let (mut logits, mut weights) = (vec![0.0; len], Vec::new());
    for i in count - queries.min(count)..count {
        let position = len - count + i;
        let visible = &tokens[..tokens.partition_point(|&token| token as usize <= position)];
        for member in 0..members {
            let query = prompt.queries.slice(vattention_core::ndarray::s![member, i, ..]).to_vec();
            prompt.keys.dots(0..position + 1, &query, &mut logits[..=position]);
            weights.clear();
            weights.extend(visible.iter().map(|&token| logits[token as usize]));
            prompt.form.cap(&mut weights);
            let sink = softmax(&mut weights, prompt.form.sink_logit(member));
            visit(PromptRow { position, weights: &weights, sink });
        }
    }
}

/// Turns logits into weights that sum to 1 with the weight of the attention sink, which is
/// returned.
fn softmax(logits: &mut [f32], sink: Option<f32>) -> f64 {
    let most = logits.iter().copied().fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
    let sink = sink.map_or(0.0, |sink| f64::from(libm::expf(sink - most)));
    let mut sum = sink;
    for logit in &mut *logits {
        *logit = libm::expf(*logit - most);
        sum += f64::from(*logit);
    }
    for weight in logits {
        *weight = (f64::from(*weight) / sum) as f32;
    }
    if sink > 0.0 { sink / sum } else { 0.0 }
}

/// Rounds a weight to 12 significant bits.
///
/// Backends agree on weights to about 6 digits, not to the last bit. Without rounding, tokens that
/// tie on one backend would be ranked by noise on another.
pub(crate) fn round_weight(weight: f32) -> f64 {
    const DROPPED: u32 = 12;
    let nearest = weight.to_bits() + (1 << (DROPPED - 1));
    f64::from(f32::from_bits(nearest >> DROPPED << DROPPED))
}

/// Helpers for the tests of the selectors that learn from a prompt.
#[cfg(test)]
pub(crate) mod testing {
    use serde::Deserialize;
    use vattention_core::ndarray::{Array3, ArrayView3, s};
    use vattention_core::plugin::{AttentionWeights, PromptQueries};
    use vattention_core::{
        NewTokens, Picks, Selector, Shape, Site, SoftmaxForm, Step, TokenClass, Tokens,
    };
    use vattention_testkit::Head;

    /// Number of query heads of a [`Head`].
    pub(crate) const MEMBERS: usize = 2;

    /// Returns random queries of a head, `[members, count, dim]`.
    pub(crate) fn queries(head: &Head, count: usize) -> Array3<f32> {
        let mut state = head.seed.wrapping_mul(2) + 1;
        Array3::from_shape_simple_fn((MEMBERS, count, head.dim), || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
    }

    /// Returns these queries as the last ones of a prompt of the head's first `tokens` tokens.
    pub(crate) fn prompt<'a>(
        head: &'a Head,
        tokens: usize,
        queries: ArrayView3<'a, f32>,
    ) -> PromptQueries<'a> {
        let NewTokens { keys, values, .. } = head.part(0..tokens);
        PromptQueries { site: head.site(), queries, keys, values, form: SoftmaxForm::default() }
    }

    /// Returns the picks of a selector among the head's first `visible` tokens.
    pub(crate) fn pick(selector: &dyn Selector, head: &Head, visible: usize) -> Vec<usize> {
        let mut picks = Picks::new(visible);
        selector.select(&head.step(visible).row(0), &mut picks);
        picks.iter().collect()
    }

    /// Gives a selector the feedback that every row of a step read all tokens, as if a sample of
    /// the evicted ones followed.
    pub(crate) fn read_all(selector: &mut dyn Selector, step: &Step<'_>) {
        let all: Vec<u32> = (0..step.visible as u32).collect();
        for row in step.rows() {
            let weights: Vec<f32> = (0..step.visible).map(|t| row.logit(t).exp()).collect();
            selector
                .feedback(&row, &AttentionWeights { tokens: &all, weights: &weights, sink: 0.0 });
        }
    }

    /// One KV head, its prompt and later steps, in the format of `tools/make_selectors_golden.py`.
    #[derive(Deserialize)]
    pub(crate) struct GoldenStream {
        prompt: usize,
        /// Queries in eighths, `[group][last queries of the prompt, steps][dim]`.
        query_eighths: Vec<Vec<Vec<f32>>>,
        key_eighths: Vec<Vec<f32>>,
        /// Classes of the tokens; empty if the selector needs none.
        #[serde(default)]
        classes: Vec<String>,
        /// Kept tokens after the prompt and after each step.
        kept: Vec<Vec<usize>>,
    }

    impl GoldenStream {
        /// Site of the head.
        pub(crate) fn site(&self) -> Site {
            let (query_heads, dim) = (self.query_eighths.len(), self.dim());
            let shape = Shape { query_heads, kv_heads: 1, head_dim: dim, value_dim: dim };
            Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape }
        }

        fn queries(&self) -> Array3<f32> {
            let shape = (self.query_eighths.len(), self.query_eighths[0].len(), self.dim());
            let flat = self.query_eighths.iter().flatten().flatten().map(|x| x / 8.0).collect();
            Array3::from_shape_vec(shape, flat).unwrap()
        }

        fn dim(&self) -> usize {
            self.key_eighths[0].len()
        }

        fn classes(&self) -> Vec<TokenClass> {
            let class = |name: &String| match &name[..] {
                "special" => TokenClass::Special,
                "punctuation" => TokenClass::Punctuation,
                "other" => TokenClass::Other,
                other => panic!("no class {other}"),
            };
            self.classes.iter().map(class).collect()
        }
    }

    /// Passes the prompt and the steps to a selector, and checks the kept tokens after each.
    #[track_caller]
    pub(crate) fn check_stream(stream: &GoldenStream, selector: &mut dyn Selector) {
        let (site, queries, classes) = (stream.site(), stream.queries(), stream.classes());
        let dim = stream.dim();
        let keys: Vec<f32> = stream.key_eighths.iter().flatten().map(|x| x / 8.0).collect();
        let tokens =
            |first: usize, end: usize| Tokens::new(&keys[first * dim..end * dim], end - first, dim);
        let new = |first: usize, end: usize| {
            let keys = tokens(first, end);
            NewTokens { first, keys, values: keys, classes: classes.get(first..end) }
        };
        selector.append(&new(0, stream.prompt));
        let last = queries.dim().1 - (stream.kept.len() - 1);
        let keys = tokens(0, stream.prompt);
        let prompt_queries = queries.slice(s![.., ..last, ..]);
        selector.observe(&PromptQueries {
            site: &site,
            queries: prompt_queries,
            keys,
            values: keys,
            form: SoftmaxForm::default(),
        });
        for (i, kept) in stream.kept.iter().enumerate() {
            let visible = stream.prompt + i;
            let keys = tokens(0, visible);
            let query = queries.slice(s![.., last + i.max(1) - 1, ..]).to_owned();
            let queries = query.as_slice().unwrap();
            let step = Step { visible, ..Step::new(&site, queries, keys, keys) };
            if i > 0 {
                selector.append(&new(visible - 1, visible));
                read_all(selector, &step);
            }
            let mut picks = Picks::new(visible);
            selector.select(&step.row(0), &mut picks);
            assert_eq!(picks.iter().collect::<Vec<_>>(), *kept, "{site:?}, step {i}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vattention_core::ndarray::Array3;
    use vattention_core::{Shape, Site, SoftmaxForm, Tokens};

    #[test]
    fn each_query_sees_the_tokens_up_to_itself() {
        let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let numbers = [0.0_f32, 1.0, 2.0, 3.0];
        let (keys, values) = (Tokens::new(&numbers, 4, 1), Tokens::new(&numbers, 4, 1));
        // Three queries of two members: the first member's are zero, the second's prefer large
        // keys.
        let queries = Array3::from_shape_fn((2, 3, 1), |(member, _, _)| member as f32);
        let prompt = PromptQueries {
            site: &site,
            queries: queries.view(),
            keys,
            values,
            form: SoftmaxForm::default(),
        };
        let mut rows = Vec::new();
        for_each_row(&prompt, 2, &[0, 2, 3], |row| {
            rows.push((row.position, row.weights.to_vec()));
            assert_eq!(row.sink, 0.0);
        });
        let e = [1.0, 2.0_f64.exp(), 3.0_f64.exp()].map(|e| e as f32);
        let softmax_of = |visible: usize| -> Vec<f32> {
            e[..visible].iter().map(|x| x / e[..visible].iter().sum::<f32>()).collect()
        };
        let want =
            [(2, vec![0.5, 0.5]), (2, softmax_of(2)), (3, vec![1.0 / 3.0; 3]), (3, softmax_of(3))];
        assert_eq!(rows.len(), want.len());
        for ((position, weights), (want_position, want)) in rows.iter().zip(&want) {
            assert_eq!((position, weights.len()), (want_position, want.len()));
            assert!(weights.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{weights:?}");
        }
    }

    #[test]
    fn weights_are_rounded_to_twelve_bits() {
        for exact in [0.0, 1.0, 0.5, 4095.0 / 4096.0, 2.0_f32.powi(-100)] {
            assert_eq!(round_weight(exact), f64::from(exact));
            assert_eq!(round_weight(exact * (1.0 + 1e-5)), f64::from(exact));
            assert_eq!(round_weight(exact * (1.0 - 1e-5)), f64::from(exact));
        }
        assert_eq!(round_weight(1.0 + 2.0_f32.powi(-11)), 1.0 + 2.0_f64.powi(-11));
        assert_eq!(round_weight(1.0 + 1.6 * 2.0_f32.powi(-11)), 1.0 + 2.0_f64.powi(-10));
    }
}
