//! Pipelines made to read a share of the tokens, as a model reads them.

use std::sync::Arc;

use serde_json::Value;
use vattention_core::{Fraction, PipelineConfig};
use vattention_eval::{BY_LAYER, at_epsilon, sized};
use vattention_llm::Prefilled;

use crate::{Contender, Error, Evaluation, Prompt, Result};

/// Seeds of these texts, which no case has.
const SEED: u64 = u64::MAX - Calibration::TEXTS as u64;

/// Halvings of the range of what is set.
const HALVINGS: usize = 10;

/// As near to what was asked as is worth looking for.
const NEAR: f64 = 0.02;

/// What is set so that a pipeline reads more or less.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Knob {
    /// What is promised; sizes of selectors are set to half of the share beside.
    Epsilon,
    /// The share of the attention that a selector looks for.
    Mass,
    /// The sizes of a selector and of a fixed sample.
    Size,
}

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
            let prefilled = self.read(&prompt)?;
            Ok((prompt, prefilled))
        });
        Ok(Calibration { prompts: prompts.collect::<Result<_>>()? })
    }

    /// The pipeline made to read about `density` of the tokens, sink and window counted, in the
    /// mean over texts that are none of the cases: by its epsilon, if it promises something, with
    /// half of the density for the selector that has a size or a mass; else by the mass that a
    /// selector looks for; else by sizes. It comes as near as it can.
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
        let refuse = |reason| Error::Density { pipeline: pipeline.name.clone(), reason };
        if !pipeline.layers.is_empty() {
            return Err(refuse(BY_LAYER.into()));
        }
        let knob = Knob::of(pipeline);
        if knob != Knob::Epsilon || !has_mass(pipeline) {
            return self.search(pipeline, density, knob, calibration);
        }
        let half = Fraction::try_from(density.get() / 2.0).map_err(refuse)?;
        let found =
            self.search(&certain(pipeline).map_err(refuse)?, half, Knob::Mass, calibration)?;
        let over = with_selectors(pipeline, &found.pipeline).map_err(refuse)?;
        let contender = self.search(&over, density, knob, calibration)?;
        let set = [found.set, contender.set].into_iter().flatten().collect::<Vec<_>>().join(", ");
        Ok(Contender { set: Some(set), ..contender })
    }

    /// Halves the range of what is set until the pipeline reads about `density`.
    fn search(
        &self,
        pipeline: &Arc<PipelineConfig>,
        density: Fraction,
        knob: Knob,
        calibration: &Calibration,
    ) -> Result<Contender> {
        let refuse = |reason: String| Error::Density { pipeline: pipeline.name.clone(), reason };
        let (mut low, mut high) = (0.0, 1.0);
        let mut best: Option<(f64, Contender)> = None;
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            let (turned, set) = knob.turn(pipeline, density, middle).map_err(refuse)?;
            let measured = self.density(&turned, calibration)?;
            let off = (measured / density.get()).ln().abs();
            if best.as_ref().is_none_or(|(least, _)| off < *least) {
                let asked = Some(density.get());
                best = Some((off, Contender { pipeline: turned, asked, set: Some(set) }));
            }
            if off < NEAR {
                break;
            }
            *(if measured < density.get() { &mut low } else { &mut high }) = middle;
        }
        best.map(|(_, contender)| contender).ok_or_else(|| refuse("no text to measure on".into()))
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

impl Knob {
    fn of(pipeline: &PipelineConfig) -> Self {
        if pipeline.promise().is_some() {
            Self::Epsilon
        } else if has_mass(pipeline) {
            Self::Mass
        } else {
            Self::Size
        }
    }

    /// The pipeline that reads the least of it at 0, and the most at 1; and what was set.
    fn turn(
        self,
        pipeline: &PipelineConfig,
        density: Fraction,
        at: f64,
    ) -> std::result::Result<(Arc<PipelineConfig>, String), String> {
        let number = match self {
            Self::Epsilon => between(0.95, 0.005, at),
            Self::Mass => 1.0 - between(0.95, 1e-4, at),
            Self::Size => between(density.get() / 100.0, density.get(), at),
        };
        let fraction = Fraction::try_from(number)?;
        let turned = match self {
            Self::Epsilon => {
                let half = Fraction::try_from(density.get() / 2.0)?;
                let sized = sized(pipeline, half).map_err(|error| error.to_string())?;
                at_epsilon(&sized, fraction).ok_or("its promise has no epsilon to set")?
            }
            Self::Mass => with_mass(pipeline, number)?,
            Self::Size => vattention_eval::at_density(pipeline, fraction)
                .map_err(|error| error.to_string())?,
        };
        let name = format!("{self:?}").to_lowercase();
        Ok((turned, format!("{name} {number:.3}")))
    }
}

/// From `from` to `to`, in equal ratios.
fn between(from: f64, to: f64, at: f64) -> f64 {
    from * (to / from).powf(at)
}

/// Whether a selector looks for a share of the attention.
fn has_mass(pipeline: &PipelineConfig) -> bool {
    let table = |selector| serde_json::to_value(selector).unwrap_or_default();
    pipeline.selectors.iter().any(|selector| table(selector).get("mass").is_some())
}

/// The pipeline without its sample.
fn certain(pipeline: &PipelineConfig) -> Edited {
    edited(pipeline, |tree| {
        for key in ["estimator", "sampler"] {
            tree.as_object_mut().and_then(|tree| tree.remove(key));
        }
    })
}

/// The pipeline with the selectors of another.
fn with_selectors(pipeline: &PipelineConfig, other: &PipelineConfig) -> Edited {
    let selectors = serde_json::to_value(&other.selectors).map_err(|error| error.to_string())?;
    edited(pipeline, |tree| tree["selectors"] = selectors)
}

fn with_mass(pipeline: &PipelineConfig, mass: f64) -> Edited {
    edited(pipeline, |tree| {
        let tables = tree.get_mut("selectors").and_then(Value::as_array_mut);
        for field in tables.into_iter().flatten().filter_map(|table| table.get_mut("mass")) {
            *field = mass.into();
        }
    })
}

/// A pipeline that was changed, or why it cannot be.
type Edited = std::result::Result<Arc<PipelineConfig>, String>;

/// The pipeline with its table changed.
fn edited(pipeline: &PipelineConfig, edit: impl FnOnce(&mut Value)) -> Edited {
    let mut tree = serde_json::to_value(pipeline).map_err(|error| error.to_string())?;
    edit(&mut tree);
    serde_json::from_value(tree).map(Arc::new).map_err(|error| error.to_string())
}
