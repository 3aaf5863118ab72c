//! Settings of `clt` and `sub-gaussian`.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, Goal, Size, Target,
    plugin::TunableGoal,
    promise::{SampleGoal, Scope},
};

use crate::{Combine, Mode};

/// The terms of a promise that bounds `N` and `D` apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// The quantity to be within epsilon.
    pub target: Target,
    /// The relative error allowed: a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<Fraction>,
    /// Tokens of every sample, instead; its error bar says how accurate it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The most tokens of a sample. Where they do not suffice, the row has an error bar in place of a
    /// promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// The probability with which the error may exceed epsilon, or its bar.
    pub delta: Fraction,
    /// Assumptions of the bound.
    #[serde(default)]
    pub mode: Mode,
    /// Rows that delta is about: each query head, or all of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// Constants of the bound.
    #[serde(default)]
    pub combine: Combine,
    /// Correction for the residual being finite.
    #[serde(default)]
    pub correction: Correction,
    /// The largest number of checks, at least 1; the paper checks once.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
}

/// Correction for a finite residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Correction {
    /// Sampling without replacement needs fewer tokens.
    #[default]
    Finite,
    /// None: an infinite population is assumed.
    None,
}

pub(crate) fn default_rounds() -> NonZeroU8 {
    const { NonZeroU8::new(6).expect("6 is not 0") }
}

impl Terms {
    /// Terms of a promise with every default.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target,
            epsilon: Some(epsilon),
            size: None,
            limit: None,
            delta,
            mode: Mode::default(),
            scope: Scope::default(),
            combine: Combine::default(),
            correction: Correction::default(),
            rounds: default_rounds(),
        }
    }

    pub(crate) fn goal(&self) -> Result<Goal, &'static str> {
        let &Self { target, delta, scope, epsilon, size, limit, .. } = self;
        Ok(Goal { target, delta, scope, sample: SampleGoal::new(epsilon, size, limit)? })
    }

    pub(crate) fn tunable(&mut self) -> TunableGoal<'_> {
        let Self { epsilon, size, delta, .. } = self;
        TunableGoal { epsilon: epsilon.as_mut(), size: size.as_mut(), delta }
    }
}
