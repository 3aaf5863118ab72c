//! Endpoints `/tokenize`, `/detokenize` and `/tokenizer_info`, as in vLLM. lm-eval uses them as a
//! remote tokenizer.

use serde::Serialize;
use serde_json::Value;
use vattention_llm::ChatMessages;

use crate::chat::encode_messages;
use crate::error::{ApiError, describe_failure};
use crate::fields::{Fields, refuse_absence};
use crate::messages::{MESSAGES, read_messages};
use crate::params::{read_tokens, take_variables};
use crate::state::App;

/// Answer of `/tokenize`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenList {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    /// Name of each token in the vocabulary, if the request asks for the names.
    token_strs: Option<Vec<String>>,
}

/// Answer of `/detokenize`.
#[derive(Debug, Serialize)]
pub(crate) struct TextOfTokens {
    prompt: String,
}

/// Answer of `/tokenizer_info`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenizerInfo {
    tokenizer_class: &'static str,
    bos_token: Option<String>,
    eos_token: Option<String>,
    /// Padding token, which is always null because texts are never padded.
    pad_token: Option<String>,
    add_bos_token: bool,
    chat_template: Option<String>,
    model_max_length: usize,
    vocab_size: usize,
}

/// Reads a request to `/tokenize`, a text or messages, and returns the tokens.
pub(crate) fn tokenize(app: &App, mut fields: Fields) -> Result<TokenList, ApiError> {
    take_model(app, &mut fields)?;
    let with_texts = fields.take_flag("return_token_strs")?.unwrap_or(false);
    let tokenizer = &app.served.tokenizer;
    let tokens = match fields.take_text("prompt")? {
        Some(text) => {
            let special = fields.take_flag("add_special_tokens")?.unwrap_or(true);
            fields.expect_empty()?;
            let tokens = if special { tokenizer.first(&text) } else { tokenizer.next(&text) };
            tokens.map_err(|error| ApiError::parameter("prompt", describe_failure(&error)))?
        }
        None => tokenize_messages(app, fields)?,
    };
    let name = |&token: &u32| tokenizer.token_name(token).unwrap_or_default();
    Ok(TokenList {
        count: tokens.len(),
        max_model_len: app.served.config.context,
        token_strs: with_texts.then(|| tokens.iter().map(name).collect()),
        tokens,
    })
}

fn tokenize_messages(app: &App, mut fields: Fields) -> Result<Vec<u32>, ApiError> {
    if !fields.has(MESSAGES) {
        return Err(refuse_absence("prompt", "a text, or `messages`"));
    }
    let messages = read_messages(&mut fields)?;
    let tools = fields.take_list("tools")?.filter(|tools| !tools.is_empty()).map(Value::Array);
    let variables = take_variables(&mut fields, "chat_template_kwargs")?;
    let add_generation_prompt = fields.take_flag("add_generation_prompt")?.unwrap_or(true);
    fields.expect_empty()?;
    let conversation = ChatMessages {
        messages: &messages,
        tools: tools.as_ref(),
        variables: &variables,
        add_generation_prompt,
    };
    encode_messages(app, &conversation)
}

/// Reads a request to `/detokenize`, and returns the text, special tokens included.
pub(crate) fn detokenize(app: &App, mut fields: Fields) -> Result<TextOfTokens, ApiError> {
    take_model(app, &mut fields)?;
    let values = fields.take_list("tokens")?;
    let values = values.ok_or_else(|| refuse_absence("tokens", "a list of tokens"))?;
    fields.expect_empty()?;
    let tokens = read_tokens("tokens", &values, app.served.config.vocab_size)?;
    let refuse = |error| ApiError::parameter("tokens", describe_failure(&error));
    Ok(TextOfTokens { prompt: app.served.tokenizer.decode_with_special(&tokens).map_err(refuse)? })
}

/// Describes the tokenizer.
pub(crate) fn describe(app: &App) -> TokenizerInfo {
    let served = &app.served;
    let name = |token: Option<&u32>| token.and_then(|&token| served.tokenizer.token_name(token));
    let before = served.tokenizer.tokens_before_texts();
    TokenizerInfo {
        tokenizer_class: "PreTrainedTokenizerFast",
        bos_token: name(before.first()),
        eos_token: name(served.config.ends.first()),
        pad_token: None,
        add_bos_token: !before.is_empty(),
        chat_template: served.template.as_ref().map(|template| template.source().to_owned()),
        model_max_length: served.config.context,
        vocab_size: served.config.vocab_size,
    }
}

/// Reads the optional `model`.
fn take_model(app: &App, fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take_text("model")? {
        Some(model) => app.served.find_pipeline(&model).map(|_| ()),
        None => Ok(()),
    }
}
