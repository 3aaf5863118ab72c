//! What a promise asks of one row.

use vattention_core::{Fraction, Promise, SampleStats, Target};

/// A promise as one row has to keep it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) target: Target,
    /// The relative error allowed.
    pub(crate) epsilon: f64,
    /// The row's own part of the failure probability.
    pub(crate) delta: f64,
    /// The share of `Σ e |v|` below which `|N|` is taken for that share; 0 without a floor.
    pub(crate) floor: f64,
}

impl Goal {
    pub(crate) fn new(promise: &Promise, stats: &SampleStats) -> Self {
        Self {
            target: promise.target,
            epsilon: promise.epsilon.get(),
            delta: promise.scope.share_of(promise.delta.get(), stats.query_heads),
            floor: promise.floor.map_or(0.0, Fraction::get),
        }
    }

    /// What an error of the numerator is relative to: its norm, or the floor if that is more.
    pub(crate) fn norm_n(&self, norm: f64, stats: &SampleStats) -> f64 {
        norm.max(self.floor * stats.sum_e_norm_v)
    }

    pub(crate) fn has_floor(&self) -> bool {
        self.floor > 0.0
    }
}
