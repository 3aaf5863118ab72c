//! `magic-pig`: the tokens that fall into the query's bucket in enough of many random hash tables.
//!
//! [`HashTables`](crate::HashTables) has what the tables are. What they find is taken for certain, and a
//! sample of the rest may follow; the sampler `lsh` weighs it instead, which is the authors' method.
//!
//! Cost: a scan of `2 · tables` bytes per token and query head (authors: 10 bits and 150 tables, 300
//! bytes of index per token); appending a token is `bits · tables` products.
//!
//! # Guarantee
//! None by itself. A promise after it is as good as its sample sees what the tables miss: after the
//! authors' tables `verify` contradicts `ratio` at 0.1 and 0.1 on the repository's trace, so its pipeline
//! takes a sample of a given size.
//!
//! Chen, Sadhukhan, Ye, Zhou, Zhang, Nolte, Tian, Douze, Bottou, Jia, Chen (2024), "MagicPIG: LSH
//! Sampling for Efficient LLM Generation", <https://arxiv.org/abs/2410.16179>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, register, typetag,
};

use vattention_index::{HashTables, Hashed};

/// The tokens in the query's bucket in enough of many random hash tables.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct MagicPig(pub HashTables);

#[typetag::serde(name = "magic-pig")]
impl SelectorConfig for MagicPig {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(MagicPigSelector(self.0.index("magic-pig", site)?)))
    }
}

#[derive(Clone)]
struct MagicPigSelector(Hashed);

impl Selector for MagicPigSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.0.append(new);
    }

    fn index_bytes(&self) -> usize {
        self.0.bytes()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_all(self.0.found(row));
    }
}

register!(
    Selector,
    "magic-pig",
    MagicPig,
    "the tokens in the query's bucket in enough of many random hash tables"
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

    vattention_testkit::laws!(authors, config(Rule::Two, Transform::Angular, true));
    vattention_testkit::laws!(paper, config(Rule::Any, Transform::SimpleLsh, false));
    vattention_testkit::laws!(other, config(Rule::Two, Transform::SimpleLsh, true));
}
