//! Registry of plug-ins: their names, descriptions and schemas.

mod tags;

use std::collections::BTreeSet;

use schemars::{Schema, SchemaGenerator};

/// A plug-in that pipeline files may name.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Kind of plug-in.
    pub kind: ComponentKind,
    /// Name, which pipeline files write as `type`.
    pub name: &'static str,
    /// Name of the crate that defines the component.
    pub krate: &'static str,
    /// Rust type of its configuration, as it was registered.
    pub config: &'static str,
    /// Description in one line.
    pub summary: &'static str,
    /// Function that returns the JSON Schema of its fields, with defaults and descriptions.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// Kind of plug-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComponentKind {
    /// Picks tokens.
    Selector,
    /// Draws from the residual.
    Sampler,
    /// Decides how many tokens of the residual are drawn.
    Estimator,
}

inventory::collect!(Component);

/// All linked components of a kind, sorted by name.
pub fn components(kind: ComponentKind) -> Vec<&'static Component> {
    let mut all: Vec<_> =
        inventory::iter::<Component>.into_iter().filter(|c| c.kind == kind).collect();
    all.sort_by_key(|component| component.name);
    all
}

/// Messages about inconsistent names of the linked components. If there is any, no pipeline can be
/// read.
///
/// Each component is registered twice, by `typetag::serde(name = …)` and by
/// [`register!`](crate::register). Among the components of a kind, each name must occur once in
/// both registries.
pub fn registry_faults() -> Vec<String> {
    use ComponentKind::{Estimator, Sampler, Selector};
    [Selector, Sampler, Estimator].into_iter().flat_map(faults).collect()
}

/// Messages about inconsistent names of one kind of component.
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
            (tagged, registered) => faults.push(describe_clash(kind, name, tagged, registered)),
        }
    }
    if untagged.is_empty() {
        faults.extend(unregistered.iter().map(|name| describe_unregistered(kind, name)));
    }
    faults.extend(untagged.iter().map(|component| describe_untagged(component, &unregistered)));
    faults
}

/// Message about a name that several components have.
fn describe_clash(
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
        [only] => format!(", one of them in the crate {only}"),
        crates => format!(", in the crates {}", crates.join(" and ")),
    };
    format!("{count} {}s are called `{name}`{places}", kind.word())
}

/// Message about a name that only `typetag` knows, so that no list of components contains it.
fn describe_unregistered(kind: ComponentKind, name: &str) -> String {
    format!(
        "the {} `{name}` is not registered: write `register!({kind:?}, \"{name}\", …)` beside its \
         `typetag::serde(name = \"{name}\")`",
        kind.word()
    )
}

/// Message about a registered component whose name `typetag` does not know, so that no pipeline
/// file can use it. The names `others` are not registered.
fn describe_untagged(component: &Component, others: &[&str]) -> String {
    let Component { kind, name, krate, config, .. } = component;
    let others: Vec<_> = others.iter().map(|other| format!("`{other}`")).collect();
    let others = match others.len() {
        0 => String::new(),
        1 => format!("; {} has no `register!`", others[0]),
        _ => format!("; {} have no `register!`", others.join(", ")),
    };
    format!(
        "`{config}` of the crate {krate} is registered as the {} `{name}`, but no \
         `typetag::serde(name = …)` gives that name{others}: write the same name in both",
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

/// Registers a component, in addition to its `typetag::serde(name = …)`. Its configuration must
/// derive `JsonSchema`, so that fields, defaults and descriptions can be listed.
///
/// An example is `register!(Selector, "sink", Sink, "the first tokens")`. The first argument is
/// `Selector`, `Sampler` or `Estimator`, and the last one describes the component in one line.
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
