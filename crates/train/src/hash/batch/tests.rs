use super::*;
use crate::planted;

fn numbers(tensor: &Tensor) -> Vec<Vec<Vec<f32>>> {
    tensor.to_vec3().unwrap()
}

#[test]
fn each_querys_best_keys_in_the_run_are_positive() {
    let layer = planted::layer(1);
    let settings = Settings { top: 5, positive_weight: 7.0, ..Settings::default() };
    let batch = Batch::of(&layer, &[3, 11], 40..140, &settings).unwrap();
    assert_eq!(batch.counted, 4 * 2 * 100);
    let (labels, weights) = (numbers(&batch.labels), numbers(&batch.weights));
    for (head, rows) in labels.iter().enumerate() {
        for ((row, labels), query) in rows.iter().enumerate().zip([3, 11]) {
            let query = layer.queries.slice(s![head, query, ..]);
            let keys = layer.keys.slice(s![head / 2, 40..140, ..]);
            let scores: Vec<f32> = keys.outer_iter().map(|key| key.dot(&query)).collect();
            let positive = (0..100).filter(|&token| labels[token] == 1.0);
            let worst = positive.map(|token| scores[token]).fold(f32::INFINITY, f32::min);
            let better = scores.iter().filter(|&&x| x >= worst).count();
            assert_eq!((better, labels.iter().sum::<f32>()), (5, 5.0));
            for (label, weight) in labels.iter().zip(&weights[head][row]) {
                assert_eq!(*weight, 1.0 + 6.0 * label);
            }
        }
    }
}

#[test]
fn tokens_that_a_query_does_not_see_count_for_nothing() {
    let mut layer = planted::layer(2);
    layer.visible = Some((0..32).map(|query| if query == 4 { 50 } else { 20 }).collect());
    let settings = Settings { top: 5, ..Settings::default() };
    let batch = Batch::of(&layer, &[4, 5], 30..60, &settings).unwrap();
    assert_eq!(batch.counted, 4 * 20);
    for rows in numbers(&batch.weights) {
        assert!(rows[0][..20].iter().all(|&x| x > 0.0) && rows[0][20..].iter().all(|&x| x == 0.0));
        assert!(rows[1].iter().all(|&x| x == 0.0));
    }
    assert!(numbers(&batch.labels).iter().all(|rows| rows[1].iter().all(|&x| x == 0.0)));
}

#[test]
fn some_are_different() {
    let mut rng =
        <rand_chacha::ChaCha8Rng as rand_chacha::rand_core::SeedableRng>::from_seed([1; 32]);
    for count in [0, 1, 7, 10] {
        let mut chosen = some(10, count, &mut rng);
        chosen.sort_unstable();
        chosen.dedup();
        assert!(chosen.len() == count && chosen.iter().all(|&x| x < 10));
    }
}
