//! What the model is asked, in tokens.

use serde::Serialize;
use vattention_evaluate::Setup;
use vattention_llm::{Generation, Session};

use crate::fail::Failure;
use crate::models::checkpoint::{ModelFiles, read_text};

use crate::progress;

use super::args::GenerateArgs;

/// A prompt, cut where the pipeline begins, and the room for its answer.
pub(super) struct Request {
    pub(super) dense: Vec<u32>,
    pub(super) sparse: Vec<u32>,
    /// Tokens of the answer, at most.
    pub(super) answer: usize,
    context: usize,
}

impl Request {
    /// Reads and tokenizes what the options say, and refuses what the model cannot place.
    pub(super) fn new(args: &GenerateArgs, checkpoint: &ModelFiles<'_>) -> Result<Self, Failure> {
        let (option, text) = match (&args.context, &args.prompt) {
            (Some(path), _) => ("--context", read_text("--context", path)?),
            (None, text) => ("--prompt", text.clone().unwrap_or_default()),
        };
        if args.tokens == 0 {
            return Err(Failure::input("--tokens: 0; expected at least 1"));
        }
        if text.trim().is_empty() {
            return Err(Failure::input(format!("{option}: empty; expected a text")));
        }
        let asked = args.question.as_deref();
        if asked.is_some_and(|text| text.trim().is_empty()) {
            return Err(Failure::input("--question: empty; expected a text, or no --question"));
        }
        let (mut dense, question) = tokens(args, checkpoint, &text, asked.unwrap_or_default())?;
        // If the pipeline begins with the answer, a chat need not be split before the question.
        let has_question = asked.is_some() && (must_split(args) || !args.answering.chat.chat);
        if dense.is_empty() || has_question && question.is_empty() {
            let option = if dense.is_empty() { option } else { "--question" };
            return Err(Failure::input(format!("{option}: no tokens; expected a text")));
        }
        let context = dense.len();
        let most = context.saturating_add(question.len()).saturating_add(args.tokens);
        checkpoint.check_length(most).map_err(|error| {
            let asked = question.len();
            let parts = format!(
                "{context} of {option}, {asked} of --question, {} of --tokens",
                args.tokens
            );
            Failure::input(format!("{error}; it is {parts}"))
        })?;
        let sparse = match args.answering.setup {
            Setup::A => {
                dense.extend(question);
                Vec::new()
            }
            Setup::B => question,
        };
        Ok(Self { dense, sparse, answer: args.tokens, context })
    }

    /// Tokens that the sequence can come to.
    pub(super) fn most(&self) -> usize {
        self.dense.len() + self.sparse.len() + self.answer
    }

    /// How many tokens each part has.
    pub(super) fn counts(&self, generation: &Generation) -> TokenCounts {
        let question = self.dense.len() + self.sparse.len() - self.context;
        TokenCounts { context: self.context, question, answer: generation.tokens.len() }
    }
}

/// The tokens of context and question, and of what a chat puts around them.
fn tokens(
    args: &GenerateArgs,
    checkpoint: &ModelFiles<'_>,
    context: &str,
    question: &str,
) -> Result<(Vec<u32>, Vec<u32>), Failure> {
    let tokenizer = &checkpoint.tokenizer;
    match args.answering.chat.talk(checkpoint)? {
        Some(talk) => Ok(talk.tokens(tokenizer, context, question, "", must_split(args))?),
        None => Ok((tokenizer.first(context)?, tokenizer.next(question)?)),
    }
}

/// Returns whether the pipeline begins between context and question.
fn must_split(args: &GenerateArgs) -> bool {
    args.answering.setup == Setup::B && args.question.is_some()
}

/// Returns the logits after the last token.
pub(super) fn read_prompt(session: &mut Session<'_>, tokens: &[u32]) -> Result<Vec<f32>, Failure> {
    let bar = progress::bar("layers");
    let logits = session.prefill_with(tokens, |done, total| progress::show(&bar, done, total))?;
    bar.finish_and_clear();
    Ok(logits)
}

/// How many tokens the parts have.
#[derive(Serialize)]
pub(super) struct TokenCounts {
    pub(super) context: usize,
    pub(super) question: usize,
    pub(super) answer: usize,
}
