//! Prompts of a context and a question, split at the end of the context.

use super::ChatTemplate;
use crate::{Error, Result};

/// Prompt in two parts, whose concatenation is the whole prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    /// Prompt up to the end of the context.
    pub before: String,
    /// Rest of the prompt: the question and the beginning of the answer.
    pub after: String,
}

impl ChatTemplate {
    /// Renders a context and a question, and splits the prompt like [`split`](Self::split). If the
    /// end of the context cannot be found in the prompt, the whole prompt is `before`.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render).
    pub fn split_if_shown(
        &self,
        system: Option<&str>,
        context: &str,
        question: &str,
        answer: &str,
    ) -> Result<Chat> {
        self.split(system, context, question, answer).or_else(|_| {
            let before = self.render(system, &[context, question].concat(), answer)?;
            Ok(Chat { before, after: String::new() })
        })
    }

    /// Renders a user's message of a context and a question about it, and splits the prompt at the
    /// end of the context.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render), and [`Error::Checkpoint`] if the end of the context
    /// cannot be found in the prompt, because the template omits, repeats or changes the user's
    /// text.
    pub fn split(
        &self,
        system: Option<&str>,
        context: &str,
        question: &str,
        answer: &str,
    ) -> Result<Chat> {
        let whole = self.render(system, &[context, question].concat(), answer)?;
        let mark = mark(&[&self.source, &whole, context, question, answer]);
        for (context, question) in context_ends(context, question) {
            let marked = self.render(system, &[context, &mark, question].concat(), answer)?;
            let mut parts = marked.split(&mark);
            let (Some(before), Some(after), None) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let shown = before.ends_with(context.trim_start());
            if shown && whole.strip_prefix(before) == Some(after) {
                return Ok(Chat { before: before.into(), after: after.into() });
            }
        }
        let prefix = self.key.map(|key| format!("`{key}`: ")).unwrap_or_default();
        let reason = format!("{prefix}the end of the context cannot be found in the prompt");
        let expected = "expected a template that contains the user's text once and unchanged";
        Err(Error::checkpoint(&self.path, format!("{reason}; {expected}")))
    }
}

/// Returns a text that none of the others contains. Inserted at the end of the context, it marks
/// the place in the prompt even if the context's text occurs elsewhere too.
fn mark(texts: &[&str]) -> String {
    let mut mark = String::from('\u{E000}');
    while texts.iter().any(|text| text.contains(&mark)) {
        mark.push('\u{E001}');
    }
    mark
}

/// Returns the context and the question: unchanged, and trimmed as by a template that trims the
/// user's message. With the mark between them, such a template would not trim the inner ends.
fn context_ends<'t>(
    context: &'t str,
    question: &'t str,
) -> impl Iterator<Item = (&'t str, &'t str)> {
    let trimmed = match (context.trim().is_empty(), question.trim().is_empty()) {
        (true, true) => Some(("", "")),
        (true, false) => Some(("", question.trim_start())),
        (false, true) => Some((context.trim_end(), "")),
        (false, false) => None,
    };
    [(context, question)].into_iter().chain(trimmed)
}
