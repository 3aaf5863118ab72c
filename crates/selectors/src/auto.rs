//! What a token costs if it is left to a sample: what the selectors with `size = "auto"` share.
//!
//! For error ε of the output `o`, a sample of the `n_s` tokens left needs about
//!
//! `b = 1 / (1/b0 + 1/n_s)`, `b0 = q n_s Σ a² |v − o|² / (ε |N|)²`,
//!
//! `a` being a token's attention: the budget of `ratio` (eq. 13) without its second part.
//! So a token is worth taking for certain where `a |v − o| > ε |N| / √(q n_s)`.
//!
//! Values are read for the tokens that are taken only. Those of the others are assumed to have the
//! mean `m` and the variance `ρ²` of the values read, whatever their attention, so that
//! `|N|² ≈ |N_read + A m|² + ρ² (Σ a² − A² / read)`, the sums being over what is left and `A = Σ a`;
//! the last term is noise in `m`. The variance of a sample of `b` is raised as the estimator does, by
//! `1 + z √((n_s Σ a⁴ / (Σ a²)² − 1) / b)`.

use vattention_core::{Fraction, Promise, Target, sample::ALLOWANCE};

/// The least share of its square that a predicted norm is taken for.
const LEAST_LEFT: f64 = 0.05;

/// `q` for an output whose covariance spreads over some dozen directions (eq. 6).
const FOR_OUTPUTS: f64 = 1.3;

/// `q` for a sum by itself: `z(δ)²` at δ = 0.1.
const FOR_SUMS: f64 = 2.7;

/// `z(δ_D)²` at the split of δ that is usual for the output.
const BESIDE_OUTPUTS: f64 = 4.0;

/// Tokens that were not read, and their attention in any unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// How many.
    pub(crate) tokens: usize,
    /// `Σ a`.
    pub(crate) attention: f64,
    /// `Σ a²`.
    pub(crate) squares: f64,
    /// `Σ a⁴`.
    pub(crate) fourths: f64,
}

impl Left {
    /// Tokens of these weights.
    pub(crate) fn of(weights: &[f64]) -> Self {
        let sum_of = |of: fn(f64) -> f64| weights.iter().map(|&a| of(a)).sum();
        let (attention, squares, fourths) =
            (sum_of(|a| a), sum_of(|a| a * a), sum_of(|a| a.powi(4)));
        Self { tokens: weights.len(), attention, squares, fourths }
    }

    /// What the variance of a sample of `b` is raised by.
    fn raise(&self, b: f64) -> f64 {
        // What is taken away may leave less than nothing.
        if self.squares <= 0.0 {
            return 1.0;
        }
        let kurtosis = self.tokens as f64 * self.fourths / (self.squares * self.squares);
        1.0 + ALLOWANCE * ((kurtosis - 1.0).max(0.0) / b).sqrt()
    }

    /// The statistics of `tokens` tokens of which these are a random part.
    pub(crate) fn scaled_to(&self, tokens: usize) -> Self {
        let scale = tokens as f64 / self.tokens as f64;
        let [attention, squares, fourths] =
            [self.attention, self.squares, self.fourths].map(|sum| scale * sum);
        Self { tokens, attention, squares, fourths }
    }

    /// These and others.
    pub(crate) fn and(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            attention: self.attention + other.attention,
            squares: self.squares + other.squares,
            fourths: self.fourths + other.fourths,
        }
    }

    /// Takes one token's attention away.
    pub(crate) fn take(&mut self, a: f64) {
        self.tokens -= 1;
        self.attention -= a;
        self.squares -= a * a;
        self.fourths -= a.powi(4);
    }
}

/// What a sample must pay for the tokens left to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Price {
    /// `q ρ² / (ε |N|)²`: of a token's `a²`.
    pub(crate) apart: f64,
    /// `q |μ|² / (ε |N|)²`: of the squared distance of a token's `a` from the mean.
    common: f64,
    /// The same, in the second part of an output's budget.
    beside: f64,
}

impl Price {
    /// Tokens that a sample must hold lest one token of attention `a`, drawn out of `left`, exceed
    /// what is allowed by itself. Where that is much, variances say too little.
    pub(crate) fn alone(&self, left: &Left, a: f64) -> f64 {
        left.tokens as f64 * a * (self.apart + self.common).sqrt()
    }

    /// Tokens that a sample of what is left must hold.
    pub(crate) fn sample(&self, left: &Left) -> f64 {
        let n_s = left.tokens as f64;
        let around_mean = (left.squares - left.attention * left.attention / n_s).max(0.0);
        let first = self.apart * left.squares.max(0.0) + self.common * around_mean;
        let root = first.sqrt() + (self.beside * around_mean).sqrt();
        let of = |infinite: f64| 1.0 / (1.0 / infinite + 1.0 / n_s);
        let estimated = n_s * root * root;
        of(estimated * left.raise(of(estimated)))
    }
}

/// What the tokens read say of the output.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    tokens: f64,
    /// `Σ a` and `Σ a |v|`.
    attention: f64,
    norms: f64,
    /// `Σ a v`.
    numerator: Vec<f64>,
    /// `Σ v` and `Σ |v|²`.
    sum: Vec<f64>,
    squares: f64,
}

impl Seen {
    /// Nothing, of values `[dim]`.
    pub(crate) fn new(dim: usize) -> Self {
        let (numerator, sum) = (vec![0.0; dim], vec![0.0; dim]);
        Self { tokens: 0.0, attention: 0.0, norms: 0.0, numerator, sum, squares: 0.0 }
    }

    /// Adds a token's value, read with attention `a`.
    pub(crate) fn add(&mut self, a: f64, value: &[f32]) {
        let mut norm_squared = 0.0;
        for ((n, sum), &v) in self.numerator.iter_mut().zip(&mut self.sum).zip(value) {
            let v = f64::from(v);
            *n += a * v;
            *sum += v;
            norm_squared += v * v;
        }
        self.tokens += 1.0;
        self.attention += a;
        self.norms += a * norm_squared.sqrt();
        self.squares += norm_squared;
    }

    /// What a promise makes tokens cost if `left` is all that was not read.
    pub(crate) fn price(&self, promise: &Promise, left: &Left) -> Price {
        let epsilon = promise.epsilon.get();
        let total = self.attention + left.attention;
        if promise.target == Target::Denominator {
            let common = FOR_SUMS / (epsilon * total).powi(2);
            return Price { apart: 0.0, common, beside: 0.0 };
        }
        let mean: Vec<f64> = self.sum.iter().map(|sum| sum / self.tokens).collect();
        let mean_squared = dot(&mean, &mean);
        let spread = (self.squares / self.tokens - mean_squared).max(0.0);
        let n: Vec<f64> =
            self.numerator.iter().zip(&mean).map(|(n, m)| n + left.attention * m).collect();
        let noise = left.squares - left.attention.powi(2) / self.tokens;
        let n_squared = (dot(&n, &n) + spread * noise).max(LEAST_LEFT * dot(&n, &n));
        let floor = promise.floor.map_or(0.0, Fraction::get);
        let floor = floor * self.norms * total / self.attention;
        let allowed = epsilon.powi(2) * n_squared.max(floor.powi(2));
        if promise.target == Target::Numerator {
            let scale = FOR_SUMS / allowed;
            return Price { apart: scale * spread, common: scale * mean_squared, beside: 0.0 };
        }
        let from_output: f64 = mean.iter().zip(&n).map(|(m, n)| (m - n / total).powi(2)).sum();
        let apart = FOR_OUTPUTS * (spread + from_output) / allowed;
        Price { apart, common: 0.0, beside: BESIDE_OUTPUTS / total.powi(2) }
    }
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}
