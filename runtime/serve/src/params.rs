//! Generation parameters that completions and chats share.

use serde_json::{Map, Value};
use vattention_llm::{GenerationParams, Grammar, SamplingParams};

use crate::error::ApiError;
use crate::fields::{Fields, refuse_absence, refuse_value};
use crate::structure::take_grammar;

/// Maximum number of stop strings. OpenAI allows 4; clients of llama.cpp and vLLM send more.
const MOST_STOPS: usize = 16;
/// Maximum length of a stop string, in bytes.
const LONGEST_STOP: usize = 1024;
/// Maximum number of tokens in `logit_bias`, and in `stop_token_ids`.
const MOST_TOKENS: usize = 1024;
/// Maximum number of alternatives of a token.
pub(crate) const MOST_ALTERNATIVES: i64 = 20;
/// Maximum number of choices for a prompt.
const MOST_CHOICES: i64 = 16;

/// Parameters of a request, without the parameters that only one endpoint has.
#[derive(Debug)]
pub(crate) struct SharedParams {
    pub(crate) model: String,
    /// Number of choices for each prompt.
    pub(crate) choices: usize,
    /// Sampling parameters and stop conditions; `RequestDraft::finish` sets `max_tokens`,
    /// `logprobs` and `grammar`.
    pub(crate) generation: GenerationParams,
    /// Grammar of `response_format`, which `RequestDraft::finish` compiles.
    pub(crate) grammar: Option<Grammar>,
    /// True if the request sets the seed; otherwise the server draws one.
    pub(crate) has_seed: bool,
    /// Maximum number of generated tokens, if the request sets it.
    pub(crate) max_tokens: Option<usize>,
    /// Parameters of the stream; `None` if the answer is sent as a whole.
    pub(crate) stream: Option<StreamParams>,
    /// Number of prompt tokens that dense attention prefills.
    pub(crate) dense_prefix: Option<usize>,
}

/// Parameters of a streamed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamParams {
    /// True if the last chunk contains the usage.
    pub(crate) usage: bool,
    /// True if each chunk contains the report of its decode step.
    pub(crate) reports: bool,
}

impl SharedParams {
    /// Reads the shared parameters of a request to a model with `vocab_size` tokens.
    pub(crate) fn take(fields: &mut Fields, vocab_size: usize) -> Result<Self, ApiError> {
        let model =
            fields.take_text("model")?.ok_or_else(|| refuse_absence("model", "a model's id"))?;
        let seed = fields.take_integer("seed", i64::MIN, i64::MAX)?;
        let (dense_prefix, reports) = take_extension(fields)?;
        Ok(Self {
            model,
            choices: fields.take_integer("n", 1, MOST_CHOICES)?.unwrap_or(1) as usize,
            has_seed: seed.is_some(),
            max_tokens: fields.take_count("max_tokens", i64::MAX)?,
            generation: GenerationParams {
                stop: take_stops(fields)?,
                stop_token_ids: take_stop_tokens(fields, vocab_size)?,
                ignore_eos: fields.take_flag("ignore_eos")?.unwrap_or(false),
                sampling: SamplingParams {
                    seed: seed.unwrap_or(0) as u64,
                    ..take_sampling(fields, vocab_size)?
                },
                ..GenerationParams::new(0)
            },
            grammar: take_grammar(fields)?,
            stream: take_stream(fields, reports)?,
            dense_prefix,
        })
    }
}

fn take_sampling(fields: &mut Fields, vocab_size: usize) -> Result<SamplingParams, ApiError> {
    let default = SamplingParams::default();
    let penalty = "a number from -2 to 2";
    let is_penalty = |number: f64| (-2.0..=2.0).contains(&number);
    let temperature =
        fields.take_number("temperature", "a number from 0 to 2", |t| (0.0..=2.0).contains(&t))?;
    let top_p = fields
        .take_number("top_p", "a number above 0, and at most 1", |p| p as f32 > 0.0 && p <= 1.0)?;
    let min_p = fields.take_number("min_p", "a number from 0 to 1, and below 1", |p| {
        p >= 0.0 && (p as f32) < 1.0
    })?;
    let repetition =
        fields.take_number("repetition_penalty", "a number from 0.01 to 10", |penalty| {
            (0.01..=10.0).contains(&penalty)
        })?;
    // Clients of vLLM send -1 for all tokens, and clients of llama.cpp send 0.
    let top_k = fields.take_integer("top_k", -1, i64::MAX)?.unwrap_or(0);
    Ok(SamplingParams {
        temperature: temperature.unwrap_or(default.temperature),
        top_k: top_k.max(0) as usize,
        top_p: top_p.unwrap_or(default.top_p),
        min_p: min_p.unwrap_or(default.min_p),
        repetition_penalty: repetition.unwrap_or(default.repetition_penalty),
        presence_penalty: fields
            .take_number("presence_penalty", penalty, is_penalty)?
            .unwrap_or(default.presence_penalty),
        frequency_penalty: fields
            .take_number("frequency_penalty", penalty, is_penalty)?
            .unwrap_or(default.frequency_penalty),
        logit_bias: take_bias(fields, vocab_size)?,
        seed: default.seed,
    })
}

/// Reads `logit_bias`: an object whose keys are tokens.
fn take_bias(fields: &mut Fields, vocab_size: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(values) = fields.take_object("logit_bias")?.map(Fields::into_values) else {
        return Ok(Vec::new());
    };
    expect_at_most("logit_bias", values.len(), MOST_TOKENS, "tokens")?;
    values.iter().map(|entry| read_bias(entry, vocab_size)).collect()
}

fn read_bias(entry: (&String, &Value), vocab_size: usize) -> Result<(u32, f32), ApiError> {
    let (key, value) = entry;
    let token = key.parse().ok().filter(|&token: &u32| (token as usize) < vocab_size);
    let Some(token) = token else {
        let expected = format!("expected tokens from 0 to {} as keys", vocab_size - 1);
        let key: String = key.chars().take(40).collect();
        return Err(ApiError::parameter("logit_bias", format!("found {key:?}; {expected}")));
    };
    match value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)) {
        Some(bias) => Ok((token, bias as f32)),
        None => {
            Err(refuse_value(&format!("logit_bias.{token}"), value, "a number from -100 to 100"))
        }
    }
}

/// Reads `stop`: a string, or a list of strings.
fn take_stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let values = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values,
        Some(value) => vec![value],
    };
    expect_at_most("stop", values.len(), MOST_STOPS, "strings")?;
    let read = |value: Value| match value {
        Value::String(text) if !text.is_empty() && text.len() <= LONGEST_STOP => Ok(text),
        other => {
            let expected = format!("strings of 1 to {LONGEST_STOP} bytes");
            Err(refuse_value("stop", &other, &expected))
        }
    };
    values.into_iter().map(read).collect()
}

fn take_stop_tokens(fields: &mut Fields, vocab_size: usize) -> Result<Vec<u32>, ApiError> {
    let values = fields.take_list("stop_token_ids")?.unwrap_or_default();
    expect_at_most("stop_token_ids", values.len(), MOST_TOKENS, "tokens")?;
    read_tokens("stop_token_ids", &values, vocab_size)
}

/// Reads tokens that are less than `vocab_size`.
pub(crate) fn read_tokens(
    name: &str,
    values: &[Value],
    vocab_size: usize,
) -> Result<Vec<u32>, ApiError> {
    let read = |value: &Value| match value.as_u64().filter(|&token| token < vocab_size as u64) {
        Some(token) => Ok(token as u32),
        None => Err(refuse_value(name, value, &format!("tokens from 0 to {}", vocab_size - 1))),
    };
    values.iter().map(read).collect()
}

fn expect_at_most(name: &str, found: usize, most: usize, what: &str) -> Result<(), ApiError> {
    if found <= most {
        return Ok(());
    }
    Err(ApiError::parameter(name, format!("found {found} {what}; expected at most {most}")))
}

fn take_stream(fields: &mut Fields, reports: bool) -> Result<Option<StreamParams>, ApiError> {
    let streams = fields.take_flag("stream")?.unwrap_or(false);
    let options = fields.take_object("stream_options")?;
    if !streams && options.is_some() {
        return Err(ApiError::parameter("stream_options", "expected `stream` to be true"));
    }
    if !streams && reports {
        return Err(ApiError::parameter("vattention.reports", "expected `stream` to be true"));
    }
    let mut usage = false;
    if let Some(mut options) = options {
        usage = options.take_flag("include_usage")?.unwrap_or(false);
        // Chunks are never padded, so there is nothing to switch off.
        options.take_flag("include_obfuscation")?;
        options.expect_empty()?;
    }
    Ok(streams.then_some(StreamParams { usage, reports }))
}

/// Reads the object `vattention`. Returns the length of the dense prefix, and true if the request
/// asks for reports.
fn take_extension(fields: &mut Fields) -> Result<(Option<usize>, bool), ApiError> {
    let Some(mut extension) = fields.take_object("vattention")? else { return Ok((None, false)) };
    let dense_prefix = extension.take_integer("dense_prefix", 1, i64::MAX)?;
    let reports = extension.take_flag("reports")?.unwrap_or(false);
    extension.expect_empty()?;
    Ok((dense_prefix.map(|tokens| tokens as usize), reports))
}

/// Reads an object whose fields are not checked, such as the variables of a chat template.
pub(crate) fn take_variables(
    fields: &mut Fields,
    name: &str,
) -> Result<Map<String, Value>, ApiError> {
    Ok(fields.take_object(name)?.map(Fields::into_values).unwrap_or_default())
}
