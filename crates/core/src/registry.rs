//! What plug-ins say about themselves, for lists and messages.

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

/// Enters a component into the registry, next to its `typetag::serde(name = …)`.
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
            }
        }
    };
}
