//! What follows looks: `budget_check.cu`, against core's own sampler.

use std::sync::Arc;

use vattention_core::{
    Error, Estimator, NewTokens, Picks, Pipeline, PipelineConfig, Row, SelectorConfig, Shape, Site,
    Size, Step, Target, Tokens,
    pipeline::Read,
    plugin::Uniform,
    step::{Score, Softmax},
};
use vattention_cuda::Device;
use vattention_cuda::launch::{Opened, Progressed, Rounds};
use vattention_cuda_emulator::ThreadSchedule;
use vattention_estimators::{Clt, Combine, Correction, Ratio, SubGaussian, Terms};
use vattention_selectors::{OracleTopK, Sink};

use super::look::{Case, form, fraction, ratio};
use super::world::{Head, KINDS, Kind, List, Numbers, emulator};

/// Rows of each head: what there is room for.
pub(crate) const CAPACITY: usize = 1200;

/// Makes an estimator for a step.
pub(crate) type MakeEstimator<'a> = dyn Fn(Shown) -> Box<dyn Estimator> + 'a;

/// A step of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) visible: usize,
    /// Tokens that are certain, beside the best of each query head.
    pub(crate) certain: usize,
    /// How many these are; with them comes a bound on the others.
    pub(crate) best: usize,
    pub(crate) base: usize,
}

impl Shown {
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

/// What `ask` makes of a step of a head.
fn ask<T>(kind: Kind, head: &Head, shown: Shown, ask: impl FnOnce(&Step<'_>) -> T) -> T {
    let Kind { head_dim, value_dim, group: query_heads, .. } = kind;
    let shape = Shape { query_heads, kv_heads: 1, head_dim, value_dim };
    let site = Site { seed: 3, sequence: 1, layer: 0, kv_head: 0, shape };
    let [keys, values, queries] = [&head.keys, &head.values, &head.queries].map(|x| x.concat());
    ask(&Step {
        site: &site,
        queries: &queries,
        keys: Tokens::new(&keys, CAPACITY, head_dim),
        values: Tokens::new(&values, CAPACITY, value_dim),
        visible: shown.visible,
        step: 7,
    })
}

/// What core reads of a head.
fn read(kind: Kind, head: &Head, shown: Shown, estimator: Box<dyn Estimator>) -> Read {
    let config = PipelineConfig {
        selectors: shown.selectors(),
        sampler: Some(Box::new(Uniform { base: Size::Tokens(shown.base) })),
        estimator: Some(estimator),
        ..PipelineConfig::default()
    };
    ask(kind, head, shown, |step| {
        let mut pipeline = Pipeline::new(&Arc::new(config), *step.site).unwrap();
        let (first, keys, values) = (0, step.keys, step.values);
        pipeline.append(&NewTokens { first, keys, values, classes: None }).unwrap();
        pipeline.read(step).unwrap().reads()[0].clone()
    })
}

/// The bound that core has on the logits of what each query head's selectors leave.
fn bounds(kind: Kind, head: &Head, shown: Shown) -> Vec<f32> {
    let bound = |row: Row<'_>| {
        let mut picks = Picks::new(shown.visible);
        for selector in shown.selectors() {
            selector.build(row.site()).unwrap().select(&row, &mut picks);
        }
        picks.residual_bound().unwrap_or(f32::INFINITY)
    };
    ask(kind, head, shown, |step| step.rows().into_iter().map(bound).collect())
}

/// The list of a head: core's own order of what is not certain.
fn case(kind: Kind, head: &Head, shown: Shown) -> Case {
    let all = Ratio::sized(Size::Tokens(shown.visible), fraction(0.1));
    let read = read(kind, head, shown, Box::new(all));
    let certain = read.picks().map_or_else(|| (0..shown.visible as u32).collect(), Picks::indices);
    let mut case = Case::new(head.clone(), certain, read.drawn().to_vec());
    case.bounds = bounds(kind, head, shown);
    case
}

/// Heads of which some ask for much more than others.
fn heads(kind: Kind, numbers: &mut Numbers) -> Vec<Head> {
    let head = |spread: f32| {
        let mut head = Head::usual(kind, CAPACITY, numbers);
        head.queries.iter_mut().flatten().for_each(|q| *q *= spread);
        head
    };
    [0.1, 1.0, 0.5].map(head).into()
}

/// What the device found, and the sums over its samples.
type Found = (Vec<Progressed>, Vec<Softmax>);

fn run<D: Device>(rounds: &Rounds<D>, cases: &[Case], shown: Shown) -> Found {
    let opened: Vec<_> = cases.iter().map(Case::opened).collect();
    (rounds.run(shown.visible, shown.base, &opened).unwrap(), rounds.sample().unwrap())
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

/// The device decides what core decides, and has the sums of what was drawn. Says how much that was.
fn check_step(
    kind: Kind,
    heads: &[Head],
    shown: Shown,
    (progressed, sums): &Found,
    estimator: &MakeEstimator<'_>,
) -> Vec<usize> {
    for (i, (head, found)) in heads.iter().zip(progressed).enumerate() {
        let expected = read(kind, head, shown, estimator(shown));
        let (drawn, held) = (expected.drawn().len(), expected.certificate.held);
        let expected = Progressed { drawn, budget: expected.budget.unwrap_or(0), held };
        let apart = found.budget.abs_diff(expected.budget) as f64;
        let context = format!("{found:?} for {expected:?}: {shown:?}, head {i} of {kind:?}");
        assert!(apart <= (1e-4 * expected.budget as f64).max(1.0), "{context}");
        assert!(apart > 0.0 || *found == expected, "{context}");
        let tokens = case(kind, head, shown).order()[..found.drawn].to_vec();
        let list = List { tokens, probabilities: None };
        super::attend::check(&sums[i * kind.group..][..kind.group], head, &list);
    }
    progressed.iter().map(|progressed| progressed.drawn).collect()
}

/// Steps one after the other with what was recorded once. Says how much was drawn.
pub(crate) fn check_steps<D: Device>(
    device: &D,
    kind: Kind,
    seed: u64,
    steps: &[Shown],
    estimator: &MakeEstimator<'_>,
) -> Vec<Vec<usize>> {
    let mut numbers = Numbers::new(seed);
    let mut heads = heads(kind, &mut numbers);
    let rounds = make(device, kind, &heads, &*estimator(steps[0]));
    let step = |&shown: &Shown| {
        heads.iter_mut().flat_map(|head| &mut head.queries).flatten().for_each(|q| *q = -*q);
        let cases: Vec<Case> = heads.iter().map(|head| case(kind, head, shown)).collect();
        let found = run(&rounds, &cases, shown);
        check_step(kind, &heads, shown, &found, estimator)
    };
    steps.iter().map(step).collect()
}

fn shown(visible: usize, certain: usize, base: usize) -> Shown {
    Shown { visible, certain, best: 0, base }
}

/// Draws as many as are looked at first.
fn fixed(shown: Shown) -> Box<dyn Estimator> {
    Box::new(Ratio::sized(Size::Tokens(shown.base), fraction(0.1)))
}

fn looking(epsilon: f64, rounds: u8) -> impl Fn(Shown) -> Box<dyn Estimator> {
    move |_| {
        let mut estimator = ratio(epsilon);
        estimator.rounds = rounds.try_into().unwrap();
        Box::new(estimator)
    }
}

/// Several rounds, of which some lists need fewer than others.
pub(crate) fn check_budgets<D: Device>(device: &D) {
    let steps = [shown(CAPACITY, 40, 64), shown(700, 0, 128), shown(CAPACITY, 40, 64)];
    for rounds in [1, 3] {
        let drawn = check_steps(device, KINDS[1], 5, &steps, &looking(0.1, rounds));
        assert_ne!(drawn[0][0], drawn[0][1], "one is done before the other");
        assert_eq!(drawn[0], drawn[2], "nothing is left of the step between");
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
        let steps = [shown(visible, certain, base), shown(CAPACITY, 90 - certain.min(90), 3)];
        let schedules = ThreadSchedule::several();
        let device = device.clone().with_order(schedules[seed % schedules.len()]);
        let (epsilon, rounds) = ([0.05, 0.1, 0.2, 0.4][seed % 4], 1 + seed as u8 % 6);
        check_steps(&device, kind, seed as u64, &steps, &looking(epsilon, rounds));
    }
}

/// Numerator and denominator bounded apart, with each constant and without the correction.
#[test]
fn decisions_about_parts_are_those_of_core() {
    let Some(device) = emulator() else { return };
    let targets = [Target::Sdpa, Target::Denominator, Target::Numerator];
    for (seed, target) in (0..).zip(targets.into_iter().cycle().take(6)) {
        let terms = Terms {
            combine: if seed < 3 { Combine::Exact } else { Combine::Paper },
            correction: if seed < 3 { Correction::Finite } else { Correction::None },
            rounds: (1 + seed as u8 % 2).try_into().unwrap(),
            ..Terms::new(target, fraction(0.3), fraction(0.1))
        };
        let estimator = |_: Shown| -> Box<dyn Estimator> {
            let terms = terms.clone();
            if seed % 2 == 0 { Box::new(Clt(terms)) } else { Box::new(SubGaussian(terms)) }
        };
        let steps = [shown(CAPACITY, 40, 64), shown(800, 0, 100)];
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

/// Few tokens, none, and one beside which all others are certain.
#[test]
fn little_that_is_left() {
    let Some(device) = emulator() else { return };
    let steps = [
        shown(1, 0, 128),
        shown(1, 1, 128),
        shown(41, 40, 1),
        shown(40, 40, 1),
        shown(33, 0, 1),
        shown(34, 1, 1),
        shown(90, 10, 48),
        shown(90, 10, 49),
    ];
    check_steps(&device, KINDS[3], 1, &steps, &looking(0.9, 2));
    check_steps(&device, KINDS[3], 1, &steps, &fixed);
}

/// What a size draws, in steps of any size.
#[test]
fn a_size_is_drawn_at_once() {
    let Some(device) = emulator() else { return };
    let steps =
        [shown(900, 40, 100), shown(CAPACITY, 0, 1), shown(60, 40, 48), shown(900, 40, 899)];
    for kind in [KINDS[0], KINDS[5]] {
        check_steps(&device, kind, 2, &steps, &fixed);
    }
}

/// A sample of which the look asks for exactly what has been drawn.
#[test]
fn a_budget_that_is_just_met() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[3];
    let estimator = looking(0.2, 2);
    let met = |seed: u64| {
        let mut head = heads(kind, &mut Numbers::new(seed)).swap_remove(0);
        head.queries.iter_mut().flatten().for_each(|q| *q = -*q);
        (20..400).map(|base| shown(CAPACITY, 40, base)).find(|&shown| {
            let read = read(kind, &head, shown, estimator(shown));
            read.budget == Some(shown.base) && read.drawn().len() == shown.base
        })
    };
    let (seed, met) = (4..50).find_map(|seed| Some((seed, met(seed)?))).unwrap();
    check_steps(&device, kind, seed, &[met], &estimator);
}

/// A list holds something, even if nothing is asked for.
#[test]
fn a_size_of_nothing() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[0];
    let heads = heads(kind, &mut Numbers::new(7));
    let rounds = make(&device, kind, &heads, &*fixed(shown(CAPACITY, 0, 1)));
    for (certain, drawn) in [(0, 1), (1, 0)] {
        let cases: Vec<Case> =
            heads.iter().map(|head| case(kind, head, shown(CAPACITY, certain, 1))).collect();
        let found = run(&rounds, &cases, shown(CAPACITY, certain, 0)).0;
        assert_eq!(found, [Progressed { drawn, budget: drawn, held: false }; 3]);
    }
}

/// Kernels see no more tokens than there is room for.
#[test]
fn more_tokens_than_there_is_room_for() {
    let Some(device) = emulator() else { return };
    let (kind, shown) = (KINDS[1], shown(CAPACITY, 40, 64));
    let heads = heads(kind, &mut Numbers::new(6));
    let rounds = make(&device, kind, &heads, &*looking(0.1, 3)(shown));
    let cases: Vec<Case> = heads.iter().map(|head| case(kind, head, shown)).collect();
    let found = run(&rounds, &cases, shown);
    assert_eq!(run(&rounds, &cases, Shown { visible: CAPACITY + 100, ..shown }), found);
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(device) = emulator() else { return };
    let refused = |result: Result<(), Error>, because: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(because), "{message}");
    };
    let (kind, shown) = (KINDS[1], shown(CAPACITY, 40, 64));
    let heads = heads(kind, &mut Numbers::new(6));
    let pages = || heads.iter().map(|head| head.pages(&device, kind)).collect();
    let form = form(&ratio(0.1), kind);
    let new =
        |capacity| Rounds::new(&device, kind.layout(), kind.group, pages(), capacity, (&form, 1));
    refused(new(CAPACITY + 8).map(drop), "rows: expected 1208");
    let rounds = new(CAPACITY).unwrap().0;
    let cases: Vec<Case> = heads.iter().map(|head| case(kind, head, shown)).collect();
    let run = |change: &dyn Fn(&mut Opened<'_>), lists: usize| {
        let mut opened: Vec<Opened<'_>> = cases.iter().take(lists).map(Case::opened).collect();
        change(&mut opened[0]);
        rounds.run(CAPACITY, 64, &opened).map(drop)
    };
    refused(run(&|_| {}, 2), "lists: expected 3, got 2");
    refused(run(&|list| list.queries = &[], 3), "queries: expected 256, got 0");
    refused(run(&|list| list.certain = &[], 3), "certain sums: expected 4, got 0");
    refused(run(&|list| list.order = &[CAPACITY as u32], 3), "order: expected at most 1200 tokens");
}
