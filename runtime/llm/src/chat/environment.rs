//! Environment in which Hugging Face transformers renders chat templates, to the extent that
//! templates of models use it: jinja2's immutable sandbox with the functions and extensions of
//! transformers.
//!
//! minijinja renders the templates. This module adds the text of values as in Python (`True`,
//! `None`, lists and mappings), `tojson`, methods of strings, and the tags `{% generation %}`.
//! Features that no template of a known model uses behave as in minijinja, or are refused: text of
//! large floats after `~`, comparisons of values of different types, formatting by `%` without
//! parentheses, filters for web pages.

mod arguments;
mod json;
mod methods;
#[cfg(test)]
mod tests;
mod text;

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::LazyLock;
use std::thread;

use chrono::NaiveDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Output, State, Value};
use minijinja_contrib::globals;
use regex::Regex;

use arguments::{CallArguments, as_text, bind, filter_none, refuse};

/// Maximum number of steps of a template: many more than a prompt needs, and executed within a
/// second.
const FUEL: u64 = 1_000_000;

/// Bytes of stack for the deepest lists that [`FUEL`] steps can nest; comparing and freeing them is
/// recursive.
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
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("string", |value: Value| text::write(&value));
    environment.add_filter("join", join);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: Value| {
        let kind = value.kind();
        matches!(kind, ValueKind::String | ValueKind::Map | ValueKind::Seq | ValueKind::Iterable)
    });
    environment.add_function("raise_exception", |message: Cow<'_, str>| -> Result<Value, Error> {
        Err(refuse(message.into_owned()))
    });
    environment.add_function("joiner", globals::joiner);
    environment.add_function("strftime_now", move |format: Cow<'_, str>| {
        let mut text = String::new();
        let written = write!(text, "{}", now().format(&format));
        written.map_err(|_| refuse(format!("strftime_now: `{format}` is no format of a time")))?;
        Ok::<_, Error>(text)
    });
    Ok(environment)
}

/// Replaces syntax that minijinja parses differently: the tags that mark the assistant's text for
/// training, which open a scope; `%` formatting with values in parentheses; and line endings.
pub(super) fn rewrite(source: &str) -> String {
    static GENERATION: LazyLock<Regex> =
        LazyLock::new(|| compile(r"\{%([-+]?[ \n\t]*)(end)?generation([ \n\t]*[-+]?)%\}"));
    static FORMAT: LazyLock<Regex> =
        LazyLock::new(|| compile(r#"('[^'\n]*'|"[^"\n]*")[ \n\t]*%[ \n\t]*\("#));
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = GENERATION.replace_all(&source, "{%${1}${2}with${3}%}");
    FORMAT.replace_all(&source, "${1} | format(").into_owned()
}

fn compile(text: &str) -> Regex {
    Regex::new(text).expect("the expression is valid")
}

fn write_value(output: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    Ok(output.write_str(&text::write(value)?)?)
}

fn join(list: Value, arguments: CallArguments) -> Result<String, Error> {
    let [separator] = bind(&arguments.into_values(), ["d"])?;
    let separator = filter_none(separator.as_ref()).map_or(Ok(""), as_text)?;
    let texts: Vec<String> =
        list.try_iter()?.map(|it| text::write(&it)).collect::<Result<_, _>>()?;
    text::check_length(texts.iter().map(|text| text.len() + separator.len()).sum())?;
    Ok(texts.join(separator))
}

fn default(value: Value, arguments: CallArguments) -> Result<Value, Error> {
    let [default, boolean] = bind(&arguments.into_values(), ["default_value", "boolean"])?;
    let boolean = boolean.is_some_and(|boolean| boolean.is_true());
    let is_replaced = value.is_undefined() || boolean && !value.is_true();
    Ok(if is_replaced { default.unwrap_or(Value::from("")) } else { value })
}
