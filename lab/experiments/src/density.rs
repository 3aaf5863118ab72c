//! Pipelines made to read a share of the tokens, as that is measured.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::{Backend, Fraction, Options, PipelineConfig, RowReport, plugin::Tunable};
use vattention_trace::Trace;

use crate::bench::{BY_LAYER, refusal};
use crate::compare::{Answers, chosen_layers};
use crate::metrics::MeanMax;
use crate::variant::named;
use crate::{Entry, Error, Result, Results, TraceSettings, at_density, at_epsilon, sized};

/// Halvings of the range of what is set.
const HALVINGS: usize = 10;

/// As near to what was asked as is worth looking for.
const NEAR: f64 = 0.02;

/// A pipeline that was changed to read a share of the tokens.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// What was set, as `epsilon 0.083`.
    pub set: String,
}

/// The pipeline made to read about `density` of the tokens, sink and window counted, as `measure`
/// tells of a pipeline: by its epsilon, if it promises something, with half of the density for the
/// selector that has a size, a mass or a threshold; else by the mass that a selector looks for, or the threshold that it has;
/// else by sizes. It comes as near as it can.
///
/// Cost: `measure` some ten times; twice that if epsilon is looked for, and a mass or a threshold too.
///
/// # Errors
/// A pipeline that has nothing to set, or what `measure` refuses.
pub fn made_to_read<E: From<Error>>(
    pipeline: &Arc<PipelineConfig>,
    density: Fraction,
    measure: &dyn Fn(&Arc<PipelineConfig>) -> Result<f64, E>,
) -> Result<Tuned, E> {
    if !pipeline.layers.is_empty() {
        return Err(refusal(pipeline, BY_LAYER.into()).into());
    }
    let knob = Knob::of(pipeline);
    let Some(selectors) = Knob::of_selectors(pipeline).filter(|_| knob == Knob::Epsilon) else {
        return search(pipeline, density, knob, measure);
    };
    let refuse = |reason| refusal(pipeline, reason);
    let half = Fraction::try_from(density.get() / 2.0).map_err(refuse)?;
    let certain = PipelineConfig { estimator: None, sampler: None, ..(**pipeline).clone() };
    let found = search(&certain, half, selectors, measure)?;
    let selectors = found.pipeline.selectors.clone();
    let over = PipelineConfig { selectors, ..(**pipeline).clone() };
    let tuned = search(&over, density, knob, measure)?;
    Ok(Tuned { set: format!("{}, {}", found.set, tuned.set), ..tuned })
}

/// A pipeline that was made to read a share, as its result is kept.
#[derive(Serialize, Deserialize)]
struct Searched {
    /// As JSON.
    pipeline: String,
    set: String,
}

/// Each pipeline [made to read](made_to_read) about a share of the tokens of a trace: what its KV heads' query heads
/// read together, mean over rows; or why it cannot be. Each search is a unit of `results`. `progress` is called with
/// the searches done and all that are to be done.
///
/// # Errors
/// As [`Results::run`].
pub fn at_densities(
    searches: &[(&Entry, Fraction)],
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Result<Entry, String>>> {
    let key = |(i, (entry, share)): (usize, &(&Entry, Fraction))| {
        format!("density search {} ({}, share {})", i + 1, entry.pipeline.name, share.get())
    };
    let keys: Vec<String> = searches.iter().enumerate().map(key).collect();
    let found: Vec<Result<Searched, String>> = results.run_together(&keys, |numbers, keep| {
        for (done, &number) in numbers.iter().enumerate() {
            let (entry, density) = searches[number];
            let found = searched(entry, density, trace, backend, settings);
            keep.put(number, found.map_err(|error| error.to_string()))?;
            progress(done + 1, numbers.len());
        }
        Ok::<_, Error>(())
    })?;
    let entry = |(&(entry, _), found): (&(&Entry, Fraction), Result<Searched, String>)| {
        let Searched { pipeline, set } = found?;
        let pipeline: PipelineConfig =
            serde_json::from_str(&pipeline).map_err(|error| error.to_string())?;
        Ok(Entry { pipeline: Arc::new(pipeline), file: entry.file.clone(), set: Some(set) })
    };
    Ok(searches.iter().zip(found).map(entry).collect())
}

fn searched(
    entry: &Entry,
    density: Fraction,
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
) -> Result<Searched> {
    let measure = |pipeline: &Arc<PipelineConfig>| {
        let one = Entry { pipeline: pipeline.clone(), ..entry.clone() };
        density_on(trace, &one, backend, settings)
    };
    let Tuned { pipeline, set } = made_to_read(&entry.pipeline, density, &measure)?;
    let name = named(&entry.pipeline.name, density.get());
    let pipeline = PipelineConfig { name, ..(*pipeline).clone() };
    let text = serde_json::to_string(&pipeline);
    let pipeline = text.map_err(|error| refusal(&pipeline, error.to_string()))?;
    Ok(Searched { pipeline, set })
}

/// What a pipeline's rows read of a trace, on average.
pub(crate) fn density_on(
    trace: &Trace,
    entry: &Entry,
    backend: &dyn Backend,
    settings: &TraceSettings,
) -> Result<f64> {
    let mut shares = Vec::new();
    for (number, layout) in chosen_layers(trace, settings)? {
        let layer = trace.layer(number).expect("the layer was listed")?;
        let count = settings.count(&layout);
        let options = Options { scale: trace.info().scale, ..Options::default() };
        let answers = Answers { number, layout: &layout, layer: &layer, count, options };
        answers.of(entry, backend, |output, _| {
            shares.extend(output.rows.iter().map(RowReport::density_of_group));
        })?;
    }
    Ok(MeanMax::new(shares.into_iter()).mean)
}

/// What is set so that a pipeline reads more or less.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Knob {
    /// What is promised; sizes of selectors are set to half of the share beside.
    Epsilon,
    /// The share of the attention that a selector looks for.
    Mass,
    /// The score that tokens must exceed, a share of the attention.
    Threshold,
    /// The sizes of a selector and of a fixed sample.
    Size,
}

impl Knob {
    fn of(pipeline: &PipelineConfig) -> Self {
        if pipeline.promise().is_some() {
            Self::Epsilon
        } else {
            Self::of_selectors(pipeline).unwrap_or(Self::Size)
        }
    }

    /// What selectors have that is no size.
    fn of_selectors(pipeline: &PipelineConfig) -> Option<Self> {
        let mut pipeline = pipeline.clone();
        [Self::Mass, Self::Threshold]
            .into_iter()
            .find(|knob| knob.fractions(&mut pipeline).next().is_some())
    }

    /// Where selectors have it.
    fn fractions(self, pipeline: &mut PipelineConfig) -> impl Iterator<Item = &mut Fraction> {
        pipeline.selectors.iter_mut().filter_map(move |selector| match selector.tunable() {
            Some(Tunable::Mass(mass)) if self == Self::Mass => Some(mass),
            Some(Tunable::Threshold(threshold)) if self == Self::Threshold => Some(threshold),
            _ => None,
        })
    }

    /// The pipeline with another one.
    fn with(self, pipeline: &PipelineConfig, fraction: Fraction) -> Arc<PipelineConfig> {
        let mut pipeline = pipeline.clone();
        self.fractions(&mut pipeline).for_each(|one| *one = fraction);
        Arc::new(pipeline)
    }

    /// The pipeline that reads the least of it at 0, and the most at 1; and what was set.
    fn turn(self, pipeline: &PipelineConfig, density: Fraction, at: f64) -> Result<Tuned> {
        let refuse = |reason| refusal(pipeline, reason);
        let number = match self {
            Self::Epsilon => between(0.95, 0.005, at),
            Self::Mass => 1.0 - between(0.95, 1e-4, at),
            Self::Threshold => between(0.5, 1e-9, at),
            Self::Size => between(density.get() / 100.0, density.get(), at),
        };
        let fraction = Fraction::try_from(number).map_err(refuse)?;
        let pipeline = match self {
            Self::Epsilon => {
                let half = Fraction::try_from(density.get() / 2.0).map_err(refuse)?;
                let turned = at_epsilon(&*sized(pipeline, half)?, fraction);
                turned.ok_or_else(|| refuse("its promise has no epsilon to set".into()))?
            }
            Self::Mass | Self::Threshold => self.with(pipeline, fraction),
            Self::Size => at_density(pipeline, fraction)?,
        };
        let name = format!("{self:?}").to_lowercase();
        let digits = if self == Self::Threshold { 7 } else { 3 };
        Ok(Tuned { pipeline, set: format!("{name} {number:.digits$}") })
    }
}

/// Halves the range of what is set until the pipeline reads about `density`.
fn search<E: From<Error>>(
    pipeline: &PipelineConfig,
    density: Fraction,
    knob: Knob,
    measure: &dyn Fn(&Arc<PipelineConfig>) -> Result<f64, E>,
) -> Result<Tuned, E> {
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
    Ok(best.expect("there is at least one halving"))
}

/// From `from` to `to`, in equal ratios.
fn between(from: f64, to: f64, at: f64) -> f64 {
    from * (to / from).powf(at)
}
