//! Checks for contradictions between the parts of a pipeline.

use crate::{
    Conflict, Error, Result,
    pipeline::{LayerSettings, Layers, PipelineConfig, Share},
    plugin::SampleEvidence,
    promise::{Goal, Scope, Target},
};

/// Largest number of selectors. Each needs a stream purpose of its own, and there are 2¹⁶ purposes.
const MAX_SELECTORS: usize = 1000;

impl PipelineConfig {
    /// Contradictions between the parts of the pipeline, at all layers, which no component can
    /// find by itself. Empty if the pipeline can run.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let mut found = self.own_conflicts();
        found.extend(self.conflicts_of_layers());
        found
    }

    /// Contradictions at layers without settings of their own.
    pub(crate) fn own_conflicts(&self) -> Vec<Conflict> {
        let mut found = Vec::new();
        let mut conflict = |at: String, message: String, help: &str| {
            found.push(Conflict { at, message, help: help.into() });
        };
        let count = self.selectors.len();
        if count > MAX_SELECTORS {
            conflict(
                format!("selectors[{MAX_SELECTORS}]"),
                format!("expected at most {MAX_SELECTORS} selectors, found {count}"),
                "remove some selectors",
            );
        }
        if let Some((at, message, help)) = self.sampling_conflict() {
            conflict(at.into(), message, help);
        }
        if self.share == Share::Group && !self.sampler().shares() {
            let name = self.sampler().typetag_name();
            conflict(
                "sampler".into(),
                format!("`{name}` draws for each query head, so they cannot share a token list"),
                "write `share = \"head\"` at the top of the file",
            );
        }
        found
    }

    /// Contradiction between estimator, sampler and selectors, if there is one: the key at fault, a
    /// message and advice.
    fn sampling_conflict(&self) -> Option<(&'static str, String, &'static str)> {
        let sampler = self.sampler();
        let sampler_name = sampler.typetag_name();
        let Some(estimator) = &self.estimator else {
            let idle = self.sampler.is_some() && sampler.evidence() != SampleEvidence::Nothing;
            return idle.then(|| {
                let message = "[sampler] has no effect: without [estimator] nothing is drawn";
                ("sampler", message.into(), "add [estimator], or leave out [sampler]")
            });
        };
        let estimator_name = estimator.typetag_name();
        let target = match estimator.goal() {
            Ok(goal) if goal.target == Target::Numerator && !goal.reference.is_stored() => {
                let message = format!(
                    "`{estimator_name}` counts the rounding of rows, whose effect on the numerator \
                     has no bound"
                );
                let help = "choose the target `sdpa` or `denominator`, or leave out `reference`";
                return Some(("estimator", message, help));
            }
            Ok(goal) => goal.target,
            Err(conflict) => {
                let help = "write `epsilon` for a promise (and `limit` for the largest sample), or \
                            `size` for a sample size";
                return Some(("estimator", format!("`{estimator_name}` {conflict}"), help));
            }
        };
        let bounded = self.selectors.iter().any(|selector| selector.bounds_residual());
        match (estimator.evidence(), sampler.evidence()) {
            (_, SampleEvidence::Nothing) => Some((
                "estimator",
                format!(
                    "the draws of `{sampler_name}` depend on each other, so its samples cannot \
                     grow, their error is unknown, and no estimator can be used"
                ),
                "leave out [estimator], or choose another sampler",
            )),
            (needs @ (SampleEvidence::Range | SampleEvidence::Proof), _)
                if sampler.is_uniform() =>
            {
                (!bounded).then(|| {
                    let message = format!(
                        "`{estimator_name}` as configured needs a proved bound on the weights of \
                         unpicked tokens, and no selector proves one"
                    );
                    ("estimator", message, advise_bound(needs, target))
                })
            }
            (SampleEvidence::Range, _) => Some((
                "sampler",
                format!(
                    "`{estimator_name}` needs a uniform sample, and `{sampler_name}` does not draw \
                     uniformly"
                ),
                "leave out [sampler], or choose the estimator `ratio`",
            )),
            (SampleEvidence::Proof, SampleEvidence::Variances) => Some((
                "sampler",
                format!(
                    "`{estimator_name}` as configured makes no assumptions, and nothing bounds the \
                     weights of the tokens that `{sampler_name}` has not drawn"
                ),
                if sampler_name == "priority" {
                    "write `index = \"8-bit\"` under [sampler], whose copies of the keys bound \
                     them, or write `mode = \"default\"`"
                } else {
                    "write `mode = \"default\"`, or choose the sampler `priority` with \
                     `index = \"8-bit\"`"
                },
            )),
            (SampleEvidence::Proof, SampleEvidence::Proof) if target != Target::Sdpa => Some((
                "estimator",
                format!(
                    "`{estimator_name}` as configured makes no assumptions, and `{sampler_name}` \
                     proves only the error of the output, not that of the {target}"
                ),
                "write `target = \"sdpa\"` or `mode = \"default\"`, or leave out [sampler]",
            )),
            (SampleEvidence::Nothing | SampleEvidence::Variances | SampleEvidence::Proof, _) => {
                None
            }
        }
    }

    /// Checks that a model of `count` layers has the layers that this pipeline names. A range may
    /// extend beyond the last layer, but must contain a layer of the model.
    ///
    /// # Errors
    /// Returns [`Error::Conflict`] with the key that names missing layers.
    pub fn expect_layers(&self, count: usize) -> Result<()> {
        check_layers_exist("dense_layers", &self.dense_layers, count)?;
        for (i, settings) in self.layers.iter().enumerate() {
            check_layers_exist(&format!("layers[{i}].at"), &settings.at, count)?;
        }
        Ok(())
    }

    /// Contradictions in the settings of single layers.
    pub(crate) fn conflicts_of_layers(&self) -> Vec<Conflict> {
        let mut found = Vec::new();
        for (i, settings) in self.layers.iter().enumerate() {
            let at = format!("layers[{i}]");
            let within = settings.pipeline.own_conflicts().into_iter();
            found.extend(
                within.map(|conflict| Conflict { at: format!("{at}.{}", conflict.at), ..conflict }),
            );
            let mut conflict = |message: String, help: &str| {
                found.push(Conflict { at: at.clone(), message, help: help.into() });
            };
            let before = self.layers[..i].iter().enumerate();
            for (j, layer) in
                before.filter_map(|(j, other)| Some((j, find_common_layer(settings, other)?)))
            {
                conflict(
                    format!("layer {layer} is here and in layers[{j}]"),
                    "name each layer in one table only: a range excludes its end, so \"0..2\" and \
                     \"2..\" do not overlap",
                );
            }
            if settings.pipeline.share != self.share {
                conflict(
                    "`share` differs from that of the pipeline".into(),
                    "set the same `share` at all layers",
                );
            }
            if let Some((here, elsewhere)) = self.describe_goal_difference(&settings.pipeline) {
                conflict(
                    format!("{here} at these layers, and {elsewhere} at others"),
                    "set the same promise at all layers that are not dense, because violations are \
                     counted over all layers; sizes, the mode and the sampler may differ",
                );
            }
        }
        found
    }

    /// Compares the goal of a part with that of the first part that is not dense. Returns
    /// descriptions of both if they differ.
    fn describe_goal_difference(&self, part: &Self) -> Option<(String, String)> {
        let describe = |goal: Option<Goal>| {
            let Some(goal) = goal else { return "nothing is promised".to_owned() };
            let Goal { target, delta, scope, reference, .. } = goal;
            let scope = if scope == Scope::Step { ", scope step" } else { "" };
            let within = match goal.epsilon() {
                Some(epsilon) => format!("is promised within epsilon {}", epsilon.get()),
                None => "has an error bar".into(),
            };
            let unrounded = if reference.is_stored() { "" } else { ", reference unrounded" };
            format!("{target} {within}, delta {}{scope}{unrounded}", delta.get())
        };
        let compared_fields =
            |goal: Goal| (goal.target, goal.delta, goal.scope, goal.reference, goal.epsilon());
        let mut sparse = self.parts().filter(|part| !part.reads_everything());
        let [here, first] = [part.goal(), sparse.next()?.goal()];
        let promised = [here, first].into_iter().flatten().any(|goal| goal.epsilon().is_some());
        let compared = (here.map(compared_fields), first.map(compared_fields));
        let differs = match compared {
            (Some(here), Some(first)) => here != first,
            (here, first) => promised && here != first,
        };
        (!part.reads_everything() && differs).then(|| (describe(here), describe(first)))
    }
}

/// A layer that both settings name, if there is one.
fn find_common_layer(a: &LayerSettings, b: &LayerSettings) -> Option<usize> {
    let with = |layers: &Layers| b.at.iter().find_map(|other| layers.first_common(*other));
    a.at.iter().find_map(with)
}

/// Checks that a model of `count` layers has the layers that a key names.
fn check_layers_exist(key: &str, named: &[Layers], count: usize) -> Result<()> {
    let beyond = named.iter().position(|layers| layers.bounds().0 >= count);
    let Some(i) = beyond else { return Ok(()) };
    let message = format!(
        "layer {}, which the model does not have; expected 0 to {}",
        named[i],
        count.saturating_sub(1)
    );
    let help = "name layers of the model, or leave the entry out".into();
    Err(Error::Conflict(Conflict { at: format!("{key}[{i}]"), message, help }))
}

/// Advice for an estimator that needs a proved bound, with a uniform sample and selectors that
/// prove none. An exact top-k reads every key, so it is the last suggestion.
fn advise_bound(needs: SampleEvidence, target: Target) -> &'static str {
    match (needs, target) {
        (SampleEvidence::Proof, Target::Sdpa) => {
            "choose the sampler `priority` with `index = \"8-bit\"`, which bounds every weight, or \
             add the selector `oracle-top-k` with `score = \"head\"`, which reads every key"
        }
        (SampleEvidence::Proof, _) => {
            "write `target = \"sdpa\"` and choose the sampler `priority` with \
             `index = \"8-bit\"`, or add the selector `oracle-top-k` with `score = \"head\"`, \
             which reads every key"
        }
        _ => {
            "choose the estimator `ratio`, which needs no bound, or add the selector \
             `oracle-top-k` with `score = \"head\"`, which reads every key"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn layers_beyond_a_model_are_refused_by_their_key() {
        let pipeline = |dense: &[&str]| PipelineConfig {
            dense_layers: dense.iter().map(|text| serde_json::from_str(text).unwrap()).collect(),
            ..PipelineConfig::default()
        };
        for fine in ["2", "\"0..77\"", "\"2..\""] {
            pipeline(&[fine]).expect_layers(3).unwrap();
        }
        for (beyond, shown) in [("77", "77"), ("3", "3"), ("\"3..5\"", "3..5"), ("\"9..\"", "9..")]
        {
            let message = pipeline(&["0", beyond]).expect_layers(3).unwrap_err().to_string();
            let expected = format!(
                "dense_layers[1]: layer {shown}, which the model does not have; expected 0 to 2"
            );
            assert_eq!(message, expected);
        }
        let own = LayerSettings { at: vec![5.into()], pipeline: Arc::default() };
        let settings = PipelineConfig { layers: vec![own], ..PipelineConfig::default() };
        settings.expect_layers(6).unwrap();
        let message = settings.expect_layers(5).unwrap_err().to_string();
        assert!(message.starts_with("layers[0].at[0]: layer 5, which"), "{message}");
    }
}
