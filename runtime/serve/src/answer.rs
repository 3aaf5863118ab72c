//! Answers to requests: conversion of the engine's events to the JSON objects of the API.

pub(crate) mod stream;
pub(crate) mod whole;

use std::sync::Arc;

use serde::Serialize;
use vattention_llm::{Stop, TokenLogprob, Tokenizer};

use crate::clock::seconds_since_1970;
use crate::engine::{Event, Finished, StepReport, TokenEvent};
use crate::error::ApiError;
use crate::jobs::JobPlan;
use crate::params::StreamParams;
use crate::random::draw_number;
use crate::served::ServedModel;
use crate::token_text::ScoredToken;
use crate::usage::{UsageBody, UsageSum};

/// Part of a choice's text.
#[derive(Debug, Default)]
pub(crate) struct TextPart {
    pub(crate) text: String,
    /// Tokens with log-probabilities, if the request asks for them.
    pub(crate) tokens: Vec<ScoredToken>,
    /// Number of characters of the choice before each of these tokens.
    pub(crate) offsets: Vec<usize>,
    pub(crate) report: Option<StepReport>,
    /// Finish reason, in the last part.
    pub(crate) finish: Option<&'static str>,
}

/// Format of the answers of one endpoint.
pub(crate) trait AnswerFormat: Send + Unpin + 'static {
    /// Prefix of ids.
    const ID: &'static str;
    /// Value of `object` in whole answers.
    const OBJECT: &'static str;
    /// Value of `object` in the chunks of a stream.
    const CHUNK: &'static str;
    /// Choice in a whole answer.
    type Choice: Serialize;
    /// Choice in a chunk of a stream.
    type Delta: Serialize;

    fn choice(&self, index: usize, part: TextPart) -> Self::Choice;
    /// Returns the choice that a stream sends before the text; `None` if the text comes first.
    fn opening(&self, index: usize) -> Option<Self::Delta>;
    fn delta(&self, index: usize, part: TextPart) -> Self::Delta;
}

/// Request that is ready to run.
#[derive(Debug)]
pub(crate) struct PreparedRequest {
    pub(crate) model: String,
    pub(crate) plan: JobPlan,
    /// Prompts that the answers repeat, if the request asks for it.
    pub(crate) echo: Option<Vec<EchoedPrompt>>,
    pub(crate) shows_logprobs: bool,
    pub(crate) stream: Option<StreamParams>,
}

/// Prompt that its answer repeats.
#[derive(Debug)]
pub(crate) struct EchoedPrompt {
    pub(crate) text: String,
    /// Number of tokens that the tokenizer added before the text, such as `<bos>`.
    pub(crate) hidden: usize,
}

/// Fields that all parts of an answer share.
#[derive(Clone, Debug)]
pub(crate) struct AnswerHead {
    id: String,
    created: u64,
    model: String,
}

/// Answer, or a part of a streamed answer.
#[derive(Serialize)]
pub(crate) struct AnswerBody<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vattention: Option<StepReport>,
}

/// Field `usage` of an answer.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum UsageField {
    /// Null, because the last chunk of the stream contains the usage.
    Later(()),
    Complete(UsageBody),
}

impl AnswerHead {
    fn new<F: AnswerFormat>(model: String) -> Self {
        let created = seconds_since_1970();
        Self { id: format!("{}-{:016x}", F::ID, draw_number()), created, model }
    }

    fn body<C>(&self, object: &'static str, choices: Vec<C>) -> AnswerBody<'_, C> {
        let Self { id, created, model } = self;
        AnswerBody { id, object, created: *created, model, choices, usage: None, vattention: None }
    }
}

/// Converter from the engine's events to parts of texts.
#[derive(Debug)]
pub(crate) struct EventReader {
    request: PreparedRequest,
    tokenizer: Arc<Tokenizer>,
    /// Number of characters of each choice's tokens so far.
    characters: Vec<usize>,
    usage: UsageSum,
}

impl EventReader {
    pub(crate) fn new(request: PreparedRequest, served: &ServedModel) -> Self {
        let choices = request.plan.prompts.len() * request.plan.choices;
        Self {
            tokenizer: Arc::clone(&served.tokenizer),
            characters: vec![0; choices],
            usage: UsageSum::default(),
            request,
        }
    }

    pub(crate) fn choices(&self) -> usize {
        self.characters.len()
    }

    /// Returns the prompt of a choice if the answer repeats it without scores, which arrive later.
    pub(crate) fn opening(&self, index: usize) -> Option<TextPart> {
        if self.request.plan.prompt_logprobs.is_some() {
            return None;
        }
        let prompt = index / self.request.plan.choices;
        let text = self.request.echo.as_ref()?[prompt].text.clone();
        Some(TextPart { text, ..TextPart::default() })
    }

    /// Converts an event.
    ///
    /// # Errors
    /// Returns the error of a failed job.
    pub(crate) fn read(&mut self, index: usize, event: Event) -> Result<TextPart, ApiError> {
        match event {
            Event::PromptScores(scores) => Ok(self.read_scores(index, &scores)),
            Event::Token(event) => Ok(self.read_token(index, event)),
            Event::Finished(finished) => Ok(self.read_end(index, finished)),
            Event::Failed(error) => Err(error.into()),
        }
    }

    fn read_scores(&mut self, index: usize, scores: &[TokenLogprob]) -> TextPart {
        let prompt = index / self.request.plan.choices;
        let first = self.request.plan.prompts[prompt].first();
        let first = first.map(|&token| ScoredToken::first(&self.tokenizer, token));
        let rest = scores.iter().map(|scored| ScoredToken::new(&self.tokenizer, scored));
        let tokens: Vec<_> = first.into_iter().chain(rest).collect();
        let Some(echo) = &self.request.echo else { return TextPart::default() };
        let EchoedPrompt { text, hidden } = &echo[prompt];
        let offsets = tokens.iter().enumerate().map(|(place, scored)| {
            let offset = self.characters[index];
            let is_shown = place >= *hidden;
            self.characters[index] += if is_shown { scored.token.characters() } else { 0 };
            offset
        });
        let offsets = offsets.collect();
        TextPart { text: text.clone(), tokens, offsets, ..TextPart::default() }
    }

    fn read_token(&mut self, index: usize, event: TokenEvent) -> TextPart {
        let TokenEvent { choice, text, report } = event;
        let (mut tokens, mut offsets) = (Vec::new(), Vec::new());
        if self.request.shows_logprobs {
            let scored = ScoredToken::new(&self.tokenizer, &choice);
            offsets.push(self.characters[index]);
            self.characters[index] += scored.token.characters();
            tokens.push(scored);
        }
        TextPart { text, tokens, offsets, report, finish: None }
    }

    fn read_end(&mut self, index: usize, finished: Finished) -> TextPart {
        let plan = &self.request.plan;
        let (prompt, choice) = (index / plan.choices, index % plan.choices);
        let length = plan.prompts[prompt].len();
        let steps = plan.dense_prefix.map_or(0, |dense| length.saturating_sub(dense));
        self.usage.add(&finished.usage, choice == 0, steps);
        let finish = Some(name_finish(finished.stop));
        TextPart { text: finished.text, finish, ..TextPart::default() }
    }

    /// Returns the sums over the jobs that have finished.
    pub(crate) fn usage(&self) -> UsageBody {
        self.usage.body()
    }
}

/// Returns the API's name of the reason why a generation ended.
fn name_finish(stop: Stop) -> &'static str {
    match stop {
        Stop::Length => "length",
        _ => "stop",
    }
}
