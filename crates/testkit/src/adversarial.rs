//! Heads on which a sampler fails if it underestimates the errors of its index, or the variance of
//! its sample.
//!
//! Each [`Adversary`] is a population of heads: kind and parameters determine the distribution, and
//! a seed draws a head from it. The queries of a group are orthogonal to each other, so that the
//! logits of a token can be set for each query head independently. The residual of a key is its
//! part that is orthogonal to all queries. The odd tokens of a query head together hold 30 % of its
//! attention, and their values are the opposite of most other values.

use ndarray_rand::rand::seq::SliceRandom;
use ndarray_rand::rand::{Rng, SeedableRng};
use ndarray_rand::rand_distr::{Distribution, StandardNormal};
use rand_chacha::ChaCha8Rng;

use crate::head_data::{HeadData, VALUE_DIM};

/// Number of tokens that share a mean in the 2-bit codes.
pub const BLOCK: usize = 64;

/// Length of a query.
const QUERY: f64 = 3.0;

/// Standard deviation of each element of an ordinary key.
const KEY: f64 = 0.3;

/// Share of the variance of a logit that the query heads of a group have in common.
const COMMON: f64 = 0.8;

/// Share of a query head's attention that its odd tokens hold together.
const ODD_SHARE: f64 = 0.3;

/// Number of odd tokens of a query head, if there are several.
const ODD_TOKENS: usize = 8;

/// Kind of a head, with the parameters that tests and searches vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Adversary {
    /// 2 % of the tokens have residuals `factor` times as long as other residuals; eight of these
    /// tokens hold 30 % of a query head's attention, with the opposite value.
    UnequalKeys {
        /// Length of a long residual, relative to the others.
        factor: f64,
    },
    /// One token in mid sequence has a residual `factor` times as long as other residuals, 30 % of
    /// the attention of every query head, and the value 0.
    LateSink {
        /// Length of the residual, relative to the others.
        factor: f64,
        /// Position within its block.
        place: usize,
    },
    /// Logits have a large standard deviation.
    LargeLogits {
        /// Standard deviation, which is the length of the queries; keys are standard normal.
        deviation: f64,
    },
    /// Keys are 0, and values are 1 or −1 in long runs, plus a mean.
    SignChanges {
        /// Number of changes of sign along the sequence.
        breaks: usize,
        /// Output of the head.
        mean: f64,
    },
    /// Values are Gaussian with mean 0.
    Cancelling,
    /// Values are 1 or −1 at random.
    RandomSigns {
        /// Mean of the values.
        mean: f64,
    },
    /// From a token in mid sequence on, residuals are shifted by one vector. Up to eight tokens
    /// after the change, in the same block, hold 30 % of every query head's attention, with the
    /// opposite value.
    RegimeChange {
        /// Length of the shift, relative to ordinary residuals.
        factor: f64,
        /// Number of tokens of the block before the change.
        place: usize,
    },
    /// Residuals have a large variance along one axis; eight tokens hold 30 % of a query head's
    /// attention, with the opposite value.
    IgnoredAxis {
        /// Standard deviation along the axis, relative to other axes.
        factor: f64,
    },
    /// One token holds 30 % of the attention of every query head, with the opposite value, and the
    /// logits of the other tokens in its block are lowered.
    DistantNeedle {
        /// Difference between the logits of the block and of the sequence.
        depth: f64,
        /// Position of the needle within its block.
        place: usize,
    },
    /// Some tokens have keys with large entries in a few channels, in which the queries are 0.
    /// Eight of these tokens hold 30 % of a query head's attention, with the opposite value.
    OutlierChannels {
        /// Number of such channels.
        channels: usize,
        /// Standard deviation of their entries.
        magnitude: f64,
        /// Share of tokens with such keys.
        share: f64,
    },
    /// One long vector is added to all residuals; eight tokens hold 30 % of a query head's
    /// attention, with the opposite value.
    CommonOffset {
        /// Length of the vector.
        length: f64,
    },
}

/// One head of a population.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdversarialHead {
    /// Kind and parameters.
    pub kind: Adversary,
    /// Number of elements of a query and of a key.
    pub head_dim: usize,
    /// Number of query heads of the KV head, at most half of `head_dim`.
    pub group: usize,
    /// Number of visible tokens, at least some hundreds.
    pub tokens: usize,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl AdversarialHead {
    /// Creates a head with 4,096 tokens, 64 elements and one query head.
    pub fn new(kind: Adversary) -> Self {
        Self { kind, head_dim: 64, group: 1, tokens: 4096, seed: 0 }
    }

    /// Generates queries, keys and values.
    pub fn data(&self) -> HeadData {
        let mut draft = Draft::new(self);
        draft.apply(self.kind);
        draft.finish(self)
    }
}

/// All kinds with many parameters and positions, in several shapes.
pub fn sweep() -> Vec<AdversarialHead> {
    let mut kinds = Vec::new();
    for factor in [2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 30.0, 40.0] {
        kinds.push(Adversary::UnequalKeys { factor });
        kinds.push(Adversary::IgnoredAxis { factor });
        for place in [0, 1, 31, BLOCK - 1] {
            kinds.push(Adversary::LateSink { factor, place });
        }
        for place in [0, 1, 32, 56, BLOCK - 1] {
            kinds.push(Adversary::RegimeChange { factor, place });
        }
    }
    for depth in [3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 60.0] {
        for place in [0, 31, BLOCK - 1] {
            kinds.push(Adversary::DistantNeedle { depth, place });
        }
    }
    for breaks in 1..=5 {
        for mean in [0.02, 0.05, 0.1, 0.2, 0.5] {
            kinds.push(Adversary::SignChanges { breaks, mean });
        }
    }
    for mean in [0.02, 0.05, 0.1, 0.2] {
        kinds.push(Adversary::RandomSigns { mean });
    }
    kinds.push(Adversary::Cancelling);
    for deviation in [3.0, 10.0, 100.0, 1e3, 1e4, 1e5] {
        kinds.push(Adversary::LargeLogits { deviation });
    }
    for magnitude in [20.0, 200.0, 1000.0, 5000.0] {
        for (channels, share) in [(1, 0.01), (1, 1.0), (4, 0.01), (4, 1.0)] {
            kinds.push(Adversary::OutlierChannels { channels, magnitude, share });
        }
        kinds.push(Adversary::CommonOffset { length: magnitude });
    }
    let shapes = [(64, 1), (32, 1), (32, 4), (64, 16), (128, 2), (256, 16)];
    let head =
        |kind, (head_dim, group)| AdversarialHead { head_dim, group, ..AdversarialHead::new(kind) };
    kinds.into_iter().flat_map(|kind| shapes.map(|shape| head(kind, shape))).collect()
}

/// A head under construction: keys are stored as logits and residuals.
struct Draft {
    rng: ChaCha8Rng,
    /// Orthonormal directions of the queries.
    directions: Vec<Vec<f64>>,
    query_length: f64,
    /// `[tokens][group]`
    logits: Vec<Vec<f64>>,
    /// Parts of the keys that are orthogonal to all queries, `[tokens][head_dim]`.
    residuals: Vec<Vec<f64>>,
    values: Vec<[f64; VALUE_DIM]>,
}

impl Draft {
    /// Creates Gaussian logits and residuals, and values that are nearly 1 in the first element.
    fn new(head: &AdversarialHead) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(head.seed);
        let blind = match head.kind {
            Adversary::OutlierChannels { channels, .. } => channels,
            _ => 0,
        };
        let directions = orthonormal(head.group, head.head_dim, blind, &mut rng);
        let (query_length, key) = match head.kind {
            Adversary::LargeLogits { deviation } => (deviation, 1.0),
            _ => (QUERY, KEY),
        };
        let spread = query_length * key;
        let logits =
            (0..head.tokens).map(|_| correlated_logits(head.group, spread, &mut rng)).collect();
        let residuals = (0..head.tokens).map(|_| normals(head.head_dim, key, &mut rng)).collect();
        let mut draft =
            Self { rng, directions, query_length, logits, residuals, values: Vec::new() };
        draft.values = vec![[0.0; VALUE_DIM]; head.tokens];
        draft.set_values([1.0, 0.0], 0.0125);
        draft
    }

    fn apply(&mut self, kind: Adversary) {
        match kind {
            Adversary::UnequalKeys { factor } => {
                let mut tokens = self.shuffled();
                tokens.truncate(self.tokens() / 50);
                self.lengthen(&tokens, factor);
                self.add_odd_tokens(&tokens);
            }
            Adversary::LateSink { factor, place } => {
                let token = self.middle_block() + place;
                self.lengthen(&[token], factor);
                self.set_values([0.8, 0.6], 0.25);
                self.values[token] = [0.0; VALUE_DIM];
                self.give_attention_of_every_head(&[token]);
            }
            Adversary::LargeLogits { .. } => self.set_values([1.0, 1.0], 1.0),
            Adversary::SignChanges { breaks, mean } => self.set_runs(breaks, mean),
            Adversary::Cancelling => self.set_values([0.0, 0.0], 1.0 / (VALUE_DIM as f64).sqrt()),
            Adversary::RandomSigns { mean } => {
                for value in &mut self.values {
                    let sign = if self.rng.random_bool(0.5 + mean / 2.0) { 1.0 } else { -1.0 };
                    *value = first_element(sign);
                }
            }
            Adversary::RegimeChange { factor, place } => {
                let change = self.middle_block() + place;
                let dim = self.residuals[0].len();
                let shift = self.direction(factor * KEY * (dim as f64).sqrt());
                self.residuals[change..].iter_mut().for_each(|key| add(key, 1.0, &shift));
                let odd: Vec<usize> = (change..change - place + BLOCK).take(ODD_TOKENS).collect();
                self.give_attention_of_every_head(&odd);
                self.oppose(&odd);
            }
            Adversary::IgnoredAxis { factor } => {
                let axis = self.direction(factor * KEY);
                for key in &mut self.residuals {
                    add(key, StandardNormal.sample(&mut self.rng), &axis);
                }
                self.add_odd_tokens_anywhere();
            }
            Adversary::DistantNeedle { depth, place } => {
                let block = self.middle_block();
                for logits in &mut self.logits[block..block + BLOCK] {
                    for logit in logits {
                        *logit -= depth;
                    }
                }
                self.give_attention_of_every_head(&[block + place]);
                self.oppose(&[block + place]);
            }
            Adversary::OutlierChannels { channels, magnitude, share } => {
                let mut tokens = self.shuffled();
                tokens.truncate(((share * self.tokens() as f64) as usize).max(ODD_TOKENS));
                for &token in &tokens {
                    for x in &mut self.residuals[token][..channels] {
                        *x = magnitude * normal(&mut self.rng);
                    }
                }
                self.add_odd_tokens(&tokens);
            }
            Adversary::CommonOffset { length } => {
                let offset = self.direction(length);
                self.residuals.iter_mut().for_each(|key| add(key, 1.0, &offset));
                self.add_odd_tokens_anywhere();
            }
        }
    }

    fn finish(mut self, head: &AdversarialHead) -> HeadData {
        let mut keys = Vec::with_capacity(head.tokens * head.head_dim);
        for (key, logits) in self.residuals.iter_mut().zip(&self.logits) {
            for (direction, logit) in self.directions.iter().zip(logits) {
                let part = dot(key, direction);
                add(key, logit / self.query_length - part, direction);
            }
            keys.extend(key.iter().map(|&x| x as f32));
        }
        let query = |x: &f64| (self.query_length * x) as f32;
        HeadData {
            group: head.group,
            head_dim: head.head_dim,
            queries: self.directions.iter().flatten().map(query).collect(),
            keys,
            values: self.values.iter().flatten().map(|&x| x as f32).collect(),
            soft_cap: None,
            sink_logits: None,
        }
    }

    fn tokens(&self) -> usize {
        self.logits.len()
    }

    /// First token of a block in mid sequence.
    fn middle_block(&self) -> usize {
        self.tokens() / 2 / BLOCK * BLOCK
    }

    /// All tokens in random order, except those at both ends, which pipelines always read.
    fn shuffled(&mut self) -> Vec<usize> {
        let mut tokens: Vec<usize> = (100..self.tokens() - 100).collect();
        tokens.shuffle(&mut self.rng);
        tokens
    }

    /// Random vector of a length, orthogonal to all queries.
    fn direction(&mut self, length: f64) -> Vec<f64> {
        let mut vector = normals(self.residuals[0].len(), 1.0, &mut self.rng);
        remove(&mut vector, &self.directions);
        scale(&mut vector, length);
        vector
    }

    fn lengthen(&mut self, tokens: &[usize], factor: f64) {
        for &token in tokens {
            self.residuals[token].iter_mut().for_each(|x| *x *= factor);
        }
    }

    fn add_odd_tokens_anywhere(&mut self) {
        let tokens = self.shuffled();
        self.add_odd_tokens(&tokens);
    }

    /// Makes eight of the tokens odd for each query head: different tokens for different heads, if
    /// there are enough.
    fn add_odd_tokens(&mut self, tokens: &[usize]) {
        for member in 0..self.directions.len() {
            let first = member * ODD_TOKENS % (tokens.len() - ODD_TOKENS + 1);
            let odd = &tokens[first..first + ODD_TOKENS];
            self.give_attention(odd, member);
            self.oppose(odd);
        }
    }

    fn give_attention_of_every_head(&mut self, tokens: &[usize]) {
        (0..self.directions.len()).for_each(|member| self.give_attention(tokens, member));
    }

    /// Raises logits of a query head until these tokens hold [`ODD_SHARE`] of its attention.
    fn give_attention(&mut self, tokens: &[usize], member: usize) {
        let weight = |logits: &Vec<f64>| logits[member].exp();
        let odd: f64 = tokens.iter().map(|&token| weight(&self.logits[token])).sum();
        let rest = self.logits.iter().map(weight).sum::<f64>() - odd;
        let rise = (ODD_SHARE / (1.0 - ODD_SHARE) * rest / odd).ln();
        for &token in tokens {
            self.logits[token][member] += rise;
        }
    }

    /// Gives tokens the opposite of the value that most tokens have.
    fn oppose(&mut self, tokens: &[usize]) {
        for &token in tokens {
            self.values[token] = first_element(-1.0);
        }
    }

    /// Draws Gaussian values with this mean in the first two elements and mean 0 in the others.
    fn set_values(&mut self, mean: [f64; 2], deviation: f64) {
        for value in &mut self.values {
            *value = std::array::from_fn(|_| deviation * normal(&mut self.rng));
            value[0] += mean[0];
            value[1] += mean[1];
        }
    }

    /// Sets all keys to 0, so that all scores are equal, and values to alternating signs in
    /// `breaks + 1` runs.
    fn set_runs(&mut self, breaks: usize, mean: f64) {
        self.logits.iter_mut().chain(&mut self.residuals).for_each(|row| row.fill(0.0));
        let n = self.tokens();
        let mut ends: Vec<usize> =
            (0..breaks).map(|_| self.rng.random_range(n / 10..n - n / 10)).collect();
        ends.sort_unstable();
        let sign = |token: usize| {
            let runs = ends.partition_point(|&end| end <= token);
            if runs % 2 == 0 { 1.0 } else { -1.0 }
        };
        let excess = (0..n).map(sign).sum::<f64>() / n as f64;
        for (token, value) in self.values.iter_mut().enumerate() {
            *value = first_element(sign(token) - excess + mean);
        }
    }
}

/// Draws the logits of one token, which are correlated between the query heads of a group.
fn correlated_logits(group: usize, deviation: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let common = deviation * COMMON.sqrt() * normal(rng);
    let differences = normals(group, deviation * (1.0 - COMMON).sqrt(), rng);
    differences.into_iter().map(|difference| common + difference).collect()
}

/// Orthonormal vectors whose first `blind` elements are 0.
fn orthonormal(count: usize, dim: usize, blind: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<f64>> {
    let mut vectors: Vec<Vec<f64>> = Vec::new();
    for _ in 0..count {
        let mut vector = normals(dim, 1.0, rng);
        vector[..blind].fill(0.0);
        remove(&mut vector, &vectors);
        scale(&mut vector, 1.0);
        vectors.push(vector);
    }
    vectors
}

/// Removes the components along orthonormal directions.
fn remove(x: &mut [f64], directions: &[Vec<f64>]) {
    for direction in directions {
        let part = dot(x, direction);
        add(x, -part, direction);
    }
}

fn scale(x: &mut [f64], length: f64) {
    let factor = length / dot(x, x).sqrt();
    for x in x {
        *x *= factor;
    }
}

fn add(x: &mut [f64], factor: f64, y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn first_element(x: f64) -> [f64; VALUE_DIM] {
    let mut value = [0.0; VALUE_DIM];
    value[0] = x;
    value
}

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(rng)
}

fn normals(count: usize, deviation: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
    (0..count).map(|_| deviation * normal(rng)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attention weights of a query head.
    fn weights(data: &HeadData, member: usize) -> Vec<f64> {
        let query = &data.queries[member * data.head_dim..][..data.head_dim];
        let product = |key: &[f32]| key.iter().zip(query).map(|(k, q)| f64::from(k * q)).sum();
        let logits: Vec<f64> = data.keys.chunks_exact(data.head_dim).map(product).collect();
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.iter().map(|logit| logit.exp() / total).collect()
    }

    #[test]
    fn odd_tokens_hold_their_share_of_the_attention_of_each_query_head() {
        let (factor, place, magnitude) = (20.0, 40, 5000.0);
        for kind in [
            Adversary::UnequalKeys { factor },
            Adversary::RegimeChange { factor, place },
            Adversary::IgnoredAxis { factor },
            Adversary::DistantNeedle { depth: 30.0, place },
            Adversary::OutlierChannels { channels: 2, magnitude, share: 0.1 },
            Adversary::CommonOffset { length: magnitude },
        ] {
            let head = AdversarialHead { head_dim: 32, ..AdversarialHead::new(kind) };
            let data = head.data();
            let values = data.values.chunks_exact(VALUE_DIM);
            let odd = weights(&data, 0).into_iter().zip(values).filter(|(_, value)| value[0] < 0.0);
            let share: f64 = odd.map(|(weight, _)| weight).sum();
            assert!((share - ODD_SHARE).abs() < 2e-3, "{kind:?}: {share}");
        }
        let sink = Adversary::LateSink { factor, place };
        let data = AdversarialHead { group: 16, ..AdversarialHead::new(sink) }.data();
        for member in 0..16 {
            let share = weights(&data, member)[2048 + place];
            assert!((share - ODD_SHARE).abs() < 2e-3, "{member}: {share}");
        }
    }

    #[test]
    fn logits_have_the_requested_deviation() {
        let data = AdversarialHead::new(Adversary::LargeLogits { deviation: 1e3 }).data();
        let products = data
            .keys
            .chunks_exact(64)
            .map(|key| key.iter().zip(&data.queries).map(|(k, q)| f64::from(k * q)).sum::<f64>());
        let square = products.map(|x| x * x).sum::<f64>() / 4096.0;
        assert!((square.sqrt() / 1e3 - 1.0).abs() < 0.05, "{square}");
    }

    #[test]
    fn values_have_the_requested_number_of_sign_changes() {
        for breaks in 1..=5 {
            let kind = Adversary::SignChanges { breaks, mean: 0.05 };
            let data = AdversarialHead::new(kind).data();
            let signs: Vec<bool> =
                data.values.chunks_exact(VALUE_DIM).map(|value| value[0] > 0.0).collect();
            let changes = signs.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert_eq!(changes, breaks);
            let mean = data.values.iter().map(|&x| f64::from(x)).sum::<f64>() / 4096.0;
            assert!((mean - 0.05).abs() < 1e-3, "{mean}");
        }
    }
}
