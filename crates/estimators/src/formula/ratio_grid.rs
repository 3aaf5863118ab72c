//! Budget of the direct ratio estimator (eq. 13).

use super::{c2, kappa, quantile::DELTA_1, z_one};

/// Number of splits of delta; at parameter `u` the denominator's part is `delta / (1 + e^−u)`.
const NODES: usize = 23;
/// Smallest parameter `u`.
const FIRST_U: f64 = -7.0;
/// Difference of two parameters that follow each other.
const STEP_U: f64 = 0.5;

/// Constants of a split of the failure probability between numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaSplit {
    /// Upper bound on `q`, whatever the spectrum.
    pub cap: f64,
    /// κ in `q = min(cap, 1 + κ / √ν)`, where ν is the effective rank.
    pub kappa: f64,
    /// Factor of `s_D`, at least 0.
    pub z: f64,
}

impl DeltaSplit {
    /// `q`, with `inverse_root_nu = 1 / √ν`.
    fn q(&self, inverse_root_nu: f64) -> f64 {
        self.cap.min(1.0 + self.kappa * inverse_root_nu)
    }
}

/// Table of splits of delta, for the budget
/// `b = min over splits [√q(δ_W) s_W / ε + max(0, z(δ_D)) s_D]²`, where `q` is
/// [`q_rob`](super::q_rob).
#[derive(Clone, Debug)]
pub struct RatioGrid {
    delta: f64,
    rank: usize,
    splits: Vec<DeltaSplit>,
}

impl RatioGrid {
    /// Tabulates the splits of `delta` for values of `rank` elements. Cost: tens of milliseconds.
    pub fn new(delta: f64, rank: usize) -> Self {
        let split = |i: usize| {
            let u = FIRST_U + STEP_U * i as f64;
            let den = delta / (1.0 + (-u).exp());
            let w = delta - den;
            DeltaSplit { cap: c2(w, rank), kappa: kappa(w), z: z_one(den).max(0.0) }
        };
        Self { delta, rank, splits: (0..NODES).map(split).collect() }
    }

    /// Returns true if the table is valid for this delta and values of `rank` elements.
    pub fn fits(&self, delta: f64, rank: usize) -> bool {
        self.delta == delta && (self.rank == rank || delta < DELTA_1)
    }

    /// Splits of delta over which the budget is minimised.
    pub fn splits(&self) -> &[DeltaSplit] {
        &self.splits
    }

    /// Budget for an infinite population; infinite if `s_w` or `s_d` is NaN. O(1).
    ///
    /// `s_w = n_s √Tr Cov(w) / |N|`, `s_d = n_s σ / D`, and `nu` is the effective rank.
    pub fn budget(&self, epsilon: f64, s_w: f64, s_d: f64, nu: f64) -> f64 {
        let inverse_root_nu = 1.0 / nu.max(1.0).sqrt();
        let root =
            |split: &DeltaSplit| split.q(inverse_root_nu).sqrt() * s_w / epsilon + split.z * s_d;
        let least = self.splits.iter().map(root).fold(f64::INFINITY, f64::min);
        least * least
    }

    /// Error of `b` draws from an infinite population: the inverse of [`budget`](Self::budget).
    /// Infinite if no split bounds the error. O(1).
    pub fn error(&self, b: f64, s_w: f64, s_d: f64, nu: f64) -> f64 {
        let (root_b, inverse_root_nu) = (b.sqrt(), 1.0 / nu.max(1.0).sqrt());
        // Squares are compared, so that one root is taken.
        let mut least = f64::INFINITY;
        for split in &self.splits {
            let rest = root_b - split.z * s_d;
            let square = split.q(inverse_root_nu) / (rest * rest);
            least = if rest > 0.0 && square < least { square } else { least };
        }
        // `s_w` may be NaN, or 0 beside an infinite square.
        let error = s_w * least.sqrt();
        if error.is_nan() { f64::INFINITY } else { error }
    }
}

/// [`RatioGrid::budget`] for a single use.
pub fn ratio_grid(epsilon: f64, delta: f64, s_w: f64, s_d: f64, rank: usize, nu: f64) -> f64 {
    RatioGrid::new(delta, rank).budget(epsilon, s_w, s_d, nu)
}
