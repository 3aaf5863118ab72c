//! Messages of `promise!` about pipelines that break their promise.

use vattention_testkit::promises::{PromiseHead, keeps_promise, try_head};

use crate::case::Goal::Epsilon;
use crate::case::PromiseCase;

const H2O: &str = "{ type = 'h2o', heavy = 0.1, recent = 0.1 }";

fn case(selector: &'static str, estimator: &str) -> PromiseCase {
    PromiseCase::new(&[], &[selector], "'uniform'", estimator, &[])
}

/// Message of `promise!` for a selector and an estimator; empty if the promise is kept.
fn message(selector: &'static str, estimator: &str) -> String {
    let pipeline = case(selector, estimator).pipeline(Epsilon(0.1, 0.1));
    keeps_promise(&pipeline).err().unwrap_or_default()
}

/// A selector that learns gets a prompt and feedback. Without them, `h2o` would pick all tokens, so
/// that no sample would be drawn and the estimator not tested.
#[test]
fn an_estimator_after_a_selector_that_learns_is_tested() {
    let message = message(H2O, "'narrow'");
    let parts = ["Cancelling: ", "violates no assumption"];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    let pipeline = case(H2O, "'ratio'").pipeline(Epsilon(0.1, 0.1));
    let counts = try_head(PromiseHead::Cancelling, &pipeline);
    assert!(counts.most_drawn > 0 && !counts.violated.contradicts(0.1), "{counts:?}");
}

/// A kind of head that violates an assumption is named with that assumption.
#[test]
fn a_sink_alone_breaks_its_promise_on_a_needle_and_the_message_explains_it() {
    let message = message("{ type = 'sink', size = 16 }", "'ratio'");
    let needle = message.lines().find(|line| line.starts_with("Needle: ")).unwrap_or(&message);
    for part in ["assume `tail-seen`", "eight tokens hold half of the attention", "oracle-top-k"] {
        assert!(needle.contains(part), "{part}: {message}");
    }
}

/// A pipeline that draws no sample does not test any promise.
#[test]
fn a_pipeline_that_reads_all_tokens_is_an_error() {
    let message = message("{ type = 'sink', size = 5000 }", "'ratio'");
    assert!(message.contains("no sample was drawn"), "{message}");
}
