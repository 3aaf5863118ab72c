//! Training the maps of `hash-attention` as HATA has them: one matrix for each KV head, for queries and keys.
//!
//! A code is the signs of `x W`. In training `h(x) = 2 σ(0.1 · x W) − 1` stands for them, and what falls is
//!
//! ```text
//! 0.01 · mean_ij(t_ij ‖h(q_i) − h(k_j)‖²) + mean_b(mean_j(h_b(k_j))²) + 2 ‖WᵀW − I‖²
//! ```
//!
//! with targets `t` of a query from 20 for the key with the largest `q·k` down to 1 for the last of the best tenth, in equal
//! steps, and −1 for the others; `‖·‖²` are sums of squares. `W` begins orthonormal, and goes down by steps of 0.1 along the
//! gradient, with momentum 0.9 and weight decay 1e-6.
//!
//! Gong et al. (2025), "HATA: Trainable and Hardware-Efficient Hash-Aware Top-k Attention for Scalable Large Model
//! Inference", <https://arxiv.org/abs/2506.02572>. Where the authors go through samples of prompts 15 times in 20 steps, a
//! step here takes random queries and a random run of the tokens of a random trace, as for the networks. The last term is a
//! square, because the slope of a norm does not vanish at its least value, and steps of the authors' length would go on.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use nalgebra::DMatrix;
use ndarray::{Array2, ArrayView1, Axis, s};
use rand_chacha::rand_core::RngCore;
use rayon::prelude::*;
use vattention_core::{Shape, step::Score};
use vattention_selectors::{Activation, Bits, HashAttention, IndexOf};
use vattention_trace::TraceLayer;

use super::batch::{DrawnBatch, below, within};
use super::learner::Parameters;
use super::settings::sixteenth;
use super::settings::{expect_counts, expect_positive};
use super::train::{expect_apart, expect_finite, random};
use super::{HeldOut, Weights};
use crate::{Corpus, Result};

/// What `x W` is multiplied by before the logistic function.
const STEEPNESS: f32 = 0.1;
/// The share of a query's keys that are wanted, and what they count from the first to the last.
const POSITIVE: f64 = 0.1;
const BEST: f32 = 20.0;
const LAST: f32 = 1.0;
/// What the three terms count.
const DISTANCE: f32 = 0.01;
const BALANCE: f32 = 1.0;
const ORTHONORMAL: f32 = 2.0;
const MOMENTUM: f32 = 0.9;
const DECAY: f32 = 1e-6;

/// What the training follows from, beside the traces. Equal settings and traces make equal weights, on one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct HataSettings {
    /// Signs in a code.
    pub bits: Bits,
    /// Steps for each layer of the model.
    pub steps: usize,
    /// Queries of each query head in a step.
    pub queries: usize,
    /// Tokens in a step, in a row.
    pub tokens: usize,
    /// How far a step goes along the gradient.
    pub learning_rate: f64,
    /// What the first matrices and the order of the steps follow from.
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
    /// Refuses what cannot be trained with.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<()> {
        expect_counts([("steps", self.steps), ("queries", self.queries), ("tokens", self.tokens)])?;
        expect_positive([("learning_rate", self.learning_rate)])
    }

    /// What reads the weights: each query head by itself.
    pub fn selector(&self, weights: &Path) -> HashAttention {
        HashAttention {
            size: sixteenth(),
            weights: Some(weights.into()),
            bits: Some(self.bits),
            codes: IndexOf::Group,
            activation: Activation::default(),
            score: Score::Head,
        }
    }
}

/// Trains the matrices of every layer, and tells after each step how many of how many are done, and its loss.
///
/// # Errors
/// Settings or traces that do not fit, or a loss that is not finite.
pub fn train_hata(
    corpus: &Corpus,
    settings: &HataSettings,
    held_out: HeldOut<'_>,
    progress: &mut dyn FnMut(usize, usize, f32),
) -> Result<Weights> {
    settings.check()?;
    expect_apart(corpus, held_out)?;
    let total = corpus.layers().len() * settings.steps;
    let mut layers = BTreeMap::new();
    for (number, shape) in corpus.layers() {
        let traces: Vec<TraceLayer> = corpus.layer(number).collect::<Result<_>>()?;
        let mut heads = start(shape, settings, number);
        for step in 1..=settings.steps {
            let mut rng = random(settings.seed, number, step);
            let layer = &traces[below(traces.len(), &mut rng)];
            let among = held_out.learnt(layer.queries.dim().1);
            let drawn =
                DrawnBatch::new(layer, among, (settings.queries, settings.tokens), &mut rng);
            let improve = |(head, matrix): (usize, &mut HashMatrix)| {
                matrix.improve(&example(layer, head, &drawn), settings.learning_rate as f32)
            };
            let losses: Vec<f32> = heads.par_iter_mut().enumerate().map(improve).collect();
            let loss = losses.iter().sum::<f32>() / losses.len() as f32;
            expect_finite(loss, step, number)?;
            progress(layers.len() * settings.steps + step, total, loss);
        }
        layers.insert(number, parameters(&heads)?);
    }
    Ok(Weights::new(layers, corpus.scale()))
}

/// Random matrices of a layer's KV heads.
fn start(shape: Shape, settings: &HataSettings, number: usize) -> Vec<HashMatrix> {
    let mut rng = random(settings.seed, number, 0);
    let bits = usize::from(settings.bits.get());
    (0..shape.kv_heads).map(|_| HashMatrix::random(shape.head_dim, bits, &mut rng)).collect()
}

/// The matrices as networks of one layer without bias, the same for queries and keys.
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

/// What one KV head learns from: the queries of its whole group.
fn example(
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
            let seen = within(0..layer.visible_to(query), run);
            let mut wanted = targets_of(keys.slice(s![seen, ..]).dot(&row).view());
            wanted.resize(run.len(), 0.0);
            queries.push_row(row).expect("a query has as many elements as the others");
            targets.push_row(ArrayView1::from(&wanted)).expect("a target for each token");
        }
    }
    Example { queries, keys, targets }
}

/// Of one query: what its keys should count, by their scores.
fn targets_of(scores: ArrayView1<'_, f32>) -> Vec<f32> {
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

/// Some queries and keys, and what pairs of them should be.
struct Example {
    /// `[queries, dim]`, not scaled.
    queries: Array2<f32>,
    /// `[keys, dim]`.
    keys: Array2<f32>,
    /// `[queries, keys]`, 0 where a pair does not count.
    targets: Array2<f32>,
}

/// The matrix of one KV head, and how it moves.
#[derive(Debug)]
struct HashMatrix {
    /// `[dim, bits]`.
    weight: Array2<f32>,
    velocity: Array2<f32>,
}

impl HashMatrix {
    fn new(weight: Array2<f32>) -> Self {
        let velocity = Array2::zeros(weight.dim());
        Self { weight, velocity }
    }

    /// Random with orthonormal columns, or rows where these are fewer.
    fn random(dim: usize, bits: usize, rng: &mut impl RngCore) -> Self {
        let (long, short) = (dim.max(bits), dim.min(bits));
        // Twelve uniform numbers are nearly Gaussian, so no direction is likelier than another.
        let mut number =
            || (0..12).map(|_| f64::from(rng.next_u32()) / f64::from(u32::MAX)).sum::<f64>() - 6.0;
        let basis = DMatrix::from_fn(long, short, |_, _| number()).qr().q();
        let entry = |(i, j)| if dim == long { basis[(i, j)] } else { basis[(j, i)] };
        Self::new(Array2::from_shape_fn((dim, bits), |place| entry(place) as f32))
    }

    /// What stands for the signs of some rows in training, `[rows, bits]`.
    fn soft_codes(&self, rows: &Array2<f32>) -> Array2<f32> {
        // 2 σ(x) − 1 is tanh(x / 2).
        rows.dot(&self.weight).mapv_into(|x| (0.5 * STEEPNESS * x).tanh())
    }

    /// One step; the loss before it.
    fn improve(&mut self, example: &Example, learning_rate: f32) -> f32 {
        let (loss, gradient) = self.slope(example);
        self.velocity = &self.velocity * MOMENTUM + gradient + &self.weight * DECAY;
        self.weight.scaled_add(-learning_rate, &self.velocity);
        loss
    }

    /// The loss, and its gradient.
    fn slope(&self, Example { queries, keys, targets }: &Example) -> (f32, Array2<f32>) {
        let counted = targets.iter().filter(|&&t| t != 0.0).count().max(1) as f32;
        let (hq, hk) = (self.soft_codes(queries), self.soft_codes(keys));
        let [of_query, of_key] =
            [1, 0].map(|axis| targets.sum_axis(Axis(axis)).insert_axis(Axis(1)));
        let (wanted, wanting) = (targets.dot(&hk), targets.t().dot(&hq));
        // Σ t ‖hq − hk‖² = Σ t ‖hq‖² + Σ t ‖hk‖² − 2 Σ t hq·hk
        let apart = (&hq * &hq * &of_query).sum() + (&hk * &hk * &of_key).sum()
            - 2.0 * (&hq * &wanted).sum();
        let bits = hk.ncols() as f32;
        let mean = hk.mean_axis(Axis(0)).expect("there are keys");
        let balance = mean.mapv(|x| x * x).sum() / bits;
        let (uneven, along) = self.unevenness();
        let share = 2.0 * DISTANCE / counted;
        let slope_q = (&hq * &of_query - wanted) * share;
        let slope_k =
            (&hk * &of_key - wanting) * share + mean * (2.0 * BALANCE / (bits * hk.nrows() as f32));
        let through = |slope: Array2<f32>, h: &Array2<f32>| {
            slope * h.mapv(|h| 0.5 * STEEPNESS * (1.0 - h * h))
        };
        let gradient = queries.t().dot(&through(slope_q, &hq))
            + keys.t().dot(&through(slope_k, &hk))
            + along * ORTHONORMAL;
        (DISTANCE * apart / counted + BALANCE * balance + ORTHONORMAL * uneven, gradient)
    }

    /// `‖WᵀW − I‖²`, and its gradient.
    fn unevenness(&self) -> (f32, Array2<f32>) {
        let off = self.weight.t().dot(&self.weight) - Array2::<f32>::eye(self.weight.ncols());
        (off.mapv(|x| x * x).sum(), self.weight.dot(&off) * 4.0)
    }
}

#[cfg(test)]
mod tests;
