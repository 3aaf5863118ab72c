//! Messages of `promise!` about pipelines that break their promise.

use vattention_testkit::promises::{PromiseHead, keeps_promise, try_head};

use crate::line::Goal::Epsilon;
use crate::line::Line;

const H2O: &str = "{ type = 'h2o', heavy = 0.1, recent = 0.1 }";

fn line(selector: &'static str, estimator: &str) -> Line {
    Line::new(&[], &[selector], "'uniform'", estimator, &[])
}

/// Result of `promise!` for a selector and an estimator.
fn tried(selector: &'static str, estimator: &str) -> String {
    let pipeline = line(selector, estimator).pipeline(Epsilon(0.1, 0.1));
    keeps_promise(&pipeline).err().unwrap_or_default()
}

/// A selector that learns is shown a prompt and given feedback, so that something is left to sample
/// and an estimator is judged; without either, `h2o` would keep every token.
#[test]
fn an_estimator_after_a_selector_that_learns_is_judged() {
    let said = tried(H2O, "'narrow'");
    assert!(said.contains("Cancelling: ") && said.contains("violates none of it"), "{said}");
    let pipeline = line(H2O, "'ratio'").pipeline(Epsilon(0.1, 0.1));
    let counts = try_head(PromiseHead::Cancelling, &pipeline);
    assert!(counts.most_drawn > 0 && !counts.violated.contradicts(0.1), "{counts:?}");
}

/// A kind of head that violates an assumption is named with that assumption.
#[test]
fn a_sink_alone_breaks_its_promise_on_a_needle_and_the_message_says_why() {
    let said = tried("{ type = 'sink', size = 16 }", "'ratio'");
    let needle = said.lines().find(|line| line.starts_with("Needle: ")).unwrap_or(&said);
    for part in ["assume `tail-seen`", "eight tokens hold half of the attention", "oracle-top-k"] {
        assert!(needle.contains(part), "{part}: {said}");
    }
}

/// A test that draws no sample has tested nothing.
#[test]
fn a_pipeline_that_reads_everything_is_no_test_of_a_promise() {
    let said = tried("{ type = 'sink', size = 5000 }", "'ratio'");
    assert!(said.contains("a sample was drawn"), "{said}");
}
