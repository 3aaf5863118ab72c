//! Equality of levels and sums on every machine.

use proptest::prelude::*;

use super::*;

/// Levels of the first tokens, and sums.
type Outcome = (Vec<i16>, [f64; 2]);

fn outcome(
    scores: &[[f32; LANES]],
    columns: &PartColumns,
    set: impl Fn(&[[f32; LANES]], &PartColumns, &mut [i16]) -> [f64; 2],
) -> Outcome {
    let mut levels = vec![0; scores.len() * LANES];
    let sums = set(scores, columns, &mut levels);
    (levels, sums)
}

fn set_plainly(scores: &[[f32; LANES]], columns: &PartColumns, out: &mut [i16]) -> [f64; 2] {
    set_levels_by(scores, 7.0, columns, guarded_exponent(0.3), out)
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn set_by_avx2(scores: &[[f32; LANES]], columns: &PartColumns, out: &mut [i16]) -> [f64; 2] {
    set_levels_by(scores, 7.0, columns, guarded_exponent(0.3), out)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Versions for vector instructions have the results of the portable version.
    #[test]
    fn levels_are_the_same_on_every_machine(
        scores in prop::collection::vec(
            prop_oneof![8 => -900.0_f32..896.0, 1 => -40_000.0_f32..896.0, 1 => Just(f32::MIN)],
            PART,
        ),
        norms in prop::collection::vec(0.0_f32..2.0, PART),
        factors in prop::collection::vec(0.0_f32..9.0, PART),
        chunks in 1..=PART / LANES,
    ) {
        let mut columns = PartColumns::new();
        let norms: Vec<bf16> = norms.into_iter().map(bf16::from_f32).collect();
        columns.set_squares(&norms, 1.0);
        columns.errors.copy_from_slice(&factors);
        let scores = &scores.as_chunks::<LANES>().0[..chunks];
        let plain = outcome(scores, &columns, set_plainly);
        prop_assert_eq!(&outcome(scores, &columns, set_by_avx2), &plain);
        let best = |scores: &[[f32; LANES]], columns: &PartColumns, out: &mut [i16]| {
            set_levels_by_deviations(scores, 7.0, columns, 0.3, out)
        };
        prop_assert_eq!(&outcome(scores, &columns, best), &plain);
        let largest = scores.as_flattened().iter().fold(f32::MIN, |most, &x| most.max(x));
        prop_assert_eq!(find_largest(scores), largest);
    }
}
