//! State of a running job: a prefill in blocks, then decode steps.

use std::collections::VecDeque;

use vattention_core::{Backend, Options};
use vattention_llm::{
    Model, PrefillOptions, Prefilled, PromptReader, Session, Stop, TextGenerator, TokenLogprob,
    Tokenizer, score_token,
};

use super::handle::SubmitLimits;
use super::tally::{UsageTally, report_step};
use super::{EngineOptions, Event, Finished, Job, JobError, JobUsage, PipelineMetrics, TokenEvent};

/// Model, tokenizer, backend and options, which all sequences share.
#[derive(Clone, Copy)]
pub(super) struct ModelContext<'m> {
    pub(super) model: &'m Model,
    pub(super) tokenizer: &'m Tokenizer,
    pub(super) backend: &'m dyn Backend,
    pub(super) options: &'m EngineOptions,
}

/// Running job.
pub(super) struct Sequence<'m> {
    context: ModelContext<'m>,
    job: Job,
    /// Bytes reserved for keys and values.
    pub(super) reserved: u64,
    generator: TextGenerator<'m>,
    phase: Phase<'m>,
    /// Scores of the prompt's tokens so far, if the job requests them.
    scores: Vec<TokenLogprob>,
    usage: JobUsage,
    tally: UsageTally,
    /// Number of generated tokens that the engine's metrics already include.
    counted_tokens: usize,
    /// Last event of the job; `None` before its end.
    last_event: Option<Event>,
}

/// Phase of a job, which determines its next work.
enum Phase<'m> {
    /// Dense attention prefills the prompt.
    Reading(Box<PromptReader<'m>>),
    /// Each decode step adds one token to the session.
    Decoding(Box<Decoding<'m>>),
    /// The job has ended.
    Ended,
}

struct Decoding<'m> {
    session: Session<'m>,
    /// Token of the next step.
    token: u32,
    /// Prompt tokens after `token`, which are decoded instead of prefilled.
    known: VecDeque<u32>,
}

impl<'m> Sequence<'m> {
    /// Starts a job.
    ///
    /// # Errors
    /// Returns the job with the reason why the model refuses it.
    pub(super) fn new(
        context: ModelContext<'m>,
        job: Job,
        reserved: u64,
    ) -> Result<Self, Box<RefusedJob>> {
        match Self::begin(context, &job) {
            Ok((generator, phase)) => {
                let usage = JobUsage { prompt_tokens: job.prompt.len(), ..JobUsage::default() };
                let (scores, tally) = (Vec::new(), UsageTally::default());
                let (counted_tokens, last_event) = (0, None);
                Ok(Self {
                    context,
                    job,
                    reserved,
                    generator,
                    phase,
                    scores,
                    usage,
                    tally,
                    counted_tokens,
                    last_event,
                })
            }
            Err(error) => Err(Box::new(RefusedJob { job, error })),
        }
    }

    fn begin(
        context: ModelContext<'m>,
        job: &Job,
    ) -> vattention_llm::Result<(TextGenerator<'m>, Phase<'m>)> {
        let ModelContext { model, tokenizer, options, .. } = context;
        model.check(&job.prompt, 0)?;
        model.check_length(job.prompt.len().saturating_add(job.params.max_tokens))?;
        let generator = TextGenerator::new(&job.params, tokenizer, model.config(), &job.prompt)?;
        let dense = job.dense_prefix.unwrap_or(usize::MAX).max(1).min(job.prompt.len());
        let prefill = PrefillOptions { block: options.block, ..PrefillOptions::default() };
        let reader = PromptReader::new(model, &job.prompt[..dense], prefill)?;
        Ok((generator, Phase::Reading(Box::new(reader))))
    }

    /// Returns true if the client has disconnected.
    pub(super) fn is_cancelled(&self) -> bool {
        self.job.events.is_closed()
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    pub(super) fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Reading(_))
    }

    pub(super) fn is_decoding(&self) -> bool {
        matches!(self.phase, Phase::Decoding(_))
    }

    pub(super) fn pipeline(&self) -> usize {
        self.job.pipeline
    }

    /// Returns the reader of the prompt; `None` after the prefill.
    pub(super) fn reader(&mut self) -> Option<&mut PromptReader<'m>> {
        match &mut self.phase {
            Phase::Reading(reader) => Some(reader),
            _ => None,
        }
    }

    /// Returns the session and the token of its next decode step; `None` if the job is not
    /// decoding.
    pub(super) fn next_step(&mut self) -> Option<(&mut Session<'m>, u32)> {
        match &mut self.phase {
            Phase::Decoding(decoding) => Some((&mut decoding.session, decoding.token)),
            _ => None,
        }
    }

    /// Returns true if prompt blocks may be copied from the cache. Scores of the prompt need the
    /// logits of all its tokens, which the cache does not have.
    pub(super) fn may_copy(&self) -> bool {
        self.job.prompt_logprobs.is_none()
    }

    /// Records the number of prompt tokens that were copied from the cache.
    pub(super) fn note_copied(&mut self, tokens: usize) {
        self.usage.cached_tokens = tokens;
    }

    /// Prefills one block of the prompt, unless the prompt is complete, and returns the number of
    /// its tokens.
    pub(super) fn read_block(&mut self) -> Result<usize, JobError> {
        let Phase::Reading(reader) = &mut self.phase else { return Ok(0) };
        if reader.is_finished() {
            return Ok(0);
        }
        let before = reader.tokens_read();
        reader.read_block();
        if let Some(top) = self.job.prompt_logprobs {
            self.scores.extend(reader.score_next_tokens(top)?);
        }
        Ok(reader.tokens_read() - before)
    }

    /// Ends the prefill, and returns the prompt; `None` if there is no prefill.
    pub(super) fn finish_prompt(&mut self) -> Result<Option<Prefilled>, JobError> {
        let Phase::Reading(reader) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return Ok(None);
        };
        Ok(Some(reader.finish()?))
    }

    /// Starts the decode phase after a prompt.
    pub(super) fn start_decoding(
        &mut self,
        prompt: &Prefilled,
        limits: &SubmitLimits,
    ) -> Result<(), JobError> {
        let session = self.start_session(prompt)?;
        self.reserved = limits.stored_bytes(&self.job);
        let known = self.job.prompt[prompt.tokens.len()..].iter().copied().collect();
        self.phase = Phase::Decoding(Box::new(Decoding { session, token: 0, known }));
        self.choose_token(&prompt.logits)
    }

    fn start_session(&self, prompt: &Prefilled) -> vattention_llm::Result<Session<'m>> {
        let ModelContext { model, tokenizer, backend, options } = self.context;
        let pipeline = &options.pipelines[self.job.pipeline];
        let attention = Options { storage: options.storage, ..Options::default() };
        let session = Session::new(model, backend, pipeline, &attention)?;
        let mut session = session.with_classes(tokenizer.classes_for(pipeline)?);
        session.begin(prompt)?;
        Ok(session)
    }

    /// Completes a decode step: adds its reports to the tally, and chooses the next token. Returns
    /// the sums over this step.
    pub(super) fn finish_step(&mut self, logits: &[f32]) -> Result<PipelineMetrics, JobError> {
        let Phase::Decoding(decoding) = &self.phase else { return Ok(PipelineMetrics::default()) };
        let sums = self.tally.add(decoding.session.reports());
        self.choose_token(logits)?;
        Ok(sums)
    }

    /// Chooses the token of the next step: the next prompt token while some are left, otherwise a
    /// token that is sampled from the logits.
    fn choose_token(&mut self, logits: &[f32]) -> Result<(), JobError> {
        let Phase::Decoding(decoding) = &mut self.phase else { return Ok(()) };
        if let Some(token) = decoding.known.pop_front() {
            if let Some(top) = self.job.prompt_logprobs {
                self.scores.push(score_token(logits, token, top));
            }
            decoding.token = token;
            return Ok(());
        }
        if self.job.prompt_logprobs.take().is_some() {
            let scores = std::mem::take(&mut self.scores);
            self.send(Event::PromptScores(scores));
        }
        if self.job.params.max_tokens == 0 {
            return self.finish(Stop::Length);
        }
        let generated = self.generator.choose(logits)?;
        let Phase::Decoding(decoding) = &mut self.phase else { return Ok(()) };
        decoding.token = generated.choice.token;
        let kv_heads = self.context.model.config().shape.kv_heads;
        let reports = decoding.session.reports();
        let reported = self.job.reports && !reports.is_empty();
        let report = reported.then(|| report_step(reports, kv_heads));
        self.usage.completion_tokens += 1;
        let (choice, text) = (generated.choice, generated.text);
        self.send(Event::Token(TokenEvent { choice, text, report }));
        match generated.stop {
            Some(stop) => self.finish(stop),
            None => Ok(()),
        }
    }

    fn finish(&mut self, stop: Stop) -> Result<(), JobError> {
        let text = self.generator.finish()?;
        if let Phase::Decoding(decoding) = &self.phase {
            self.usage.index_bytes = decoding.session.index_bytes();
        }
        self.tally.write_to(&mut self.usage);
        self.phase = Phase::Ended;
        let usage = self.usage.clone();
        self.last_event = Some(Event::Finished(Finished { text, stop, usage }));
        Ok(())
    }

    /// Ends the job with an error.
    pub(super) fn fail(&mut self, error: JobError) {
        self.phase = Phase::Ended;
        self.last_event = Some(Event::Failed(error));
    }

    /// Returns the number of tokens that were generated since the last call.
    pub(super) fn count_new_tokens(&mut self) -> usize {
        let new = self.usage.completion_tokens - self.counted_tokens;
        self.counted_tokens = self.usage.completion_tokens;
        new
    }

    /// Sends the last event of a job that has ended.
    pub(super) fn send_last_event(mut self) {
        if let Some(event) = self.last_event.take() {
            self.send(event);
        }
    }

    /// Sends an event. If the client has disconnected, the next iteration removes the job.
    fn send(&self, event: Event) {
        let _ = self.job.events.send(event);
    }
}

/// Job that could not be started, and the reason.
pub(super) struct RefusedJob {
    job: Job,
    error: vattention_llm::Error,
}

impl RefusedJob {
    /// Reports the reason to the client.
    pub(super) fn report(self) {
        let _ = self.job.events.send(Event::Failed(self.error.into()));
    }
}
