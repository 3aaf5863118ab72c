//! Pipelines made to read a share of the tokens, as a model reads them.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use vattention_core::{Fraction, PipelineConfig};
use vattention_experiments::{Incomplete, Missing, Tuned, Variant, made_to_read};
use vattention_llm::Prefilled;
use vattention_tasks::Task;

use crate::answer_cache::AnswerCache;
use crate::at_once;
use crate::error::{Error, Result};
use crate::evaluation::{CasePrompt, Evaluation};

/// Seeds of these texts, which no case has.
const SEED: u64 = u64::MAX - DensityTexts::TEXTS as u64;

/// Tokens of an answer that are waited for: what a pipeline reads hardly depends on how many.
const TOKENS: usize = 8;

/// Texts to measure densities on.
#[allow(missing_debug_implementations)]
pub struct DensityTexts {
    texts: Vec<DensityText>,
}

/// A text that is read when something is first measured on it.
struct DensityText {
    task: Task,
    prompt: CasePrompt,
    read: OnceLock<Prefilled>,
}

impl DensityTexts {
    /// How many there are: tasks and lengths in turn.
    pub const TEXTS: usize = 4;
}

impl Evaluation<'_> {
    /// Texts of the same tasks and lengths, which are none of the cases.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn density_texts(&self) -> Result<DensityTexts> {
        let mut places = self.places();
        places.dedup_by_key(|place| (place.0, place.1));
        let step = places.len().div_ceil(DensityTexts::TEXTS).max(1);
        let some = places.into_iter().step_by(step).zip(SEED..);
        let texts = some.map(|((task, context, _), seed)| {
            let mut prompt = self.prompt(task, context, seed)?;
            prompt.case.tokens = prompt.case.tokens.min(TOKENS);
            Ok(DensityText { task, prompt, read: OnceLock::new() })
        });
        Ok(DensityTexts { texts: texts.collect::<Result<_>>()? })
    }

    /// The pipeline [made to read](made_to_read) about `density` of the tokens, in the mean over
    /// texts that are none of the cases.
    ///
    /// Cost: some ten times the question and eight tokens of an answer to each of four
    /// texts, and twice that if both epsilon and mass are looked for; but for what is kept.
    ///
    /// # Errors
    /// A pipeline that has nothing to set, or settings by layer, or cannot run with the model.
    pub fn at_density(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density: Fraction,
        density_texts: &DensityTexts,
        kept: &mut AnswerCache,
    ) -> Result<Variant> {
        self.search(pipeline, density, density_texts, kept, true)
    }

    /// Each pipeline at its density, or why that cannot be. A shard makes every n-th search. `progress` is called with
    /// the searches done and of all.
    ///
    /// # Errors
    /// Texts that cannot be made, or [`Incomplete`](vattention_experiments::Error::Incomplete) if searches of others
    /// are missing.
    pub fn at_densities(
        &self,
        searches: &[(&Arc<PipelineConfig>, Fraction)],
        kept: &mut AnswerCache,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Result<Variant, String>>> {
        if searches.is_empty() {
            return Ok(Vec::new());
        }
        let (density_texts, part) = (self.density_texts()?, kept.part());
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for (number, &(pipeline, density)) in searches.iter().enumerate() {
            let may = part.has_by_turns(number);
            match self.search(pipeline, density, &density_texts, kept, may) {
                Err(Error::Experiment(vattention_experiments::Error::Incomplete(_))) => {
                    let (name, share) = (&pipeline.name, density.get());
                    let unit = format!("density search {} ({name}, share {share})", number + 1);
                    missing.push(Missing { unit, shard: part.shard_by_turns(number) });
                }
                made => found.push(made.map_err(|error| error.to_string())),
            }
            progress(number + 1, searches.len());
        }
        if missing.is_empty() {
            return Ok(found);
        }
        Err(incomplete(missing, searches.len()))
    }

    /// As [`at_density`](Self::at_density), of kept densities alone unless others `may` be measured.
    fn search(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density: Fraction,
        density_texts: &DensityTexts,
        kept: &mut AnswerCache,
        may: bool,
    ) -> Result<Variant> {
        let kept = RefCell::new(kept);
        let measure = |pipeline: &Arc<PipelineConfig>| {
            self.density(pipeline, density_texts, &mut kept.borrow_mut(), may)
        };
        let Tuned { pipeline, set } = made_to_read(pipeline, density, &measure)?;
        Ok(Variant { pipeline, asked: Some(density.get()), set: Some(set) })
    }

    fn density(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density_texts: &DensityTexts,
        kept: &mut AnswerCache,
        may: bool,
    ) -> Result<f64> {
        let kept = Mutex::new(kept);
        let kept = || kept.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(): &mut (), i: usize| {
            let text = &density_texts.texts[i];
            let digest = self.digest(pipeline, text.task, &text.prompt, i)?;
            if let Some(known) = kept().density(&digest) {
                return Ok(*known);
            }
            if !may {
                return Err(incomplete(Vec::new(), 0));
            }
            let density = self.density_on(pipeline, text, i)?;
            kept().push_density(digest, density)?;
            Ok(density)
        };
        let measured = at_once::each(density_texts.texts.len(), self.settings.at_once, || (), one)?;
        // A model that ends at once takes no step by the pipeline.
        let some: Vec<f64> = measured.into_iter().flatten().collect();
        Ok(some.iter().sum::<f64>() / some.len().max(1) as f64)
    }

    /// What the steps by a pipeline read, if there are any.
    fn density_on(
        &self,
        pipeline: &Arc<PipelineConfig>,
        text: &DensityText,
        i: usize,
    ) -> Result<Option<f64>> {
        let failed = |source| Error::pipeline(pipeline.name.clone(), source);
        if text.read.get().is_none() {
            let _ = text.read.set(self.read(None, &text.prompt)?);
        }
        let read = text.read.get().expect("it was just read");
        let answered = self.answer(self.weights.model()?, pipeline, &text.prompt, read, i, false);
        let seen = answered.map_err(failed)?.1.summary();
        Ok(seen.density)
    }
}

fn incomplete(missing: Vec<Missing>, total: usize) -> Error {
    vattention_experiments::Error::Incomplete(Incomplete::new(missing, total)).into()
}
