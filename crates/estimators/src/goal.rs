//! What is asked of one row.

use vattention_core::{Demand, Fraction, SampleStats, Target};

/// A demand as one row has to meet it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) target: Target,
    /// The relative error allowed; infinite if any is.
    pub(crate) epsilon: f64,
    /// The row's own part of the failure probability.
    pub(crate) delta: f64,
    /// When the sample is looked at.
    pub(crate) looks: Looks,
}

/// At which sizes a sample may be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    /// At one.
    One,
    /// At those of a list.
    List,
    /// At the limit, too.
    ListAndLimit,
}

impl Goal {
    pub(crate) fn new(demand: &Demand, stats: &SampleStats) -> Self {
        Self {
            target: demand.target,
            epsilon: demand.epsilon.map_or(f64::INFINITY, Fraction::get),
            delta: demand.scope.share_of(demand.delta.get(), stats.query_heads),
            looks: match (demand.size, demand.limit) {
                (Some(_), _) => Looks::One,
                (None, Some(_)) => Looks::ListAndLimit,
                (None, None) => Looks::List,
            },
        }
    }
}
