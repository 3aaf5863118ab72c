//! Tuning of pipelines to a measured density.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::{Backend, Fraction, PipelineConfig, RowReport, plugin::Tunable};
use vattention_trace::Trace;

use crate::bench::{refusal, scale_sizes};
use crate::compare::{LayerRun, chosen_layers};
use crate::indexed::IndexedLayers;
use crate::metrics::MeanMax;
use crate::variant::named;
use crate::{Entry, Error, Result, Results, TraceSettings, at_density, with_epsilon, with_sizes};

/// Number of bisection steps of a search.
const HALVINGS: usize = 10;

/// Relative distance from the density at which a search ends.
const NEAR: f64 = 0.02;

/// A pipeline that was tuned to a density.
#[derive(Clone, Debug)]
pub struct TunedPipeline {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// Tuned settings, such as `epsilon 0.083`.
    pub set: String,
}

/// Tunes a pipeline so that its density as returned by `measure`, which includes sink and window,
/// is about `density`. If the pipeline makes a promise, its selector with a size, mass or threshold
/// is tuned to half of the density, then the promise's epsilon to the density. Without a promise,
/// the mass or the threshold of a selector is tuned; without these, sizes are. The result is the
/// measured pipeline with the nearest density.
///
/// If the pipeline has settings by layer, all layers get the same epsilon, mass or threshold, and
/// all sizes are multiplied by the same factor.
///
/// Cost: about ten calls of `measure`; twice that if both epsilon and a mass or threshold are
/// tuned.
///
/// # Errors
/// If the pipeline has no setting to tune, and errors of `measure`.
pub fn tune_to_density<E: From<Error>>(
    pipeline: &Arc<PipelineConfig>,
    density: Fraction,
    measure: &dyn Fn(&Arc<PipelineConfig>) -> Result<f64, E>,
) -> Result<TunedPipeline, E> {
    let knob = Knob::new(pipeline);
    let Some(selectors) = Knob::find_in_selectors(pipeline).filter(|_| knob == Knob::Epsilon)
    else {
        return search(pipeline, density, knob, measure);
    };
    let refuse = |reason| refusal(pipeline, reason);
    let half = Fraction::try_from(density.get() / 2.0).map_err(refuse)?;
    let mut without_sample = (**pipeline).clone();
    without_sample.change_parts(|part| (part.estimator, part.sampler) = (None, None));
    let found = search(&without_sample, half, selectors, measure)?;
    let mut with_selectors = (**pipeline).clone();
    let mut tuned_parts = found.pipeline.parts();
    with_selectors.change_parts(|part| {
        let tuned = tuned_parts.next().expect("the same parts");
        part.selectors.clone_from(&tuned.selectors);
    });
    let tuned = search(&with_selectors, density, knob, measure)?;
    Ok(TunedPipeline { set: format!("{}, {}", found.set, tuned.set), ..tuned })
}

/// Stored result of a density search.
#[derive(Serialize, Deserialize)]
struct SearchResult {
    /// The pipeline as JSON.
    pipeline: String,
    set: String,
}

/// [Tunes](tune_to_density) each pipeline to a density on a trace: the share of the visible tokens
/// that the query heads of a KV head read together, mean over rows. The inner error is the reason
/// why a pipeline cannot be tuned. Each search is a unit of `results`. `progress` is called with
/// the number of finished searches and the number of all searches.
///
/// # Errors
/// Same as [`Results::run`].
pub fn tune_to_densities(
    searches: &[(&Entry, Fraction)],
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Result<Entry, String>>> {
    let indexed = IndexedLayers::for_search();
    let key = |(i, (entry, share)): (usize, &(&Entry, Fraction))| {
        format!("density search {} ({}, share {})", i + 1, entry.pipeline.name, share.get())
    };
    let keys: Vec<String> = searches.iter().enumerate().map(key).collect();
    let found: Vec<Result<SearchResult, String>> =
        results.run_together(&keys, |numbers, sink| {
            for (done, &number) in numbers.iter().enumerate() {
                let (entry, density) = searches[number];
                let found = tune_on_trace(entry, density, trace, backend, settings, &indexed);
                sink.put(number, found.map_err(|error| error.to_string()))?;
                progress(done + 1, numbers.len());
            }
            Ok::<_, Error>(())
        })?;
    let entry = |(&(entry, _), found): (&(&Entry, Fraction), Result<SearchResult, String>)| {
        let SearchResult { pipeline, set } = found?;
        let pipeline: PipelineConfig =
            serde_json::from_str(&pipeline).map_err(|error| error.to_string())?;
        Ok(Entry { pipeline: Arc::new(pipeline), file: entry.file.clone(), set: Some(set) })
    };
    Ok(searches.iter().zip(found).map(entry).collect())
}

fn tune_on_trace(
    entry: &Entry,
    density: Fraction,
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    indexed: &IndexedLayers,
) -> Result<SearchResult> {
    let measure = |pipeline: &Arc<PipelineConfig>| {
        let entry = Entry { pipeline: pipeline.clone(), ..entry.clone() };
        measure_density(trace, &entry, backend, settings, indexed)
    };
    let TunedPipeline { pipeline, set } = tune_to_density(&entry.pipeline, density, &measure)?;
    let name = named(&entry.pipeline.name, density.get());
    let pipeline = PipelineConfig { name, ..(*pipeline).clone() };
    let text = serde_json::to_string(&pipeline);
    let pipeline = text.map_err(|error| refusal(&pipeline, error.to_string()))?;
    Ok(SearchResult { pipeline, set })
}

/// Measures the density of a pipeline on a trace: the mean over rows of the share that a KV head's
/// query heads read together.
pub(crate) fn measure_density(
    trace: &Trace,
    entry: &Entry,
    backend: &dyn Backend,
    settings: &TraceSettings,
    indexed: &IndexedLayers,
) -> Result<f64> {
    let mut shares = Vec::new();
    for (number, layout) in chosen_layers(trace, settings)? {
        let layer = trace.layer(number).expect("the layer was listed")?;
        let count = settings.count(&layout);
        let run = LayerRun { trace, number, layout: &layout, layer: &layer, count, indexed };
        run.attend_all(entry, backend, |output, _| {
            shares.extend(output.rows.iter().map(RowReport::density_of_group));
        })?;
    }
    Ok(MeanMax::new(shares.into_iter()).mean)
}

/// Setting that is tuned so that a pipeline reads more or fewer tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Knob {
    /// Promised epsilon; sizes of selectors are set to half of the density.
    Epsilon,
    /// Share of the attention weight that a selector covers.
    Mass,
    /// Score that selected tokens exceed, a share of the attention weight.
    Threshold,
    /// Sizes of a selector and of a fixed-size sample.
    Size,
    /// Factor of all sizes of a pipeline with settings by layer.
    Factor,
}

impl Knob {
    fn new(pipeline: &PipelineConfig) -> Self {
        if pipeline.promise().is_some() {
            Self::Epsilon
        } else {
            Self::find_in_selectors(pipeline).unwrap_or(Self::Size)
        }
    }

    /// Finds a mass or a threshold among the selectors' settings, or sizes by layer.
    fn find_in_selectors(pipeline: &PipelineConfig) -> Option<Self> {
        let half = Fraction::try_from(0.5).expect("a half is a fraction");
        let found = [Self::Mass, Self::Threshold]
            .into_iter()
            .find(|knob| knob.set(pipeline, half).is_some());
        let has_factor = || !pipeline.layers.is_empty() && scale_sizes(pipeline, 1.0).is_some();
        found.or_else(|| has_factor().then_some(Self::Factor))
    }

    /// Returns the pipeline with all selectors' settings of this kind replaced; `None` if it has
    /// none.
    fn set(self, pipeline: &PipelineConfig, fraction: Fraction) -> Option<Arc<PipelineConfig>> {
        let (mut pipeline, mut found) = (pipeline.clone(), false);
        pipeline.change_parts(|part| {
            for selector in &mut part.selectors {
                match selector.tunable() {
                    Some(Tunable::Mass(setting)) if self == Self::Mass => *setting = fraction,
                    Some(Tunable::Threshold(setting)) if self == Self::Threshold => {
                        *setting = fraction;
                    }
                    _ => continue,
                }
                found = true;
            }
        });
        found.then(|| Arc::new(pipeline))
    }

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Returns the pipeline with the setting at a position between 0, where it reads the fewest
    /// tokens, and 1, where it reads the most.
    fn turn(
        self,
        pipeline: &PipelineConfig,
        density: Fraction,
        position: f64,
    ) -> Result<TunedPipeline> {
        let refuse = |reason| refusal(pipeline, reason);
        let number = match self {
            Self::Epsilon => interpolate(0.95, 0.005, position),
            Self::Mass => 1.0 - interpolate(0.95, 1e-4, position),
            Self::Threshold => interpolate(0.5, 1e-9, position),
            Self::Size => interpolate(density.get() / 100.0, density.get(), position),
            Self::Factor => interpolate(0.01, 100.0, position),
        };
        let fraction = || Fraction::try_from(number).map_err(refuse);
        let missing = || refuse(format!("has no {} to set", self.name()));
        let pipeline = match self {
            Self::Epsilon if pipeline.layers.is_empty() => {
                let half = Fraction::try_from(density.get() / 2.0).map_err(refuse)?;
                with_epsilon(&*with_sizes(pipeline, half)?, fraction()?).ok_or_else(missing)?
            }
            Self::Epsilon => with_epsilon(pipeline, fraction()?).ok_or_else(missing)?,
            Self::Mass | Self::Threshold => self.set(pipeline, fraction()?).ok_or_else(missing)?,
            Self::Size => at_density(pipeline, fraction()?)?,
            Self::Factor => scale_sizes(pipeline, number).ok_or_else(missing)?,
        };
        let name = self.name();
        let digits = if self == Self::Threshold { 7 } else { 3 };
        Ok(TunedPipeline { pipeline, set: format!("{name} {number:.digits$}") })
    }
}

/// Bisects the range of a setting until the pipeline's density is about `density`.
fn search<E: From<Error>>(
    pipeline: &PipelineConfig,
    density: Fraction,
    knob: Knob,
    measure: &dyn Fn(&Arc<PipelineConfig>) -> Result<f64, E>,
) -> Result<TunedPipeline, E> {
    let (mut low, mut high) = (0.0, 1.0);
    let (mut nearest, mut best) = (f64::INFINITY, None);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let turned = knob.turn(pipeline, density, middle)?;
        let measured = measure(&turned.pipeline)?;
        let off = (measured / density.get()).ln().abs();
        if off < nearest || best.is_none() {
            (nearest, best) = (off, Some(turned));
        }
        if off < NEAR {
            break;
        }
        *(if measured < density.get() { &mut low } else { &mut high }) = middle;
    }
    Ok(best.expect("there is at least one bisection step"))
}

/// Interpolates geometrically from `from` at position 0 to `to` at position 1.
fn interpolate(from: f64, to: f64, position: f64) -> f64 {
    from * (to / from).powf(position)
}
