//! Generation of a text from logits, without the model that computes them.

use super::GenerationParams;
use super::checks::check_params;
use super::sampler::TokenSampler;
use super::stop_strings::{SearchedText, StopStringSearch};
use crate::grammar::{CompiledGrammar, GrammarState};
use crate::{Config, Error, Result, Stop, TextStream, TokenLogprob, Tokenizer, score_token};

/// Generator of a text: chooses tokens from logits, and assembles their text. The caller computes
/// the logits. The generated text is the concatenation of the texts of all tokens and of
/// [`finish`](Self::finish).
///
/// ```no_run
/// # use vattention_llm::{GenerationParams, Result, Session, TextGenerator, Tokenizer};
/// # fn generate(
/// #     session: &mut Session<'_>, tokenizer: &Tokenizer, params: &GenerationParams,
/// #     prompt: &[u32],
/// # ) -> Result<String> {
/// let config = session.model().config();
/// let mut generator = TextGenerator::new(params, tokenizer, config, prompt)?;
/// let mut logits = session.prefill(prompt)?;
/// let mut text = String::new();
/// loop {
///     let token = generator.choose(&logits)?;
///     text += &token.text;
///     if token.stop.is_some() {
///         return Ok(text + &generator.finish()?);
///     }
///     logits = session.step(token.choice.token)?;
/// }
/// # }
/// ```
#[allow(missing_debug_implementations)]
pub struct TextGenerator<'t> {
    sampler: TokenSampler,
    grammar: Option<GrammarState>,
    stream: TextStream<'t>,
    search: StopStringSearch,
    /// Tokens of the model that end a text.
    ends: Vec<u32>,
    /// Further tokens that end this text.
    stop_tokens: Vec<u32>,
    max_tokens: usize,
    vocab_size: usize,
    /// Number of alternatives to report.
    logprobs: usize,
    tokens: Vec<u32>,
    /// True if the generation has ended.
    stopped: bool,
    /// Copy of the logits, which the steps of sampling change.
    logits: Vec<f32>,
}

/// Chosen token, and the text that it completes.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// Token and the requested number of alternatives, with their log-probabilities by the model,
    /// before grammar, biases, penalties and temperature.
    pub choice: TokenLogprob,
    /// Text that consists of whole characters and cannot become a part of a stop string; often
    /// empty.
    pub text: String,
    /// Reason why the generation ends with this token; `None` if it continues.
    pub stop: Option<Stop>,
}

impl<'t> TextGenerator<'t> {
    /// Starts a text after a prompt. The prompt's tokens count for `repetition_penalty`, and for no
    /// other penalty.
    ///
    /// # Errors
    /// [`Error::Input`] that names the field of a wrong parameter.
    pub fn new(
        params: &GenerationParams,
        tokenizer: &'t Tokenizer,
        config: &Config,
        prompt: &[u32],
    ) -> Result<Self> {
        check_params(params, config.vocab_size)?;
        Ok(Self {
            sampler: TokenSampler::new(&params.sampling, prompt),
            grammar: params.grammar.as_ref().map(CompiledGrammar::start),
            stream: tokenizer.stream(),
            search: StopStringSearch::new(&params.stop),
            ends: if params.ignore_eos { Vec::new() } else { config.ends.clone() },
            stop_tokens: params.stop_token_ids.clone(),
            max_tokens: params.max_tokens,
            vocab_size: config.vocab_size,
            logprobs: params.logprobs,
            tokens: Vec::new(),
            stopped: params.max_tokens == 0,
            logits: Vec::new(),
        })
    }

    /// Chooses the next token from the logits after the last one, `[vocab_size]`. While
    /// [`stop`](GeneratedToken::stop) is `None`, the caller continues the sequence with the token.
    ///
    /// # Errors
    /// [`Error::Input`] if the number of logits is wrong, if no token can be chosen, or if the
    /// generation has ended; [`Error::Grammar`] if no token continues the text by the grammar; and
    /// the errors of [`Tokenizer::decode`].
    pub fn choose(&mut self, logits: &[f32]) -> Result<GeneratedToken> {
        self.check_can_choose(logits)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        if let Some(grammar) = &mut self.grammar {
            grammar.mask(&mut self.logits)?;
        }
        let token = self.sampler.choose(&mut self.logits, self.tokens.len())?;
        let choice = score_token(logits, token, self.logprobs);
        let (text, stop) = match self.find_end(token) {
            Some(stop) => (String::new(), Some(stop)),
            None => self.push(token)?,
        };
        self.stopped = stop.is_some();
        Ok(GeneratedToken { choice, text, stop })
    }

    /// Ends the generation, and returns the text that was withheld so far.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::decode`].
    pub fn finish(&mut self) -> Result<String> {
        self.stopped = true;
        let SearchedText { text, stop } = self.search.push(&self.stream.finish());
        Ok(if stop.is_some() { text } else { text + &self.search.finish() })
    }

    /// Generated tokens so far, without an end or stop token.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn check_can_choose(&self, logits: &[f32]) -> Result<()> {
        if self.stopped {
            let count = self.tokens.len();
            let reason = format!("the generation has ended after {count} tokens");
            return Err(Error::input("max_tokens", reason));
        }
        if logits.len() != self.vocab_size {
            let (found, expected) = (logits.len(), self.vocab_size);
            let reason = format!("there are {found}; expected `vocab_size` = {expected}");
            return Err(Error::input("logits", reason));
        }
        Ok(())
    }

    fn find_end(&self, token: u32) -> Option<Stop> {
        if self.ends.contains(&token) {
            return Some(Stop::End(token));
        }
        self.stop_tokens.contains(&token).then_some(Stop::StopToken(token))
    }

    /// Adds a token to the text.
    fn push(&mut self, token: u32) -> Result<(String, Option<Stop>)> {
        if let Some(grammar) = &mut self.grammar {
            grammar.push(token)?;
        }
        self.sampler.push(token);
        self.tokens.push(token);
        let SearchedText { text, stop } = self.search.push(&self.stream.push(token)?);
        let is_last = self.tokens.len() == self.max_tokens;
        if stop.is_some() {
            // The bytes of the token that follow the stop string are not part of the text.
            self.stream.discard();
        }
        let stop = stop.map(Stop::StopString).or_else(|| is_last.then_some(Stop::Length));
        Ok((text, stop))
    }
}
