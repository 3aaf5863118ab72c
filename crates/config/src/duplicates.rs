//! Syntax errors in words, in particular for keys and tables that are given twice: the parser
//! reports every key of such a table, without its name.

use std::ops::Range;

use toml::de::Error;

/// Message of the parser for a key that is given twice.
const DUPLICATE: &str = "duplicate key";

/// A syntax error, with advice.
pub(crate) struct SyntaxProblem {
    pub(crate) range: Range<usize>,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

/// Describes the errors of a text; a table that is given twice has one description.
pub(crate) fn describe_errors(text: &str, errors: &[Error]) -> Vec<SyntaxProblem> {
    let mut problems = Vec::new();
    // The end of the last table that was given twice.
    let mut end = 0;
    for error in errors {
        let range = error.span().unwrap_or(0..0);
        if error.message() != DUPLICATE {
            problems.push(SyntaxProblem {
                range,
                message: format!("TOML syntax: {}", error.message()),
                help: None,
            });
            continue;
        }
        let start = text[..range.start].rfind('\n').map_or(0, |newline| newline + 1);
        let is_table = text[start..].trim_start().starts_with('[');
        if is_table {
            problems.push(describe_table(text, start, range));
            end = text[start..].find("\n[").map_or(text.len(), |length| start + length);
        } else if range.start >= end {
            let key = text.get(range.clone()).unwrap_or_default();
            let message = format!("`{key}` is given twice");
            problems.push(SyntaxProblem {
                range,
                message,
                help: Some("leave out one of them".into()),
            });
        }
    }
    problems
}

/// Describes a table that is given twice, whose second header is in the line that begins at
/// `start`.
fn describe_table(text: &str, start: usize, range: Range<usize>) -> SyntaxProblem {
    let header = |line: &str| {
        let line = line.trim();
        let name = line.trim_start_matches('[').split(']').next().unwrap_or_default().trim();
        line.starts_with('[').then(|| name.to_owned())
    };
    let name = text[start..].lines().next().and_then(header).unwrap_or_default();
    let first = text[..start].lines().position(|line| header(line).as_deref() == Some(&name));
    let first = first.map_or(String::new(), |line| format!(", first in line {}", line + 1));
    let message = format!("the table `{name}` is given twice{first}");
    let help = "leave out one of them, or write all of its keys under one header";
    SyntaxProblem { range, message, help: Some(help.into()) }
}
