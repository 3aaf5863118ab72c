//! `vattention list` and `vattention schema`: what pipeline files may name.

use serde_json::{Value, json};
use vattention::config::{ComponentEntry, Field, listing, schema};
use vattention::plugin::ComponentKind;

use crate::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let selectors = listing(ComponentKind::Selector);
    let samplers = listing(ComponentKind::Sampler);
    let estimators = listing(ComponentKind::Estimator);
    if args.json {
        let list = json!({
            "selectors": selectors,
            "samplers": samplers,
            "estimators": estimators,
            "backends": backends(),
        });
        return say(&format!("{list:#}"));
    }
    say("Selectors, [[selectors]]\n")?;
    selectors.iter().try_for_each(show)?;
    say("Samplers, [sampler]\n")?;
    samplers.iter().try_for_each(show)?;
    say("Estimators, [estimator]\n")?;
    estimators.iter().try_for_each(show)?;
    say("Backends, --backend\n")?;
    vattention::all_backends().iter().try_for_each(|backend| {
        let why_not = backend.available().err().map(|error| format!(" (not here: {error})"));
        let (name, summary) = (backend.name(), backend.summary());
        say(&format!("  {name:<22} {summary}{}", why_not.unwrap_or_default()))
    })
}

pub(crate) fn print_schema() -> Result<(), Failure> {
    say(&format!("{:#}", schema()))
}

fn backends() -> Value {
    let entry = |backend: &dyn vattention::Backend| {
        let available = backend.available().is_ok();
        json!({ "name": backend.name(), "summary": backend.summary(), "available": available })
    };
    vattention::all_backends().iter().map(|backend| entry(&**backend)).collect()
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
