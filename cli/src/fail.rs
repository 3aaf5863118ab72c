//! Failures of commands: messages and exit codes.

use std::fmt::Display;
use std::io::Write;

use miette::{GraphicalReportHandler, GraphicalTheme};
use vattention::config::ConfigError;
use vattention::experiments::Incomplete;

/// Reason for an exit code other than 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A negative verdict, already reported.
    NegativeVerdict,
    /// A verdict that needs more samples, already reported.
    Undecided,
    /// Results of other shards are missing.
    Incomplete(Incomplete),
    /// Results of other shards are missing, which was already reported.
    ReportedIncomplete,
    /// Wrong input, as a message.
    Input(String),
    /// Problems in pipeline files.
    Config(Vec<ConfigError>),
}

impl Failure {
    pub(crate) fn input(message: impl Display) -> Self {
        Self::Input(message.to_string())
    }

    /// Returns the failure of a library's setting, named by the option that sets it.
    pub(crate) fn option(field: &str, reason: &str) -> Self {
        let option = match field {
            "config" | "files" => field.to_uppercase(),
            "shape" => "--query-heads, --kv-heads, --head-dim".into(),
            _ => format!("--{}", field.replace('_', "-")),
        };
        Self::input(format!("{option}: {reason}"))
    }

    /// Returns several wrong inputs, one per line.
    pub(crate) fn all(messages: &[String]) -> Self {
        Self::Input(messages.join("\nerror: "))
    }

    /// Prints the message, and returns the exit code: 1 for a negative verdict or missing results,
    /// 3 for an undecided verdict, 2 otherwise.
    pub(crate) fn report(self) -> u8 {
        match self {
            Self::NegativeVerdict | Self::ReportedIncomplete => return 1,
            Self::Undecided => return 3,
            Self::Incomplete(incomplete) => complain(&format!("error: {incomplete}\n")),
            Self::Input(message) => complain(&format!("error: {message}\n")),
            Self::Config(errors) => {
                let problems: Vec<_> = errors.iter().flat_map(|error| &error.problems).collect();
                for problem in &problems {
                    complain(&render(*problem));
                }
                let plural = if problems.len() == 1 { "" } else { "s" };
                complain(&format!(
                    "error: {} problem{plural} in the configuration\n",
                    problems.len()
                ));
            }
        }
        2
    }
}

impl From<vattention::trace::Error> for Failure {
    fn from(error: vattention::trace::Error) -> Self {
        match error {
            vattention::trace::Error::Setting { field, reason } => Self::option(field, &reason),
            other => Self::input(other),
        }
    }
}

impl From<vattention::experiments::Error> for Failure {
    fn from(error: vattention::experiments::Error) -> Self {
        match error {
            vattention::experiments::Error::Incomplete(incomplete) => Self::Incomplete(incomplete),
            vattention::experiments::Error::Setting { field, reason } => {
                Self::option(field, &reason)
            }
            vattention::experiments::Error::Trace(error) => error.into(),
            other => Self::input(other),
        }
    }
}

/// Prints a note to standard error.
pub(crate) fn note(message: &str) {
    complain(&format!("note: {message}\n"));
}

/// Writes to standard error. A failure to write is ignored: it could not be reported.
pub(crate) fn complain(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn render(problem: &dyn miette::Diagnostic) -> String {
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
        .with_width(110)
        .with_context_lines(1)
        .with_links(false);
    let mut text = String::new();
    // Writing to a string cannot fail; a problem that cannot be drawn is shown by its message.
    if handler.render_report(&mut text, problem).is_err() {
        text = format!("{problem}\n");
    }
    text
}

/// Prints a line to standard output; a closed pipe is no error.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::input(error)),
        _ => Ok(()),
    }
}
