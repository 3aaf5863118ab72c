//! Checks that all endpoints share, and the conversion of a request to jobs.

use vattention_llm::Config;

use crate::answer::{EchoedPrompt, PreparedRequest};
use crate::engine::JobError;
use crate::error::ApiError;
use crate::jobs::JobPlan;
use crate::params::SharedParams;
use crate::random::draw_number;
use crate::state::App;

/// Request of one endpoint, before the checks that all endpoints share.
#[derive(Debug)]
pub(crate) struct RequestDraft {
    pub(crate) shared: SharedParams,
    /// Name of the request's parameter that contains the prompts.
    pub(crate) parameter: &'static str,
    /// Tokens of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) echo: Option<Vec<EchoedPrompt>>,
    /// Number of alternatives of each token; `None` if the request asks for no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Value of `max_tokens` if the request does not set it.
    pub(crate) default_tokens: usize,
}

impl RequestDraft {
    /// Checks the request against the model and the limits of the server, and compiles its
    /// grammar.
    pub(crate) fn finish(self, app: &App) -> Result<PreparedRequest, ApiError> {
        let Self { mut shared, parameter, prompts, echo, logprobs, default_tokens } = self;
        let pipeline = app.served.find_pipeline(&shared.model)?;
        check_count(parameter, prompts.len(), shared.choices, app.options.max_queue)?;
        if prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::parameter(parameter, "no tokens; expected at least one"));
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let config = &app.served.config;
        check_length(config, parameter, longest, shared.max_tokens.unwrap_or(1))?;
        let rest = config.context - longest;
        shared.generation.max_tokens = shared.max_tokens.unwrap_or(default_tokens.min(rest));
        shared.generation.logprobs = logprobs.unwrap_or(0);
        let compile = |grammar| app.served.tokenizer.compile_grammar(grammar);
        shared.generation.grammar =
            shared.grammar.as_ref().map(compile).transpose().map_err(JobError::from)?;
        if !shared.has_seed {
            shared.generation.sampling.seed = draw_number();
        }
        let prompt_logprobs = logprobs.filter(|_| echo.is_some());
        let by_server = app.options.dense_prefix.filter(|_| prompt_logprobs.is_some());
        let plan = JobPlan {
            pipeline,
            prompts,
            choices: shared.choices,
            dense_prefix: shared.dense_prefix.or(by_server),
            params: shared.generation,
            prompt_logprobs,
            reports: shared.stream.is_some_and(|stream| stream.reports),
        };
        Ok(PreparedRequest {
            model: shared.model,
            plan,
            echo,
            shows_logprobs: logprobs.is_some(),
            stream: shared.stream,
        })
    }
}

/// Refuses a request with more jobs than the queue can hold.
pub(crate) fn check_count(
    parameter: &str,
    prompts: usize,
    choices: usize,
    most: usize,
) -> Result<(), ApiError> {
    let jobs = prompts.saturating_mul(choices);
    if jobs <= most {
        return Ok(());
    }
    let found = format!("found {prompts} prompts with {choices} choices each");
    Err(ApiError::parameter(parameter, format!("{found}; expected at most {most} texts together")))
}

fn check_length(
    config: &Config,
    parameter: &str,
    prompt: usize,
    answer: usize,
) -> Result<(), ApiError> {
    let most = config.context;
    if prompt.checked_add(answer).is_some_and(|tokens| tokens <= most) {
        return Ok(());
    }
    let reason = format!(
        "found {prompt} tokens, and {answer} of the answer; the model's context has {most} tokens"
    );
    Err(ApiError::too_long(parameter, reason))
}
