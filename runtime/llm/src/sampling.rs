//! Parameters of a generation.

mod checks;
mod draw;
mod filters;
mod generator;
mod history;
mod sampler;
mod stop_strings;
#[cfg(test)]
mod tests;

use crate::grammar::CompiledGrammar;

pub use generator::{GeneratedToken, TextGenerator};

/// Parameters of the sampling of tokens. The steps are applied in the same order as in llama.cpp:
///
/// 1. `logit_bias` is added to the logits.
/// 2. `repetition_penalty`, then `frequency_penalty` and `presence_penalty`, change the logits of
///    tokens that occurred.
/// 3. `top_k` keeps the tokens with the largest logits.
/// 4. `top_p` keeps the smallest set of most likely tokens whose probabilities sum to at least
///    `top_p`. The probabilities are normalised over the tokens that `top_k` keeps.
/// 5. `min_p` keeps the tokens of this set whose probability is at least `min_p` times the largest.
/// 6. The remaining logits are divided by `temperature`, and a token is drawn with the
///    probabilities of their softmax.
///
/// The temperature does not affect the filters of steps 3 to 5. A temperature of 0 chooses the
/// token with the largest logit after step 2. Among tokens with equal logits, the lowest token
/// comes first in every step.
///
/// Draw number *i* of a text uses number *i* of the random stream of the seed, so that a text
/// depends on the logits and the seed alone.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits, at least 0; 0 chooses the most likely token. Default: 1.
    pub temperature: f32,
    /// Number of most likely tokens to choose from; 0, the default, means all.
    pub top_k: usize,
    /// Probability of the smallest set of most likely tokens to choose from, in (0, 1]. Default: 1,
    /// all tokens.
    pub top_p: f32,
    /// Least probability of a token relative to the most likely one, in [0, 1). Default: 0, all
    /// tokens.
    pub min_p: f32,
    /// Divisor of the positive logits, and factor of the negative ones, of tokens that occurred in
    /// prompt or text; above 0. Default: 1, off.
    pub repetition_penalty: f32,
    /// Number subtracted from the logit of each token that the text contains, in [-2, 2]. Tokens of
    /// the prompt do not count. Default: 0, off.
    pub presence_penalty: f32,
    /// Number subtracted from a token's logit for each of its occurrences in the text, in [-2, 2].
    /// Tokens of the prompt do not count. Default: 0, off.
    pub frequency_penalty: f32,
    /// Numbers added to the logits of tokens, in [-100, 100]; -100 excludes a token. The numbers of
    /// a token that occurs several times are summed. Default: none.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers. Equal seeds and prompts give equal texts. Default: 0.
    pub seed: u64,
}

impl SamplingParams {
    /// Returns the parameters of greedy decoding: the most likely token, without penalties.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

impl Default for SamplingParams {
    /// Returns the defaults of the OpenAI API: temperature 1, and no other restriction.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Parameters of a generation.
#[derive(Clone, Debug)]
pub struct GenerationParams {
    /// Maximum number of tokens.
    pub max_tokens: usize,
    /// Parameters of the sampling of tokens.
    pub sampling: SamplingParams,
    /// Stop strings: texts of at least one character that end the generation. A stop string may
    /// span several tokens, and is not part of the generated text. The generation ends at the first
    /// position at which a stop string is complete; if several are complete there, the longest one
    /// counts.
    pub stop: Vec<String>,
    /// Tokens that end the generation, in addition to the model's end tokens. Stop tokens are not
    /// part of the generated text.
    pub stop_token_ids: Vec<u32>,
    /// True if the model's end tokens do not end the generation. The parameters are refused if they
    /// also have a grammar.
    pub ignore_eos: bool,
    /// Number of alternatives to report for each token.
    pub logprobs: usize,
    /// Grammar of the generated text, which the text's tokenizer has
    /// [compiled](crate::Tokenizer::compile_grammar). Tokens that cannot continue the text by the
    /// grammar are excluded before all other steps. The text can be incomplete if the generation
    /// ends for another reason than an end token of the model, such as `max_tokens`.
    pub grammar: Option<CompiledGrammar>,
}

impl GenerationParams {
    /// Returns the parameters of a generation of up to `max_tokens` tokens with the default
    /// sampling, which only the model's end tokens end earlier.
    pub fn new(max_tokens: usize) -> Self {
        Self {
            max_tokens,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: 0,
            grammar: None,
        }
    }
}
