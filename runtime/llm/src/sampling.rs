//! Parameters of a generation.

/// Parameters of the choice of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits, at least 0; 0 chooses the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens to choose from; 0 means all.
    pub top_k: usize,
    /// Probability of the smallest set of most likely tokens to choose from, in (0, 1].
    pub top_p: f32,
    /// Least probability of a token relative to the most likely one, in [0, 1).
    pub min_p: f32,
    /// Divisor of the positive logits, and factor of the negative ones, of tokens that occurred in
    /// prompt or text; above 0, and 1 is off.
    pub repetition_penalty: f32,
    /// Number subtracted from the logit of each token that the text contains, in [-2, 2].
    pub presence_penalty: f32,
    /// Number subtracted from a token's logit for each of its occurrences in the text, in [-2, 2].
    pub frequency_penalty: f32,
    /// Numbers added to the logits of tokens, in [-100, 100].
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers. Equal seeds and prompts give equal texts.
    pub seed: u64,
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
    /// Parameters of the choice of tokens.
    pub sampling: SamplingParams,
    /// Texts that end the generation. They are not part of the text.
    pub stop: Vec<String>,
    /// Tokens that end the generation, besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// True if the model's end tokens do not end the generation.
    pub ignore_eos: bool,
    /// Number of alternatives to report for each token.
    pub logprobs: usize,
    /// Structure that the text must have.
    pub grammar: Option<Grammar>,
}

/// Structure that a generated text must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that a schema allows.
    JsonSchema(serde_json::Value),
    /// Any JSON object.
    JsonObject,
    /// Grammar in the format of Lark.
    Lark(String),
    /// Regular expression that the whole text matches.
    Regex(String),
}
