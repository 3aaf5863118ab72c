//! Jobs of one request, and their events.

use std::task::{Context, Poll};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use vattention_llm::GenerationParams;

use crate::engine::{EngineHandle, Event, Job, JobError};
use crate::error::ApiError;

/// Parameters that the jobs of a request share.
#[derive(Debug)]
pub(crate) struct JobPlan {
    pub(crate) pipeline: usize,
    /// Tokens of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Number of jobs for each prompt. The seed of each job is one larger than that of the job
    /// before.
    pub(crate) choices: usize,
    pub(crate) dense_prefix: Option<usize>,
    pub(crate) params: GenerationParams,
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) reports: bool,
}

/// Receivers of the events of submitted jobs. Jobs are cancelled when this value is dropped.
#[derive(Debug)]
pub(crate) struct SubmittedJobs {
    receivers: Vec<Option<UnboundedReceiver<Event>>>,
    /// Index of the job that is polled first. The index rotates, so that no job delays the others.
    first: usize,
}

impl JobPlan {
    /// Submits the jobs: all choices of the first prompt, then those of the next.
    ///
    /// # Errors
    /// Returns an error if the engine refuses a job; the jobs before it are then cancelled.
    pub(crate) fn submit(&self, engine: &EngineHandle) -> Result<SubmittedJobs, ApiError> {
        let mut receivers = Vec::new();
        for prompt in &self.prompts {
            for choice in 0..self.choices {
                let (events, receiver) = unbounded_channel();
                let mut params = self.params.clone();
                params.sampling.seed = params.sampling.seed.wrapping_add(choice as u64);
                engine.submit(Job {
                    pipeline: self.pipeline,
                    prompt: prompt.clone(),
                    dense_prefix: self.dense_prefix.map(|tokens| tokens.min(prompt.len())),
                    params,
                    prompt_logprobs: self.prompt_logprobs,
                    reports: self.reports,
                    events,
                })?;
                receivers.push(Some(receiver));
            }
        }
        Ok(SubmittedJobs { receivers, first: 0 })
    }
}

impl SubmittedJobs {
    /// Returns the next event and the index of its job; `None` after the last events of all jobs.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        let count = self.receivers.len();
        for offset in 0..count {
            let index = (self.first + offset) % count;
            let Some(receiver) = &mut self.receivers[index] else { continue };
            let Poll::Ready(event) = receiver.poll_recv(context) else { continue };
            let event = event.unwrap_or_else(|| {
                Event::Failed(JobError::Internal("the engine has stopped".into()))
            });
            if matches!(event, Event::Finished(_) | Event::Failed(_)) {
                self.receivers[index] = None;
            }
            self.first = index + 1;
            return Poll::Ready(Some((index, event)));
        }
        let is_finished = self.receivers.iter().all(Option::is_none);
        if is_finished { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Waits for the next event, like [`poll_next`](Self::poll_next).
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_engine_that_stops_fails_its_jobs() {
        let (events, receiver) = unbounded_channel();
        let mut jobs = SubmittedJobs { receivers: vec![Some(receiver)], first: 0 };
        events.send(Event::PromptScores(Vec::new())).expect("the receiver exists");
        drop(events);
        assert!(matches!(jobs.next().await, Some((0, Event::PromptScores(_)))));
        assert!(matches!(jobs.next().await, Some((0, Event::Failed(JobError::Internal(_))))));
        assert!(jobs.next().await.is_none());
    }
}
