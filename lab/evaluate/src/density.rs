//! Tuning of pipelines to a density that is measured with a model.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use vattention_core::{Fraction, PipelineConfig};
use vattention_experiments::{Incomplete, MissingUnit, TunedPipeline, Variant, tune_to_density};
use vattention_llm::Prefilled;
use vattention_tasks::Task;

use crate::answer_cache::AnswerCache;
use crate::error::{Error, Result};
use crate::evaluation::{CasePrompt, Evaluation};
use crate::parallel::run_in_parallel;

/// First seed of the texts, which no case has.
const SEED: u64 = u64::MAX - DensityTexts::TEXTS as u64;

/// Largest number of tokens of an answer; the density hardly depends on the number.
const TOKENS: usize = 8;

/// Texts on which densities are measured.
#[allow(missing_debug_implementations)]
pub struct DensityTexts {
    texts: Vec<DensityText>,
}

/// A text, whose prompt is read at the first measurement.
struct DensityText {
    task: Task,
    prompt: CasePrompt,
    prefilled: OnceLock<Prefilled>,
}

impl DensityTexts {
    /// Largest number of texts, which are spread evenly over tasks and lengths.
    pub const TEXTS: usize = 4;
}

impl Evaluation<'_> {
    /// Creates texts of the evaluation's tasks and lengths that are not among the cases.
    ///
    /// # Errors
    /// Same as [`run`](Self::run).
    pub fn density_texts(&self) -> Result<DensityTexts> {
        let mut places = self.places();
        places.dedup_by_key(|place| (place.0, place.1));
        let step = places.len().div_ceil(DensityTexts::TEXTS).max(1);
        let chosen = places.into_iter().step_by(step).zip(SEED..);
        let texts = chosen.map(|((task, context, _), seed)| {
            let mut prompt = self.prompt(task, context, seed)?;
            prompt.case.tokens = prompt.case.tokens.min(TOKENS);
            Ok(DensityText { task, prompt, prefilled: OnceLock::new() })
        });
        Ok(DensityTexts { texts: texts.collect::<Result<_>>()? })
    }

    /// [Tunes](tune_to_density) a pipeline to a density: the mean over texts that are not among the
    /// cases.
    ///
    /// Cost: about ten times the question and eight tokens of an answer to each of at most
    /// four texts; twice that if both epsilon and a mass or threshold are tuned. Stored densities
    /// are not measured again.
    ///
    /// # Errors
    /// If the pipeline has no setting to tune, or cannot run with the model.
    pub fn at_density(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density: Fraction,
        density_texts: &DensityTexts,
        cache: &mut AnswerCache,
    ) -> Result<Variant> {
        self.search(pipeline, density, density_texts, cache, true)
    }

    /// Tunes each pipeline to its density; the inner error is the reason why a pipeline cannot be
    /// tuned. A shard runs every n-th search. `progress` is called with the number of finished
    /// searches and the number of all searches.
    ///
    /// # Errors
    /// If texts cannot be created; [`Incomplete`](vattention_experiments::Error::Incomplete) if
    /// searches of other shards are missing.
    pub fn tune_to_densities(
        &self,
        searches: &[(&Arc<PipelineConfig>, Fraction)],
        cache: &mut AnswerCache,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Result<Variant, String>>> {
        if searches.is_empty() {
            return Ok(Vec::new());
        }
        let (density_texts, part) = (self.density_texts()?, cache.part());
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for (number, &(pipeline, density)) in searches.iter().enumerate() {
            let may_measure = part.has_interleaved(number);
            match self.search(pipeline, density, &density_texts, cache, may_measure) {
                Err(Error::Experiment(vattention_experiments::Error::Incomplete(_))) => {
                    let (name, share) = (&pipeline.name, density.get());
                    let unit = format!("density search {} ({name}, share {share})", number + 1);
                    missing.push(MissingUnit { unit, shard: part.interleaved_shard(number) });
                }
                result => found.push(result.map_err(|error| error.to_string())),
            }
            progress(number + 1, searches.len());
        }
        if missing.is_empty() {
            return Ok(found);
        }
        Err(incomplete(missing, searches.len()))
    }

    /// Tunes a pipeline as [`at_density`](Self::at_density) does; unless it `may_measure`, only
    /// with stored densities.
    fn search(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density: Fraction,
        density_texts: &DensityTexts,
        cache: &mut AnswerCache,
        may_measure: bool,
    ) -> Result<Variant> {
        let cache = RefCell::new(cache);
        let measure = |pipeline: &Arc<PipelineConfig>| {
            self.density(pipeline, density_texts, &mut cache.borrow_mut(), may_measure)
        };
        let TunedPipeline { pipeline, set } = tune_to_density(pipeline, density, &measure)?;
        Ok(Variant { pipeline, asked: Some(density.get()), set: Some(set) })
    }

    fn density(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density_texts: &DensityTexts,
        cache: &mut AnswerCache,
        may_measure: bool,
    ) -> Result<f64> {
        let cache = Mutex::new(cache);
        let cache = || cache.lock().unwrap_or_else(PoisonError::into_inner);
        let measure = |(): &mut (), i: usize| {
            let text = &density_texts.texts[i];
            let digest = self.digest(pipeline, text.task, &text.prompt, i)?;
            if let Some(stored) = cache().density(&digest) {
                return Ok(*stored);
            }
            if !may_measure {
                return Err(incomplete(Vec::new(), 0));
            }
            let density = self.measure_density(pipeline, text, i)?;
            cache().push_density(digest, density)?;
            Ok(density)
        };
        let count = density_texts.texts.len();
        let densities = run_in_parallel(count, self.settings.at_once, || (), measure)?;
        // A model whose first token ends the answer takes no step with the pipeline.
        let densities: Vec<f64> = densities.into_iter().flatten().collect();
        Ok(densities.iter().sum::<f64>() / densities.len().max(1) as f64)
    }

    /// Measures the density of the steps with a pipeline on a text; `None` without a step.
    fn measure_density(
        &self,
        pipeline: &Arc<PipelineConfig>,
        text: &DensityText,
        i: usize,
    ) -> Result<Option<f64>> {
        let failed = |source| Error::pipeline(pipeline.name.clone(), source);
        if text.prefilled.get().is_none() {
            let _ = text.prefilled.set(self.prefill(None, &text.prompt)?);
        }
        let prefilled = text.prefilled.get().expect("the prompt was just read");
        let model = self.weights.model()?;
        let (_, sums) =
            self.generate(model, pipeline, &text.prompt, prefilled, i, false).map_err(failed)?;
        Ok(sums.summary().density)
    }
}

fn incomplete(missing: Vec<MissingUnit>, total: usize) -> Error {
    vattention_experiments::Error::Incomplete(Incomplete::new(missing, total)).into()
}
