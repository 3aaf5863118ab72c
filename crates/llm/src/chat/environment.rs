//! What a chat template finds around it, as Hugging Face transformers has it.

use std::borrow::Cow;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// How many steps a template may take: far more than a prompt's, far less than a second's.
const FUEL: u64 = 1_000_000;

pub(super) fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    Ok(environment)
}

/// A template without the tags `generation`, which show a trainer what the assistant says: here
/// they are conditions that hold.
pub(super) fn plain(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        plain.push_str(before);
        let name = tag.trim_start_matches(['-', '+']).trim_start();
        plain.push_str(&tag[..tag.len() - name.len()]);
        rest = name;
        for (theirs, ours) in [("generation", "if true"), ("endgeneration", "endif")] {
            let after = name.strip_prefix(theirs);
            if let Some(after) = after.filter(|after| after.starts_with([' ', '-', '+', '%'])) {
                plain.push_str(ours);
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

fn raise_exception(message: Cow<str>) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.into_owned()))
}

/// Python's `json.dumps`, of whose settings templates use `indent`.
fn to_json(value: Value, places: Rest<Value>, settings: Kwargs) -> Result<String, Error> {
    if !places.is_empty() {
        return Err(Error::new(ErrorKind::TooManyArguments, "expected `tojson(indent=...)`"));
    }
    let indent: Option<usize> = settings.get("indent")?;
    let _: Option<bool> = settings.get("ensure_ascii")?;
    settings.assert_all_used()?;
    match indent {
        Some(width) => {
            let width = " ".repeat(width.min(16));
            written(&value, PrettyFormatter::with_indent(width.as_bytes()))
        }
        None => written(&value, Spaced),
    }
}

fn written(value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::BadSerialization, format!("tojson: {error}"))
    };
    let mut bytes = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        .map_err(|error| failed(&error))?;
    String::from_utf8(bytes).map_err(|error| failed(&error))
}

/// One line, with spaces after commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
