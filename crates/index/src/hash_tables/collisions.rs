//! Probability that random hash tables find a key.

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};

use super::TableBits;

/// Number of tables in which a token must agree with the query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// At least one.
    Any,
    /// At least two, as in the authors' code.
    #[default]
    Two,
}

/// Event that a token agrees with the query in enough hash tables.
#[derive(Clone, Copy, Debug)]
pub struct Collisions {
    /// Number of hash tables.
    pub tables: NonZeroU16,
    /// Number of signs in the hash of a table.
    pub bits: TableBits,
    /// Number of tables in which a token must agree with the query.
    pub rule: Rule,
}

/// Lower limit of the probabilities: less likely tokens are practically never found.
const LEAST: f64 = 1e-9;

impl Collisions {
    /// Least number of tables in which a token must agree with the query.
    pub fn least(&self) -> u16 {
        match self.rule {
            Rule::Any => 1,
            Rule::Two => 2,
        }
    }

    /// Probability, over the draw of the tables, that a token is found, from the cosine of its
    /// hashed vector with the query's: at least 1e-9, at most 1.
    pub fn probability(&self, cosine: f64) -> f64 {
        let sign = 1.0 - libm::acos(cosine.clamp(-1.0, 1.0)) / std::f64::consts::PI;
        let table = sign.powi(i32::from(self.bits.get()));
        let tables = f64::from(self.tables.get());
        let differs = libm::log1p(-table);
        let any = -libm::expm1(tables * differs);
        let found = match self.rule {
            Rule::Two if table < 1.0 => any - tables * table * libm::exp((tables - 1.0) * differs),
            Rule::Any | Rule::Two => any,
        };
        found.clamp(LEAST, 1.0)
    }
}
