//! Pipelines made to read a share of the tokens, as a model reads them.

use std::sync::Arc;

use vattention_core::{Fraction, PipelineConfig};
use vattention_eval::{Tuned, made_to_read};
use vattention_llm::Prefilled;

use crate::{Contender, Error, Evaluation, Prompt, Result};

/// Seeds of these texts, which no case has.
const SEED: u64 = u64::MAX - Calibration::TEXTS as u64;

/// Texts that were read, to measure densities on.
#[allow(missing_debug_implementations)]
pub struct Calibration {
    prompts: Vec<(Prompt, Prefilled)>,
}

impl Calibration {
    /// How many there are: tasks and lengths in turn.
    pub const TEXTS: usize = 4;
}

impl Evaluation<'_> {
    /// Reads texts of the same tasks and lengths, which are none of the cases.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn calibration(&self) -> Result<Calibration> {
        let mut places = self.places();
        places.dedup_by_key(|place| (place.0, place.1));
        let step = places.len().div_ceil(Calibration::TEXTS).max(1);
        let some = places.into_iter().step_by(step).zip(SEED..);
        let prompts = some.map(|((task, context, _), seed)| {
            let prompt = self.prompt(task, context, seed)?;
            let prefilled = self.read(None, &prompt)?;
            Ok((prompt, prefilled))
        });
        Ok(Calibration { prompts: prompts.collect::<Result<_>>()? })
    }

    /// The pipeline [made to read](made_to_read) about `density` of the tokens, in the mean over
    /// texts that are none of the cases.
    ///
    /// Cost: some ten answers to each of four texts; twice if both epsilon and mass are looked for.
    ///
    /// # Errors
    /// A pipeline that has nothing to set, or settings by layer, or cannot run with the model.
    pub fn at_density(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density: Fraction,
        calibration: &Calibration,
    ) -> Result<Contender> {
        let measure = |pipeline: &Arc<PipelineConfig>| self.density(pipeline, calibration);
        let Tuned { pipeline, set } = made_to_read(pipeline, density, &measure)?;
        Ok(Contender { pipeline, asked: Some(density.get()), set: Some(set) })
    }

    fn density(&self, pipeline: &Arc<PipelineConfig>, calibration: &Calibration) -> Result<f64> {
        let failed = |source| Error::pipeline(pipeline.name.clone(), source);
        let mut sum = 0.0;
        for (i, (prompt, prefilled)) in calibration.prompts.iter().enumerate() {
            let answered = self.answer(pipeline, prompt, prefilled, i, false);
            sum += answered.map_err(failed)?.1.summary().density;
        }
        Ok(sum / calibration.prompts.len() as f64)
    }
}
