//! What selectors that draw for a promise of their own are told in a pipeline file.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{Fraction, Promise, Scope, Site, Size, Target};
use vattention_estimators::Mode;

/// With fewer tokens than this left over, they are read too.
pub(crate) const NEAR_CENSUS: usize = 32;

/// A promise of the output, and how its sample is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Promised {
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
    /// The share of `Σ e |v| / Σ e` below which the output's norm is taken for that share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Fraction>,
    /// Which rows may exceed epsilon together only with probability delta.
    #[serde(default)]
    pub scope: Scope,
    /// What the promise may take for granted.
    #[serde(default)]
    pub mode: Mode,
    /// Tokens in the first look at the residual.
    #[serde(default = "default_base")]
    pub base: Size,
    /// How often the sample may be looked at, at least 1.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
}

fn default_base() -> Size {
    Size::Tokens(128)
}

fn default_rounds() -> NonZeroU8 {
    const { NonZeroU8::new(6).expect("6 is not 0") }
}

impl Promised {
    /// A promise with every default.
    pub fn new(epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            epsilon,
            delta,
            floor: None,
            scope: Scope::default(),
            mode: Mode::default(),
            base: default_base(),
            rounds: default_rounds(),
        }
    }

    /// The delta of one row at a site.
    pub(crate) fn delta_of_row(&self, site: &Site) -> f64 {
        self.scope.share_of(self.delta.get(), site.shape.query_heads)
    }

    /// The floor, or 0 for none.
    pub(crate) fn least_share(&self) -> f64 {
        self.floor.map_or(0.0, Fraction::get)
    }

    /// What is promised: the output.
    pub fn promise(&self) -> Promise {
        let Self { epsilon, delta, floor, scope, .. } = *self;
        Promise { target: Target::Sdpa, epsilon, delta, floor, scope }
    }
}
