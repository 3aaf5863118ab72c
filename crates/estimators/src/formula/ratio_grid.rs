//! The budget of the direct ratio estimator (eq. 13).

use super::{c2, kappa, quantile::DELTA_1, z_one};

/// Nodes over which delta is divided: the denominator gets `delta / (1 + e^−u)`.
const NODES: usize = 23;
const FIRST_U: f64 = -7.0;
const STEP_U: f64 = 0.5;

/// One way to divide the failure probability between numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaSplit {
    /// Upper bound on `q`, whatever the spectrum.
    pub cap: f64,
    /// `q = min(cap, 1 + kappa / √ν)`, ν being the effective rank.
    pub kappa: f64,
    /// The factor of `s_D`, at least 0.
    pub z: f64,
}

impl DeltaSplit {
    /// `√q numerator + z denominator`, from what each of them costs by itself; `root_nu = √ν`.
    fn root(&self, numerator: f64, denominator: f64, root_nu: f64) -> f64 {
        self.cap.min(1.0 + self.kappa / root_nu).sqrt() * numerator + self.z * denominator
    }
}

/// `b = min over splits [√q(δ_W) s_W / ε + max(0, z(δ_D)) s_D]²`, `q` = `q_rob`, with
/// everything that depends on delta alone tabulated.
#[derive(Clone, Debug)]
pub struct RatioGrid {
    delta: f64,
    rank: usize,
    splits: Vec<DeltaSplit>,
}

impl RatioGrid {
    /// Tabulates the splits of `delta` for values of `rank` numbers. Cost: tens of milliseconds.
    pub fn new(delta: f64, rank: usize) -> Self {
        let split = |i: usize| {
            let u = FIRST_U + STEP_U * i as f64;
            let den = delta / (1.0 + (-u).exp());
            let w = delta - den;
            DeltaSplit { cap: c2(w, rank), kappa: kappa(w), z: z_one(den).max(0.0) }
        };
        Self { delta, rank, splits: (0..NODES).map(split).collect() }
    }

    /// Returns true if the table is right for this delta and values of `rank` numbers.
    pub fn fits(&self, delta: f64, rank: usize) -> bool {
        self.delta == delta && (self.rank == rank || delta < DELTA_1)
    }

    /// The ways to divide delta that are tried.
    pub fn splits(&self) -> &[DeltaSplit] {
        &self.splits
    }

    /// The budget for an infinite population. `s_w = n_s √Tr Cov(w) / |N|`, `s_d = n_s σ / D`,
    /// `nu` the effective rank. Infinite if these are not numbers. O(1).
    pub fn budget(&self, epsilon: f64, s_w: f64, s_d: f64, nu: f64) -> f64 {
        let root_nu = nu.max(1.0).sqrt();
        let root = |split: &DeltaSplit| split.root(s_w / epsilon, s_d, root_nu);
        let least = self.splits.iter().map(root).fold(f64::INFINITY, f64::min);
        least * least
    }
}

impl RatioGrid {
    /// The error of `b` tokens of an infinite population, which [`budget`](Self::budget) is the inverse
    /// of. Infinite if none is bounded. O(1).
    pub fn error(&self, b: f64, s_w: f64, s_d: f64, nu: f64) -> f64 {
        let root_nu = nu.max(1.0).sqrt();
        let error = |split: &DeltaSplit| {
            let left = b.sqrt() - split.root(0.0, s_d, root_nu);
            if left > 0.0 { split.root(s_w, 0.0, root_nu) / left } else { f64::INFINITY }
        };
        self.splits.iter().map(error).fold(f64::INFINITY, f64::min)
    }
}

/// [`RatioGrid::budget`] for one use.
pub fn ratio_grid(epsilon: f64, delta: f64, s_w: f64, s_d: f64, rank: usize, nu: f64) -> f64 {
    RatioGrid::new(delta, rank).budget(epsilon, s_w, s_d, nu)
}
