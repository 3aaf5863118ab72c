//! Report of a measurement of perplexity.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::PipelineConfig;
use vattention_experiments::BlockMean;

use super::PerplexityTest;
use super::scores::{PipelineScores, WindowScores};

/// Perplexity of a text with dense attention and with pipelines.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PerplexityReport {
    /// Number of tokens of a window.
    pub window: usize,
    /// Number of the first tokens of a window, which dense attention reads.
    pub dense_prefix: usize,
    /// Number of tokens between the beginnings of two windows.
    pub stride: usize,
    /// Name of the backend.
    pub backend: String,
    /// Number of tokens of the text.
    pub text_tokens: usize,
    /// Number of windows of the text.
    pub windows: usize,
    /// Number of scored windows; less than `windows` after an interruption.
    pub scored_windows: usize,
    /// Number of scored tokens.
    pub scored_tokens: usize,
    /// Mean log-likelihood of a scored token with dense attention, in nats.
    pub dense_log_likelihood: f64,
    /// Perplexity with dense attention: the exponential of the negative mean log-likelihood.
    pub dense_perplexity: f64,
    /// Result of each pipeline, in order.
    pub pipelines: Vec<PipelinePerplexity>,
    /// Scores of each window, in order.
    pub scores: Vec<WindowScores>,
}

/// Perplexity of a text with one pipeline.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PipelinePerplexity {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Mean log-likelihood of a scored token, in nats.
    pub log_likelihood: f64,
    /// Perplexity: the exponential of the negative mean log-likelihood.
    pub perplexity: f64,
    /// Log-likelihood of a token minus that with dense attention, mean over the tokens, with the
    /// interval of the means of windows. Negative numbers are worse than dense attention.
    pub to_dense: BlockMean,
    /// Kullback-Leibler divergence of the distribution of the next token from that of dense
    /// attention, mean over the scored tokens, in nats.
    pub kl_divergence: f64,
    /// Share of the scored positions at which pipeline and dense attention have the same most
    /// likely token.
    pub same_top: f64,
    /// Share of the visible tokens that a KV head's query heads read together, mean over steps,
    /// layers and KV heads.
    pub density: f64,
    /// Share of the rows with a promise whose certificate holds; `None` without a promise.
    pub held: Option<f64>,
    /// Radius of the largest finite error bar; `None` if there is none.
    pub largest_bar: Option<f64>,
    /// Number of rows with an infinite error bar.
    pub unbounded: usize,
}

impl PerplexityReport {
    /// Summarizes the scores of at least one window.
    pub(super) fn new(
        test: &PerplexityTest<'_>,
        text_tokens: usize,
        windows: usize,
        pipelines: &[Arc<PipelineConfig>],
        scores: Vec<WindowScores>,
    ) -> Self {
        let results = pipelines.iter().enumerate().map(|(place, pipeline)| {
            PipelinePerplexity::new(pipeline.name.clone(), place, &scores)
        });
        let dense_log_likelihood = mean(scores.iter().flat_map(|window| &window.dense));
        Self {
            window: test.windows.window,
            dense_prefix: test.windows.dense_prefix,
            stride: test.windows.stride,
            backend: test.backend.name().into(),
            text_tokens,
            windows,
            scored_windows: scores.len(),
            scored_tokens: scores.len() * test.windows.scored(),
            dense_log_likelihood,
            dense_perplexity: (-dense_log_likelihood).exp(),
            pipelines: results.collect(),
            scores,
        }
    }
}

impl PipelinePerplexity {
    /// Summarizes the scores of the pipeline with index `place`; there is at least one window.
    fn new(pipeline: String, place: usize, scores: &[WindowScores]) -> Self {
        let parts = || scores.iter().map(|window| &window.pipelines[place]);
        let count = |number: fn(&PipelineScores) -> usize| parts().map(number).sum::<usize>();
        let sum = |number: fn(&PipelineScores) -> f64| parts().map(number).sum::<f64>();
        let tokens = count(|part| part.logprobs.len()) as f64;
        let log_likelihood = mean(parts().flat_map(|part| &part.logprobs));
        let differences: Vec<f64> =
            scores.iter().map(|window| mean_difference(window, place)).collect();
        let (promised, held) = (count(|part| part.promised), count(|part| part.held));
        Self {
            pipeline,
            log_likelihood,
            perplexity: (-log_likelihood).exp(),
            to_dense: BlockMean::new(&differences).expect("at least one window"),
            kl_divergence: sum(|part| part.kl_divergence) / tokens,
            same_top: count(|part| part.same_top) as f64 / tokens,
            density: sum(|part| part.density) / tokens,
            held: (promised > 0).then(|| held as f64 / promised as f64),
            largest_bar: parts().filter_map(|part| part.largest_bar).reduce(f64::max),
            unbounded: count(|part| part.unbounded),
        }
    }
}

/// Mean difference of a window's log-likelihoods per token, pipeline minus dense attention.
fn mean_difference(window: &WindowScores, place: usize) -> f64 {
    let pairs = window.pipelines[place].logprobs.iter().zip(&window.dense);
    let sum: f64 = pairs.map(|(found, dense)| f64::from(*found) - f64::from(*dense)).sum();
    sum / window.dense.len() as f64
}

/// Mean of numbers; there is at least one.
fn mean<'a>(numbers: impl Iterator<Item = &'a f32>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for number in numbers {
        sum += f64::from(*number);
        count += 1;
    }
    sum / f64::from(count)
}
