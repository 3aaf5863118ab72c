//! `magic-pig`: the tokens that share the query's bucket in enough of many random hash tables.
//!
//! [`HashTables`] describes the tables. This selector picks the tokens that the tables find, so
//! that they are always read, and a sample of the other tokens may follow. The sampler `lsh`
//! instead weights the tokens that the tables find, which is the authors' method.
//!
//! Cost: a scan of `2 · tables` bytes per token and query head (with the authors' 10 bits and 150
//! tables, the index takes 300 bytes per token). Appending a token computes `bits · tables`
//! products.
//!
//! # Guarantee
//! The selector alone guarantees nothing. A promise of an estimator after the selector depends on
//! how well the sample reveals the tokens that the tables miss. With the authors' tables, `verify`
//! contradicts the promise of `ratio` with epsilon 0.1 and delta 0.1 on the repository's trace.
//! `configs/magic-pig-hybrid.toml` therefore draws a sample of a fixed size.
//!
//! Chen, Sadhukhan, Ye, Zhou, Zhang, Nolte, Tian, Douze, Bottou, Jia, Chen (2024), "MagicPIG: LSH
//! Sampling for Efficient LLM Generation", <https://arxiv.org/abs/2410.16179>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, register, typetag,
};

use vattention_index::{HashTableIndex, HashTables};

/// Tokens that share the query's bucket in enough of many random hash tables.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct MagicPig(pub HashTables);

#[typetag::serde(name = "magic-pig")]
impl SelectorConfig for MagicPig {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(MagicPigSelector(self.0.index("magic-pig", site)?)))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct MagicPigSelector(HashTableIndex);

impl Selector for MagicPigSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.0.append(new);
    }

    fn index_bytes(&self) -> usize {
        self.0.bytes()
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("draws random hash tables for its own sequence")
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_all(self.0.found(row));
    }
}

register!(
    Selector,
    "magic-pig",
    MagicPig,
    "the tokens that share the query's bucket in enough of many random hash tables"
);

#[cfg(test)]
mod tests {
    use vattention_index::{Rule, Transform};

    use super::MagicPig;

    fn config(rule: Rule, transform: Transform, center: bool) -> MagicPig {
        let json = r#"{"tables": 12, "bits": 4}"#;
        let mut config: MagicPig = serde_json::from_str(json).expect("the fields are in range");
        (config.0.rule, config.0.transform, config.0.center) = (rule, transform, center);
        config
    }

    vattention_testkit::laws!(authors_rule, config(Rule::Two, Transform::Angular, true));
    vattention_testkit::laws!(papers_rule, config(Rule::Any, Transform::SimpleLsh, false));
    vattention_testkit::laws!(mixed_rule, config(Rule::Two, Transform::SimpleLsh, true));
}
