//! Request to a model, in tokens.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_evaluate::Setup;
use vattention_llm::{Generation, GenerationParams, TextGenerator};

use crate::fail::Failure;
use crate::models::checkpoint::{ModelFiles, read_text};
use crate::models::sampling_args::name_option;

use super::args::GenerateArgs;
use super::saved_session::SessionFiles;

/// Prompt, split where the pipeline begins, and the parameters of its answer.
pub(super) struct Request {
    /// Tokens that the prefill reads.
    pub(super) dense: Vec<u32>,
    /// Tokens that the pipeline reads.
    pub(super) sparse: Vec<u32>,
    /// Parameters of the answer.
    params: GenerationParams,
    /// Text of the context.
    pub(super) context_text: String,
    /// Number of tokens up to the end of the context.
    context: usize,
}

impl Request {
    /// Reads and tokenizes the texts of the options, and compares them with the saved session.
    ///
    /// # Errors
    /// If a text is empty, the sequence is longer than the model supports, a file cannot be read,
    /// or the saved session has other tokens.
    pub(super) fn new(
        args: &GenerateArgs,
        checkpoint: &ModelFiles<'_>,
        files: &SessionFiles,
    ) -> Result<Self, Failure> {
        let (option, text) = match (&args.context, &args.prompt) {
            (Some(path), _) => ("--context", read_text("--context", path)?),
            (None, Some(text)) => ("--prompt", text.clone()),
            (None, None) => ("--session", files.context()?.unwrap_or_default()),
        };
        if args.tokens == 0 {
            return Err(Failure::input("--tokens: 0; expected at least 1"));
        }
        if text.trim().is_empty() {
            return Err(Failure::input(format!("{option}: empty; expected a text")));
        }
        let question_text = args.question.as_deref();
        if question_text.is_some_and(|text| text.trim().is_empty()) {
            return Err(Failure::input("--question: empty; expected a text, or no --question"));
        }
        let (mut dense, question) =
            tokenize(args, checkpoint, &text, question_text.unwrap_or_default())?;
        // If the pipeline begins with the answer, a chat need not be split before the question.
        let is_split = must_split(args) || !args.answering.chat.chat;
        let has_question = question_text.is_some() && is_split;
        if dense.is_empty() || has_question && question.is_empty() {
            let option = if dense.is_empty() { option } else { "--question" };
            return Err(Failure::input(format!("{option}: no tokens; expected a text")));
        }
        let context = dense.len();
        let most = context.saturating_add(question.len()).saturating_add(args.tokens);
        checkpoint.check_length(most).map_err(|error| {
            let (question, answer) = (question.len(), args.tokens);
            let parts =
                format!("{context} of {option}, {question} of --question, {answer} of --tokens");
            Failure::input(format!("{error}; the parts are {parts}"))
        })?;
        let sparse = match args.answering.setup {
            Setup::A => {
                dense.extend(question);
                Vec::new()
            }
            Setup::B => question,
        };
        let params = GenerationParams {
            ignore_eos: args.ignore_eos,
            logprobs: args.logprobs.unwrap_or(0),
            ..args.sampling.to_params(&checkpoint.tokenizer, args.tokens)?
        };
        files.check(&dense)?;
        Ok(Self { dense, sparse, params, context_text: text, context })
    }

    /// Returns the maximum number of tokens of the sequence.
    pub(super) fn max_tokens(&self) -> usize {
        self.dense.len() + self.sparse.len() + self.params.max_tokens
    }

    /// Returns all tokens of the prompt.
    pub(super) fn prompt(&self) -> Vec<u32> {
        [self.dense.as_slice(), &self.sparse].concat()
    }

    /// Creates the generator of an answer.
    ///
    /// # Errors
    /// If an option of sampling is wrong.
    pub(super) fn start_answer<'t>(
        &self,
        checkpoint: &'t ModelFiles<'_>,
    ) -> Result<TextGenerator<'t>, Failure> {
        let ModelFiles { tokenizer, config, .. } = checkpoint;
        let prompt = self.prompt();
        TextGenerator::new(&self.params, tokenizer, config, &prompt).map_err(name_option)
    }

    /// Returns the number of tokens of each part.
    pub(super) fn counts(&self, generation: &Generation) -> TokenCounts {
        let question = self.dense.len() + self.sparse.len() - self.context;
        TokenCounts { context: self.context, question, answer: generation.tokens.len() }
    }
}

/// Returns the tokens of context and question, with the chat template's text around them.
fn tokenize(
    args: &GenerateArgs,
    checkpoint: &ModelFiles<'_>,
    context: &str,
    question: &str,
) -> Result<(Vec<u32>, Vec<u32>), Failure> {
    let tokenizer = &checkpoint.tokenizer;
    match args.answering.chat.open_prompt(checkpoint)? {
        Some(prompt) => Ok(prompt.tokens(tokenizer, context, question, "", must_split(args))?),
        None => Ok((tokenizer.first(context)?, tokenizer.next(question)?)),
    }
}

/// Returns true if the pipeline begins between context and question.
fn must_split(args: &GenerateArgs) -> bool {
    args.answering.setup == Setup::B && args.question.is_some()
}

/// Numbers of tokens of the parts of a sequence.
#[derive(Serialize, JsonSchema)]
pub(in crate::models) struct TokenCounts {
    /// Tokens of the prompt up to the end of the context; all tokens of the prompt if a chat
    /// template changed its texts.
    pub(in crate::models) context: usize,
    /// Remaining tokens of the prompt.
    pub(in crate::models) question: usize,
    /// Generated tokens.
    pub(in crate::models) answer: usize,
}
