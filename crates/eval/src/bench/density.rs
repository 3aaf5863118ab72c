//! A pipeline made to read a given share of the tokens.

use std::sync::Arc;

use serde_json::Value;
use vattention_core::{Fraction, PipelineConfig};

use crate::{Error, Result};

/// Selectors that have a size, but not one that decides how much a step reads.
const EDGES: [&str; 2] = ["sink", "window"];

/// What the sizes of other selectors are called.
const SIZES: [&str; 3] = ["size", "heavy", "recent"];

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
/// `window`, or `h2o` with its two; and an estimator that has a `size`. A pipeline
/// with both gives half of the density to each, a pipeline with one of them gives it all. Where sink
/// and window are everything, the window has the size that is set.
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
    if parts > 0 {
        return Ok(scaled);
    }
    let reason = "has no size to set; expected a selector with a size beside sink and window, an \
                  estimator with one, or sink and window alone";
    with_window(pipeline, density).ok_or_else(|| refuse(reason.into()))
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
    for sizes in &mut parts {
        let share = density.get() / (count * sizes.len()) as f64;
        for size in sizes {
            **size = share.into();
        }
    }
    let scaled = serde_json::from_value(tree).map_err(|error| error.to_string())?;
    Ok((Arc::new(scaled), count))
}

/// The sizes to set: those of a selector, that of the estimator, or both. If several selectors have
/// some, their places.
fn scaled_parts(tree: &mut Value) -> std::result::Result<Vec<Vec<&mut Value>>, String> {
    let Value::Object(tables) = tree else { return Ok(Vec::new()) };
    let (mut parts, mut places) = (Vec::new(), Vec::new());
    for (key, value) in tables {
        match (key.as_str(), value) {
            ("selectors", Value::Array(list)) => {
                for (i, selector) in list.iter_mut().enumerate() {
                    let sizes = sizes_of(selector);
                    if !sizes.is_empty() {
                        parts.push(sizes);
                        places.push(i.to_string());
                    }
                }
            }
            ("estimator", estimator) => parts.extend(estimator.get_mut("size").map(|x| vec![x])),
            _ => {}
        }
    }
    if places.len() > 1 { Err(places.join(" and ")) } else { Ok(parts) }
}

/// The sizes of a selector that decide how much a step reads.
fn sizes_of(selector: &mut Value) -> Vec<&mut Value> {
    if EDGES.contains(&type_of(selector)) {
        return Vec::new();
    }
    let Value::Object(fields) = selector else { return Vec::new() };
    // "auto" is a size that the selector sets itself.
    let is_size = |(name, value): &(&String, &mut Value)| {
        SIZES.contains(&name.as_str()) && !value.is_string()
    };
    fields.iter_mut().filter(is_size).map(|(_, value)| value).collect()
}

/// The pipeline with another window, if sink and window are everything.
fn with_window(pipeline: &PipelineConfig, density: Fraction) -> Option<Arc<PipelineConfig>> {
    let mut tree = serde_json::to_value(pipeline).ok()?;
    let selectors = tree.get_mut("selectors")?.as_array_mut()?;
    if pipeline.draws() || !selectors.iter().all(|one| EDGES.contains(&type_of(one))) {
        return None;
    }
    let window = selectors.iter_mut().find(|one| type_of(one) == "window")?;
    window["size"] = density.get().into();
    serde_json::from_value(tree).ok().map(Arc::new)
}

fn type_of(selector: &Value) -> &str {
    selector.get("type").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use vattention_core::{
        BudgetEstimator, Demand, LayerSettings, Radius, SampleStats, Selector, SelectorConfig,
        Site, Size, typetag,
    };
    use vattention_selectors::{H2o, Sink, Window};

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
        fn radius(&self, _: &SampleStats) -> Radius {
            unreachable!("only its text is looked at")
        }
        fn demand(&self) -> Demand {
            unreachable!("only its text is looked at")
        }
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Deciding {}

    #[typetag::serde(name = "deciding")]
    impl BudgetEstimator for Deciding {
        fn radius(&self, _: &SampleStats) -> Radius {
            unreachable!("only its text is looked at")
        }
        fn demand(&self) -> Demand {
            unreachable!("only its text is looked at")
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
    fn what_evicts_has_sizes_too() {
        let [few, all] = [Size::Tokens(4), Size::Tokens(100)];
        let with = |last: Box<dyn SelectorConfig>| {
            let mut some = pipeline(0, None);
            some.selectors.push(last);
            some
        };
        assert_eq!(sizes(&with(Box::new(Window { size: all }))).0, 0.1);
        let h2o = with(Box::new(H2o { heavy: few, recent: all }));
        let scaled = at_density(&h2o, Fraction::try_from(0.1).unwrap()).unwrap();
        let scaled = serde_json::to_value(&scaled.selectors[1]).unwrap();
        assert_eq!((&scaled["heavy"], &scaled["recent"]), (&0.05.into(), &0.05.into()));
        // A promise decides by itself, and leaves the window as it is.
        let mut promising = with(Box::new(Window { size: all }));
        promising.estimator = Some(Box::new(Deciding {}));
        let same = sized(&promising, Fraction::try_from(0.1).unwrap()).unwrap();
        assert_eq!(serde_json::to_value(&same.selectors[1]).unwrap()["size"], 100);
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
