//! The environment in which Hugging Face transformers renders chat templates: jinja2's immutable
//! sandbox with its extensions and functions.

mod arguments;
mod checks;
mod filters;
mod functions;
mod json;
mod methods;
mod objects;
mod operators;
mod percent;
mod source;
mod strings;
#[cfg(test)]
mod tests;
mod text;

use std::thread;

use chrono::NaiveDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Output, State, Value};

pub(super) use source::rewrite;

/// Maximum number of steps of a template: many more than a prompt needs, and done within a second.
const FUEL: u64 = 1_000_000;

/// Bytes of stack for the deepest lists that [`FUEL`] steps can nest; these are compared and freed
/// recursively.
const STACK: usize = 128 << 20;

/// Renders on a thread whose stack is large enough for deeply nested values.
pub(super) fn with_deep_stack<T: Send>(
    render: impl FnOnce() -> T + Send,
) -> Result<T, std::io::Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, render)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Builds the environment; `now` is the clock of `strftime_now`.
pub(super) fn new(now: fn() -> NaiveDateTime) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(write_value);
    checks::add(&mut environment);
    filters::add(&mut environment);
    functions::add(&mut environment, now);
    operators::add(&mut environment);
    Ok(environment)
}

fn write_value(
    output: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let text = text::write(value)?;
    match state.auto_escape() {
        AutoEscape::Html if !value.is_safe() => output.write_str(&filters::escape(&text))?,
        _ => output.write_str(&text)?,
    }
    Ok(())
}
