//! Settings of `clt` and `sub-gaussian`.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, Goal, Size, Target,
    plugin::TunableGoal,
    promise::{ReferenceRows, SampleGoal, Scope},
};

use crate::{Combine, Mode};

/// Terms of a promise with separate bounds for `N` and `D`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Quantity whose error is bounded.
    pub target: Target,
    /// Promised bound on the relative error. Either this or `size` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<Fraction>,
    /// Size of every sample, in place of `epsilon`; the error bar shows the accuracy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Largest size of a sample. A row for which it does not suffice has an error bar in place of a
    /// promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// Probability with which the error may exceed epsilon, or its error bar.
    pub delta: Fraction,
    /// Assumptions of the bound.
    #[serde(default)]
    pub mode: Mode,
    /// Rows that share delta: each query head by itself, or all query heads of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// Rows that errors are relative to: those stored, or those before they were rounded.
    #[serde(default, skip_serializing_if = "ReferenceRows::is_stored")]
    pub reference: ReferenceRows,
    /// Constants of the bound.
    #[serde(default)]
    pub combine: Combine,
    /// Correction for the finite size of the residual.
    #[serde(default)]
    pub correction: Correction,
    /// Largest number of checks, at least 1; the paper checks once.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
}

/// Correction for the finite size of the residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Correction {
    /// Finite-population correction: sampling without replacement needs fewer tokens.
    #[default]
    Finite,
    /// No correction: the population is assumed to be infinite.
    None,
}

pub(crate) fn default_rounds() -> NonZeroU8 {
    const { NonZeroU8::new(6).expect("6 is not 0") }
}

impl Terms {
    /// Creates the terms of a promise, with default settings.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target,
            epsilon: Some(epsilon),
            size: None,
            limit: None,
            delta,
            mode: Mode::default(),
            scope: Scope::default(),
            reference: ReferenceRows::default(),
            combine: Combine::default(),
            correction: Correction::default(),
            rounds: default_rounds(),
        }
    }

    pub(crate) fn goal(&self) -> Result<Goal, &'static str> {
        let &Self { target, delta, scope, reference, epsilon, size, limit, .. } = self;
        let sample = SampleGoal::new(epsilon, size, limit)?;
        Ok(Goal { target, delta, scope, reference, sample })
    }

    pub(crate) fn tunable(&mut self) -> TunableGoal<'_> {
        let Self { epsilon, size, delta, .. } = self;
        TunableGoal { epsilon: epsilon.as_mut(), size: size.as_mut(), delta }
    }
}
