//! Two components of one name: neither may be used, in the whole process. Hence a test binary of its own.

#![allow(clippy::unwrap_used)]

use serde::{Deserialize, Serialize};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    Result,
    plugin::{Picks, Row, Selector, SelectorConfig, Site, register, typetag},
};

/// A stranger's idea of a sink.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Sink {}

#[typetag::serde(name = "sink")]
impl SelectorConfig for Sink {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for Sink {
    fn select(&self, _: &Row<'_>, _: &mut Picks) {}
}

register!(Selector, "sink", Sink, "another");

#[test]
fn a_name_that_two_crates_use_is_refused() {
    let clash = "two selectors are called `sink`, in the crates ";
    assert!(vattention::plugin::registry_faults()[0].starts_with(clash));
    let error = vattention::config::Loader::default().parse("x.toml", "").unwrap_err();
    assert!(error.to_string().starts_with(clash), "{error}");
}
