//! Promises that count the rounding of keys and values: errors relative to unrounded rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use ndarray::{Array3, s};
use vattention::config::Loader;
use vattention::experiments::{Entry, PromiseVerdict, Results, TraceSettings, compare, verify};
use vattention::plugin::ReferenceRows;
use vattention::trace::{Trace, TraceInfo, write_trace};
use vattention::{
    Attention, Error, FallBack, Kind, Options, PipelineConfig, RowReport, Shape, Storage, backend,
};
use vattention_testkit::promises::exceeds_rate;

use crate::common::trace_layer;

const TOKENS: usize = 32_768;
const DIM: usize = 16;
const SHAPE: Shape = Shape { query_heads: 1, kv_heads: 1, head_dim: DIM, value_dim: 2 };
const TRIALS: usize = 2000;
const EPSILON: f64 = 0.2;
const DELTA: f64 = 0.1;

/// Promise of a uniform sample.
fn pipeline(epsilon: f64, reference: &str) -> Arc<PipelineConfig> {
    let text = format!(
        "sampler = {{ type = 'uniform', base = 64 }}\n\
         estimator = {{ type = 'ratio', epsilon = {epsilon}, delta = {DELTA}, \
         reference = '{reference}' }}"
    );
    Loader::default().parse("rounding.toml", &text).unwrap()
}

/// Keys whose rounding raises the logits of one half of the tokens and lowers those of the other
/// half, for a query of equal elements. Both halves have nearly the same weight in unrounded rows.
fn keys(tokens: usize) -> Array3<f32> {
    let step = 1.0 / 128.0;
    Array3::from_shape_fn((1, tokens, DIM), |(_, token, i)| {
        let fraction = if token % 2 == 0 { 0.51 } else { 0.49 };
        let integer = ((token / 2 * 31 + i * 7) % 100) as f32;
        if i == 0 { 127.0 * step } else { (integer + fraction) * step }
    })
}

/// Values that differ between the two halves much more than they have in common.
fn values(tokens: usize) -> Array3<f32> {
    Array3::from_shape_fn((1, tokens, 2), |(_, token, i)| match (i, token % 2) {
        (0, _) => 0.4,
        (_, 0) => 1.0,
        _ => -1.0,
    })
}

fn start(
    config: &Arc<PipelineConfig>,
    name: &str,
    storage: Storage,
    tokens: usize,
) -> Box<dyn Attention> {
    let (scale, fall_back) = (Some(1.0), FallBack::Never);
    let options = Options { scale, fall_back, storage, ..Options::default() };
    let mut attention = backend(name).unwrap().start(config, 0, SHAPE, &options).unwrap();
    attention.append(keys(tokens).view(), values(tokens).view()).unwrap();
    attention
}

/// Number of steps whose error relative to unrounded rows exceeds epsilon, the largest number of
/// tokens read, and the last report.
fn violations(reference: &str, query: f32) -> (usize, usize, RowReport) {
    let queries = Array3::from_elem((1, 100, DIM), query);
    let dense = Loader::default().parse("dense.toml", "").unwrap();
    let mut exact = start(&dense, "reference", Storage::F32, TOKENS);
    let exact = exact.attend(queries.slice(s![.., ..1, ..]), None).unwrap().out;
    let mut attention = start(&pipeline(EPSILON, reference), "cpu", Storage::Q8, TOKENS);
    let (mut violated, mut read, mut last) = (0, 0, None);
    for _ in 0..TRIALS / 100 {
        let output = attention.attend(queries.view(), None).unwrap();
        for t in 0..100 {
            let length = |x: [f32; 2]| f64::from(x[0]).hypot(f64::from(x[1]));
            let want = [0, 1].map(|i| exact[[0, 0, i]]);
            let apart = [0, 1].map(|i| output.out[[0, t, i]] - want[i]);
            violated += usize::from(length(apart) / length(want) > EPSILON);
        }
        read = read.max(output.rows.iter().map(|row| row.sampled).max().unwrap());
        last = output.rows.last().copied();
    }
    (violated, read, last.unwrap())
}

/// Rounding moves the output by nearly the bound, six tenths of epsilon. A promise about stored
/// rows is then violated too often, one that counts rounding is kept.
#[test]
fn promises_that_count_rounding_hold_for_unrounded_rows() {
    let query = 0.79;
    let (violated, read, report) = violations("unrounded", query);
    let rounding = report.rounding.unwrap();
    println!("{violated} of {TRIALS}, at most {read} sampled, rounding {rounding}");
    assert!(!exceeds_rate(violated, TRIALS, DELTA), "{violated}");
    assert!(report.certificate.held && read < TOKENS && (0.5..0.8).contains(&(rounding / EPSILON)));
    let (violated, read, report) = violations("stored", query);
    println!("{violated} of {TRIALS}, at most {read} sampled");
    assert!(exceeds_rate(violated, TRIALS, DELTA), "{violated}");
    assert_eq!(report.rounding, None);
}

fn report(attention: &mut dyn Attention, query: f32, visible: usize) -> RowReport {
    let queries = Array3::from_elem((1, 1, DIM), query);
    attention.attend(queries.view(), Some(&[visible])).unwrap().rows[0]
}

/// A row that reads every token keeps its promise if the bound of rounding is within epsilon.
/// Otherwise it has an error bar only, and nothing is held.
#[test]
fn rows_that_read_everything_have_the_bar_of_rounding() {
    for name in ["reference", "cpu"] {
        let row = |epsilon, storage, reference: &str| {
            let mut attention = start(&pipeline(epsilon, reference), name, storage, 60);
            report(&mut *attention, 1.0, 60)
        };
        let held = row(0.5, Storage::Q8, "unrounded");
        let radius = held.certificate.bar.unwrap().radius;
        assert!((0.05..0.5).contains(&radius), "{held:?}");
        let rounding = held.rounding.unwrap();
        assert!((radius - rounding / (1.0 - rounding)).abs() < 1e-9, "{held:?}");
        assert_eq!((held.certificate.kind, held.certificate.held), (Kind::FiniteSample, true));
        assert_eq!(held.certificate.promise.unwrap().reference, ReferenceRows::Unrounded);
        let withheld = row(0.05, Storage::Q8, "unrounded").certificate;
        assert!(!withheld.held && withheld.has_only_bar() && withheld.kind == Kind::FiniteSample);
        assert_eq!(withheld.bar.unwrap().radius, radius);
        for (storage, reference) in [(Storage::F32, "unrounded"), (Storage::Q8, "stored")] {
            let exact = row(0.05, storage, reference).certificate;
            assert!(exact.held && exact.kind == Kind::Exact && exact.bar.unwrap().radius == 0.0);
        }
    }
}

/// Forks and truncated sequences know the errors of their rows. The state of a sequence with
/// rounded rows cannot be stored, because rows that are read back do not reveal their errors.
#[test]
fn rounding_errors_follow_the_tokens() {
    let config = pipeline(0.5, "unrounded");
    let mut attention = start(&config, "cpu", Storage::Q8, 60);
    let bound = |attention: &mut dyn Attention| report(attention, 1.0, 40).rounding.unwrap();
    let before = bound(&mut *attention);
    let mut fork = attention.fork(None).unwrap();
    // Steps add up their tokens in different orders.
    assert!(before > 0.0 && (bound(&mut *fork) - before).abs() < 1e-6);
    fork.truncate(40).unwrap();
    assert!((bound(&mut *fork) - before).abs() < 1e-6);
    assert!(matches!(fork.state(), Err(Error::Rounded)));
    start(&config, "cpu", Storage::F32, 60).state().unwrap();
    start(&pipeline(0.5, "stored"), "cpu", Storage::Q8, 60).state().unwrap();
}

#[test]
fn the_numerator_has_no_bound_of_rounding() {
    let text = "estimator = { type = 'clt', target = 'numerator', epsilon = 0.1, delta = 0.1, \
                reference = 'unrounded' }";
    let error = Loader::default().parse("clt.toml", text).unwrap_err().to_string();
    assert!(error.contains("whose effect on the numerator has no bound"), "{error}");
}

/// `compare` and `verify` round the rows of a trace, and measure errors relative to the rows that
/// the promise names.
#[test]
fn traces_are_measured_with_rounded_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.safetensors");
    let layer = trace_layer(Array3::from_elem((1, 4, DIM), 1.0), keys(60), values(60));
    let info = TraceInfo { scale: Some(1.0), ..TraceInfo::default() };
    write_trace(&path, &info, &BTreeMap::from([(0, layer)]), Storage::F32).unwrap();
    let trace = Trace::open(&path).unwrap().stored_in(Storage::Q8);
    let configs =
        [pipeline(0.5, "stored"), pipeline(0.5, "unrounded"), pipeline(0.05, "unrounded")];
    let entry = |pipeline: &Arc<PipelineConfig>| Entry {
        pipeline: pipeline.clone(),
        file: String::new(),
        set: None,
    };
    let entries: Vec<Entry> = configs.iter().map(entry).collect();
    let (backend, results) = (backend("cpu").unwrap(), Results::default());
    let run = |unrounded| {
        let settings = TraceSettings { unrounded, ..TraceSettings::default() };
        compare(&entries, &trace, &*backend, &settings, &results, &|_, _| ()).unwrap().0.pipelines
    };
    let [stored, unrounded, withheld] = &run(false)[..] else { panic!() };
    assert!(stored.output_error.max < 1e-5 && stored.rounding.is_none(), "{stored:?}");
    let bound = unrounded.rounding.unwrap().max;
    assert!((bound / 2.0..bound).contains(&unrounded.output_error.mean), "{unrounded:?}");
    assert_eq!(unrounded.guarantee.unwrap().violations.violated, 0);
    assert_eq!((withheld.bars.rows, withheld.bars.outside), (4, 0));
    let relative_to_trace = &run(true)[0];
    assert_eq!(relative_to_trace.output_error, unrounded.output_error);
    assert!(relative_to_trace.guarantee.is_none(), "the promise is about stored rows");

    let judge = |pipeline| verify(pipeline, &trace, 2000, &Results::default(), &|_, _| ()).unwrap();
    let verdicts = configs.each_ref().map(judge);
    assert!(verdicts.iter().all(|verdict| verdict.verdict == PromiseVerdict::Held));
    let [stored, unrounded, withheld] = verdicts.map(|verdict| verdict.heads[0]);
    assert!(stored.error.max < 1e-5 && unrounded.error.max > bound / 2.0);
    assert_eq!((stored.rounding, withheld.held), (None, 0));
    assert!((unrounded.rounding.unwrap() - bound).abs() < 1e-6);
}
