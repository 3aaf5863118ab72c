//! Options of sampling, of stops and of grammars.

use std::path::{Path, PathBuf};

use vattention_llm::{Error, GenerationParams, Grammar, SamplingParams, Tokenizer};

use crate::fail::Failure;
use crate::models::checkpoint::read_text;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Divisor of the logits before a token is drawn; 0 chooses the most likely token.
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    temperature: f32,
    /// Draw from the N most likely tokens; 0 means all.
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    top_k: usize,
    /// Draw from the fewest most likely tokens whose probabilities sum to at least P; 1 means all.
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    top_p: f32,
    /// Draw from the tokens with at least P times the largest probability; 0 means all.
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    min_p: f32,
    /// Divisor of positive logits, and factor of negative ones, for tokens that occurred in the
    /// prompt or the answer; 1 changes nothing.
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Number subtracted from the logits of tokens that occurred in the answer.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Number subtracted from a token's logit for each of its occurrences in the answer.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Number between -100 and 100 that is added to the logit of the token with number TOKEN; -100
    /// excludes the token. The option can be repeated.
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws. Equal seeds and prompts give equal answers.
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
    seed: u64,
    /// Text that ends the answer, and is not part of it. The option can be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Number of a token that ends the answer, besides the model's own. The option can be
    /// repeated.
    #[arg(long, value_name = "TOKEN")]
    stop_token: Vec<u32>,
    /// File with a JSON schema that the answer must satisfy.
    #[arg(long, value_name = "FILE", conflicts_with = "grammar")]
    json_schema: Option<PathBuf>,
    /// File with a grammar of the answer, in llguidance's variant of the Lark format.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl SamplingArgs {
    /// Returns the parameters of a generation with a tokenizer, and reads the files.
    ///
    /// # Errors
    /// If a file cannot be read, or the grammar cannot be compiled.
    /// [`TextGenerator::new`](vattention_llm::TextGenerator::new) checks everything else;
    /// [`name_option`] names the option of its errors.
    pub(crate) fn to_params(
        &self,
        tokenizer: &Tokenizer,
        max_tokens: usize,
    ) -> Result<GenerationParams, Failure> {
        let compile = |grammar| tokenizer.compile_grammar(&grammar);
        Ok(GenerationParams {
            sampling: SamplingParams {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                logit_bias: self.logit_bias.clone(),
                seed: self.seed,
            },
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token.clone(),
            grammar: self.read_grammar()?.map(compile).transpose().map_err(name_option)?,
            ..GenerationParams::new(max_tokens)
        })
    }

    /// Returns the files that are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> + Clone {
        self.json_schema.iter().chain(&self.grammar)
    }

    fn read_grammar(&self) -> Result<Option<Grammar>, Failure> {
        if let Some(path) = &self.json_schema {
            return Ok(Some(Grammar::JsonSchema(read_schema(path)?)));
        }
        let grammar = self.grammar.as_ref();
        grammar.map(|path| Ok(Grammar::Lark(read_text("--grammar", path)?))).transpose()
    }
}

fn read_schema(path: &Path) -> Result<serde_json::Value, Failure> {
    let text = read_text("--json-schema", path)?;
    let refuse = |error| Failure::input(format!("--json-schema {}: {error}", path.display()));
    serde_json::from_str(&text).map_err(refuse)
}

/// Returns the failure of a generation, which names the option that caused it, if any.
pub(crate) fn name_option(error: Error) -> Failure {
    match error {
        Error::Input { what: "stop_token_ids", reason } => {
            Failure::input(format!("--stop-token: {reason}"))
        }
        Error::Grammar { name, reason } => {
            Failure::input(format!("--{}: {reason}", name.replace('_', "-")))
        }
        Error::Input { what, reason } if OPTIONS.contains(&what) => {
            Failure::input(format!("--{}: {reason}", what.replace('_', "-")))
        }
        other => other.into(),
    }
}

/// Parameters whose option has the same name.
const OPTIONS: [&str; 9] = [
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "ignore_eos",
];

/// Parses `TOKEN=BIAS`.
fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let expected = "expected TOKEN=BIAS, such as 42=-1.5";
    let (token, bias) = text.split_once('=').ok_or(expected)?;
    Ok((token.parse().map_err(|_| expected)?, bias.parse().map_err(|_| expected)?))
}
