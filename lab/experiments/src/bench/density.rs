//! Setting of a pipeline's sizes for a given density.

use std::sync::Arc;

use vattention_core::{Estimator, Fraction, PipelineConfig, SelectorConfig, Size, plugin::Tunable};

use crate::{Error, Result};

/// Reason why a pipeline with settings by layer cannot be set to a density.
const BY_LAYER: &str = "it has settings by layer, but a density sets one size for all";

/// Returns true if a pipeline's estimator decides the sample size, and thereby the density: every
/// estimator without a fixed size does.
pub fn decides_itself(pipeline: &PipelineConfig) -> bool {
    pipeline.goal().is_some_and(|goal| goal.size().is_none())
}

/// Returns the pipeline with its sizes set so that a step reads about `density` of the tokens,
/// besides the tokens of `sink` and `window`.
///
/// Two parts may have such a size: the one selector with [sizes](Tunable::Sizes), and an estimator
/// with a fixed sample size. If a pipeline has both, each gets half of the density; if it has one,
/// that part gets all. If the pipeline has no selectors but sink and window, the window's size is
/// set.
///
/// # Errors
/// If the pipeline has no such part, has several such selectors, has settings by layer, or [decides
/// its density itself](decides_itself).
pub fn at_density(pipeline: &PipelineConfig, density: Fraction) -> Result<Arc<PipelineConfig>> {
    let refuse = |reason: String| refusal(pipeline, reason);
    if decides_itself(pipeline) {
        return Err(refuse("its estimator decides how much is read".into()));
    }
    let (scaled, parts) = set_sizes(pipeline, density).map_err(refuse)?;
    if parts > 0 {
        return Ok(scaled);
    }
    let reason = "has no size to set; expected a selector with a size besides sink and window, \
                  an estimator with a fixed size, or sink and window alone";
    with_window(pipeline, density).ok_or_else(|| refuse(reason.into()))
}

/// Returns the pipeline with the sizes set that [`at_density`] sets, or unchanged if it has none.
///
/// # Errors
/// If several selectors of the pipeline have a size, or the pipeline has settings by layer.
pub fn with_sizes(pipeline: &PipelineConfig, density: Fraction) -> Result<Arc<PipelineConfig>> {
    let (sized, _) = set_sizes(pipeline, density).map_err(|reason| refusal(pipeline, reason))?;
    Ok(sized)
}

/// Returns the pipeline with the sizes of selectors and fixed-size samples at all layers multiplied
/// by a factor; `None` if it has no such sizes.
pub(crate) fn scale_sizes(pipeline: &PipelineConfig, factor: f64) -> Option<Arc<PipelineConfig>> {
    let (mut pipeline, mut found) = (pipeline.clone(), false);
    pipeline.change_parts(|part| {
        let of_selectors = sizes_of_selectors(&mut part.selectors).into_iter();
        let sizes = of_selectors.flat_map(|(_, sizes)| sizes);
        for size in sizes.chain(sample_size(&mut part.estimator)) {
            *size = size.scaled(factor);
            found = true;
        }
    });
    found.then(|| Arc::new(pipeline))
}

/// Creates the error for a pipeline that cannot be set to a density.
pub(crate) fn refusal(pipeline: &PipelineConfig, reason: String) -> Error {
    Error::Setting { field: "density", reason: format!("{}: {reason}", pipeline.name) }
}

/// Returns the pipeline with its sizes set to equal parts of a density, and the number of parts.
fn set_sizes(
    pipeline: &PipelineConfig,
    density: Fraction,
) -> std::result::Result<(Arc<PipelineConfig>, usize), String> {
    if !pipeline.layers.is_empty() {
        return Err(BY_LAYER.into());
    }
    let mut pipeline = pipeline.clone();
    let mut parts = parts(&mut pipeline)?;
    let count = parts.len();
    for sizes in &mut parts {
        let share = Fraction::try_from(density.get() / (count * sizes.len()) as f64)?;
        for size in sizes {
            **size = size.with_share(share);
        }
    }
    Ok((Arc::new(pipeline), count))
}

/// Returns the sizes to set, by part: the sizes of a selector, the size of the estimator, or both.
fn parts(pipeline: &mut PipelineConfig) -> std::result::Result<Vec<Vec<&mut Size>>, String> {
    let of_selectors = sizes_of_selectors(&mut pipeline.selectors);
    if of_selectors.len() > 1 {
        let places: Vec<String> = of_selectors.iter().map(|(place, _)| place.to_string()).collect();
        return Err(format!(
            "selectors {} have a size; expected one besides sink and window",
            places.join(" and ")
        ));
    }
    let mut parts: Vec<_> = of_selectors.into_iter().map(|(_, sizes)| sizes).collect();
    parts.extend(sample_size(&mut pipeline.estimator).map(|size| vec![size]));
    Ok(parts)
}

/// Returns the sizes of each selector that has some, with its place in the list.
fn sizes_of_selectors(selectors: &mut [Box<dyn SelectorConfig>]) -> Vec<(usize, Vec<&mut Size>)> {
    let with_sizes = selectors.iter_mut().enumerate().filter_map(|(place, selector)| {
        if let Some(Tunable::Sizes(sizes)) = selector.tunable() {
            Some((place, sizes))
        } else {
            None
        }
    });
    with_sizes.collect()
}

/// Returns the size of the samples, if it is fixed.
fn sample_size(estimator: &mut Option<Box<dyn Estimator>>) -> Option<&mut Size> {
    estimator.as_mut()?.tunable()?.size
}

/// Returns the pipeline with another window size, if it has no selectors but sink and window.
fn with_window(pipeline: &PipelineConfig, density: Fraction) -> Option<Arc<PipelineConfig>> {
    if pipeline.draws() {
        return None;
    }
    let (mut pipeline, mut window) = (pipeline.clone(), None);
    for selector in &mut pipeline.selectors {
        match selector.tunable()? {
            Tunable::Sink => {}
            Tunable::Window(size) => window = window.or(Some(size)),
            Tunable::Sizes(_) | Tunable::Mass(_) | Tunable::Threshold(_) => return None,
        }
    }
    let window = window?;
    *window = window.with_share(density);
    Some(Arc::new(pipeline))
}

#[cfg(test)]
mod tests {
    use vattention_core::{pipeline::LayerSettings, step::Score};
    use vattention_estimators::Ratio;
    use vattention_selectors::{H2o, MassScope, OracleTopK, OracleTopP, Sink, Window};

    use super::*;

    fn share(share: f64) -> Size {
        Size::Share(Fraction::try_from(share).unwrap())
    }

    /// Creates a pipeline of a sink and `best` selectors by exact top-k.
    fn pipeline(best: usize, estimator: Option<Ratio>) -> PipelineConfig {
        let mut selectors: Vec<Box<dyn SelectorConfig>> =
            vec![Box::new(Sink { size: Size::Tokens(4) })];
        let top_k = OracleTopK { size: Size::Tokens(9), score: Score::Head };
        selectors.extend((0..best).map(|_| Box::new(top_k.clone()) as _));
        let estimator = estimator.map(|estimator| Box::new(estimator) as Box<dyn Estimator>);
        PipelineConfig { name: "some".into(), selectors, estimator, ..Default::default() }
    }

    fn fixed_size() -> Ratio {
        Ratio::sized(Size::Tokens(7), Fraction::try_from(0.1).unwrap())
    }

    fn with_promise() -> Ratio {
        let tenth = Fraction::try_from(0.1).unwrap();
        Ratio::new(tenth, tenth)
    }

    fn at_a_tenth(pipeline: &PipelineConfig) -> PipelineConfig {
        let density = Fraction::try_from(0.1).unwrap();
        Arc::into_inner(at_density(pipeline, density).unwrap()).unwrap()
    }

    /// Returns the sizes of the last selector and of the estimator at density 0.1.
    fn sizes(pipeline: &PipelineConfig) -> (Vec<Size>, Option<Size>) {
        let mut scaled = at_a_tenth(pipeline);
        let goal = scaled.goal().and_then(|goal| goal.size());
        let last = match scaled.selectors.last_mut().unwrap().tunable() {
            Some(Tunable::Sizes(sizes)) => sizes.into_iter().map(|size| *size).collect(),
            Some(Tunable::Window(size)) => vec![*size],
            _ => Vec::new(),
        };
        (last, goal)
    }

    /// Creates a pipeline of a sink and another selector.
    fn with(last: impl SelectorConfig + 'static) -> PipelineConfig {
        let mut some = pipeline(0, None);
        some.selectors.push(Box::new(last));
        some
    }

    #[test]
    fn the_density_goes_to_the_selector_and_the_sample_in_equal_parts() {
        let both = sizes(&pipeline(1, Some(fixed_size())));
        assert_eq!(both, (vec![share(0.05)], Some(share(0.05))));
        assert_eq!(sizes(&pipeline(1, None)), (vec![share(0.1)], None));
        assert_eq!(sizes(&pipeline(0, Some(fixed_size()))), (Vec::new(), Some(share(0.1))));
        let sink = serde_json::to_value(&at_a_tenth(&pipeline(1, None)).selectors[0]).unwrap();
        assert_eq!(sink["size"], 4, "the sink stays");
    }

    #[test]
    fn sizes_of_evicting_selectors_are_set() {
        let [few, all] = [Size::Tokens(4), Size::Tokens(100)];
        assert_eq!(sizes(&with(Window { size: all, aligned: false })).0, [share(0.1)]);
        assert_eq!(sizes(&with(H2o { heavy: few, recent: all })).0, [share(0.05); 2]);
        // A promise decides the density, and the window's size is not changed.
        let promising = PipelineConfig {
            estimator: Some(Box::new(with_promise())),
            ..with(Window { size: all, aligned: false })
        };
        let mut same = (*with_sizes(&promising, Fraction::try_from(0.1).unwrap()).unwrap()).clone();
        let last = same.selectors.last_mut().unwrap().tunable();
        assert!(matches!(last, Some(Tunable::Window(size)) if *size == all));
    }

    #[test]
    fn a_pipeline_without_one_place_for_the_density_is_refused() {
        let refusal = |pipeline: &PipelineConfig| {
            at_density(pipeline, Fraction::try_from(0.1).unwrap()).unwrap_err().to_string()
        };
        let by_mass = OracleTopP {
            mass: Fraction::try_from(0.9).unwrap(),
            of: MassScope::All,
            score: Score::Head,
        };
        for none in [pipeline(0, None), with(by_mass)] {
            assert!(refusal(&none).contains("density: some: has no size to set"));
        }
        assert!(refusal(&pipeline(2, None)).contains("selectors 1 and 2 have a size"));
        let layers = vec![LayerSettings { at: vec![0.into()], pipeline: Arc::default() }];
        let by_layer = PipelineConfig { layers, ..pipeline(1, None) };
        assert!(refusal(&by_layer).contains("some: it has settings by layer"));
        assert!(with_sizes(&by_layer, Fraction::try_from(0.1).unwrap()).is_err());
        let promising = pipeline(1, Some(with_promise()));
        assert!(decides_itself(&promising) && !decides_itself(&pipeline(1, None)));
        assert!(refusal(&promising).contains("decides how much is read"));
    }
}
