//! Faults in words: what is wrong, what was expected, and what may have been meant.

use crate::fault::{Fault, Located};
use crate::node::Node;
use crate::problem::{Cause, Problem, Sources};

/// What a table is called in messages, and the names that its `type` may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) what: &'a str,
    pub(crate) known_types: &'a [&'static str],
}

impl Subject<'_> {
    /// The problem that a fault in this table is.
    pub(crate) fn problem(&self, sources: &Sources, table: &Node, located: &Located) -> Problem {
        let owner = owner(located);
        let tag = (table.at(owner).get("type")).and_then(|node| Some((node.as_str()?, &node.span)));
        let what = dotted(self.what, owner);
        let (message, label, help) = self.words(located, &what, tag.map(|(name, _)| name));
        let cause = match located.fault {
            Fault::UnknownField { .. } | Fault::MissingField(_) => Cause::Structure,
            _ => Cause::Value,
        };
        let problem = Problem::new(sources, &located.span, message, label, help).because(cause);
        let about_type = located.path.last().is_some_and(|key| key == "type");
        match tag {
            Some((name, span)) if !about_type => problem.also(span, format!("in this `{name}`")),
            _ => problem,
        }
    }

    /// Message, label and help.
    fn words(
        &self,
        located: &Located,
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
                let help = suggestion(field, known) + &fields;
                (
                    format!("unknown field `{field}` in {what}"),
                    "not a field here".into(),
                    Some(help),
                )
            }
            Fault::UnknownName { name, known } => {
                let types: Vec<String> = self.known_types.iter().map(|&t| t.to_owned()).collect();
                let known = if about_type && !types.is_empty() { &types } else { known };
                let help = format!("{}known: {}", suggestion(name, known), list(known));
                (format!("unknown name `{name}` at {path}"), "not a known name".into(), Some(help))
            }
            Fault::MissingField(field) => {
                let help = (field == "type").then(|| format!("known: {}", list(self.known_types)));
                (
                    format!("missing field `{field}` in {what}"),
                    format!("this table needs `{field}`"),
                    help,
                )
            }
            Fault::WrongType { found, expected } => {
                let component = expected.starts_with("dyn ") && !about_type;
                let expected = if component { "a table" } else { plain(expected) };
                (
                    format!("wrong type for {path}: expected {expected}"),
                    format!("this is {found}"),
                    None,
                )
            }
            Fault::BadValue { found, expected } => (
                format!("bad value for {path}: expected {}", plain(expected)),
                format!("{found} is not allowed"),
                None,
            ),
            Fault::Custom(message) => {
                (format!("bad value for {path}: {message}"), "here".into(), None)
            }
        }
    }
}

/// The keys that lead to the table at fault, or to the one that the value at fault stands in.
fn owner(located: &Located) -> &[String] {
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

/// What serde calls the types of fields, in words.
fn plain(expected: &str) -> &str {
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

/// `did you mean ...? ` if a known name is near.
pub(crate) fn suggestion(word: &str, known: &[impl AsRef<str>]) -> String {
    let near = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(word, name.as_ref()), name.as_ref()))
        .filter(|(distance, name)| *distance <= 2.max(name.len() / 3))
        .min_by_key(|(distance, _)| *distance);
    near.map_or(String::new(), |(_, name)| format!("did you mean `{name}`? "))
}
