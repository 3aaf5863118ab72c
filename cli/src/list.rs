//! `vattention list`: the components that pipeline files may name.

use schemars::JsonSchema;
use serde::Serialize;
use vattention::config::{ComponentEntry, Field, listing, meant_component};
use vattention::plugin::ComponentKind;

use crate::fail::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Name of the component to show; by default, all are shown.
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Kinds of components, with their titles.
const KINDS: [(ComponentKind, &str); 3] = [
    (ComponentKind::Selector, "Selectors, [[selectors]]"),
    (ComponentKind::Sampler, "Samplers, [sampler]"),
    (ComponentKind::Estimator, "Estimators, [estimator]"),
];

/// Components that pipeline files may name, and backends, as `list --json` writes them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ComponentList {
    /// Selectors, sorted by name.
    selectors: Vec<ComponentEntry>,
    /// Samplers, sorted by name.
    samplers: Vec<ComponentEntry>,
    /// Estimators, sorted by name.
    estimators: Vec<ComponentEntry>,
    /// Backends.
    backends: Vec<BackendEntry>,
}

/// A backend.
#[derive(Serialize, JsonSchema)]
struct BackendEntry {
    /// Value of `--backend`.
    name: String,
    /// Description in one line.
    summary: String,
    /// True if this machine can run the backend.
    available: bool,
}

impl BackendEntry {
    fn new(backend: &dyn vattention::Backend) -> Self {
        let available = backend.available().is_ok();
        Self { name: backend.name().into(), summary: backend.summary().into(), available }
    }
}

pub(crate) fn run(args: &ListArgs) -> Result<(), Failure> {
    let is_chosen = |name: &str| args.name.as_ref().is_none_or(|chosen| chosen == name);
    let kinds = KINDS.map(|(kind, title)| {
        let mut components = listing(kind);
        components.retain(|component| is_chosen(component.name));
        (components, title)
    });
    let mut backends = vattention::all_backends();
    backends.retain(|backend| is_chosen(backend.name()));
    if let Some(name) = &args.name
        && backends.is_empty()
        && kinds.iter().all(|(components, _)| components.is_empty())
    {
        return Err(unknown(name));
    }
    if args.json {
        let [selectors, samplers, estimators] = kinds.map(|(components, _)| components);
        let backends = backends.iter().map(|backend| BackendEntry::new(&**backend)).collect();
        let list = ComponentList { selectors, samplers, estimators, backends };
        return say(&format!("{:#}", serde_json::to_value(list).map_err(Failure::input)?));
    }
    for (components, title) in kinds.iter().filter(|(components, _)| !components.is_empty()) {
        say(&format!("{title}\n"))?;
        components.iter().try_for_each(show)?;
    }
    if !backends.is_empty() {
        say("Backends, --backend\n")?;
    }
    backends.iter().try_for_each(|backend| {
        let why_not = backend.available().err().map(|error| format!(" (not here: {error})"));
        let (name, summary) = (backend.name(), backend.summary());
        say(&format!("  {name:<22} {summary}{}", why_not.unwrap_or_default()))
    })
}

/// Returns the error for an unknown component, with a similar name if there is one.
fn unknown(name: &str) -> Failure {
    let mut names: Vec<&str> = KINDS
        .iter()
        .flat_map(|(kind, ..)| listing(*kind))
        .map(|component| component.name)
        .collect();
    let backends = vattention::all_backends();
    names.extend(backends.iter().map(|backend| backend.name()));
    let meant = meant_component(name, &names).map_or_else(String::new, |meant| format!("{meant} "));
    Failure::input(format!("NAME: no component `{name}`; {meant}`vattention list` shows all"))
}

fn show(component: &ComponentEntry) -> Result<(), Failure> {
    say(&format!("  {}: {}", component.name, component.summary))?;
    show_fields(&component.fields)
}

fn show_fields(fields: &[Field]) -> Result<(), Failure> {
    let width = fields.iter().map(|field| field.name.len()).max().unwrap_or(0);
    fields.iter().try_for_each(|field| say(&format!("    {}", line(field, width))))?;
    say("")
}

fn line(field: &Field, width: usize) -> String {
    let default = match &field.default {
        Some(default) => format!("default {default}"),
        None if field.required => "required".into(),
        None => "optional".into(),
    };
    let Field { name, takes, meaning, .. } = field;
    format!("{name:<width$}  {takes} ({default}). {meaning}")
}
