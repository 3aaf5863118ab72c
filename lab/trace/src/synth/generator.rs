//! Generator of a KV head and of the query heads that share it.

use ndarray::{Array1, Array2, ArrayViewMut1, ArrayViewMut2, Axis, s};
use ndarray_rand::RandomExt;
use ndarray_rand::rand::{Rng, SeedableRng, seq::index};
use ndarray_rand::rand_distr::{LogNormal, StandardNormal, StudentT, Uniform};
use rand_chacha::ChaCha8Rng;

use super::Synth;
use super::kind::{HeadKind, Recipe};
use crate::TraceLayer;

pub(super) const SINKS: usize = 4;
/// Number of tokens at either end among which no heavy hitters are planted.
const MARGIN: usize = 200;
/// Rotary pairs that oscillate in [`HeadKind::Osc`].
pub(super) const OSCILLATING: std::ops::Range<usize> = 10..18;
const ROPE_BASE: f64 = 500_000.0;

/// Generator of one KV head and of the query heads that share it.
pub(super) struct HeadGenerator<'a> {
    synth: &'a Synth,
    recipe: Recipe,
    /// Radians per position, for each rotary pair.
    frequencies: Vec<f64>,
    rng: ChaCha8Rng,
}

/// Common input of keys and values.
struct SynthText {
    /// Segment of each token.
    segments: Vec<usize>,
    /// Noise `[tokens, head_dim]`, correlated over a few tokens.
    noise: Array2<f64>,
}

impl SynthText {
    fn segment_count(&self) -> usize {
        self.segments.last().map_or(0, |last| last + 1)
    }
}

impl<'a> HeadGenerator<'a> {
    pub(super) fn new(synth: &'a Synth, kv_head: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(synth.seed);
        rng.set_stream(kv_head as u64);
        let pairs = synth.shape.head_dim / 2;
        let frequency = |pair| ROPE_BASE.powf(-(pair as f64) / pairs as f64);
        let frequencies = (0..pairs).map(frequency).collect();
        Self { synth, recipe: synth.kind.recipe(), frequencies, rng }
    }

    pub(super) fn fill(&mut self, layer: &mut TraceLayer, kv_head: usize) {
        let text = self.generate_text();
        let (mut keys, direction) = self.generate_keys(&text);
        let covariance = covariance(&keys);
        let base = self.place_query(&direction, self.synth.tokens - 1, &covariance);
        let slow = self.slow_part(&base);
        let planted = self.plant(&mut keys, &base, &slow);
        let values = self.generate_values(&text, &planted);
        layer.keys.index_axis_mut(Axis(0), kv_head).assign(&keys.mapv(|x| x as f32));
        layer.values.index_axis_mut(Axis(0), kv_head).assign(&values.mapv(|x| x as f32));
        let group = self.synth.shape.group();
        for head in kv_head * group..(kv_head + 1) * group {
            let direction = self.perturb(&direction, 0.3);
            for queries in [Some(&mut layer.queries), layer.prompt.as_mut()].into_iter().flatten() {
                let queries = queries.index_axis_mut(Axis(0), head);
                self.fill_queries(queries, &direction, &covariance, &slow);
            }
        }
    }

    /// Fills in the unscaled queries of one query head, at the last positions.
    fn fill_queries(
        &mut self,
        mut queries: ArrayViewMut2<'_, f32>,
        direction: &Array1<f64>,
        covariance: &Array2<f64>,
        slow: &Array1<f64>,
    ) {
        let first = self.synth.tokens - queries.nrows();
        let scale = (self.synth.shape.head_dim as f64).sqrt();
        for (i, mut row) in queries.rows_mut().into_iter().enumerate() {
            let direction = self.perturb(direction, 0.1);
            let mut query = self.place_query(&direction, first + i, covariance);
            let correction = 1.0 - query.dot(slow) / slow.dot(slow);
            query.scaled_add(correction, slow);
            row.assign(&query.mapv(|x| (x * scale) as f32));
        }
    }

    fn draw_normal_rows(&mut self, rows: usize, columns: usize) -> Array2<f64> {
        Array2::random_using((rows, columns), StandardNormal, &mut self.rng)
    }

    fn draw_normals(&mut self, len: usize) -> Array1<f64> {
        Array1::random_using(len, StandardNormal, &mut self.rng)
    }

    /// Perturbs a direction: each element is multiplied by `1 + amount · g`, with `g` standard
    /// normal.
    fn perturb(&mut self, direction: &Array1<f64>, amount: f64) -> Array1<f64> {
        direction * (self.draw_normals(direction.len()) * amount + 1.0)
    }

    fn generate_text(&mut self) -> SynthText {
        let Synth { tokens, shape, .. } = *self.synth;
        let mut segment = 0;
        let mut next = |_| {
            segment += usize::from(self.rng.random_bool(1.0 / 150.0));
            segment
        };
        let segments = (0..tokens).map(&mut next).collect();
        let mut noise = self.draw_normal_rows(tokens, shape.head_dim);
        for i in 1..tokens {
            let (before, mut row) = noise.multi_slice_mut((s![i - 1, ..], s![i, ..]));
            row.zip_mut_with(&before, |x, before| *x = 0.6 * before + 0.8 * *x);
        }
        SynthText { segments, noise }
    }

    /// Generates the keys before planting, and the base query's direction before rotation.
    fn generate_keys(&mut self, text: &SynthText) -> (Array2<f64>, Array1<f64>) {
        let dim = self.synth.shape.head_dim;
        let topics = self.draw_normal_rows(text.segment_count(), dim) * self.recipe.topic;
        let mut keys = topics.select(Axis(0), &text.segments) + &text.noise;
        let (mean, direction) = if self.synth.kind == HeadKind::Osc {
            keys *= 0.15;
            self.generate_oscillation()
        } else {
            let mean = self.draw_normals(dim) * 1.5;
            (mean.clone(), self.draw_normals(dim) + mean * 0.4)
        };
        keys += &mean;
        for (position, row) in keys.rows_mut().into_iter().enumerate() {
            self.rotate(row, position);
        }
        (keys, direction)
    }

    /// Generates a mean key and a query whose product is large in a few rotary pairs.
    fn generate_oscillation(&mut self) -> (Array1<f64>, Array1<f64>) {
        let dim = self.synth.shape.head_dim;
        let mut mean = Array1::zeros(dim);
        let mut direction = self.draw_normals(dim) * 0.3;
        for pair in OSCILLATING {
            mean[pair] = 3.0;
            mean[dim / 2 + pair] = 1.0;
            direction[pair] += 2.0;
        }
        (mean, direction)
    }

    fn rotate(&self, mut row: ArrayViewMut1<'_, f64>, position: usize) {
        let pairs = self.frequencies.len();
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (a, b) = (row[i], row[pairs + i]);
            row[i] = a * cos - b * sin;
            row[pairs + i] = a * sin + b * cos;
        }
    }

    /// Rotates a direction to a position, and scales it so that its products with the keys have the
    /// kind's standard deviation.
    fn place_query(
        &self,
        direction: &Array1<f64>,
        position: usize,
        covariance: &Array2<f64>,
    ) -> Array1<f64> {
        let mut query = direction.clone();
        self.rotate(query.view_mut(), position);
        let deviation = query.dot(&covariance.dot(&query)).sqrt();
        query * (self.recipe.bulk / deviation)
    }

    /// Moves keys so that the base query's scores are those of the kind; returns the heavy hitters.
    fn plant(
        &mut self,
        keys: &mut Array2<f64>,
        base: &Array1<f64>,
        slow: &Array1<f64>,
    ) -> Vec<usize> {
        let before = keys.dot(base);
        let mut scores = before.clone();
        self.reshape_scores(&mut scores);
        let hitters = self.raise_hitters(&mut scores);
        self.raise_sinks(&mut scores);
        let along = slow / slow.dot(slow);
        for (mut key, moved) in keys.rows_mut().into_iter().zip(scores - before) {
            key.scaled_add(moved, &along);
        }
        hitters
    }

    /// Returns a vector without its faster rotary pairs.
    fn slow_part(&self, vector: &Array1<f64>) -> Array1<f64> {
        let pairs = self.frequencies.len();
        let mut slow = vector.clone();
        slow.slice_mut(s![..pairs / 2]).fill(0.0);
        slow.slice_mut(s![pairs..pairs + pairs / 2]).fill(0.0);
        slow
    }

    /// Applies the kind's change to the scores of all tokens.
    fn reshape_scores(&mut self, scores: &mut Array1<f64>) {
        let last = scores.len() - 1;
        match self.synth.kind {
            HeadKind::Local => {
                for (i, score) in scores.iter_mut().enumerate() {
                    *score -= (0.9 * ((last - i) as f64 / 64.0).ln_1p()).min(3.0);
                }
            }
            HeadKind::Heavy => {
                let tails = StudentT::new(4.0).expect("4 degrees of freedom are possible");
                *scores += &(Array1::random_using(last + 1, tails, &mut self.rng) * 0.6);
            }
            _ => {}
        }
    }

    fn raise_hitters(&mut self, scores: &mut Array1<f64>) -> Vec<usize> {
        let (tokens, count) = (scores.len(), self.recipe.hitters);
        let raised: Array1<f64> = if self.synth.kind == HeadKind::Needle {
            // The needles together have the weight of all other tokens.
            self.draw_normals(count) * 0.5 + (tokens as f64 / count as f64).ln()
        } else {
            let range = Uniform::new(2.5, 5.5).expect("the range is not empty");
            Array1::random_using(count, range, &mut self.rng)
        };
        let mean = (mass(scores.iter()) / tokens as f64).ln();
        let hitters = index::sample(&mut self.rng, tokens - 2 * MARGIN, count);
        let hitters: Vec<_> = hitters.into_iter().map(|i| i + MARGIN).collect();
        for (&i, raised) in hitters.iter().zip(raised) {
            scores[i] = mean + raised;
        }
        hitters
    }

    /// Sets the scores of the first tokens, the sinks, so that they have the kind's share of the
    /// attention weight. The very first token has most of it.
    fn raise_sinks(&self, scores: &mut Array1<f64>) {
        let share = self.recipe.sinks;
        if share == 0.0 {
            return;
        }
        let sinks = mass(scores.iter().skip(SINKS)) * share / (1.0 - share);
        for (score, part) in scores.iter_mut().zip([0.85, 0.1, 0.03, 0.02_f64]) {
            *score = (part * sinks).ln();
        }
    }

    /// Generates values as sums of a mean, a part for the segment, a part that depends on the key,
    /// and noise; values of sinks are small.
    fn generate_values(&mut self, text: &SynthText, hitters: &[usize]) -> Array2<f64> {
        let Synth { tokens, shape, value_mean, .. } = *self.synth;
        let (from, to) = (shape.head_dim, shape.value_dim);
        let mean = self.draw_normals(to) * value_mean;
        let mixing = self.draw_normal_rows(from, to) / (from as f64).sqrt();
        let segments = self.draw_normal_rows(text.segment_count(), to) * 0.5;
        let mut values = segments.select(Axis(0), &text.segments) + &mean;
        values.scaled_add(0.35, &text.noise.dot(&mixing));
        let sizes = LogNormal::new(0.0, 0.3).expect("the deviation is finite");
        let sizes = Array2::random_using((tokens, 1), sizes, &mut self.rng);
        values += &(self.draw_normal_rows(tokens, to) * sizes * 0.6);
        let shared = self.draw_normals(to) * 0.8;
        for &i in hitters {
            let mut value = values.row_mut(i);
            value += &shared;
        }
        values.slice_mut(s![..SINKS, ..]).mapv_inplace(|x| x * 0.05);
        values
    }
}

pub(super) fn mass<'a>(scores: impl Iterator<Item = &'a f64>) -> f64 {
    scores.map(|score| score.exp()).sum()
}

fn covariance(rows: &Array2<f64>) -> Array2<f64> {
    let count = rows.nrows() as f64;
    let centred = rows - &(rows.sum_axis(Axis(0)) / count);
    centred.t().dot(&centred) / count
}
