//! A pipeline made to read a given share of the tokens.

use std::sync::Arc;

use serde_json::Value;
use vattention_core::{Fraction, PipelineConfig};

use crate::{Error, Result};

/// Selectors that have a size, but not one that decides how much a step reads.
const EDGES: [&str; 2] = ["sink", "window"];

/// Why a pipeline with settings by layer is made for no density.
pub(crate) const BY_LAYER: &str = "it has settings by layer, and the same size would be set at all";

/// Whether a pipeline's estimator decides how large the sample is, and with it what a step reads:
/// every estimator without a `size`.
pub fn decides_itself(pipeline: &PipelineConfig) -> bool {
    pipeline.estimator.as_ref().is_some_and(|estimator| {
        serde_json::to_value(estimator).is_ok_and(|estimator| estimator.get("size").is_none())
    })
}

/// The pipeline with its sizes set so that a step reads about `density` of the tokens, beside what
/// `sink` and `window` take.
///
/// Two parts have such a size: the one selector that has a `size` and is neither `sink` nor
/// `window`, and an estimator that has a `size`, such as `fixed`. A pipeline with both gives half
/// of the density to each, a pipeline with one of them gives it all.
///
/// # Errors
/// A pipeline that has neither, or several such selectors, or settings by layer, or that [decides
/// itself](decides_itself).
pub fn at_density(pipeline: &PipelineConfig, density: Fraction) -> Result<Arc<PipelineConfig>> {
    let refuse = |reason: String| refusal(pipeline, reason);
    if decides_itself(pipeline) {
        return Err(refuse("its estimator decides how much is read".into()));
    }
    let (scaled, parts) = set_sizes(pipeline, density).map_err(refuse)?;
    if parts == 0 {
        let message = "has no size to set; expected a selector with a size beside sink and window, \
                       or an estimator with one";
        return Err(refuse(message.into()));
    }
    Ok(scaled)
}

/// The pipeline with those sizes set that [`at_density`] sets; as it stands if it has none.
///
/// # Errors
/// A pipeline of which several selectors have a size, or with settings by layer.
pub fn sized(pipeline: &PipelineConfig, density: Fraction) -> Result<Arc<PipelineConfig>> {
    let (sized, _) = set_sizes(pipeline, density).map_err(|reason| refusal(pipeline, reason))?;
    Ok(sized)
}

/// Why a pipeline cannot be made to read a share.
pub(crate) fn refusal(pipeline: &PipelineConfig, reason: String) -> Error {
    Error::Setting { option: "--density", reason: format!("{}: {reason}", pipeline.name) }
}

/// The pipeline with its sizes set to equal parts of a density, and how many there are.
fn set_sizes(
    pipeline: &PipelineConfig,
    density: Fraction,
) -> std::result::Result<(Arc<PipelineConfig>, usize), String> {
    if !pipeline.layers.is_empty() {
        return Err(BY_LAYER.into());
    }
    let mut tree = serde_json::to_value(pipeline).map_err(|error| error.to_string())?;
    let mut parts = scaled_parts(&mut tree).map_err(|several| {
        format!("selectors {several} have a size; expected one beside {}", EDGES.join(" and "))
    })?;
    let count = parts.len();
    for size in &mut parts {
        **size = (density.get() / count as f64).into();
    }
    let scaled = serde_json::from_value(tree).map_err(|error| error.to_string())?;
    Ok((Arc::new(scaled), count))
}

/// The sizes to set: of a selector, of the estimator, or both. If several selectors have one, their
/// places.
fn scaled_parts(tree: &mut Value) -> std::result::Result<Vec<&mut Value>, String> {
    let Value::Object(tables) = tree else { return Ok(Vec::new()) };
    let (mut selectors, mut others) = (Vec::new(), Vec::new());
    for (key, value) in tables {
        match (key.as_str(), value) {
            ("selectors", Value::Array(list)) => {
                selectors.extend(list.iter_mut().enumerate().filter(|(_, one)| is_scaled(one)));
            }
            ("estimator", estimator) => others.extend(estimator.get_mut("size")),
            _ => {}
        }
    }
    if selectors.len() > 1 {
        let places: Vec<String> = selectors.iter().map(|(i, _)| i.to_string()).collect();
        return Err(places.join(" and "));
    }
    let sizes = selectors.into_iter().filter_map(|(_, selector)| selector.get_mut("size"));
    Ok(sizes.chain(others).collect())
}

fn is_scaled(selector: &Value) -> bool {
    let name = selector.get("type").and_then(Value::as_str).unwrap_or_default();
    // "auto" is a size that the selector sets itself.
    selector.get("size").is_some_and(|size| !size.is_string()) && !EDGES.contains(&name)
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use vattention_core::{
        Assumptions, Budget, BudgetEstimator, Kind, LayerSettings, Promise, SampleStats, Selector,
        SelectorConfig, Site, Size, typetag,
    };
    use vattention_selectors::Sink;

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Sized {
        size: Size,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Largest(Sized);

    #[typetag::serde(name = "largest")]
    impl SelectorConfig for Largest {
        fn build(&self, _: &Site) -> vattention_core::Result<Box<dyn Selector>> {
            unreachable!("only its text is looked at")
        }
    }

    #[typetag::serde(name = "drawn")]
    impl BudgetEstimator for Sized {
        fn budget(&self, _: &SampleStats) -> Budget {
            Budget { tokens: 1, kind: Kind::None, assumes: Assumptions::NONE }
        }
        fn promise(&self) -> Option<Promise> {
            None
        }
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Deciding {}

    #[typetag::serde(name = "deciding")]
    impl BudgetEstimator for Deciding {
        fn budget(&self, _: &SampleStats) -> Budget {
            Budget { tokens: 1, kind: Kind::None, assumes: Assumptions::NONE }
        }
        fn promise(&self) -> Option<Promise> {
            None
        }
    }

    fn tokens(size: usize) -> Sized {
        Sized { size: Size::Tokens(size) }
    }

    fn pipeline(largest: usize, estimator: Option<Box<dyn BudgetEstimator>>) -> PipelineConfig {
        let mut selectors: Vec<Box<dyn SelectorConfig>> =
            vec![Box::new(Sink { size: Size::Tokens(4) })];
        selectors.extend((0..largest).map(|_| Box::new(Largest(tokens(9))) as _));
        PipelineConfig { name: "some".into(), selectors, estimator, ..Default::default() }
    }

    /// What the sizes of the last selector and of the estimator become at density 0.1.
    fn sizes(pipeline: &PipelineConfig) -> (Value, Value) {
        let density = Fraction::try_from(0.1).unwrap();
        let scaled = serde_json::to_value(&*at_density(pipeline, density).unwrap()).unwrap();
        let last = scaled["selectors"].as_array().unwrap().last().unwrap()["size"].clone();
        (last, scaled["estimator"]["size"].clone())
    }

    #[test]
    fn the_density_goes_to_the_selector_and_the_sample_in_equal_parts() {
        let drawn = || Some(Box::new(tokens(7)) as Box<dyn BudgetEstimator>);
        assert_eq!(sizes(&pipeline(1, drawn())), (0.05.into(), 0.05.into()));
        assert_eq!(sizes(&pipeline(1, None)), (0.1.into(), Value::Null));
        assert_eq!(sizes(&pipeline(0, drawn())), (4.into(), 0.1.into()), "the sink stays");
    }

    #[test]
    fn a_pipeline_without_one_place_for_the_density_is_refused() {
        let refusal = |pipeline: &PipelineConfig| {
            at_density(pipeline, Fraction::try_from(0.1).unwrap()).unwrap_err().to_string()
        };
        assert!(refusal(&pipeline(0, None)).contains("--density: some: has no size to set"));
        assert!(refusal(&pipeline(2, None)).contains("selectors 1 and 2 have a size"));
        let layers = vec![LayerSettings { at: vec![0.into()], pipeline: Arc::default() }];
        let by_layer = PipelineConfig { layers, ..pipeline(1, None) };
        assert!(refusal(&by_layer).contains("some: it has settings by layer"));
        assert!(sized(&by_layer, Fraction::try_from(0.1).unwrap()).is_err());
        let own = pipeline(1, Some(Box::new(Deciding {})));
        assert!(decides_itself(&own) && !decides_itself(&pipeline(1, None)));
        assert!(refusal(&own).contains("decides how much is read"));
    }
}
