//! Promises on heads with soft caps and attention sinks.
//!
//! Errors are those of the attention with the sink and the cap, so that a part of a pipeline that
//! ignores one of them breaks its promise.

use vattention_core::Kind;
use vattention_testkit::HeadForm;
use vattention_testkit::promises::{PromiseHead, for_each, try_head};

use crate::case::Goal::{Epsilon, Size};
use crate::case::{Cell, ENDS, PromiseCase, assert_all, count};
use crate::promise_table::{
    CODES, KEYS, RANKED, RATIO, RIGOROUS, SCORES, STRATIFIED, STRICT, UNIFORM, shipped_pipelines,
    with_ends_only, with_top,
};

/// Heads without cap and sink.
static PLAIN: [PromiseHead; 2] = [PromiseHead::Gaussian, PromiseHead::LogNormal(2.0)];

/// Sinks of almost no, some and most of the attention; a cap that halves the distance of most
/// logits; and both.
const FORMS: [HeadForm; 5] = [
    HeadForm { soft_cap: None, offset: 0.0, sink_share: Some(1e-12) },
    HeadForm { soft_cap: None, offset: 0.0, sink_share: Some(0.3) },
    HeadForm { soft_cap: None, offset: 0.0, sink_share: Some(0.95) },
    HeadForm { soft_cap: Some(30.0), offset: 25.0, sink_share: None },
    HeadForm { soft_cap: Some(50.0), offset: 45.0, sink_share: Some(0.6) },
];

/// Every head in every form.
fn heads() -> Vec<PromiseHead> {
    let formed = |form| PLAIN.iter().map(move |head| PromiseHead::Formed(head, form));
    FORMS.into_iter().flat_map(formed).collect()
}

/// Asserts that enough cells draw samples that do not contain all tokens.
fn assert_drawn(cells: &[Cell], least: usize) {
    let drawn = count(cells, |cell| cell.counts.exact < cell.counts.rows);
    assert!(drawn >= least, "samples are drawn in {drawn} of {} cells only", cells.len());
}

#[test]
fn every_estimator_keeps_its_promise() {
    let goals = [Epsilon(0.1, 0.1)];
    for estimator in [
        RATIO,
        STRICT,
        "'clt', target = 'denominator'",
        "'clt', target = 'numerator'",
        "'clt', target = 'sdpa'",
        "'sub-gaussian', target = 'sdpa'",
    ] {
        assert_drawn(&with_top(&heads(), UNIFORM, estimator, &goals).check(), 5);
    }
    let cells = with_top(&heads(), UNIFORM, RIGOROUS, &[Epsilon(0.2, 0.1)]).check();
    assert_all(&cells, |cell| cell.counts.kind >= Kind::FiniteSample);
    assert_drawn(&cells, 2);
    with_top(&heads(), UNIFORM, "'hoeffding', target = 'denominator'", &goals).check();
}

#[test]
fn every_sampler_keeps_its_promise() {
    let goals = [Epsilon(0.1, 0.1)];
    for (sampler, estimator) in [(CODES, RATIO), (KEYS, RATIO), (KEYS, STRICT)] {
        assert_drawn(&with_ends_only(&heads(), sampler, estimator, &goals).check(), 8);
    }
    let cells = with_ends_only(&heads(), KEYS, RIGOROUS, &[Epsilon(0.2, 0.1)]).check();
    assert_all(&cells, |Cell { counts, .. }| {
        counts.unheld == 0 && counts.kind >= Kind::FiniteSample && counts.assumes.is_empty()
    });
    assert_drawn(&cells, 4);
    assert_drawn(&PromiseCase::new(&heads(), &[ENDS, RANKED], SCORES, RATIO, &goals).check(), 8);
    assert_drawn(&with_top(&heads(), STRATIFIED, RATIO, &goals).check(), 8);
}

#[test]
fn query_heads_with_different_sinks_share_a_list() {
    for sampler in [UNIFORM, CODES, STRATIFIED] {
        let case = with_top(&heads(), sampler, RATIO, &[Epsilon(0.1, 0.1)]);
        PromiseCase { share: "group", ..case }.check();
    }
}

#[test]
fn bars_of_a_budget_hold_with_their_probability() {
    for sampler in [UNIFORM, CODES, STRATIFIED] {
        let cells = with_top(&heads(), sampler, RATIO, &[Size(200, 0.2)]).check();
        assert_all(&cells, |cell| cell.counts.radius.is_finite());
    }
    for estimator in [
        "'clt', target = 'sdpa'",
        "'sub-gaussian', target = 'sdpa'",
        "'hoeffding', target = 'sdpa'",
    ] {
        with_top(&heads(), UNIFORM, estimator, &[Size(200, 0.2)]).check();
    }
}

/// The other tests have each form for every sampler and estimator; here a cap and a sink meet.
#[test]
fn every_shipped_promise_is_kept() {
    let pipelines = shipped_pipelines();
    let [.., both] = FORMS;
    let heads = PLAIN.each_ref().map(|head| PromiseHead::Formed(head, both));
    for_each(&heads, |&head| {
        for pipeline in &pipelines {
            let (name, promise) = (&pipeline.name, pipeline.promise().unwrap());
            let counts = try_head(head, pipeline);
            println!("{head:?}, {name}: {counts:?}");
            assert!(
                !counts.violated.contradicts(promise.delta.get()),
                "{head:?}, {name}: {counts:?}"
            );
        }
    });
}
