//! Messages about faults: the fault, the expected values, and suggestions.

use vattention_core::{
    Fraction,
    plugin::{ComponentKind, components},
};

use crate::fault::{Fault, LocatedFault};
use crate::names::{find_respelled, suggest, suggest_type};
use crate::node::{Node, Value};
use crate::problem::{Cause, Problem, Sources};

/// Name of a value in messages, and the kind of component that it is, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) what: &'a str,
    pub(crate) kind: Option<ComponentKind>,
}

impl Subject<'_> {
    /// Describes a fault in this value's table as a problem.
    pub(crate) fn problem(
        &self,
        sources: &Sources,
        table: &Node,
        located: &LocatedFault,
    ) -> Problem {
        let owner = owner(located);
        let tag = table.descend(owner).get("type");
        let tag = tag.and_then(|node| Some((node.as_str()?, &node.span)));
        let what = dotted(self.what, owner);
        let (message, label, help) = match (self.kind, &located.fault) {
            (Some(kind), Fault::MissingField(field))
                if field == "type"
                    && located.path.is_empty()
                    && sources.0[table.span.source].is_change =>
            {
                nothing_to_change(self.what, kind)
            }
            _ => self.describe(table, located, &what, tag.map(|(name, _)| name)),
        };
        let cause = match located.fault {
            Fault::UnknownField { .. } | Fault::MissingField(_) => Cause::Structure,
            _ => Cause::Value,
        };
        let problem = Problem::new(sources, &located.span, message, label, help).with_cause(cause);
        let about_type = located.path.last().is_some_and(|key| key == "type");
        match tag {
            Some((name, span)) if !about_type => {
                problem.with_second_place(span, format!("in this `{name}`"))
            }
            _ => problem,
        }
    }

    /// Returns message, label and help for a fault.
    fn describe(
        &self,
        table: &Node,
        located: &LocatedFault,
        what: &str,
        tag: Option<&str>,
    ) -> (String, String, Option<String>) {
        let path = dotted(self.what, &located.path);
        let about_type = located.path.last().is_some_and(|key| key == "type");
        match &located.fault {
            Fault::UnknownField { field, known } => {
                let fields = match (tag, known.is_empty()) {
                    (_, true) => "there are no fields here".into(),
                    (Some(tag), _) => format!("the fields of `{tag}` are {}", list(known)),
                    (None, _) => format!("the fields are {}", list(known)),
                };
                let help = with_suggestion(suggest(field, known), &fields);
                (
                    format!("unknown field `{field}` in {what}"),
                    "not a field here".into(),
                    Some(help),
                )
            }
            Fault::UnknownName { name, known } => match self.kind.filter(|_| about_type) {
                Some(kind) => unknown_type(name, kind, &path),
                None => {
                    unknown(name, &path, with_suggestion(suggest(name, known), &known_names(known)))
                }
            },
            Fault::MissingField(field) => {
                let kind = self.kind.filter(|_| field == "type");
                let help = kind.map(|kind| known_names(&names(kind)));
                (
                    format!("missing field `{field}` in {what}"),
                    format!("this table needs `{field}`"),
                    help,
                )
            }
            Fault::WrongType { found, expected } => {
                let component = expected.starts_with("dyn ") && !about_type;
                let expected = if component { "a table" } else { describe_type(expected) };
                (
                    format!("wrong type for {path}: expected {expected}"),
                    format!("this is {found}"),
                    match (component, table.descend(&located.path).as_str(), located.path.last()) {
                        (true, Some(name), Some(key)) => Some(format!(
                            "write `{key} = {{ type = \"{name}\" }}`, \
                             with the fields of `{name}` in it"
                        )),
                        _ => explain_percentage(expected, table.descend(&located.path)),
                    },
                )
            }
            Fault::BadValue { found, expected } => (
                format!("bad value for {path}: expected {}", describe_type(expected)),
                format!("{found} is not allowed"),
                explain_percentage(expected, table.descend(&located.path)),
            ),
            Fault::Custom(message) => {
                (format!("bad value for {path}: {message}"), "here".into(), None)
            }
        }
    }
}

/// Message about a change to a component that the pipeline does not have.
fn nothing_to_change(what: &str, kind: ComponentKind) -> (String, String, Option<String>) {
    let help = format!("`--set {what}.type=NAME` adds one; {}", known_names(&names(kind)));
    (format!("the pipeline has no {what}"), "nothing to change".into(), Some(help))
}

/// Keys that lead to the table with the fault, or to the table that contains the faulty value.
fn owner(located: &LocatedFault) -> &[String] {
    match &located.fault {
        Fault::UnknownField { .. } | Fault::MissingField(_) => &located.path,
        _ => located.path.split_last().map_or(&[], |(_, owner)| owner),
    }
}

fn dotted(what: &str, path: &[String]) -> String {
    path.iter().fold(what.to_owned(), |all, step| {
        if step.bytes().all(|b| b.is_ascii_digit()) {
            format!("{all}[{step}]")
        } else if all.is_empty() {
            step.clone()
        } else {
            format!("{all}.{step}")
        }
    })
}

/// Describes the type of a field, given its name by serde.
fn describe_type(expected: &str) -> &str {
    match expected {
        "u64" | "usize" | "u32" | "u16" => "a whole number, 0 or more",
        "u8" => "a whole number from 0 to 255",
        "i64" | "i32" | "i16" | "i8" => "a whole number",
        "path string" => "a path in quotes",
        "a nonzero u8" => "a whole number from 1 to 255",
        "a nonzero u16" => "a whole number from 1 to 65535",
        "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => "a whole number, at least 1",
        "a string" | "a borrowed string" => "text in quotes",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list in brackets",
        other if other.starts_with("string or") => "a name in quotes",
        other if other.starts_with("enum ") => "a name in quotes",
        other if other.starts_with("dyn ") => "a name in quotes",
        other if other.starts_with("struct ") => "a table",
        other => other,
    }
}

pub(crate) fn list(names: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
    quoted.join(", ")
}

/// Names of the components of a kind.
fn names(kind: ComponentKind) -> Vec<&'static str> {
    components(kind).into_iter().map(|component| component.name).collect()
}

fn known_names(names: &[impl AsRef<str>]) -> String {
    format!("known: {}", list(names))
}

/// Puts a suggestion, if there is one, before the rest of a help text.
pub(crate) fn with_suggestion(suggestion: Option<String>, rest: &str) -> String {
    suggestion.map_or(rest.into(), |suggestion| format!("{suggestion} {rest}"))
}

fn unknown(name: &str, path: &str, help: String) -> (String, String, Option<String>) {
    (format!("unknown name `{name}` at {path}"), "not a known name".into(), Some(help))
}

/// Name of a kind of component with an article, and the header of its tables.
fn word(kind: ComponentKind) -> (&'static str, &'static str) {
    match kind {
        ComponentKind::Selector => ("a selector", "[[selectors]]"),
        ComponentKind::Sampler => ("a sampler", "[sampler]"),
        ComponentKind::Estimator => ("an estimator", "[estimator]"),
    }
}

/// Message, label and help for a `type` that no component of a kind has; a component of another
/// kind may have it.
fn unknown_type(name: &str, kind: ComponentKind, path: &str) -> (String, String, Option<String>) {
    let known = names(kind);
    let kinds = [ComponentKind::Selector, ComponentKind::Sampler, ComponentKind::Estimator];
    let elsewhere =
        |other: ComponentKind| Some((other, find_respelled(name, &names(other))?.to_owned()));
    match kinds.into_iter().filter(|&other| other != kind).find_map(elsewhere) {
        Some((other, elsewhere)) if find_respelled(name, &known).is_none() => {
            let ((expected, _), (other, place)) = (word(kind), word(other));
            (
                format!("{path}: expected {expected}, and `{elsewhere}` is {other}"),
                format!("this is {other}"),
                Some(format!("write it under `{place}`")),
            )
        }
        _ => unknown(name, path, with_suggestion(suggest_type(name, &known), &known_names(&known))),
    }
}

/// Advice to write a percentage as a share, if the value looks like one and a share is expected.
fn explain_percentage(expected: &str, found: &Node) -> Option<String> {
    let percent = match &found.value {
        Value::Int(x) => *x as f64,
        Value::Float(x) => *x,
        Value::Str(x) => x.strip_suffix('%')?.trim().parse().ok()?,
        _ => return None,
    };
    if !expected.contains("strictly between 0 and 1") {
        return None;
    }
    let share = Fraction::from_percent(percent)?.get();
    let tokens = expected.contains("tokens") && percent.fract() == 0.0;
    let alternative =
        if tokens { format!(", or {percent} for that number of tokens") } else { String::new() };
    Some(format!("write {share} for {percent} %{alternative}"))
}
