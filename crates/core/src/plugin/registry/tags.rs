//! The names that `typetag` knows, which it tells only where it refuses another.

use std::fmt;

use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned};

use crate::plugin::{ComponentKind, Estimator, SamplerConfig, SelectorConfig};

/// The names of a kind, sorted; one that two components have is there twice.
pub(super) fn tagged_names(kind: ComponentKind) -> &'static [&'static str] {
    match kind {
        ComponentKind::Selector => known::<Box<dyn SelectorConfig>>(),
        ComponentKind::Sampler => known::<Box<dyn SamplerConfig>>(),
        ComponentKind::Estimator => known::<Box<dyn Estimator>>(),
    }
}

fn known<T: DeserializeOwned>() -> &'static [&'static str] {
    let nobody = std::iter::once(("type", "\0"));
    let refused = T::deserialize(MapDeserializer::<_, Refused>::new(nobody)).err();
    refused.map_or(&[], |Refused(known)| known)
}

/// A refusal, and the names that would not have been refused.
#[derive(Debug)]
struct Refused(&'static [&'static str]);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self(known)
    }
}
