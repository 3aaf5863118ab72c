//! One problem in a pipeline file, in words.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use crate::node::Span;

/// The texts that make a configuration: the file, the files it extends, and `--set` options.
#[derive(Debug, Default)]
pub(crate) struct Sources(pub(crate) Vec<Source>);

/// A text and what to call it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: Arc<str>,
    /// True for a `--set` option, false for a file.
    pub(crate) is_change: bool,
}

/// What a problem may come from, which tells whether it is worth telling beside a syntax error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The text is not TOML.
    Syntax,
    /// Something is missing, or is where it should not be: a broken line may have caused it.
    Structure,
    /// A value is wrong, or does not go with another.
    Value,
    /// A file that a field names cannot be read.
    File,
}

/// A problem and its place.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(crate) cause: Cause,
    message: String,
    label: String,
    help: Option<String>,
    place: Option<Place>,
}

#[derive(Clone, Debug)]
struct Place {
    span: Span,
    source: NamedSource<Arc<str>>,
    line: usize,
    column: usize,
    also: Vec<(Range<usize>, String)>,
}

impl Problem {
    pub(crate) fn new(
        sources: &Sources,
        span: &Span,
        message: impl Into<String>,
        label: impl Into<String>,
        help: Option<String>,
    ) -> Self {
        let Source { name, text, .. } = &sources.0[span.source];
        let before = before(text, span.start);
        let place = Place {
            span: span.clone(),
            source: NamedSource::new(name, text.clone()),
            line: line_of(text, span.start),
            column: before.chars().rev().take_while(|&c| c != '\n').count() + 1,
            also: Vec::new(),
        };
        Self {
            cause: Cause::Value,
            message: message.into(),
            label: label.into(),
            help,
            place: Some(place),
        }
    }

    /// A problem with a file as a whole.
    pub(crate) fn of_file(message: impl Into<String>) -> Self {
        Self {
            cause: Cause::Value,
            message: message.into(),
            label: String::new(),
            help: None,
            place: None,
        }
    }

    /// The same problem with a cause.
    #[must_use]
    pub(crate) fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// The same problem, with more help.
    #[must_use]
    pub(crate) fn helped(self, more: &str) -> Self {
        let help = self.help.map_or_else(|| more.into(), |help| format!("{help}; {more}"));
        Self { help: Some(help), ..self }
    }

    /// Adds the names of the pipeline files to which the change was applied.
    #[must_use]
    pub fn set_on(self, files: &str) -> Self {
        Self { message: format!("{} (set on {files})", self.message), ..self }
    }

    /// Marks a second place, if it is another one of the same text and near.
    pub(crate) fn also(mut self, span: &Span, label: String) -> Self {
        if let Some(place) = &mut self.place
            && place.span.source == span.source
            && place.span != *span
            && line_of(place.source.inner(), span.start).abs_diff(place.line) <= NEAR
        {
            place.also.push((span.range(), label));
        }
        self
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What may have been meant, or what is allowed.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The text's name, as it was given, with line and column from 1.
    pub fn place(&self) -> Option<(&str, usize, usize)> {
        self.place.as_ref().map(|place| (place.source.name(), place.line, place.column))
    }

    pub(crate) fn span(&self) -> Option<&Span> {
        self.place.as_ref().map(|place| &place.span)
    }

    pub(crate) fn line(&self) -> Option<(usize, usize)> {
        self.place.as_ref().map(|place| (place.span.source, place.line))
    }
}

/// Lines apart at which two places are still shown together.
const NEAR: usize = 3;

/// The text up to a byte, or up to the character that holds it.
fn before(text: &str, index: usize) -> &str {
    let boundary = (0..=index.min(text.len())).rev().find(|&i| text.is_char_boundary(i));
    &text[..boundary.unwrap_or(0)]
}

fn line_of(text: &str, index: usize) -> usize {
    before(text, index).matches('\n').count() + 1
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as _)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.source as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.place.as_ref()?;
        let label = Some(self.label.clone()).filter(|label| !label.is_empty());
        let main = LabeledSpan::new_primary_with_span(label, place.span.range());
        let also = place
            .also
            .iter()
            .map(|(range, label)| LabeledSpan::new_with_span(Some(label.clone()), range.clone()));
        Some(Box::new(std::iter::once(main).chain(also)))
    }
}

/// Every problem found in a configuration, in the order of the texts.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Returns whether all problems are unreadable files that fields name.
    pub fn is_unreadable_file(&self) -> bool {
        self.problems.iter().all(|problem| problem.cause == Cause::File)
    }

    /// Returns the problems in one line, without their places.
    pub fn summary(&self) -> String {
        let summary = |problem: &Problem| match &problem.help {
            Some(help) => format!("{problem} ({help})"),
            None => problem.to_string(),
        };
        self.problems.iter().map(summary).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            if let Some((file, line, column)) = problem.place() {
                write!(f, "{file}:{line}:{column}: ")?;
            }
            write!(f, "{problem}")?;
            if let Some(help) = problem.help() {
                write!(f, " ({help})")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
