//! Names that `typetag` has registered, which it reveals only in the error for an unknown name.

use std::fmt;

use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned};

use crate::plugin::{ComponentKind, Estimator, SamplerConfig, SelectorConfig};

/// Names of the components of a kind, sorted. A name that two components have occurs twice.
pub(super) fn tagged_names(kind: ComponentKind) -> &'static [&'static str] {
    match kind {
        ComponentKind::Selector => variants::<Box<dyn SelectorConfig>>(),
        ComponentKind::Sampler => variants::<Box<dyn SamplerConfig>>(),
        ComponentKind::Estimator => variants::<Box<dyn Estimator>>(),
    }
}

/// Names of all variants of an enum or trait object with the tag `type`.
fn variants<T: DeserializeOwned>() -> &'static [&'static str] {
    let unknown = std::iter::once(("type", "\0"));
    let error = T::deserialize(MapDeserializer::<_, UnknownVariant>::new(unknown)).err();
    error.map_or(&[], |UnknownVariant(names)| names)
}

/// Error for an unknown name, with the names that exist.
#[derive(Debug)]
struct UnknownVariant(&'static [&'static str]);

impl fmt::Display for UnknownVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown variant")
    }
}

impl std::error::Error for UnknownVariant {}

impl de::Error for UnknownVariant {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_variant(_: &str, names: &'static [&'static str]) -> Self {
        Self(names)
    }
}
