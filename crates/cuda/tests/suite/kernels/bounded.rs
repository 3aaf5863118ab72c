//! Budgets from a proved range: `budget_check.cu`, against core's own sampler.

use vattention_core::{Estimator, Target};
use vattention_cuda::Device;
use vattention_cuda_emulator::ThreadSchedule;
use vattention_estimators::{Combine, Correction, Hoeffding};

use super::budget_check::{CAPACITY, CheckStep, check_steps};
use super::moments::fraction;
use super::world::{KINDS, emulator};

/// Settings of `hoeffding` that have a formula.
const FORMS: [(Target, Combine, Correction); 8] = [
    (Target::Denominator, Combine::Exact, Correction::Finite),
    (Target::Denominator, Combine::Exact, Correction::None),
    (Target::Denominator, Combine::Paper, Correction::Finite),
    (Target::Denominator, Combine::Paper, Correction::None),
    (Target::Numerator, Combine::Exact, Correction::None),
    (Target::Numerator, Combine::Paper, Correction::None),
    (Target::Sdpa, Combine::Exact, Correction::None),
    (Target::Sdpa, Combine::Paper, Correction::None),
];

fn hoeffding(
    (target, combine, correction): (Target, Combine, Correction),
    epsilon: f64,
    rounds: u8,
) -> impl Fn(CheckStep) -> Box<dyn Estimator> {
    let hoeffding = Hoeffding {
        combine,
        correction,
        rounds: rounds.try_into().unwrap(),
        ..Hoeffding::new(target, fraction(epsilon), fraction(0.2))
    };
    move |_| Box::new(hoeffding.clone())
}

fn step(visible: usize, certain: usize, best: usize, base: usize) -> CheckStep {
    CheckStep { visible, certain, best, base }
}

/// Checks every form, round by round, and that some samples have a moderate size.
pub(crate) fn check_bounded<D: Device>(device: &D) {
    let steps = [step(CAPACITY, 40, 90, 64), step(700, 0, 1, 100), step(CAPACITY, 40, 90, 64)];
    for (seed, form) in (0..).zip(FORMS) {
        let (kind, rounds) = (KINDS[seed as usize % KINDS.len()], 1 + seed as u8 % 3);
        let epsilon = if form.0 == Target::Denominator { 0.3 } else { 0.9 };
        let drawn = check_steps(device, kind, seed, &steps, &hoeffding(form, epsilon, rounds));
        let within = |&drawn: &usize| 100 < drawn && drawn < 800;
        assert!(drawn.iter().flatten().any(within), "{form:?}: {drawn:?}");
        assert_eq!(drawn[0], drawn[2], "the step between leaves no trace");
    }
}

#[test]
fn decisions_from_a_range_are_those_of_core() {
    let Some(device) = emulator() else { return };
    for schedule in [ThreadSchedule::several()[0], ThreadSchedule::several()[3]] {
        check_bounded(&device.clone().with_order(schedule));
    }
}

/// One token is untaken, or none, or a sample has one token.
#[test]
fn few_untaken_tokens() {
    let Some(device) = emulator() else { return };
    let steps = [
        step(1, 0, 1, 128),
        step(2, 0, 1, 1),
        step(41, 40, 1, 1),
        step(200, 0, 1, 1),
        step(34, 1, 1, 1),
        step(90, 10, 1, 48),
    ];
    for form in [FORMS[0], FORMS[2], FORMS[6]] {
        check_steps(&device, KINDS[3], 1, &steps, &hoeffding(form, 0.9, 2));
    }
}
