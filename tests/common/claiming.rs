//! Samplers for a promise that they do not keep.

use serde::{Deserialize, Serialize};
use vattention::selectors::Promised;
use vattention::{NewTokens, Picks, Promise, Row, Selector, SelectorConfig, Site, typetag};

use crate::common::draws::fraction;

/// A sampler that is wrong about what it keeps.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claiming {
    pub(crate) sampler: Box<dyn SelectorConfig>,
    /// What it claims.
    pub(crate) claims: Promised,
    /// Whether what it draws weighs 1 over its probability.
    pub(crate) weighs: bool,
}

#[typetag::serde(name = "claiming")]
impl SelectorConfig for Claiming {
    fn build(&self, site: &Site) -> vattention::Result<Box<dyn Selector>> {
        Ok(Box::new(ClaimingWorker { sampler: self.sampler.build(site)?, weighs: self.weighs }))
    }

    fn randomized(&self) -> bool {
        true
    }

    fn promise(&self) -> Option<Promise> {
        Some(self.claims.promise())
    }
}

#[derive(Clone)]
pub(crate) struct ClaimingWorker {
    sampler: Box<dyn Selector>,
    weighs: bool,
}

impl Selector for ClaimingWorker {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.sampler.append(new);
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        if self.weighs {
            return self.sampler.select(row, picks);
        }
        let mut drawn = picks.clone();
        self.sampler.select(row, &mut drawn);
        picks.union(&drawn);
    }
}

/// One that judges its error by half of its variance.
pub(crate) fn half_the_variance(
    terms: &Promised,
    sampler: impl Fn(Promised) -> Box<dyn SelectorConfig>,
) -> Box<dyn SelectorConfig> {
    let epsilon = fraction(terms.epsilon.get() * std::f64::consts::SQRT_2);
    let sampler = sampler(Promised { epsilon, ..terms.clone() });
    Box::new(Claiming { sampler, claims: terms.clone(), weighs: true })
}
