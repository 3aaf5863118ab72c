//! Laws of soft caps and attention sinks.

use std::sync::Arc;

use ndarray::Array3;
use proptest::prelude::*;
use vattention::backends::{Cpu, Reference};
use vattention::engine::{
    Accumulator, ExactAccumulator, Residual, Site, SoftmaxForm, Step, Tokens,
};
use vattention::plugin::{Picks, Score, SelectorConfig};
use vattention::selectors::{OracleTopK, OracleTopP, Sink, Window};
use vattention::{Backend, Options, PipelineConfig, Shape, Size};
use vattention_core::sample::SampleUse;

use crate::common::number_generator;

/// One KV head of one query head.
struct OneHead {
    keys: Vec<f32>,
    values: Vec<f32>,
    query: Vec<f32>,
}

const DIM: usize = 32;

impl OneHead {
    fn new(tokens: usize, seed: u64) -> Self {
        let mut number = number_generator(seed);
        let mut numbers = |count: usize| (0..count).map(|_| number()).collect::<Vec<f32>>();
        let (keys, values) = (numbers(tokens * DIM), numbers(tokens * DIM));
        Self { keys, values, query: numbers(DIM) }
    }

    /// Returns the head with a first token of this logit, whose value is 0.
    fn with_token(&self, logit: f32) -> Self {
        let square: f32 = self.query.iter().map(|q| q * q).sum();
        let key = self.query.iter().map(|q| q * logit / square);
        Self {
            keys: key.chain(self.keys.iter().copied()).collect(),
            values: [0.0; DIM].into_iter().chain(self.values.iter().copied()).collect(),
            query: self.query.clone(),
        }
    }

    fn tokens(&self) -> usize {
        self.keys.len() / DIM
    }

    fn step<'a>(&'a self, site: &'a Site, form: SoftmaxForm<'a>) -> Step<'a> {
        let (keys, values) = (Tokens::new(&self.keys, self.tokens(), DIM), self.value_tokens());
        let (queries, visible) = (&self.query[..], self.tokens());
        Step { visible, form, ..Step::new(site, queries, keys, values) }
    }

    fn value_tokens(&self) -> Tokens<'_> {
        Tokens::new(&self.values, self.tokens(), DIM)
    }

    /// Output and `ln D` of a pipeline.
    fn attend(
        &self,
        backend: &dyn Backend,
        selectors: Vec<Box<dyn SelectorConfig>>,
        options: &Options,
    ) -> (Vec<f32>, f32) {
        let pipeline = PipelineConfig { selectors, ..PipelineConfig::default() };
        let options = Options { scale: Some(1.0), ..options.clone() };
        let mut attention = backend.start(&Arc::new(pipeline), 0, SHAPE, &options).unwrap();
        let rows = |numbers: &Vec<f32>| {
            Array3::from_shape_vec((1, numbers.len() / DIM, DIM), numbers.clone()).unwrap()
        };
        attention.append(rows(&self.keys).view(), rows(&self.values).view()).unwrap();
        let output = attention.attend(rows(&self.query).view(), None).unwrap();
        (output.out.into_raw_vec_and_offset().0, output.log_denominator[[0, 0]])
    }
}

const SHAPE: Shape = Shape { query_heads: 1, kv_heads: 1, head_dim: DIM, value_dim: DIM };

fn site() -> Site {
    Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape: SHAPE }
}

/// Pipelines whose tokens do not depend on random numbers.
fn deterministic() -> Vec<Vec<Box<dyn SelectorConfig>>> {
    let top_k = || OracleTopK { size: Size::Tokens(9), score: Score::Head };
    let mass = serde_json::from_str("0.7").unwrap();
    let of = serde_json::from_str("\"all\"").unwrap();
    let top_p = OracleTopP { mass, of, score: Score::Head };
    // The newest token is read anyway if nothing else is.
    let newest = || Box::new(Window { size: Size::Tokens(1), aligned: false });
    vec![vec![], vec![newest(), Box::new(top_k())], vec![newest(), Box::new(top_p)]]
}

fn near(a: &(Vec<f32>, f32), b: &(Vec<f32>, f32), tolerance: f32) -> bool {
    let outputs = a.0.iter().zip(&b.0).all(|(a, b)| (a - b).abs() <= tolerance);
    outputs && (a.1 - b.1).abs() <= tolerance * a.1.abs().max(1.0)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 48,
        ..ProptestConfig::default()
    })]

    /// A sink equals a token of the same logit whose value is 0 and that is always picked.
    #[test]
    fn a_sink_equals_a_token_without_a_value(
        tokens in 20_usize..200, seed in 0_u64..1000, sink in -6.0_f32..12.0,
    ) {
        let head = OneHead::new(tokens, seed);
        let longer = head.with_token(sink);
        let options = Options { sink_logits: Some(vec![sink].into()), ..Options::default() };
        for backend in [&Reference as &dyn Backend, &Cpu::default()] {
            for selectors in deterministic() {
                let mut after_token = selectors.clone();
                // Without selectors, attention is dense.
                if !selectors.is_empty() {
                    after_token.insert(0, Box::new(Sink { size: Size::Tokens(1) }));
                }
                let with_sink = head.attend(backend, selectors, &options);
                let with_token = longer.attend(backend, after_token, &Options::default());
                prop_assert!(near(&with_sink, &with_token, 1e-5), "{with_sink:?} {with_token:?}");
            }
        }
    }

    /// The statistics of a sample do not distinguish a sink from such a token.
    #[test]
    fn statistics_count_a_sink_like_a_picked_token(
        tokens in 40_usize..200, seed in 0_u64..1000, sink in -6.0_f32..12.0,
    ) {
        let head = OneHead::new(tokens, seed);
        let longer = head.with_token(sink);
        let site = site();
        let sinks = [sink];
        let form = SoftmaxForm { sink_logits: Some(&sinks), ..SoftmaxForm::default() };
        let stats = |step: &Step<'_>, first: usize| {
            let rows = step.rows();
            let mut accumulator = ExactAccumulator::new(&rows);
            let mut picks = Picks::new(step.visible);
            picks.take_range(0..first + 7);
            accumulator.take(&picks);
            let drawn: Vec<u32> = (first as u32 + 9..first as u32 + 35).collect();
            accumulator.draw(&drawn, SampleUse::Uniform);
            let residual = Residual {
                n_s: picks.visible() - picks.len(),
                visible: 0,
                query_heads: 1,
                max_norm_v: 3.0,
                bound: Some(1.0),
            };
            accumulator.stats(0, &residual)
        };
        let with_sink = stats(&head.step(&site, form), 0);
        let with_token = stats(&longer.step(&site, SoftmaxForm::default()), 1);
        for (a, b) in [
            (with_sink.d, with_token.d),
            (with_sink.d_certain, with_token.d_certain),
            (with_sink.norm_n, with_token.norm_n),
            (with_sink.drift, with_token.drift),
            (with_sink.var_e, with_token.var_e),
            (with_sink.trace_w, with_token.trace_w),
            (with_sink.nu, with_token.nu),
            (with_sink.bound.unwrap(), with_token.bound.unwrap()),
        ] {
            prop_assert!((a - b).abs() <= 1e-5 * b.abs(), "{with_sink:?} {with_token:?}");
        }
    }

    /// A cap far above all logits changes nothing, and no cap changes which tokens are best.
    #[test]
    fn caps_keep_rankings_and_vanish_if_they_are_large(
        tokens in 20_usize..200, seed in 0_u64..1000, cap in 2.0_f32..50.0,
    ) {
        let head = OneHead::new(tokens, seed);
        let capped = |cap| Options { soft_cap: Some(cap), ..Options::default() };
        for backend in [&Reference as &dyn Backend, &Cpu::default()] {
            for selectors in deterministic() {
                let plain = head.attend(backend, selectors.clone(), &Options::default());
                let large = head.attend(backend, selectors, &capped(1e8));
                prop_assert!(near(&plain, &large, 1e-5), "{plain:?} {large:?}");
            }
        }
        let site = site();
        let picks = |soft_cap| {
            let form = SoftmaxForm { soft_cap, ..SoftmaxForm::default() };
            let mut picks = Picks::new(tokens);
            let top = OracleTopK { size: Size::Tokens(8), score: Score::Head };
            top.build(&site).unwrap().select(&head.step(&site, form).row(0), &mut picks);
            (picks.indices(), picks.residual_bound())
        };
        let ((plain, bound), (capped, capped_bound)) = (picks(None), picks(Some(cap)));
        prop_assert_eq!(plain, capped);
        if let (Some(bound), Some(capped_bound)) = (bound, capped_bound) {
            prop_assert!((capped_bound - cap * (bound / cap).tanh()).abs() < 1e-5 * cap);
        }
    }
}
