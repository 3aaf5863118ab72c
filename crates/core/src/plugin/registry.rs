//! What plug-ins say about themselves, for lists and messages.

mod tags;

use std::collections::BTreeSet;

use schemars::{Schema, SchemaGenerator};

/// A component that pipeline files may name.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// What it is.
    pub kind: ComponentKind,
    /// The `type` that names it.
    pub name: &'static str,
    /// The crate that defines it.
    pub krate: &'static str,
    /// The type of its config, as it was registered.
    pub config: &'static str,
    /// Its meaning in one line.
    pub summary: &'static str,
    /// The JSON Schema of its fields, with defaults and meanings.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// The three kinds of plug-ins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComponentKind {
    /// Picks tokens.
    Selector,
    /// Draws from the residual.
    Sampler,
    /// Decides how many residual tokens to sample.
    Estimator,
}

inventory::collect!(Component);

/// Every linked component of a kind, by name.
pub fn components(kind: ComponentKind) -> Vec<&'static Component> {
    let mut all: Vec<_> =
        inventory::iter::<Component>.into_iter().filter(|c| c.kind == kind).collect();
    all.sort_by_key(|component| component.name);
    all
}

/// What is wrong with the names of the linked components, in words. If anything is, no pipeline
/// can be read.
///
/// A component is entered twice, by `typetag::serde(name = …)` and by [`register!`](crate::register),
/// and of each kind a name stands in each once.
pub fn registry_faults() -> Vec<String> {
    use ComponentKind::{Estimator, Sampler, Selector};
    [Selector, Sampler, Estimator].into_iter().flat_map(faults).collect()
}

fn faults(kind: ComponentKind) -> Vec<String> {
    let (registered, tags) = (components(kind), tags::tagged_names(kind));
    let names: BTreeSet<_> =
        registered.iter().map(|c| c.name).chain(tags.iter().copied()).collect();
    let mut faults = Vec::new();
    let (mut untagged, mut unregistered) = (Vec::new(), Vec::new());
    for name in names {
        let tagged = tags.iter().filter(|&&tag| tag == name).count();
        let registered: Vec<_> = registered.iter().filter(|c| c.name == name).collect();
        match (tagged, &registered[..]) {
            (1, [_]) => {}
            (1, []) => unregistered.push(name),
            (0, [component]) => untagged.push(*component),
            (tagged, registered) => faults.push(clash(kind, name, tagged, registered)),
        }
    }
    if untagged.is_empty() {
        faults.extend(unregistered.iter().map(|name| not_registered(kind, name)));
    }
    faults.extend(untagged.iter().map(|component| not_tagged(component, &unregistered)));
    faults
}

/// Of a name that means none of those that have it.
fn clash(
    kind: ComponentKind,
    name: &str,
    tagged: usize,
    registered: &[&&'static Component],
) -> String {
    let count = match tagged.max(registered.len()) {
        2 => "two".to_owned(),
        more => more.to_string(),
    };
    let crates: Vec<_> = registered.iter().map(|component| component.krate).collect();
    let places = match &crates[..] {
        [] => String::new(),
        [one] => format!(", one of them in the crate {one}"),
        crates => format!(", in the crates {}", crates.join(" and ")),
    };
    format!("{count} {}s are called `{name}`{places}", kind.word())
}

/// Of a name that pipeline files could use, but nobody could list.
fn not_registered(kind: ComponentKind, name: &str) -> String {
    format!(
        "the {} `{name}` is not registered: write `register!({kind:?}, \"{name}\", …)` beside its \
         `typetag::serde(name = \"{name}\")`",
        kind.word()
    )
}

/// Of a name that could be listed, but not used. The names `others` are not registered.
fn not_tagged(component: &Component, others: &[&str]) -> String {
    let Component { kind, name, krate, config, .. } = component;
    let others: Vec<_> = others.iter().map(|other| format!("`{other}`")).collect();
    let others = match others.len() {
        0 => String::new(),
        1 => format!("; {} has no `register!`", others[0]),
        _ => format!("; {} have no `register!`", others.join(", ")),
    };
    format!(
        "`{config}` of the crate {krate} is registered as the {} `{name}`, but no \
         `typetag::serde(name = …)` gives that name{others}: write one name in both",
        kind.word()
    )
}

impl ComponentKind {
    fn word(self) -> &'static str {
        match self {
            Self::Selector => "selector",
            Self::Sampler => "sampler",
            Self::Estimator => "estimator",
        }
    }
}

/// Enters a component into the registry, next to its `typetag::serde(name = …)`. Its config derives
/// `JsonSchema`, so that its fields, their defaults and meanings can be listed.
///
/// `register!(Selector, "sink", Sink, "the first tokens")`, or `Sampler` or `Estimator` likewise.
#[macro_export]
macro_rules! register {
    (Selector, $name:literal, $config:ty, $summary:literal) => {
        $crate::register!(@Selector, SelectorConfig, $name, $config, $summary);
    };
    (Sampler, $name:literal, $config:ty, $summary:literal) => {
        $crate::register!(@Sampler, SamplerConfig, $name, $config, $summary);
    };
    (Estimator, $name:literal, $config:ty, $summary:literal) => {
        $crate::register!(@Estimator, Estimator, $name, $config, $summary);
    };
    (@$kind:ident, $trait:ident, $name:literal, $config:ty, $summary:literal) => {
        const _: fn(&$config) -> &dyn $crate::plugin::$trait = |config| config;
        $crate::inventory::submit! {
            $crate::plugin::Component {
                kind: $crate::plugin::ComponentKind::$kind,
                name: $name,
                krate: env!("CARGO_PKG_NAME"),
                config: stringify!($config),
                summary: $summary,
                schema: <$config as $crate::schemars::JsonSchema>::json_schema,
            }
        }
    };
}
