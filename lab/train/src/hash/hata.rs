//! Training of HATA's maps for `hash-attention`: one matrix per KV head, for queries and keys.
//!
//! A code is the signs of `x W`. Training replaces them by `h(x) = 2 σ(0.1 · x W) − 1`, and
//! minimizes
//!
//! ```text
//! 0.01 · mean_ij(t_ij ‖h(q_i) − h(k_j)‖²) + mean_b(mean_j(h_b(k_j))²) + 2 ‖WᵀW − I‖²
//! ```
//!
//! The targets `t` of a query fall in equal steps from 20, for the key with the largest `q·k`, to
//! 1, for the last of the best tenth; they are −1 for the other keys. `‖·‖²` is a sum of squares.
//! `W` begins orthonormal, and is trained by gradient descent with learning rate 0.1, momentum 0.9
//! and weight decay 1e-6.
//!
//! Gong et al. (2025), "HATA: Trainable and Hardware-Efficient Hash-Aware Top-k Attention for
//! Scalable Large Model Inference", <https://arxiv.org/abs/2506.02572>. The authors read samples of
//! prompts 15 times in 20 steps. A step here takes random queries and a random run of consecutive
//! tokens of a random trace, as in the training of the networks. The last term is squared, because
//! the gradient of a norm does not vanish at its minimum, and steps of the authors' length would
//! not converge.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use nalgebra::DMatrix;
use ndarray::{Array2, ArrayView1, Axis, s};
use rand_chacha::rand_core::RngCore;
use rayon::prelude::*;
use vattention_core::{Shape, step::Score};
use vattention_selectors::{Activation, Bits, HashAttention, IndexScope};
use vattention_trace::TraceLayer;

use super::batch::{DrawnBatch, below, within};
use super::learner::Parameters;
use super::settings::sixteenth;
use super::settings::{expect_counts, expect_positive};
use super::train::{expect_finite, expect_held_out, random};
use super::{HeldOut, TrainedMaps};
use crate::{Corpus, Result};

/// Factor of `x W` in the logistic function.
const STEEPNESS: f32 = 0.1;
/// Share of a query's keys that are positives.
const POSITIVE: f64 = 0.1;
/// Target of the best positive.
const BEST: f32 = 20.0;
/// Target of the last positive.
const LAST: f32 = 1.0;
/// Weight of the distance term.
const DISTANCE: f32 = 0.01;
/// Weight of the term that balances bits.
const BALANCE: f32 = 1.0;
/// Weight of the term that keeps matrices orthonormal.
const ORTHONORMAL: f32 = 2.0;
const MOMENTUM: f32 = 0.9;
/// Weight decay.
const DECAY: f32 = 1e-6;

/// Settings for training HATA's matrices. On one machine, equal settings and traces make equal
/// weights.
#[derive(Clone, Debug, PartialEq)]
pub struct HataSettings {
    /// Bits of a code.
    pub bits: Bits,
    /// Steps per layer of the model.
    pub steps: usize,
    /// Queries per query head and step.
    pub queries: usize,
    /// Consecutive tokens per step.
    pub tokens: usize,
    /// Learning rate.
    pub learning_rate: f64,
    /// Seed of the initial matrices and of the steps' random choices.
    pub seed: u64,
}

impl Default for HataSettings {
    fn default() -> Self {
        Self {
            bits: Bits::new(128),
            steps: 300,
            queries: 64,
            tokens: 1024,
            learning_rate: 0.1,
            seed: 0,
        }
    }
}

impl HataSettings {
    /// Refuses settings that are out of range.
    ///
    /// # Errors
    /// If a field is out of range; the error names it.
    pub fn check(&self) -> Result<()> {
        expect_counts([("steps", self.steps), ("queries", self.queries), ("tokens", self.tokens)])?;
        expect_positive([("learning_rate", self.learning_rate)])
    }

    /// Returns a selector that reads the weights, with a score for each query head.
    pub fn selector(&self, weights: &Path) -> HashAttention {
        HashAttention {
            size: sixteenth(),
            weights: Some(weights.into()),
            bits: Some(self.bits),
            codes: IndexScope::Group,
            activation: Activation::default(),
            score: Score::Head,
        }
    }
}

/// Trains the matrices of every layer. After each step, `progress` gets the number of completed
/// steps, the number of all steps, and the loss.
///
/// # Errors
/// Settings that are out of range, held-out data that do not fit the traces, or a loss that is not
/// finite.
pub fn train_hata(
    corpus: &Corpus,
    settings: &HataSettings,
    held_out: HeldOut<'_>,
    progress: &mut dyn FnMut(usize, usize, f32),
) -> Result<TrainedMaps> {
    settings.check()?;
    expect_held_out(corpus, held_out)?;
    let total = corpus.layers().len() * settings.steps;
    let mut layers = BTreeMap::new();
    for (number, shape) in corpus.layers() {
        let traces: Vec<TraceLayer> = corpus.layer(number).collect::<Result<_>>()?;
        let mut heads = random_matrices(shape, settings, number);
        for step in 1..=settings.steps {
            let mut rng = random(settings.seed, number, step);
            let layer = &traces[below(traces.len(), &mut rng)];
            let among = held_out.training_queries(layer.queries.dim().1);
            let drawn =
                DrawnBatch::new(layer, among, (settings.queries, settings.tokens), &mut rng);
            let train = |(head, matrix): (usize, &mut HashMatrix)| {
                matrix.train_step(&make_example(layer, head, &drawn), settings.learning_rate as f32)
            };
            let losses: Vec<f32> = heads.par_iter_mut().enumerate().map(train).collect();
            let loss = losses.iter().sum::<f32>() / losses.len() as f32;
            expect_finite(loss, step, number)?;
            progress(layers.len() * settings.steps + step, total, loss);
        }
        layers.insert(number, parameters(&heads)?);
    }
    Ok(TrainedMaps::new(layers, corpus.scale()))
}

/// Returns random matrices for a layer's KV heads.
fn random_matrices(shape: Shape, settings: &HataSettings, number: usize) -> Vec<HashMatrix> {
    let mut rng = random(settings.seed, number, 0);
    let bits = usize::from(settings.bits.get());
    (0..shape.kv_heads).map(|_| HashMatrix::random(shape.head_dim, bits, &mut rng)).collect()
}

/// Returns the matrices as networks of one layer with zero bias, equal for queries and keys.
fn parameters(heads: &[HashMatrix]) -> Result<Parameters> {
    let (dim, bits) = heads[0].weight.dim();
    let numbers = heads.iter().flat_map(|head| head.weight.iter().copied()).collect();
    let weight = Tensor::from_vec(numbers, (heads.len(), dim, bits), &Device::Cpu)?;
    let bias =
        Tensor::from_vec(vec![0_f32; heads.len() * bits], (heads.len(), bits), &Device::Cpu)?;
    let side = |side: &str| {
        [(format!("{side}.0.weight"), weight.clone()), (format!("{side}.0.bias"), bias.clone())]
    };
    Ok(["query", "key"].into_iter().flat_map(side).collect())
}

/// Returns the training example of one KV head, with the queries of its whole group.
fn make_example(
    layer: &TraceLayer,
    kv_head: usize,
    DrawnBatch { queries: chosen, run }: &DrawnBatch,
) -> Example {
    let group = layer.shape().group();
    let mut queries = Array2::zeros((0, layer.queries.dim().2));
    let mut targets = Array2::zeros((0, run.len()));
    let keys = layer.keys.slice(s![kv_head, run.clone(), ..]).to_owned();
    for head in kv_head * group..(kv_head + 1) * group {
        for &query in chosen {
            let row = layer.queries.slice(s![head, query, ..]);
            let visible = within(0..layer.visible_to(query), run);
            let mut row_targets = compute_targets(keys.slice(s![visible, ..]).dot(&row).view());
            row_targets.resize(run.len(), 0.0);
            queries.push_row(row).expect("all queries have the same length");
            targets.push_row(ArrayView1::from(&row_targets)).expect("a target for each token");
        }
    }
    Example { queries, keys, targets }
}

/// Returns the targets of one query's keys, by their scores.
fn compute_targets(scores: ArrayView1<'_, f32>) -> Vec<f32> {
    let count = scores.len();
    let positive = ((POSITIVE * count as f64) as usize).max(1).min(count);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut targets = vec![-1.0; count];
    let step = (BEST - LAST) / (positive.max(2) - 1) as f32;
    for (rank, &key) in order[..positive].iter().enumerate() {
        targets[key] = BEST - step * rank as f32;
    }
    targets
}

/// Queries and keys, and the targets of their pairs.
struct Example {
    /// `[queries, dim]`, not scaled.
    queries: Array2<f32>,
    /// `[keys, dim]`.
    keys: Array2<f32>,
    /// `[queries, keys]`; 0 for pairs that do not count.
    targets: Array2<f32>,
}

/// Matrix of one KV head, and the state of its momentum.
#[derive(Debug)]
struct HashMatrix {
    /// `[dim, bits]`.
    weight: Array2<f32>,
    /// `[dim, bits]`.
    velocity: Array2<f32>,
}

impl HashMatrix {
    fn new(weight: Array2<f32>) -> Self {
        let velocity = Array2::zeros(weight.dim());
        Self { weight, velocity }
    }

    /// Returns a random matrix with orthonormal columns, or with orthonormal rows if it has fewer
    /// rows than columns.
    fn random(dim: usize, bits: usize, rng: &mut impl RngCore) -> Self {
        let (long, short) = (dim.max(bits), dim.min(bits));
        // A sum of twelve uniform numbers is nearly Gaussian, which makes directions uniform.
        let mut number =
            || (0..12).map(|_| f64::from(rng.next_u32()) / f64::from(u32::MAX)).sum::<f64>() - 6.0;
        let basis = DMatrix::from_fn(long, short, |_, _| number()).qr().q();
        let entry = |(i, j)| if dim == long { basis[(i, j)] } else { basis[(j, i)] };
        Self::new(Array2::from_shape_fn((dim, bits), |place| entry(place) as f32))
    }

    /// Returns the differentiable replacement of the rows' signs, `[rows, bits]`.
    fn soft_codes(&self, rows: &Array2<f32>) -> Array2<f32> {
        // 2 σ(x) − 1 is tanh(x / 2).
        rows.dot(&self.weight).mapv_into(|x| (0.5 * STEEPNESS * x).tanh())
    }

    /// Takes one step, and returns the loss before it.
    fn train_step(&mut self, example: &Example, learning_rate: f32) -> f32 {
        let (loss, gradient) = self.differentiate(example);
        self.velocity = &self.velocity * MOMENTUM + gradient + &self.weight * DECAY;
        self.weight.scaled_add(-learning_rate, &self.velocity);
        loss
    }

    /// Returns the loss, and its gradient.
    fn differentiate(&self, Example { queries, keys, targets }: &Example) -> (f32, Array2<f32>) {
        let counted = targets.iter().filter(|&&t| t != 0.0).count().max(1) as f32;
        let (hq, hk) = (self.soft_codes(queries), self.soft_codes(keys));
        let [query_sums, key_sums] =
            [1, 0].map(|axis| targets.sum_axis(Axis(axis)).insert_axis(Axis(1)));
        let (weighted_keys, weighted_queries) = (targets.dot(&hk), targets.t().dot(&hq));
        // Σ t ‖hq − hk‖² = Σ t ‖hq‖² + Σ t ‖hk‖² − 2 Σ t hq·hk
        let distance = (&hq * &hq * &query_sums).sum() + (&hk * &hk * &key_sums).sum()
            - 2.0 * (&hq * &weighted_keys).sum();
        let bits = hk.ncols() as f32;
        let mean = hk.mean_axis(Axis(0)).expect("there are keys");
        let balance = mean.mapv(|x| x * x).sum() / bits;
        let (orthonormality, orthonormality_gradient) = self.orthonormality_loss();
        let share = 2.0 * DISTANCE / counted;
        let gradient_q = (&hq * &query_sums - weighted_keys) * share;
        let gradient_k = (&hk * &key_sums - weighted_queries) * share
            + mean * (2.0 * BALANCE / (bits * hk.nrows() as f32));
        let backpropagate = |gradient: Array2<f32>, h: &Array2<f32>| {
            gradient * h.mapv(|h| 0.5 * STEEPNESS * (1.0 - h * h))
        };
        let gradient = queries.t().dot(&backpropagate(gradient_q, &hq))
            + keys.t().dot(&backpropagate(gradient_k, &hk))
            + orthonormality_gradient * ORTHONORMAL;
        let loss = DISTANCE * distance / counted + BALANCE * balance + ORTHONORMAL * orthonormality;
        (loss, gradient)
    }

    /// Returns `‖WᵀW − I‖²`, and its gradient.
    fn orthonormality_loss(&self) -> (f32, Array2<f32>) {
        let off = self.weight.t().dot(&self.weight) - Array2::<f32>::eye(self.weight.ncols());
        (off.mapv(|x| x * x).sum(), self.weight.dot(&off) * 4.0)
    }
}

#[cfg(test)]
mod tests;
