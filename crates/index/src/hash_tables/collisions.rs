//! How probable it is that a key is found.

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};

use super::TableBits;

/// In how many tables a token must agree with the query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// In at least one.
    Any,
    /// In at least two, as the authors' code has it.
    #[default]
    Two,
}

/// The tables that a token may agree with the query in, and how many it must.
#[derive(Clone, Copy, Debug)]
pub struct Collisions {
    /// Hash tables.
    pub tables: NonZeroU16,
    /// Signs that a table hashes to.
    pub bits: TableBits,
    /// How many must agree.
    pub rule: Rule,
}

/// The least probability: what is less likely is not found in any sequence's life.
const LEAST: f64 = 1e-9;

impl Collisions {
    /// The least number of tables in which a token must agree.
    pub fn least(&self) -> u16 {
        match self.rule {
            Rule::Any => 1,
            Rule::Two => 2,
        }
    }

    /// The probability, over the draw of the tables, that a token is found whose hashed vector has
    /// this cosine with the query's: at least 1e-9, at most 1.
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
