//! Steps at which no selector picks a token and the sampler draws none: the newest token is read.

use std::num::NonZeroU16;
use std::sync::Arc;

use crate::common::{backends, normal};
use ndarray::s;
use serde::{Deserialize, Serialize};
use vattention::estimators::Ratio;
use vattention::index::{HashTables, Rule, TableBits, Transform};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::plugin::{
    AttentionWeights, Design, Estimator, Picks, Row, SampleEvidence, Sampler, SamplerConfig,
    Selector, SelectorConfig, Site, Size, Stream, register, typetag,
};
use vattention::samplers::LshSampler;
use vattention::{FallBack, Options, PipelineConfig, Result, Shape, Share};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };
const TOKENS: usize = 384;

/// A sampler that draws no token, except that a sample of all tokens contains them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Mute {
    /// True if an estimator may use its samples.
    grows: bool,
}

#[typetag::serde(name = "mute")]
impl SamplerConfig for Mute {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(self.clone()))
    }

    fn base(&self) -> Size {
        Size::Tokens(1)
    }

    fn evidence(&self) -> SampleEvidence {
        if self.grows { SampleEvidence::Variances } else { SampleEvidence::Nothing }
    }
}

register!(Sampler, "mute", Mute, "draws nothing");

impl Sampler for Mute {
    fn design<'a>(&'a self, _: &[Row<'a>], picks: &'a Picks, _: &Stream) -> Box<dyn Design + 'a> {
        Box::new(MuteDesign {
            left: picks.residual().map(|token| token as u32).collect(),
            drawn: 0,
        })
    }
}

struct MuteDesign {
    left: Vec<u32>,
    drawn: usize,
}

impl Design for MuteDesign {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        if size >= self.left.len() && self.drawn == 0 {
            out.extend(&self.left);
            self.drawn = self.left.len();
        }
    }

    fn probabilities(&self) -> Vec<f64> {
        vec![1.0; self.drawn]
    }

    fn factors(&self, _: usize) -> Vec<f64> {
        vec![0.0; self.drawn]
    }
}

/// A selector that picks nothing and needs feedback.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Idle {}

#[typetag::serde(name = "idle")]
impl SelectorConfig for Idle {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

register!(Selector, "idle", Idle, "picks nothing");

impl Selector for Idle {
    fn select(&self, _: &Row<'_>, _: &mut Picks) {}

    fn needs_feedback(&self) -> bool {
        true
    }

    fn feedback(&mut self, _: &Row<'_>, attended: &AttentionWeights<'_>) {
        assert_eq!((attended.tokens, attended.weights), (&[TOKENS as u32 - 1][..], &[1.0][..]));
    }
}

fn lsh() -> LshSampler {
    let (tables, bits) = (NonZeroU16::new(1).unwrap(), TableBits::try_from(16).unwrap());
    let (rule, transform) = (Rule::Any, Transform::Angular);
    LshSampler(HashTables { tables, bits, rule, transform, center: true })
}

/// Every backend returns the newest token's value, with and without an estimator, feedback and
/// error bars, with one token list and with a list for each query head.
#[test]
fn the_newest_token_is_read_if_no_token_is_picked_or_drawn() {
    let keys = normal((SHAPE.kv_heads, TOKENS, SHAPE.head_dim), 1);
    let values = normal((SHAPE.kv_heads, TOKENS, SHAPE.value_dim), 2);
    let queries = normal((SHAPE.query_heads, 1, SHAPE.head_dim), 3);
    let make_ratio = || Box::new(Ratio::sized(Size::Tokens(1), 0.1.try_into().unwrap()));
    let samplers: [Box<dyn SamplerConfig>; 3] =
        [Box::new(Mute { grows: false }), Box::new(Mute { grows: true }), Box::new(lsh())];
    let estimators: [Option<Box<dyn Estimator>>; 3] = [None, Some(make_ratio()), None];
    for (sampler, estimator) in samplers.into_iter().zip(estimators) {
        for (share, idle, omit_error_bars, fall_back) in [
            (Share::Head, false, false, FallBack::Never),
            (Share::Head, true, true, FallBack::ByCount),
            (Share::Group, true, false, FallBack::Never),
            (Share::Group, false, true, FallBack::ByCount),
        ] {
            if share == Share::Group && !sampler.shares() {
                continue;
            }
            let config = Arc::new(PipelineConfig {
                share,
                selectors: if idle { vec![Box::new(Idle {})] } else { Vec::new() },
                sampler: Some(sampler.clone()),
                estimator: estimator.clone(),
                ..PipelineConfig::default()
            });
            for backend in backends() {
                let context = format!("{config:?} on {}", backend.name());
                let options = Options {
                    return_selection: true,
                    omit_error_bars,
                    fall_back,
                    ..Options::default()
                };
                let mut attention = backend.start(&config, 0, SHAPE, &options).unwrap();
                attention.append(keys.view(), values.view()).unwrap();
                let output = attention.attend(queries.view(), None).unwrap();
                let selection = output.selection.unwrap();
                for head in 0..SHAPE.query_heads {
                    let newest = values.slice(s![head / SHAPE.group(), TOKENS - 1, ..]);
                    let (tokens, p) = selection.row(head);
                    assert_eq!((tokens, p), (&[TOKENS as u32 - 1][..], &[1.0][..]), "{context}");
                    assert_eq!(output.rows[head].certain, 1, "{context}");
                    for (got, want) in output.out.slice(s![head, 0, ..]).iter().zip(newest) {
                        assert!((got - want).abs() < 1e-5, "{got} {want} {context}");
                    }
                    assert!(output.log_denominator[[head, 0]].is_finite(), "{context}");
                }
            }
        }
    }
}
