//! Components that are entered under one name only, or under two: no pipeline is read with them.

#![allow(clippy::unwrap_used)]

use serde::{Deserialize, Serialize};
use vattention::schemars::{self, JsonSchema};
use vattention::{
    Assumptions, Budget, BudgetEstimator, Kind, Picks, Promise, Result, Row, SampleStats, Selector,
    SelectorConfig, Site, register, registry_faults, typetag,
};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct EveryOther {}

#[typetag::serde(name = "every-other")]
impl SelectorConfig for EveryOther {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for EveryOther {
    fn select(&self, _: &Row<'_>, _: &mut Picks) {}
}

register!(Selector, "other", EveryOther, "has two names");

/// Not registered.
#[derive(Debug, Serialize, Deserialize)]
struct Frugal {}

#[typetag::serde(name = "frugal")]
impl BudgetEstimator for Frugal {
    fn budget(&self, _: &SampleStats) -> Budget {
        Budget { tokens: 0, kind: Kind::None, assumes: Assumptions::NONE }
    }

    fn promise(&self) -> Option<Promise> {
        None
    }
}

/// Not registered, and its name is taken.
#[derive(Debug, Serialize, Deserialize)]
struct Ratio {}

#[typetag::serde(name = "ratio")]
impl BudgetEstimator for Ratio {
    fn budget(&self, _: &SampleStats) -> Budget {
        Budget { tokens: 0, kind: Kind::None, assumes: Assumptions::NONE }
    }

    fn promise(&self) -> Option<Promise> {
        None
    }
}

#[test]
fn no_pipeline_is_read_until_every_name_is_entered_twice() {
    let faults = [
        "`EveryOther` of the crate vattention is registered as the selector `other`, but no \
         `typetag::serde(name = …)` gives that name; `every-other` has no `register!`: write one \
         name in both",
        "two estimators are called `ratio`, one of them in the crate vattention-estimators",
        "the estimator `frugal` is not registered: write `register!(Estimator, \"frugal\", …)` \
         beside its `typetag::serde(name = \"frugal\")`",
    ];
    assert_eq!(registry_faults(), faults);
    let error = vattention::config::Loader::default().parse("x.toml", "").unwrap_err();
    assert_eq!(error.to_string(), faults.join("\n"));
}
