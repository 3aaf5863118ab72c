//! Sizes against a plain computation of their definition.

use vattention_core::{NewTokens, Shape, Site, SoftmaxForm, Step, Tokens, step::StepThreads};

use super::super::LogitIndex;
use super::super::errors::{LogitErrors, Scores, always_read, guarded_exponent};
use super::super::index::LogitPredictor;
use super::super::level::STEPS_TO_E;
use super::*;

/// Number of elements of a query, a key and a value.
const DIM: usize = 24;

/// Pseudorandom numbers between −1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Fields that [`Sizes::new`] computes.
#[derive(Debug, PartialEq)]
struct Expected {
    levels: Vec<i16>,
    units: Vec<f64>,
    length: f64,
}

/// Level of a score relative to the reference of its part, and the same raised by an exponent.
fn round(score: f32, reference: f32, exponent: f32) -> [i16; 2] {
    let steps = f64::from(STEPS);
    let least = steps * f64::from(reference) - 120.0 * steps;
    let level = f64::from(score).max(least).round_ties_even() - steps * f64::from(reference);
    [level, (level + f64::from(exponent)).round_ties_even()].map(|level| level as i16 + ONE)
}

/// Computes sizes token by token. No score is too large, and none of the `fixed` tokens counts.
fn compute_plainly(scan: &Scan<'_>, fixed: &[usize]) -> Expected {
    let (visible, unit) = (scan.norms.len(), unit(scan.longest));
    let (mut rows, mut units, mut square) = (Vec::new(), Vec::new(), 0.0);
    for (row, errors) in scan.errors.iter().enumerate() {
        let mut parts = Vec::new();
        for first in (0..visible).step_by(PART) {
            let tokens = first..visible.min(first + PART);
            let mut scores = [[0.0; PART]];
            scan.scores.predict_part(tokens.clone(), row, &mut scores);
            let score =
                |i: usize| if fixed.contains(&(first + i)) { f32::MIN } else { scores[0][i] };
            let largest = (0..tokens.len()).map(score).fold(f32::MIN, f32::max);
            let reference = (largest / 128.0).ceil().max(-32_768.0);
            let (mut sums, mut levels) = ([[0.0_f32; LANES]; 2], Vec::new());
            for i in 0..tokens.len().next_multiple_of(LANES) {
                let here = tokens.clone().nth(i);
                let exponent = here.map_or(0.0, |token| match errors {
                    LogitErrors::Proved(errors) => {
                        let factor = errors.query * STEPS_TO_E;
                        factor * errors.radii[token] + errors.underflow * STEPS_TO_E
                    }
                    LogitErrors::Deviations(codes) => {
                        let factor = codes.factors.get(token).map_or(0.0, |f| f.to_f32());
                        guarded_exponent(codes.unit)(factor)
                    }
                    LogitErrors::Common(_) => 0.0,
                    LogitErrors::Capped { exponents, .. } => exponents[token] * STEPS_TO_E,
                });
                let [level, raised] =
                    round(here.map_or(f32::MIN, |_| score(i)), reference, exponent);
                let norm = here.map_or(0.0, |token| unit * scan.norms[token].to_f32());
                sums[0][i % LANES] += number(level);
                let sum = &mut sums[1][i % LANES];
                *sum = number(level).mul_add(norm * norm, *sum);
                levels.push(raised);
            }
            parts.push((reference as i32, sums.map(|sums| add_lanes(&sums)), levels));
        }
        let reference = parts.iter().map(|part| part.0).max().unwrap();
        let total = |which: usize| -> f64 {
            let term = |part: &(i32, [f64; 2], _)| part.1[which] * 2.0_f64.powi(part.0 - reference);
            parts.iter().map(term).sum()
        };
        let (weight, squares) = (total(0), total(1));
        square += squares / weight;
        let shift = (128.0 * libm::log2(weight)).round();
        let rounding = 2.0_f64.powi(-23) * f64::from(reference.abs() + 120);
        let powers = f64::from(reference) + shift / 128.0 + SLACK + rounding;
        units.push(LN_2 * powers + errors.common());
        let last = 128 * reference + shift as i32;
        rows.push(move |token: usize| {
            let (reference, _, levels) = &parts[token / PART];
            i32::from(levels[token % PART]) + 128 * reference - last
        });
    }
    let length = (square / units.len() as f64).sqrt() / f64::from(unit);
    let inverse = if length > 0.0 { (1.0 / length) as f32 } else { 0.0 };
    let size = |token: usize| {
        let norm = inverse * scan.norms[token].to_f32();
        let largest = rows.iter().map(|row| row(token)).max().unwrap();
        let size = largest + i32::from(half_log(norm * norm + 1.0));
        if fixed.contains(&token) { FIXED } else { size.max(LEAST_SIZE.into()) as i16 }
    };
    Expected { levels: (0..visible).map(size).collect(), units, length }
}

/// Checks the sizes of `visible` tokens for `rows` rows. Logits of a part of the tokens differ from
/// those of the next by about `jump`, and tokens at the start, in the middle and at the end are
/// picked. Returns the number of tokens that are always read.
fn check(index: LogitIndex, visible: usize, rows: usize, jump: f32, cap: Option<f32>) -> usize {
    let (mut keys, queries) = (numbers(visible * DIM, 5), numbers(rows * DIM, 8));
    let square: f32 = queries[..DIM].iter().map(|q| q * q).sum();
    for (token, key) in keys.chunks_exact_mut(DIM).enumerate() {
        let distance = jump * [0.0, 1.0, -1.0][token / PART % 3] / square;
        key.iter_mut().zip(&queries).for_each(|(k, q)| *k += distance * q);
    }
    let values = numbers(visible * DIM, 3);
    let shape = Shape { query_heads: rows, kv_heads: 1, head_dim: DIM, value_dim: DIM };
    let site = Site { seed: 3, sequence: 0, layer: 0, kv_head: 0, shape };
    let [keys, values] = [&keys, &values].map(|x| Tokens::new(x, visible, DIM));
    let mut predictor = LogitPredictor::new(&site, index);
    predictor.append(&NewTokens { first: 0, keys, values, classes: None });
    let form = SoftmaxForm { soft_cap: cap, ..SoftmaxForm::default() };
    let step = Step { visible, form, ..Step::new(&site, &queries, keys, values) };
    let mut picks = Picks::new(visible);
    picks.take_all([0, 3, 1 << 10, 1500, 1501].into_iter().filter(|&token| token < visible));
    picks.take_range(visible - visible / 40..visible);
    let scan = predictor.scan(&step.rows(), &picks, &[]);
    assert!(scan.is_finite);
    let certain = always_read(&scan, &picks, Vec::new());
    let fixed: Vec<usize> = picks.iter().chain(certain.iter().copied()).collect();
    let sizes = Sizes::new(&scan, &picks, certain);
    let found = Expected {
        levels: sizes.levels().to_vec(),
        units: sizes.units.clone(),
        length: sizes.length,
    };
    let expected = compute_plainly(&scan, &fixed);
    assert_eq!(found, expected, "{index:?}, {visible} tokens, {rows} rows, {jump}, {cap:?}");
    sizes.certain().len()
}

#[test]
fn sizes_equal_those_of_a_plain_computation() {
    for index in [LogitIndex::Codes, LogitIndex::Keys] {
        for (visible, rows) in
            [(1, 1), (63, 2), (64, 1), (1000, 3), (1024, 4), (1025, 5), (3000, 9)]
        {
            for jump in [0.0, 20.0, 300.0] {
                check(index, visible, rows, jump, None);
            }
        }
        check(index, 2200, 2, 5.0, Some(4.0));
    }
    assert!(check(LogitIndex::Codes, 3000, 3, 300.0, None) < 100);
}

/// Logits of ±300 in three parts: tokens of the best part alone have sizes above the least, except
/// for what errors add.
#[test]
fn parts_with_small_logits_have_the_least_sizes() {
    let scores = |part: usize| [-300.0, 300.0, 299.0][part];
    let mut stored = Scratch::new(3 * PART);
    for (token, score) in stored.iter_mut().enumerate() {
        *score = scores(token / PART);
    }
    let norms = vec![bf16::ONE; 3 * PART];
    let scan = stored_scan(stored, &norms);
    let sizes = Sizes::new(&scan, &Picks::new(3 * PART), Vec::new());
    let [low, high, near] = [0, 1, 2].map(|part| sizes.levels()[part * PART]);
    assert!(sizes.levels().chunks(PART).all(|part| part.iter().all(|size| *size == part[0])));
    assert_eq!(low, LEAST_SIZE);
    let steps = |x: f64| f64::from(STEPS) * x.log2();
    let share = 1.0 / (1024.0 * (1.0 + (-1.0_f64).exp()));
    // Numbers of levels exceed powers of two by up to 11 steps.
    assert!((f64::from(high - ONE) - steps(share * 2.0_f64.sqrt())).abs() < 12.0, "{high}");
    assert!((f64::from(high - near) - steps(std::f64::consts::E)).abs() < 1.5, "{high}, {near}");
}

#[test]
fn everything_is_read_if_the_query_is_not_finite() {
    for element in [f32::INFINITY, f32::NAN] {
        let (keys, mut query) = (numbers(2000 * DIM, 5), vec![1.0; DIM]);
        query[3] = element;
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: DIM, value_dim: DIM };
        let site = Site { seed: 3, sequence: 0, layer: 0, kv_head: 0, shape };
        let keys = Tokens::new(&keys, 2000, DIM);
        let step = Step { visible: 2000, ..Step::new(&site, &query, keys, keys) };
        let mut picks = Picks::new(2000);
        picks.take(7);
        for index in [LogitIndex::Codes, LogitIndex::Keys] {
            let mut predictor = LogitPredictor::new(&site, index);
            predictor.append(&NewTokens { first: 0, keys, values: keys, classes: None });
            let scan = predictor.scan(&step.rows(), &picks, &[]);
            assert!(!scan.is_finite);
            let sizes = Sizes::new(&scan, &picks, always_read(&scan, &picks, Vec::new()));
            assert_eq!(sizes.certain().len(), 1999);
            assert!(sizes.levels().iter().all(|&size| size == FIXED));
        }
    }
}

/// A score of 10⁶ is too large for sums of steps, unless its token is picked.
#[test]
fn everything_is_read_if_a_score_is_huge() {
    let mut stored = Scratch::new(100);
    stored.fill(1.0);
    stored[50] = 1e6;
    let norms = [bf16::ONE; 100];
    let scan = stored_scan(stored, &norms);
    let mut picks = Picks::new(100);
    assert_eq!(Sizes::new(&scan, &picks, Vec::new()).certain().len(), 100);
    picks.take(50);
    assert_eq!(Sizes::new(&scan, &picks, Vec::new()).certain().len(), 0);
}

/// Predictions for one row, without errors.
fn stored_scan(scores: Scratch<f32>, norms: &[bf16]) -> Scan<'_> {
    Scan {
        scores: Scores::Stored(vec![scores]),
        is_finite: true,
        errors: vec![LogitErrors::Common(0.0)],
        norms,
        longest: bf16::ONE,
        threads: StepThreads::default(),
    }
}
