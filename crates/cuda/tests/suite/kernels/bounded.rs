//! Budgets from a proved range: `budget_check.cu`, against core's own sampler.

use vattention_core::{Estimator, Target};
use vattention_cuda::Device;
use vattention_cuda_emulator::ThreadSchedule;
use vattention_estimators::{Combine, Correction, Hoeffding};

use super::budget_check::{CAPACITY, Shown, check_steps};
use super::look::fraction;
use super::world::{KINDS, emulator};

/// What each of them makes of a target: those that have a formula.
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
) -> impl Fn(Shown) -> Box<dyn Estimator> {
    let hoeffding = Hoeffding {
        combine,
        correction,
        rounds: rounds.try_into().unwrap(),
        ..Hoeffding::new(target, fraction(epsilon), fraction(0.2))
    };
    move |_| Box::new(hoeffding.clone())
}

fn shown(visible: usize, certain: usize, best: usize, base: usize) -> Shown {
    Shown { visible, certain, best, base }
}

/// Every form, round by round; what it says of some samples that hold neither little nor all.
pub(crate) fn check_bounded<D: Device>(device: &D) {
    let steps = [shown(CAPACITY, 40, 90, 64), shown(700, 0, 1, 100), shown(CAPACITY, 40, 90, 64)];
    for (seed, form) in (0..).zip(FORMS) {
        let (kind, rounds) = (KINDS[seed as usize % KINDS.len()], 1 + seed as u8 % 3);
        let epsilon = if form.0 == Target::Denominator { 0.3 } else { 0.9 };
        let drawn = check_steps(device, kind, seed, &steps, &hoeffding(form, epsilon, rounds));
        let within = |&drawn: &usize| 100 < drawn && drawn < 800;
        assert!(drawn.iter().flatten().any(within), "{form:?}: {drawn:?}");
        assert_eq!(drawn[0], drawn[2], "nothing is left of the step between");
    }
}

#[test]
fn decisions_from_a_range_are_those_of_core() {
    let Some(device) = emulator() else { return };
    for schedule in [ThreadSchedule::several()[0], ThreadSchedule::several()[3]] {
        check_bounded(&device.clone().with_order(schedule));
    }
}

/// One token left, none, and samples of one token.
#[test]
fn little_that_is_left() {
    let Some(device) = emulator() else { return };
    let steps = [
        shown(1, 0, 1, 128),
        shown(2, 0, 1, 1),
        shown(41, 40, 1, 1),
        shown(200, 0, 1, 1),
        shown(34, 1, 1, 1),
        shown(90, 10, 1, 48),
    ];
    for form in [FORMS[0], FORMS[2], FORMS[6]] {
        check_steps(&device, KINDS[3], 1, &steps, &hoeffding(form, 0.9, 2));
    }
}
