//! Lines that a user enters, at a terminal or through a pipe, and the commands among them.

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

use crate::fail::Failure;

/// Text that a terminal shows before the user's input.
const PROMPT: &str = "> ";

/// Commands, for `/help` and for messages.
pub(super) const COMMANDS: &str = "\
/pipeline FILE  answer with another pipeline, a file or the name of a built-in one
/reset          begin a new conversation
/stats          show tokens, speed, density, promises and memory
/help           show this list
/quit           end the program
A line that ends in \\ continues on the next line. Ctrl-C ends an answer.";

/// Input of a user.
#[derive(Debug, PartialEq)]
pub(super) enum UserInput {
    Message(String),
    Pipeline(PathBuf),
    Reset,
    Stats,
    Help,
    Quit,
}

/// Source of the user's lines.
pub(super) enum InputLines {
    Terminal(Box<Editor<LineHelper, DefaultHistory>>),
    Pipe,
}

/// Helper of the line editor, which continues a line after a backslash.
pub(super) struct LineHelper;

impl InputLines {
    /// Opens standard input: with a line editor at a terminal, otherwise as plain lines.
    pub(super) fn open() -> Result<Self, Failure> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Ok(Self::Pipe);
        }
        let mut editor = Editor::new().map_err(refuse)?;
        editor.set_helper(Some(LineHelper));
        Ok(Self::Terminal(Box::new(editor)))
    }

    /// Returns true if input and output are a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Returns the next text that is not blank; `None` at the end of the input.
    ///
    /// # Errors
    /// If standard input cannot be read.
    pub(super) fn next_text(&mut self) -> Result<Option<String>, Failure> {
        while let Some(text) = self.read()? {
            if !text.trim().is_empty() {
                return Ok(Some(text.replace("\\\n", "\n")));
            }
        }
        Ok(None)
    }

    /// Returns the next line, with the lines that continue it.
    fn read(&mut self) -> Result<Option<String>, Failure> {
        let Self::Terminal(editor) = self else { return read_pipe() };
        loop {
            return match editor.readline(PROMPT) {
                Ok(text) => {
                    editor.add_history_entry(text.as_str()).map_err(refuse)?;
                    Ok(Some(text))
                }
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => Ok(None),
                Err(error) => Err(refuse(error)),
            };
        }
    }
}

fn refuse(error: ReadlineError) -> Failure {
    Failure::input(format!("standard input: {error}"))
}

fn read_pipe() -> Result<Option<String>, Failure> {
    let mut text = String::new();
    loop {
        let read = stdin().read_line(&mut text);
        let read = read.map_err(|error| Failure::input(format!("standard input: {error}")))?;
        let end = text.strip_suffix("\r\n").or(text.strip_suffix('\n'));
        if let Some(length) = end.filter(|_| read > 0).map(str::len) {
            text.truncate(length);
        }
        if read > 0 && text.ends_with('\\') {
            text.push('\n');
            continue;
        }
        return Ok(Some(text).filter(|text| read > 0 || !text.is_empty()));
    }
}

/// Returns the command or message of a text.
///
/// # Errors
/// If the command is unknown.
pub(super) fn parse(text: &str) -> Result<UserInput, Failure> {
    let Some(command) = text.strip_prefix('/') else {
        return Ok(UserInput::Message(text.to_owned()));
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (name, rest.trim()) {
        ("pipeline", "") => Err(Failure::input("/pipeline: expected a file or a name after it")),
        ("pipeline", file) => Ok(UserInput::Pipeline(file.into())),
        ("reset", "") => Ok(UserInput::Reset),
        ("stats", "") => Ok(UserInput::Stats),
        ("help", "") => Ok(UserInput::Help),
        ("quit", "") => Ok(UserInput::Quit),
        _ => Err(Failure::input(format!(
            "unknown command `{}`; expected /pipeline FILE, /reset, /stats, /help or /quit. A \
             message can begin with a blank before /",
            text.trim_end()
        ))),
    }
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for LineHelper {
    type Candidate = String;
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Highlighter for LineHelper {}

impl Helper for LineHelper {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let message = |text: &str| UserInput::Message(text.into());
        for (text, expected) in [
            ("Hi", message("Hi")),
            (" /quit", message(" /quit")),
            ("a\n/quit", message("a\n/quit")),
            ("/pipeline a b.toml ", UserInput::Pipeline("a b.toml".into())),
            ("/reset", UserInput::Reset),
            ("/stats ", UserInput::Stats),
            ("/help", UserInput::Help),
            ("/quit", UserInput::Quit),
        ] {
            assert_eq!(parse(text).expect(text), expected);
        }
        for text in ["/", "/pipeline", "/pipeline ", "/quit now", "/Quit", "/etc/passwd"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
