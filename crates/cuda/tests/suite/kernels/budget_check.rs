//! Checks of samples: `budget_check.cu`, against core's own sampler.

use std::sync::Arc;

use vattention_core::{
    Error, Estimator, NewTokens, Picks, Pipeline, PipelineConfig, Row, SelectorConfig, Shape, Site,
    Size, Step, Target, Tokens,
    pipeline::Read,
    plugin::Uniform,
    step::{Score, Softmax},
};
use vattention_cuda::Device;
use vattention_cuda::launch::{Rounds, SampleState, UnsampledList};
use vattention_cuda_emulator::ThreadSchedule;
use vattention_estimators::{Clt, Combine, Correction, Ratio, SubGaussian, Terms};
use vattention_selectors::{OracleTopK, Sink};

use super::moments::{Case, form, fraction, ratio};
use super::world::{Head, KINDS, Kind, List, Numbers, emulator};

/// Rows of each head, the capacity.
pub(crate) const CAPACITY: usize = 1200;

/// Returns an estimator for a step.
pub(crate) type MakeEstimator<'a> = dyn Fn(CheckStep) -> Box<dyn Estimator> + 'a;

/// Sizes of a step of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckStep {
    pub(crate) visible: usize,
    /// Number of always-read tokens, besides the best ones of each query head.
    pub(crate) certain: usize,
    /// Number of these best ones, which also yield a bound on the other tokens.
    pub(crate) best: usize,
    pub(crate) base: usize,
}

impl CheckStep {
    fn selectors(self) -> Vec<Box<dyn SelectorConfig>> {
        let sink = Sink { size: Size::Tokens(self.certain) };
        let best = OracleTopK { size: Size::Tokens(self.best), score: Score::Head };
        let mut selectors: Vec<Box<dyn SelectorConfig>> = Vec::new();
        if self.certain > 0 {
            selectors.push(Box::new(sink));
        }
        if self.best > 0 {
            selectors.push(Box::new(best));
        }
        selectors
    }
}

/// Calls `evaluate` with a step of a head.
fn with_step<T>(
    kind: Kind,
    head: &Head,
    sizes: CheckStep,
    evaluate: impl FnOnce(&Step<'_>) -> T,
) -> T {
    let Kind { head_dim, value_dim, group: query_heads, .. } = kind;
    let shape = Shape { query_heads, kv_heads: 1, head_dim, value_dim };
    let site = Site { seed: 3, sequence: 1, layer: 0, kv_head: 0, shape };
    let [keys, values, queries] = [&head.keys, &head.values, &head.queries].map(|x| x.concat());
    evaluate(&Step {
        visible: sizes.visible,
        step: 7,
        ..Step::new(
            &site,
            &queries,
            Tokens::new(&keys, CAPACITY, head_dim),
            Tokens::new(&values, CAPACITY, value_dim),
        )
    })
}

/// Reads a head with core's pipeline.
fn read(kind: Kind, head: &Head, sizes: CheckStep, estimator: Box<dyn Estimator>) -> Read {
    let config = PipelineConfig {
        selectors: sizes.selectors(),
        sampler: Some(Box::new(Uniform { base: Size::Tokens(sizes.base) })),
        estimator: Some(estimator),
        ..PipelineConfig::default()
    };
    with_step(kind, head, sizes, |step| {
        let mut pipeline = Pipeline::new(&Arc::new(config), *step.site).unwrap();
        let (first, keys, values) = (0, step.keys, step.values);
        pipeline.append(&NewTokens { first, keys, values, classes: None }).unwrap();
        pipeline.read(step).unwrap().reads()[0].clone()
    })
}

/// Core's upper bounds on the untaken logits of each query head.
fn bounds(kind: Kind, head: &Head, sizes: CheckStep) -> Vec<f32> {
    let bound = |row: Row<'_>| {
        let mut picks = Picks::new(sizes.visible);
        for selector in sizes.selectors() {
            selector.build(row.site()).unwrap().select(&row, &mut picks);
        }
        picks.residual_bound().unwrap_or(f32::INFINITY)
    };
    with_step(kind, head, sizes, |step| step.rows().into_iter().map(bound).collect())
}

/// The list of a head, with core's own draw order of the untaken tokens.
fn case(kind: Kind, head: &Head, sizes: CheckStep) -> Case {
    let all = Ratio::sized(Size::Tokens(sizes.visible), fraction(0.1));
    let read = read(kind, head, sizes, Box::new(all));
    let certain = read.picks().map_or_else(|| (0..sizes.visible as u32).collect(), Picks::indices);
    let mut case = Case::new(head.clone(), certain, read.drawn().to_vec());
    case.bounds = bounds(kind, head, sizes);
    case
}

/// Heads with very different budgets.
fn heads(kind: Kind, numbers: &mut Numbers) -> Vec<Head> {
    let head = |spread: f32| {
        let mut head = Head::usual(kind, CAPACITY, numbers);
        head.queries.iter_mut().flatten().for_each(|q| *q *= spread);
        head
    };
    [0.1, 1.0, 0.5].map(head).into()
}

/// The device's samples, and the sums over them.
type Samples = (Vec<SampleState>, Vec<Softmax>);

fn run<D: Device>(rounds: &Rounds<D>, cases: &[Case], sizes: CheckStep) -> Samples {
    let lists: Vec<_> = cases.iter().map(Case::list).collect();
    (rounds.run(sizes.visible, sizes.base, &lists).unwrap(), rounds.sample().unwrap())
}

fn rounds(estimator: &dyn Estimator) -> usize {
    match estimator.schedule() {
        vattention_core::plugin::Schedule::Before => 0,
        vattention_core::plugin::Schedule::Adaptive { rounds }
        | vattention_core::plugin::Schedule::FixedSizes { rounds } => rounds,
    }
}

fn make<D: Device>(device: &D, kind: Kind, heads: &[Head], estimator: &dyn Estimator) -> Rounds<D> {
    let pages = heads.iter().map(|head| head.pages(device, kind)).collect();
    let form = (&form(estimator, kind), rounds(estimator));
    Rounds::new(device, kind.layout(), kind.group, pages, CAPACITY, form).unwrap().0
}

/// Checks that the device decides as core does, and has the sums over the drawn tokens. Returns the
/// sizes of the samples.
fn check_step(
    kind: Kind,
    heads: &[Head],
    sizes: CheckStep,
    (states, sums): &Samples,
    estimator: &MakeEstimator<'_>,
) -> Vec<usize> {
    for (i, (head, found)) in heads.iter().zip(states).enumerate() {
        let expected = read(kind, head, sizes, estimator(sizes));
        let (drawn, held) = (expected.drawn().len(), expected.certificate.held);
        let expected = SampleState { drawn, budget: expected.budget.unwrap_or(0), held };
        let apart = found.budget.abs_diff(expected.budget) as f64;
        let context = format!("{found:?} for {expected:?}: {sizes:?}, head {i} of {kind:?}");
        assert!(apart <= (1e-4 * expected.budget as f64).max(1.0), "{context}");
        assert!(apart > 0.0 || *found == expected, "{context}");
        let tokens = case(kind, head, sizes).order()[..found.drawn].to_vec();
        let list = List { tokens, probabilities: None };
        super::attend::check(&sums[i * kind.group..][..kind.group], head, &list);
    }
    states.iter().map(|state| state.drawn).collect()
}

/// Checks steps one after the other with kernels recorded once. Returns the sizes of the samples.
pub(crate) fn check_steps<D: Device>(
    device: &D,
    kind: Kind,
    seed: u64,
    steps: &[CheckStep],
    estimator: &MakeEstimator<'_>,
) -> Vec<Vec<usize>> {
    let mut numbers = Numbers::new(seed);
    let mut heads = heads(kind, &mut numbers);
    let rounds = make(device, kind, &heads, &*estimator(steps[0]));
    let step = |&sizes: &CheckStep| {
        heads.iter_mut().flat_map(|head| &mut head.queries).flatten().for_each(|q| *q = -*q);
        let cases: Vec<Case> = heads.iter().map(|head| case(kind, head, sizes)).collect();
        let samples = run(&rounds, &cases, sizes);
        check_step(kind, &heads, sizes, &samples, estimator)
    };
    steps.iter().map(step).collect()
}

fn step(visible: usize, certain: usize, base: usize) -> CheckStep {
    CheckStep { visible, certain, best: 0, base }
}

/// An estimator whose budget is the base size.
fn fixed(sizes: CheckStep) -> Box<dyn Estimator> {
    Box::new(Ratio::sized(Size::Tokens(sizes.base), fraction(0.1)))
}

fn adaptive(epsilon: f64, rounds: u8) -> impl Fn(CheckStep) -> Box<dyn Estimator> {
    move |_| {
        let mut estimator = ratio(epsilon);
        estimator.rounds = rounds.try_into().unwrap();
        Box::new(estimator)
    }
}

/// Checks several rounds, of which some lists need fewer than others.
pub(crate) fn check_budgets<D: Device>(device: &D) {
    let steps = [step(CAPACITY, 40, 64), step(700, 0, 128), step(CAPACITY, 40, 64)];
    for rounds in [1, 3] {
        let drawn = check_steps(device, KINDS[1], 5, &steps, &adaptive(0.1, rounds));
        assert_ne!(drawn[0][0], drawn[0][1], "one list needs fewer rounds than the other");
        assert_eq!(drawn[0], drawn[2], "the step between leaves no trace");
    }
}

#[test]
fn decisions_are_those_of_core() {
    let Some(device) = emulator() else { return };
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let mut numbers = Numbers::new(seed as u64);
        let visible = 200 + numbers.below(CAPACITY - 200);
        let certain = numbers.below(100);
        let base = [1, 2, 31, 64, 128, 400][numbers.below(6)];
        let steps = [step(visible, certain, base), step(CAPACITY, 90 - certain.min(90), 3)];
        let schedules = ThreadSchedule::several();
        let device = device.clone().with_order(schedules[seed % schedules.len()]);
        let (epsilon, rounds) = ([0.05, 0.1, 0.2, 0.4][seed % 4], 1 + seed as u8 % 6);
        check_steps(&device, kind, seed as u64, &steps, &adaptive(epsilon, rounds));
    }
}

/// Numerator and denominator have separate bounds, with each constant and without the correction.
#[test]
fn decisions_of_separate_bounds_are_those_of_core() {
    let Some(device) = emulator() else { return };
    let targets = [Target::Sdpa, Target::Denominator, Target::Numerator];
    for (seed, target) in (0..).zip(targets.into_iter().cycle().take(6)) {
        let terms = Terms {
            combine: if seed < 3 { Combine::Exact } else { Combine::Paper },
            correction: if seed < 3 { Correction::Finite } else { Correction::None },
            rounds: (1 + seed as u8 % 2).try_into().unwrap(),
            ..Terms::new(target, fraction(0.3), fraction(0.1))
        };
        let estimator = |_: CheckStep| -> Box<dyn Estimator> {
            let terms = terms.clone();
            if seed % 2 == 0 { Box::new(Clt(terms)) } else { Box::new(SubGaussian(terms)) }
        };
        let steps = [step(CAPACITY, 40, 64), step(800, 0, 100)];
        let drawn = check_steps(&device, KINDS[1 + seed as usize], seed, &steps, &estimator);
        assert!(drawn.iter().flatten().any(|&drawn| 100 < drawn && drawn < 800), "{drawn:?}");
    }
}

#[test]
fn several_rounds() {
    let Some(device) = emulator() else { return };
    for schedule in ThreadSchedule::several() {
        check_budgets(&device.clone().with_order(schedule));
    }
}

/// Few tokens are untaken, or none, or one.
#[test]
fn few_untaken_tokens() {
    let Some(device) = emulator() else { return };
    let steps = [
        step(1, 0, 128),
        step(1, 1, 128),
        step(41, 40, 1),
        step(40, 40, 1),
        step(33, 0, 1),
        step(34, 1, 1),
        step(90, 10, 48),
        step(90, 10, 49),
    ];
    check_steps(&device, KINDS[3], 1, &steps, &adaptive(0.9, 2));
    check_steps(&device, KINDS[3], 1, &steps, &fixed);
}

/// Fixed sizes are drawn without a check, in steps of any size.
#[test]
fn a_fixed_size_is_drawn_in_one_step() {
    let Some(device) = emulator() else { return };
    let steps = [step(900, 40, 100), step(CAPACITY, 0, 1), step(60, 40, 48), step(900, 40, 899)];
    for kind in [KINDS[0], KINDS[5]] {
        check_steps(&device, kind, 2, &steps, &fixed);
    }
}

/// The check computes a budget that equals the drawn size.
#[test]
fn a_budget_that_is_just_met() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[3];
    let estimator = adaptive(0.2, 2);
    let just_met = |seed: u64| {
        let mut head = heads(kind, &mut Numbers::new(seed)).swap_remove(0);
        head.queries.iter_mut().flatten().for_each(|q| *q = -*q);
        (20..400).map(|base| step(CAPACITY, 40, base)).find(|&sizes| {
            let read = read(kind, &head, sizes, estimator(sizes));
            read.budget == Some(sizes.base) && read.drawn().len() == sizes.base
        })
    };
    let (seed, sizes) = (4..50).find_map(|seed| Some((seed, just_met(seed)?))).unwrap();
    check_steps(&device, kind, seed, &[sizes], &estimator);
}

/// A list must not be empty, even if its budget is 0.
#[test]
fn a_fixed_size_of_zero() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[0];
    let heads = heads(kind, &mut Numbers::new(7));
    let rounds = make(&device, kind, &heads, &*fixed(step(CAPACITY, 0, 1)));
    for (certain, drawn) in [(0, 1), (1, 0)] {
        let cases: Vec<Case> =
            heads.iter().map(|head| case(kind, head, step(CAPACITY, certain, 1))).collect();
        let found = run(&rounds, &cases, step(CAPACITY, certain, 0)).0;
        assert_eq!(found, [SampleState { drawn, budget: drawn, held: false }; 3]);
    }
}

/// Kernels clamp the number of visible tokens to the capacity.
#[test]
fn more_visible_tokens_than_the_capacity() {
    let Some(device) = emulator() else { return };
    let (kind, sizes) = (KINDS[1], step(CAPACITY, 40, 64));
    let heads = heads(kind, &mut Numbers::new(6));
    let rounds = make(&device, kind, &heads, &*adaptive(0.1, 3)(sizes));
    let cases: Vec<Case> = heads.iter().map(|head| case(kind, head, sizes)).collect();
    let found = run(&rounds, &cases, sizes);
    assert_eq!(run(&rounds, &cases, CheckStep { visible: CAPACITY + 100, ..sizes }), found);
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let Some(device) = emulator() else { return };
    let refused = |result: Result<(), Error>, because: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(because), "{message}");
    };
    let (kind, sizes) = (KINDS[1], step(CAPACITY, 40, 64));
    let heads = heads(kind, &mut Numbers::new(6));
    let pages = || heads.iter().map(|head| head.pages(&device, kind)).collect();
    let form = form(&ratio(0.1), kind);
    let new =
        |capacity| Rounds::new(&device, kind.layout(), kind.group, pages(), capacity, (&form, 1));
    refused(new(CAPACITY + 8).map(drop), "rows: expected 1208");
    let rounds = new(CAPACITY).unwrap().0;
    let cases: Vec<Case> = heads.iter().map(|head| case(kind, head, sizes)).collect();
    let run = |change: &dyn Fn(&mut UnsampledList<'_>), count: usize| {
        let mut lists: Vec<UnsampledList<'_>> = cases.iter().take(count).map(Case::list).collect();
        change(&mut lists[0]);
        rounds.run(CAPACITY, 64, &lists).map(drop)
    };
    refused(run(&|_| {}, 2), "lists: expected 3, got 2");
    refused(run(&|list| list.queries = &[], 3), "queries: expected 256, got 0");
    refused(run(&|list| list.certain = &[], 3), "certain sums: expected 4, got 0");
    refused(run(&|list| list.order = &[CAPACITY as u32], 3), "order: expected at most 1200 tokens");
}
