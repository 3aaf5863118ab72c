//! The laws, and what is said of strata, of the draw, and of variances.

use proptest::prelude::*;
use vattention_core::{Fraction, Score, Shape, Size, Softmax, Step};
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::sums::square;

fn fraction(x: f64) -> Fraction {
    x.try_into().unwrap()
}

fn config(mode: Mode) -> StratifiedSample {
    let base = Size::Tokens(16);
    StratifiedSample::new(Promised { mode, base, ..Promised::new(fraction(0.3), fraction(0.2)) })
}

vattention_testkit::laws!(default, config(Mode::Default));

#[test]
fn there_is_one_mode() {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 2, value_dim: 2 };
    let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
    for mode in [Mode::Strict, Mode::Rigorous] {
        let refusal = config(mode).build(&site).unwrap_err().to_string();
        assert!(refusal.starts_with("stratified-sample: mode"), "{refusal}");
    }
}

/// Picks that have kept scores, if any are given.
fn picks(visible: usize, scores: Option<&[f32]>) -> Picks {
    let mut picks = Picks::new(visible);
    picks.keep_scores();
    if let Some(scores) = scores {
        picks.take_top(visible / 20, scores);
    }
    picks
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The strata part what is left; a higher level has no lower score, and a later block of a level
    /// no earlier token.
    #[test]
    fn strata_are_levels_of_score_and_blocks_of_position(
        head in heads(400),
        scores in prop::option::of(prop::collection::vec(0..9_u8, 400)),
    ) {
        let scores: Option<Vec<f32>> =
            scores.map(|scores| scores[..head.tokens].iter().map(|&s| f32::from(s)).collect());
        let picks = picks(head.tokens, scores.as_deref());
        let step = head.step(head.tokens);
        let row = step.row(0);
        let mut strata = Strata::new(&row, &picks);
        let all: Vec<usize> = strata.iter().map(|stratum| stratum.size).collect();
        strata.draw(&all);
        prop_assert!(strata.drawn().iter().map(|&(t, _)| t as usize).eq(picks.residual()));
        prop_assert!(strata.drawn().iter().all(|&(_, p)| p == 1.0));
        let score = |token: u32| scores.as_ref().map_or(0.0, |scores| scores[token as usize]);
        let members: Vec<Vec<u32>> = strata.iter().map(|stratum| stratum.met.clone()).collect();
        for level in members.chunks(4) {
            for pair in level.windows(2) {
                prop_assert!(pair[0].iter().max() < pair[1].iter().min() || pair[1].is_empty());
            }
        }
        let levels: Vec<Vec<u32>> = members.chunks(4).map(<[_]>::concat).collect();
        prop_assert_eq!(levels.len(), 8);
        for pair in levels.windows(2) {
            let least = pair[0].iter().map(|&t| score(t)).fold(f32::INFINITY, f32::min);
            prop_assert!(pair[1].iter().all(|&t| score(t) <= least));
            prop_assert!(pair[0].len().abs_diff(pair[1].len()) <= 1);
        }
    }

    /// A larger sample continues a smaller one.
    #[test]
    fn samples_are_nested(head in heads(400), few in 0_usize..100, more in 0_usize..100) {
        let step = head.step(head.tokens);
        let row = step.row(0);
        let picks = picks(head.tokens, None);
        let drawn = |draws: &[usize]| {
            let mut strata = Strata::new(&row, &picks);
            for &draws in draws {
                let draws = strata.allocate(draws);
                strata.draw(&draws);
            }
            strata.drawn()
        };
        let (once, twice) = (drawn(&[few + more]), drawn(&[few, few + more]));
        prop_assert_eq!(&once, &twice);
        let small = drawn(&[few]);
        prop_assert!(small.iter().all(|(token, _)| once.iter().any(|(other, _)| other == token)));
    }
}

/// Over many samples, the estimated variances of `W^` and `D^` average to the squared distance of these
/// from the truth, and the squares of their own standard errors to their variance.
#[test]
fn variances_are_those_of_the_estimates() {
    const TRIALS: u32 = 4000;
    const DIM: usize = 4;
    let head = Head::new(300, DIM, 3, Texture::Gaussian);
    let step = head.step(300);
    let logits = step.row(0).scores(Score::Head);
    let picks = picks(300, Some(&logits));
    let certain = picks.indices().into_iter().map(|token| logits[token as usize]);
    let shift = f64::from(certain.fold(logits[299], f32::max));
    let mut exact = Softmax::new(DIM);
    let mut value = [0.0; DIM];
    for (token, &logit) in logits.iter().enumerate() {
        step.values.copy_row(token, &mut value);
        exact.add(logit.into(), 1.0, &value);
    }
    exact.rebase(shift);
    let (d, out) = (exact.denominator(), exact.output());
    let (mut estimated, mut actual) = ([0.0; 2], [0.0; 2]);
    let (mut squared, mut allowed) = ([0.0; 2], [0.0; 2]);
    for sequence in 0..TRIALS {
        let site = Site { sequence, ..*step.site };
        let step = Step { site: &site, ..step };
        let row = step.row(0);
        let mut strata = Strata::new(&row, &picks);
        let draws = strata.allocate(128);
        strata.draw(&draws);
        let look = Look::new(&strata);
        let (variances, raised) = (look.variances(&draws, 0.0), look.variances(&draws, 1.0));
        let sums = look::estimate(&strata);
        let w: Vec<f64> = sums.n.iter().zip(&out).map(|(n, o)| n - sums.d * o).collect();
        let errors = [square(&w), (sums.d - d).powi(2)];
        for which in [0, 1] {
            estimated[which] += variances[which];
            actual[which] += errors[which];
            squared[which] += variances[which].powi(2);
            allowed[which] += (raised[which] - variances[which]).powi(2);
        }
    }
    for which in [0, 1] {
        let ratio = estimated[which] / actual[which];
        assert!((ratio - 1.0).abs() < 0.1, "{ratio} times the variance is estimated");
        let spread = squared[which] - estimated[which].powi(2) / f64::from(TRIALS);
        let ratio = allowed[which] / spread;
        // Few draws of a stratum tell it roughly, and rather too much.
        assert!((0.5..2.5).contains(&ratio), "{ratio} times the variance's variance is allowed");
    }
}
