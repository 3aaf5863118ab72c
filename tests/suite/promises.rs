//! Every shipped pipeline with a promise keeps it on every kind of head: 2,000 samples of each row, at a
//! level of 1e-6 for each count.

use std::sync::Arc;

use crate::common;
use serde::{Deserialize, Serialize};
use vattention::config::load;
use vattention::estimators::Ratio;
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::plugin::{
    Estimator, Fraction, Goal, Radius, SampleStats, SelectorConfig, Size, register, typetag,
};
use vattention::selectors::{H2o, Sink};
use vattention::{PipelineConfig, Share};
use vattention_testkit::promises::{
    PromiseHead, PromiseTrials, contradicted, for_each_head, keeps_promise,
};

#[test]
fn every_shipped_promise_is_kept_on_every_kind_of_head() {
    let files = common::configs();
    let untrained = files.iter().filter(|path| !common::is_trained(path));
    let pipelines: Vec<_> = untrained.map(|path| load(path).unwrap()).collect();
    let promised: Vec<_> =
        pipelines.iter().filter_map(|pipeline| Some((pipeline, pipeline.promise()?))).collect();
    assert!(promised.len() >= 12, "{} pipelines promise something", promised.len());
    for_each_head(|head| {
        for (pipeline, promise) in &promised {
            let name = &pipeline.name;
            let found = PromiseTrials::new(head, pipeline).run();
            println!("{head:?}, {name}: {found:?}");
            // What the paper's constants lack on skewed values is in docs/guarantees.md, section 8.
            let lacking = name.contains("paper") && matches!(head, PromiseHead::OneDirection(_));
            let violated = contradicted(found.violated, promise.delta.get());
            assert!(lacking || !violated, "{head:?}, {name}: {} violated", found.violated);
        }
    });
}

/// An estimator whose error bars are 0.3 times as wide as they should be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Narrow {
    ratio: Ratio,
}

#[typetag::serde(name = "narrow")]
impl Estimator for Narrow {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let Radius { relative, kind, assumes } = self.ratio.radius(stats);
        Radius::new(0.3 * relative, kind, assumes)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        self.ratio.goal()
    }
}

register!(Estimator, "narrow", Narrow, "error bars that are too narrow");

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

fn ratio() -> Ratio {
    Ratio::new(fraction(0.1), fraction(0.1))
}

fn pipeline(selector: Box<dyn SelectorConfig>, estimator: Box<dyn Estimator>) -> PipelineConfig {
    PipelineConfig {
        share: Share::Head,
        selectors: vec![selector],
        estimator: Some(estimator),
        ..PipelineConfig::default()
    }
}

/// Result of `promise!` for a selector and an estimator.
fn tried(selector: Box<dyn SelectorConfig>, estimator: Box<dyn Estimator>) -> String {
    keeps_promise(&Arc::new(pipeline(selector, estimator))).err().unwrap_or_default()
}

/// A selector that learns is shown a prompt and given feedback, so that something is left to sample
/// and an estimator is judged; without either, `h2o` would keep every token.
#[test]
fn an_estimator_after_a_selector_that_learns_is_judged() {
    let tenth = || Size::Share(fraction(0.1));
    let h2o = || Box::new(H2o { heavy: tenth(), recent: tenth() });
    let said = tried(h2o(), Box::new(Narrow { ratio: ratio() }));
    assert!(said.contains("Cancelling: ") && said.contains("violates none of it"), "{said}");
    let config = Arc::new(pipeline(h2o(), Box::new(ratio())));
    let found = PromiseTrials::new(PromiseHead::Cancelling, &config).run();
    assert!(found.most_drawn > 0 && !contradicted(found.violated, 0.1), "{found:?}");
}

/// A kind of head that violates an assumption is named with that assumption.
#[test]
fn a_sink_alone_breaks_its_promise_on_a_needle_and_the_message_says_why() {
    let said = tried(Box::new(Sink { size: Size::Tokens(16) }), Box::new(ratio()));
    let needle = said.lines().find(|line| line.starts_with("Needle: ")).unwrap_or(&said);
    for part in ["assume `tail-seen`", "eight tokens hold half of the attention", "oracle-top-k"] {
        assert!(needle.contains(part), "{part}: {said}");
    }
}

/// A test that draws no sample has tested nothing.
#[test]
fn a_pipeline_that_reads_everything_is_no_test_of_a_promise() {
    let said = tried(Box::new(Sink { size: Size::Tokens(5000) }), Box::new(ratio()));
    assert!(said.contains("a sample was drawn"), "{said}");
}
