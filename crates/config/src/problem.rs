//! Problems in pipeline files, as messages with places.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use crate::node::TextSpan;

/// Texts of a configuration: the file, the files that it extends, and `--set` options.
#[derive(Debug, Default)]
pub(crate) struct Sources(pub(crate) Vec<SourceText>);

/// A text and its name in messages.
#[derive(Debug)]
pub(crate) struct SourceText {
    pub(crate) name: String,
    pub(crate) text: Arc<str>,
    /// True for a `--set` option, false for a file.
    pub(crate) is_change: bool,
}

/// Cause of a problem, which decides whether the problem is reported beside a syntax error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Text that is not TOML.
    Syntax,
    /// A missing or misplaced key, which may be due to a line with a syntax error.
    Structure,
    /// A wrong value, or one that conflicts with another.
    Value,
    /// An unreadable file that a field names.
    File,
}

/// A problem and its place.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(crate) cause: Cause,
    message: String,
    label: String,
    help: Option<String>,
    place: Option<ProblemPlace>,
}

#[derive(Clone, Debug)]
struct ProblemPlace {
    span: TextSpan,
    source: NamedSource<Arc<str>>,
    line: usize,
    column: usize,
    also: Vec<(Range<usize>, String)>,
}

impl Problem {
    pub(crate) fn new(
        sources: &Sources,
        span: &TextSpan,
        message: impl Into<String>,
        label: impl Into<String>,
        help: Option<String>,
    ) -> Self {
        let SourceText { name, text, .. } = &sources.0[span.source];
        let before = before(text, span.start);
        let place = ProblemPlace {
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

    /// Creates a problem of a whole file.
    pub(crate) fn of_file(message: impl Into<String>) -> Self {
        Self {
            cause: Cause::Value,
            message: message.into(),
            label: String::new(),
            help: None,
            place: None,
        }
    }

    /// Returns the problem with this cause.
    #[must_use]
    pub(crate) fn with_cause(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// Returns the problem with more help.
    #[must_use]
    pub(crate) fn with_help(self, more: &str) -> Self {
        let help = self.help.map_or_else(|| more.into(), |help| format!("{help}; {more}"));
        Self { help: Some(help), ..self }
    }

    /// Adds the names of the pipeline files to which the change was applied.
    #[must_use]
    pub fn set_on(self, files: &str) -> Self {
        Self { message: format!("{} (set on {files})", self.message), ..self }
    }

    /// Marks a second place, if it is in the same text, near the first and different from it.
    pub(crate) fn with_second_place(mut self, span: &TextSpan, label: String) -> Self {
        if let Some(place) = &mut self.place
            && place.span.source == span.source
            && place.span != *span
            && line_of(place.source.inner(), span.start).abs_diff(place.line) <= NEAR
        {
            place.also.push((span.range(), label));
        }
        self
    }

    /// Description of the problem.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Suggestion, or the allowed values.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Name of the text, as given, with line and column, which count from 1.
    pub fn place(&self) -> Option<(&str, usize, usize)> {
        self.place.as_ref().map(|place| (place.source.name(), place.line, place.column))
    }

    pub(crate) fn span(&self) -> Option<&TextSpan> {
        self.place.as_ref().map(|place| &place.span)
    }

    pub(crate) fn line(&self) -> Option<(usize, usize)> {
        self.place.as_ref().map(|place| (place.span.source, place.line))
    }
}

/// Largest distance in lines of two places that are shown together.
const NEAR: usize = 3;

/// Text before a byte, or before the character that contains the byte.
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

/// All problems in a configuration, in the order of the texts.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// The problems, at least one.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// Returns true if all problems are unreadable files that fields name.
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
