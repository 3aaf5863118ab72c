//! `POST /v1/completions`: texts that continue a prompt.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::answer::{AnswerFormat, EchoedPrompt, TextPart};
use crate::error::{ApiError, describe_failure};
use crate::fields::{Fields, refuse_absence, refuse_value};
use crate::harmless::drop_harmless;
use crate::params::{MOST_ALTERNATIVES, SharedParams, read_tokens};
use crate::prepare::{RequestDraft, check_count};
use crate::state::App;
use crate::token_text::{ScoredToken, TokenText};

/// Value of `max_tokens` if the request does not set it, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;
/// Name of the parameter with the prompts.
const PROMPT: &str = "prompt";

/// Reads the body of a request.
pub(crate) fn read_draft(app: &App, mut fields: Fields) -> Result<RequestDraft, ApiError> {
    let vocab_size = app.served.config.vocab_size;
    let shared = SharedParams::take(&mut fields, vocab_size)?;
    let echo = fields.take_flag("echo")?.unwrap_or(false);
    let logprobs = fields.take_count("logprobs", MOST_ALTERNATIVES)?;
    let prompts = read_prompts(&mut fields, vocab_size)?;
    drop_harmless(&mut fields)?;
    fields.expect_empty()?;
    app.served.find_pipeline(&shared.model)?;
    check_count(PROMPT, prompts.len(), shared.choices, app.options.max_queue)?;
    let encoded = prompts.into_iter().map(|prompt| prompt.encode(app));
    let (prompts, echoed): (Vec<_>, Vec<_>) =
        encoded.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    Ok(RequestDraft {
        shared,
        parameter: PROMPT,
        prompts,
        echo: echo.then_some(echoed),
        logprobs,
        default_tokens: DEFAULT_TOKENS,
    })
}

/// Prompt of a completion.
enum PromptInput {
    Text(String),
    Tokens(Vec<u32>),
}

impl PromptInput {
    fn encode(self, app: &App) -> Result<(Vec<u32>, EchoedPrompt), ApiError> {
        let refuse = |error| ApiError::parameter(PROMPT, describe_failure(&error));
        let tokenizer = &app.served.tokenizer;
        match self {
            Self::Text(text) => {
                let shown = tokenizer.next(&text).map_err(refuse)?;
                let count = shown.len();
                let tokens = tokenizer.begin(shown).map_err(refuse)?;
                let hidden = tokens.len() - count;
                Ok((tokens, EchoedPrompt { text, hidden }))
            }
            Self::Tokens(tokens) => {
                let text = tokenizer.decode_with_special(&tokens).map_err(refuse)?;
                Ok((tokens, EchoedPrompt { text, hidden: 0 }))
            }
        }
    }
}

/// Reads `prompt`: a text, a list of texts, a list of tokens, or a list of lists of tokens.
fn read_prompts(fields: &mut Fields, vocab_size: usize) -> Result<Vec<PromptInput>, ApiError> {
    const EXPECTED: &str = "a text, a list of texts, a list of tokens or a list of such lists";
    let value = fields.take(PROMPT).ok_or_else(|| refuse_absence(PROMPT, EXPECTED))?;
    let values = match value {
        Value::String(text) => return Ok(vec![PromptInput::Text(text)]),
        Value::Array(values) => values,
        other => return Err(refuse_value(PROMPT, &other, EXPECTED)),
    };
    match values.first() {
        None => {
            Err(ApiError::parameter(PROMPT, format!("found an empty list; expected {EXPECTED}")))
        }
        Some(Value::Number(_)) => {
            Ok(vec![PromptInput::Tokens(read_tokens(PROMPT, &values, vocab_size)?)])
        }
        Some(Value::String(_)) => values
            .into_iter()
            .map(|value| match value {
                Value::String(text) => Ok(PromptInput::Text(text)),
                other => Err(refuse_value(PROMPT, &other, "texts alone")),
            })
            .collect(),
        Some(Value::Array(_)) => values
            .iter()
            .map(|value| match value {
                Value::Array(tokens) => {
                    read_tokens(PROMPT, tokens, vocab_size).map(PromptInput::Tokens)
                }
                other => Err(refuse_value(PROMPT, other, "lists of tokens alone")),
            })
            .collect(),
        Some(other) => Err(refuse_value(PROMPT, other, EXPECTED)),
    }
}

/// Format of completions.
#[derive(Debug)]
pub(crate) struct CompletionFormat {
    /// True if the request asks for log-probabilities.
    pub(crate) logprobs: bool,
}

/// Choice of a completion, or of a part of it.
#[derive(Serialize)]
pub(crate) struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Log-probabilities of a completion's tokens, one element per token in each list.
#[derive(Serialize)]
struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// Most likely tokens, and the chosen one; `None` for the first token of a prompt.
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Number of characters of the text before each token.
    text_offset: Vec<usize>,
}

impl AnswerFormat for CompletionFormat {
    const ID: &'static str = "cmpl";
    const OBJECT: &'static str = "text_completion";
    const CHUNK: &'static str = "text_completion";
    type Choice = CompletionChoice;
    type Delta = CompletionChoice;

    fn choice(&self, index: usize, part: TextPart) -> CompletionChoice {
        let TextPart { text, tokens, offsets, finish, .. } = part;
        let logprobs = self.logprobs.then(|| {
            let top = |token: &ScoredToken| {
                let chosen = (&token.token, token.logprob?);
                let likely = token.top.iter().map(|(text, logprob)| (text, *logprob));
                Some(largest_by_text(likely.chain([chosen])))
            };
            CompletionLogprobs {
                top_logprobs: tokens.iter().map(top).collect(),
                token_logprobs: tokens.iter().map(|token| token.logprob).collect(),
                tokens: tokens.into_iter().map(|token| token.token.text).collect(),
                text_offset: offsets,
            }
        });
        CompletionChoice { index, text, logprobs, finish_reason: finish }
    }

    fn opening(&self, _index: usize) -> Option<CompletionChoice> {
        None
    }

    fn delta(&self, index: usize, part: TextPart) -> CompletionChoice {
        self.choice(index, part)
    }
}

/// Returns log-probabilities by token text. If several tokens have the same text, the largest
/// log-probability counts.
fn largest_by_text<'a>(
    tokens: impl Iterator<Item = (&'a TokenText, f32)>,
) -> BTreeMap<String, f32> {
    let mut found = BTreeMap::new();
    for (token, logprob) in tokens {
        let entry = found.entry(token.text.clone()).or_insert(logprob);
        *entry = logprob.max(*entry);
    }
    found
}
