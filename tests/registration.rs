//! Plug-ins with a missing, a different or a duplicate registration. No pipeline can be read in
//! their process, so this test is a binary of its own.

#![allow(clippy::unwrap_used)]

use serde::{Deserialize, Serialize};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    Fraction, Goal, Kind, Promise, Result, Target,
    plugin::{
        Assumptions, Estimator, Picks, Radius, Row, SampleStats, Selector, SelectorConfig, Site,
        register, registry_faults, typetag,
    },
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

/// A second selector with the name `sink`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Sink {}

#[typetag::serde(name = "sink")]
impl SelectorConfig for Sink {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(EveryOther {}))
    }
}

register!(Selector, "sink", Sink, "another");

/// An estimator that is not registered.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Frugal {}

#[typetag::serde(name = "frugal")]
impl Estimator for Frugal {
    fn radius(&self, _: &SampleStats) -> Radius {
        Radius::new(0.0, Kind::None, Assumptions::NONE)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        let half = Fraction::try_from(0.5).unwrap();
        Ok(Promise::new(Target::Sdpa, half, half).into())
    }
}

/// An estimator that is not registered and whose name is in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ratio {}

#[typetag::serde(name = "ratio")]
impl Estimator for Ratio {
    fn radius(&self, _: &SampleStats) -> Radius {
        Radius::new(0.0, Kind::None, Assumptions::NONE)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        let half = Fraction::try_from(0.5).unwrap();
        Ok(Promise::new(Target::Sdpa, half, half).into())
    }
}

#[test]
fn no_pipeline_is_read_while_registrations_have_faults() {
    let faults = [
        "`EveryOther` of the crate vattention is registered as the selector `other`, but no \
         `typetag::serde(name = …)` gives that name; `every-other` has no `register!`: write the \
         same name in both",
        "two estimators are called `ratio`, one of them in the crate vattention-estimators",
        "the estimator `frugal` is not registered: write `register!(Estimator, \"frugal\", …)` \
         beside its `typetag::serde(name = \"frugal\")`",
    ];
    let found = registry_faults();
    assert!(found[0].starts_with("two selectors are called `sink`, in the crates "), "{found:?}");
    assert_eq!(found[1..], faults);
    let error = vattention::config::Loader::default().parse("x.toml", "").unwrap_err();
    assert_eq!(error.to_string(), found.join("\n"));
}
