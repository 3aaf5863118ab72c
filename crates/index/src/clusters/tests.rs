use proptest::prelude::*;

use super::*;

fn array(numbers: &[f32], dim: usize) -> ArrayView2<'_, f32> {
    let rows = numbers.len() / dim;
    ArrayView2::from_shape((rows, dim), &numbers[..rows * dim]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// Each cluster consists of the tokens with one label, and its mean is that of their keys.
    #[test]
    fn clusters_partition_the_tokens(
        numbers in prop::collection::vec(-9.0_f32..9.0, 3..200),
        labels in prop::collection::vec(0_usize..9, 66),
        query in prop::collection::vec(-2.0_f32..2.0, 3),
    ) {
        let keys = array(&numbers, 3);
        let labels = &labels[..keys.nrows()];
        let clusters = Clusters::new(keys, labels);
        let numbers: Vec<f32> = (0..clusters.count()).map(|cluster| cluster as f32).collect();
        let found = clusters.per_token(&numbers, keys.nrows());
        let found: Vec<usize> = found.into_iter().map(|cluster| cluster as usize).collect();
        prop_assert_eq!(found.len(), keys.nrows());
        for a in 0..labels.len() {
            for b in 0..labels.len() {
                prop_assert_eq!(labels[a] == labels[b], found[a] == found[b]);
                prop_assert_eq!(labels[a] < labels[b], found[a] < found[b]);
            }
        }
        let logits = clusters.logits(&query);
        let some: Vec<usize> = (0..clusters.count()).step_by(2).collect();
        let logits_of = clusters.logits_of(&some, &query);
        prop_assert!(some.iter().zip(logits_of).all(|(&cluster, logit)| logit == logits[cluster]));
        let token_logits = clusters.per_token(&logits, keys.nrows());
        for (token, &cluster) in found.iter().enumerate() {
            prop_assert_eq!(token_logits[token], logits[cluster]);
        }
        for (cluster, mean) in clusters.means().rows().into_iter().enumerate() {
            let members = clusters.members(cluster);
            prop_assert!(!members.is_empty() && members.is_sorted());
            for (j, &x) in mean.iter().enumerate() {
                let elements = members.iter().map(|&token| f64::from(keys[[token as usize, j]]));
                let mean = elements.sum::<f64>() / members.len() as f64;
                prop_assert!((f64::from(x) - mean).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn a_joining_token_does_not_change_the_mean() {
    let mut clusters = Clusters::new(array(&[1.0, 3.0, 9.0], 1), &[4, 4, 2]);
    assert_eq!(clusters.bytes(), 3 * 4 + 2 * 4);
    clusters.join(3, 1);
    assert_eq!(clusters.means(), array(&[9.0, 2.0], 1));
    assert_eq!((clusters.members(0), clusters.members(1)), (&[2][..], &[0, 1, 3][..]));
    assert_eq!(clusters.per_token(&[5.0, 6.0], 3), [6.0, 6.0, 5.0]);
    assert_eq!(clusters.per_token(&[5.0, 6.0], 5), [6.0, 6.0, 5.0, 6.0, 0.0]);
    assert_eq!(clusters.bytes(), 4 * 4 + 2 * 4);
}
