//! What plug-ins say about themselves, for lists and messages.

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
    /// Its meaning in one line.
    pub summary: &'static str,
    /// The JSON Schema of its fields, with defaults and meanings.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// The two kinds of plug-ins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComponentKind {
    /// Picks tokens.
    Selector,
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

/// Names that two linked components of a kind have, in words. Such a name means neither.
pub fn name_clashes() -> Vec<String> {
    let kinds = [ComponentKind::Selector, ComponentKind::Estimator];
    let clash = |pair: &[&'static Component]| {
        let [a, b] = pair else { return None };
        let kind = if a.kind == ComponentKind::Selector { "selector" } else { "estimator" };
        (a.name == b.name).then(|| {
            format!(
                "two {kind}s are called `{}`, in the crates {} and {}",
                a.name, a.krate, b.krate
            )
        })
    };
    kinds
        .into_iter()
        .flat_map(|kind| components(kind).windows(2).filter_map(clash).collect::<Vec<_>>())
        .collect()
}

/// Enters a component into the registry, next to its `typetag::serde(name = …)`. Its config derives
/// `JsonSchema`, so that its fields, their defaults and meanings can be listed.
///
/// `register!(Selector, "sink", Sink, "the first tokens")`, or `Estimator` likewise.
#[macro_export]
macro_rules! register {
    (Selector, $name:literal, $config:ty, $summary:literal) => {
        $crate::register!(@Selector, SelectorConfig, $name, $config, $summary);
    };
    (Estimator, $name:literal, $config:ty, $summary:literal) => {
        $crate::register!(@Estimator, BudgetEstimator, $name, $config, $summary);
    };
    (@$kind:ident, $trait:ident, $name:literal, $config:ty, $summary:literal) => {
        const _: fn(&$config) -> &dyn $crate::$trait = |config| config;
        $crate::inventory::submit! {
            $crate::Component {
                kind: $crate::ComponentKind::$kind,
                name: $name,
                krate: env!("CARGO_PKG_NAME"),
                summary: $summary,
                schema: <$config as $crate::schemars::JsonSchema>::json_schema,
            }
        }
    };
}
