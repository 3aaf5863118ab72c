//! `POST /v1/chat/completions`: answers in conversations.

use serde::Serialize;
use serde_json::{Map, Value};
use vattention_llm::{ChatMessages, ChatTemplate};

use crate::answer::{AnswerFormat, TextPart};
use crate::error::{ApiError, describe_failure};
use crate::fields::{Fields, refuse_value};
use crate::harmless::drop_harmless;
use crate::messages::{MESSAGES, read_messages};
use crate::params::{MOST_ALTERNATIVES, SharedParams, take_variables};
use crate::prepare::RequestDraft;
use crate::state::App;
use crate::token_text::{ScoredToken, TokenText};

/// Value of `max_tokens` if the request does not set it, limited by the rest of the context. The
/// engine reserves memory for this number of tokens.
const DEFAULT_TOKENS: usize = 4096;
/// Maximum number of tools of a request.
const MOST_TOOLS: usize = 128;

/// Reads the body of a request.
pub(crate) fn read_draft(app: &App, mut fields: Fields) -> Result<RequestDraft, ApiError> {
    let mut shared = SharedParams::take(&mut fields, app.served.config.vocab_size)?;
    shared.max_tokens = take_max_tokens(&mut fields, shared.max_tokens)?;
    let logprobs = take_logprobs(&mut fields)?;
    let tools = take_tools(&mut fields)?;
    let variables = take_variables(&mut fields, "chat_template_kwargs")?;
    let add_generation_prompt = fields.take_flag("add_generation_prompt")?.unwrap_or(true);
    let messages = read_messages(&mut fields)?;
    drop_harmless(&mut fields)?;
    fields.expect_empty()?;
    app.served.find_pipeline(&shared.model)?;
    let conversation = ChatMessages {
        messages: &messages,
        tools: tools.as_ref(),
        variables: &variables,
        add_generation_prompt,
    };
    let prompt = encode_messages(app, &conversation)?;
    Ok(RequestDraft {
        shared,
        parameter: MESSAGES,
        prompts: vec![prompt],
        echo: None,
        logprobs,
        default_tokens: DEFAULT_TOKENS,
    })
}

/// Renders a conversation, and returns its tokens.
pub(crate) fn encode_messages(
    app: &App,
    conversation: &ChatMessages<'_>,
) -> Result<Vec<u32>, ApiError> {
    let template = app.served.template.as_ref();
    let refuse = |error| ApiError::parameter(name_source(&error), describe_failure(&error));
    let no_template =
        || ApiError::parameter(MESSAGES, "the model has no chat template; use /v1/completions");
    let render = |template: &ChatTemplate| template.render_messages(conversation);
    let text = template.map(render).ok_or_else(no_template)?.map_err(refuse)?;
    app.served.tokenizer.next(&text).map_err(refuse)
}

/// Returns the name of the parameter that caused an error of a template.
fn name_source(error: &vattention_llm::Error) -> &'static str {
    match error {
        vattention_llm::Error::Input { what: "variables", .. } => "chat_template_kwargs",
        vattention_llm::Error::Input { what: "tools", .. } => "tools",
        _ => MESSAGES,
    }
}

/// Reads `max_completion_tokens`, the newer name of `max_tokens`.
fn take_max_tokens(fields: &mut Fields, older: Option<usize>) -> Result<Option<usize>, ApiError> {
    const NAME: &str = "max_completion_tokens";
    let newer = fields.take_integer(NAME, 1, i64::MAX)?.map(|tokens| tokens as usize);
    match (newer, older) {
        (Some(newer), Some(older)) if newer != older => {
            let reason = format!("found {newer}, and `max_tokens` = {older}; expected one of them");
            Err(ApiError::parameter(NAME, reason))
        }
        (None, Some(0)) => {
            Err(ApiError::parameter("max_tokens", "found 0; expected an integer of at least 1"))
        }
        _ => Ok(newer.or(older)),
    }
}

/// Reads `logprobs` and `top_logprobs`: the number of alternatives of each token.
fn take_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let shown = fields.take_flag("logprobs")?.unwrap_or(false);
    match (shown, fields.take_count("top_logprobs", MOST_ALTERNATIVES)?) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::parameter("top_logprobs", "expected `logprobs` to be true"))
        }
    }
}

/// Reads `tools` and `tool_choice`. The chat template shows the tools to the model; tool calls of
/// the model are returned as text.
fn take_tools(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let tools = fields.take_list("tools")?.unwrap_or_default();
    if tools.len() > MOST_TOOLS {
        let reason = format!("found {} tools; expected at most {MOST_TOOLS}", tools.len());
        return Err(ApiError::parameter("tools", reason));
    }
    if let Some((index, tool)) = tools.iter().enumerate().find(|(_, tool)| !tool.is_object()) {
        return Err(refuse_value(&format!("tools[{index}]"), tool, "an object"));
    }
    let shown = match fields.take("tool_choice") {
        None => true,
        Some(Value::String(choice)) if choice == "auto" => true,
        Some(Value::String(choice)) if choice == "none" => false,
        Some(_) => {
            let reason = "only \"auto\" and \"none\" are supported; a call cannot be forced";
            return Err(ApiError::unsupported("tool_choice", reason));
        }
    };
    Ok((shown && !tools.is_empty()).then_some(Value::Array(tools)))
}

/// Format of answers in conversations.
#[derive(Debug)]
pub(crate) struct ChatFormat {
    /// True if the request asks for log-probabilities.
    pub(crate) logprobs: bool,
}

/// Choice of an answer.
#[derive(Serialize)]
pub(crate) struct ChatChoice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Message of the model.
#[derive(Serialize)]
struct AssistantMessage {
    role: &'static str,
    content: String,
    /// Refusal, which is always null; clients expect the field.
    refusal: Option<String>,
}

/// Part of a choice in a stream.
#[derive(Serialize)]
pub(crate) struct ChatDelta {
    index: usize,
    delta: Map<String, Value>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Log-probabilities of an answer's tokens.
#[derive(Serialize)]
struct ChatLogprobs {
    content: Vec<ChatToken>,
}

/// Token of an answer.
#[derive(Serialize)]
struct ChatToken {
    #[serde(flatten)]
    chosen: LikelyToken,
    top_logprobs: Vec<LikelyToken>,
}

/// Token with its log-probability.
#[derive(Serialize)]
struct LikelyToken {
    #[serde(flatten)]
    token: TokenText,
    logprob: f32,
}

impl ChatFormat {
    fn logprobs(&self, tokens: Vec<ScoredToken>) -> Option<ChatLogprobs> {
        let likely = |(token, logprob)| LikelyToken { token, logprob };
        let convert = |scored: ScoredToken| ChatToken {
            chosen: likely((scored.token, scored.logprob.unwrap_or_default())),
            top_logprobs: scored.top.into_iter().map(likely).collect(),
        };
        self.logprobs.then(|| ChatLogprobs { content: tokens.into_iter().map(convert).collect() })
    }
}

impl AnswerFormat for ChatFormat {
    const ID: &'static str = "chatcmpl";
    const OBJECT: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";
    type Choice = ChatChoice;
    type Delta = ChatDelta;

    fn choice(&self, index: usize, part: TextPart) -> ChatChoice {
        let message = AssistantMessage { role: "assistant", content: part.text, refusal: None };
        let logprobs = self.logprobs(part.tokens);
        ChatChoice { index, message, logprobs, finish_reason: part.finish }
    }

    fn opening(&self, index: usize) -> Option<ChatDelta> {
        let fields = [("role", "assistant"), ("content", "")];
        let delta = fields.map(|(name, text)| (name.to_owned(), text.into())).into_iter().collect();
        Some(ChatDelta { index, delta, logprobs: None, finish_reason: None })
    }

    fn delta(&self, index: usize, part: TextPart) -> ChatDelta {
        let mut delta = Map::new();
        if !part.text.is_empty() || part.finish.is_none() {
            delta.insert("content".into(), part.text.into());
        }
        // The last part has no tokens, because the tokens of withheld text were sent with earlier
        // parts.
        let logprobs = (!part.tokens.is_empty()).then(|| self.logprobs(part.tokens)).flatten();
        ChatDelta { index, delta, logprobs, finish_reason: part.finish }
    }
}
