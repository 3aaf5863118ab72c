//! Log-likelihood of a text whose tokens are read by pipelines, beside dense attention.
//!
//! The text is cut into windows. Dense attention reads the first tokens of each window in one pass.
//! The other tokens are read one by one, by dense attention and by each pipeline, and after each of
//! them the log-probability of the next token is recorded. The dense baseline reads them one by
//! one, too, so that attention is the only difference to a pipeline.

mod report;
mod scores;
mod windows;

use std::ops::ControlFlow;
use std::sync::Arc;

use vattention_core::{Backend, Options, PipelineConfig};
use vattention_experiments::Results;
use vattention_llm::{Classes, Model, PrefillOptions, Prefilled, Session};

use crate::error::{Error, Result};
use crate::weights::LazyWeights;

pub use report::{PerplexityReport, PipelinePerplexity};
pub use scores::{PipelineScores, WindowScores};
pub use windows::PerplexityWindows;

use scores::NextToken;

/// Model, backend and settings of a measurement of perplexity.
#[allow(missing_debug_implementations)]
pub struct PerplexityTest<'a> {
    /// Weights of the model.
    pub weights: LazyWeights<'a>,
    /// Backend.
    pub backend: &'a dyn Backend,
    /// Classes of the vocabulary's tokens, if a pipeline
    /// [needs](PipelineConfig::needs_classes) them.
    pub classes: Option<Classes>,
    /// Windows of the text.
    pub windows: PerplexityWindows,
    /// Options of sequences; each window has its own sequence number.
    pub options: Options,
}

/// Reason for an early end of a measurement.
enum Ended {
    /// The caller stopped the measurement.
    Stopped,
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<vattention_experiments::Error> for Ended {
    fn from(error: vattention_experiments::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl PerplexityTest<'_> {
    /// Scores the windows of a text. `text` does not include
    /// [the tokens that begin each window](PerplexityWindows::before). Windows with stored results
    /// are not read again. `observe` is called after each scored token with the number of scored
    /// tokens so far and in total. If `observe` breaks, the measurement stops at the end of the
    /// window, and the report covers the windows that this call has read.
    ///
    /// Cost of a window: a prefill of its first tokens, and for each other token a step of dense
    /// attention and of each pipeline. Keys and values of all these sequences are in memory.
    ///
    /// # Errors
    /// If there is no window, the model cannot read the tokens, a pipeline cannot run with the
    /// model, or results cannot be stored;
    /// [`Incomplete`](vattention_experiments::Error::Incomplete) if results of other shards are
    /// missing.
    pub fn run(
        &self,
        text: &[u32],
        pipelines: &[Arc<PipelineConfig>],
        results: &Results,
        mut observe: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<PerplexityReport> {
        let count = self.windows.count(text.len())?;
        let scored = self.windows.scored();
        let keys: Vec<String> = (0..count).map(|number| format!("window {number}")).collect();
        let (mut finished, mut stops) = (Vec::new(), false);
        let measured = results.run(&keys, |number| {
            if stops {
                return Err(Ended::Stopped);
            }
            let tokens = self.windows.tokens(text, number);
            let scores = self.score_window(number, &tokens, pipelines, |done| {
                stops |= observe(number * scored + done, count * scored).is_break();
            })?;
            finished.push(scores.clone());
            Ok(scores)
        });
        let measured = match measured {
            Ok(all) => all,
            Err(Ended::Stopped) => finished,
            Err(Ended::Failed(error)) => return Err(error),
        };
        results.expect_all_shards()?;
        Ok(PerplexityReport::new(self, text.len(), count, pipelines, measured))
    }

    /// Reads a window by dense attention and by each pipeline. `observe` is called with the number
    /// of scored tokens of the window so far.
    fn score_window(
        &self,
        number: usize,
        tokens: &[u32],
        pipelines: &[Arc<PipelineConfig>],
        mut observe: impl FnMut(usize),
    ) -> Result<WindowScores> {
        let model = self.weights.model()?;
        let (prefix, rest) = tokens.split_at(self.windows.dense_prefix);
        let prompt = model.prefill(prefix, PrefillOptions::default())?;
        let dense = Arc::default();
        let lineup: Vec<&Arc<PipelineConfig>> = std::iter::once(&dense).chain(pipelines).collect();
        let failed = |place: usize, source| match place {
            0 => Error::Model(source),
            _ => Error::pipeline(lineup[place].name.clone(), source),
        };
        let mut sessions = Vec::with_capacity(lineup.len());
        for (place, pipeline) in lineup.iter().enumerate() {
            let session = self.start_session(model, pipeline, &prompt, number);
            sessions.push(session.map_err(|error| failed(place, error))?);
        }
        drop(prompt);
        let mut scores = WindowScores::new(pipelines.len());
        for (done, pair) in rest.windows(2).enumerate() {
            let mut batch: Vec<_> = sessions.iter_mut().map(|session| (session, pair[0])).collect();
            let mut predicted = Vec::with_capacity(lineup.len());
            for (place, logits) in Session::step_batch(&mut batch).into_iter().enumerate() {
                let logits = logits.map_err(|error| failed(place, error))?;
                predicted.push(NextToken::new(&logits, pair[1]));
            }
            scores.dense.push(predicted[0].logprob());
            for (place, pipeline) in scores.pipelines.iter_mut().enumerate() {
                let reports = sessions[place + 1].reports();
                pipeline.add(&predicted[place + 1], &predicted[0], reports);
            }
            observe(done + 1);
        }
        Ok(scores)
    }

    /// Starts a sequence after the dense prefix of a window.
    fn start_session<'m>(
        &self,
        model: &'m Model,
        pipeline: &Arc<PipelineConfig>,
        prompt: &Prefilled,
        window: usize,
    ) -> vattention_llm::Result<Session<'m>> {
        let options = Options { sequence: window as u32, ..self.options.clone() };
        let session = Session::new(model, self.backend, pipeline, &options)?;
        let mut session = session.with_classes(self.classes.clone());
        session.begin(prompt)?;
        Ok(session)
    }
}
