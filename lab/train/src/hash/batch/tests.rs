use super::*;
use crate::test_traces;

#[test]
fn the_best_keys_of_each_query_in_the_run_are_positives() {
    let layer = test_traces::layer(1);
    for head in 0..4 {
        let batch = only(Batch::split(&layer, head, &[3, 11], 40..140, 5).unwrap());
        assert_eq!((batch.head, batch.counted()), (head, 2 * 100));
        assert_eq!((batch.queries.dims(), batch.keys.dims()), (&[1, 2, 8][..], &[1, 100, 8][..]));
        for (labels, query) in batch.labels.iter().zip([3, 11]) {
            let query = layer.queries.slice(s![head, query, ..]);
            let keys = layer.keys.slice(s![head / 2, 40..140, ..]);
            let scores: Vec<f32> = keys.outer_iter().map(|key| key.dot(&query)).collect();
            let positives = labels.positives.iter();
            let worst = positives.map(|&key| scores[key]).fold(f32::INFINITY, f32::min);
            let as_good = scores.iter().filter(|&&x| x >= worst).count();
            assert_eq!((labels.positives.len(), as_good, labels.range.clone()), (5, 5, 0..100));
        }
    }
}

#[test]
fn tokens_that_a_query_does_not_see_do_not_count() {
    let mut layer = test_traces::layer(2);
    layer.visible = Some((0..32).map(|query| if query == 4 { 50 } else { 20 }).collect());
    let batch = only(Batch::split(&layer, 3, &[4, 5], 30..60, 5).unwrap());
    assert_eq!(batch.counted(), 20);
    let [first, second] = &batch.labels[..] else { panic!("labels for each query") };
    assert!(first.range == (0..20) && first.positives.len() == 5);
    assert!(first.positives.iter().all(|key| first.range.contains(key)));
    assert!(second.range.is_empty() && second.positives.is_empty());
}

fn only(mut batches: Vec<Batch>) -> Batch {
    assert_eq!(batches.len(), 1);
    batches.remove(0)
}

/// A long run is split into batches, which together have the positives of the run.
#[test]
fn the_batches_of_a_long_run_have_each_positive_once() {
    let mut layer = test_traces::layer(3);
    layer.keys = test_traces::noise((2, 2600, 8), 9);
    let batches = Batch::split(&layer, 1, &[7], 100..2550, 40).unwrap();
    let sizes: Vec<usize> = batches.iter().map(|batch| batch.keys.dims()[1]).collect();
    assert_eq!(sizes, [1000, 1000, 450]);
    // The first and last 128 tokens of the context do not count.
    assert_eq!(batches.iter().map(Batch::counted).sum::<usize>(), 2600 - 128 - 128);
    let query = layer.queries.slice(s![1, 7, ..]);
    let keys = layer.keys.slice(s![0, 128..2472, ..]);
    let scores: Vec<f32> = (0..2344).map(|key| keys.row(key).dot(&query)).collect();
    let mut expected = top(&scores, 40);
    let mut found = Vec::new();
    for (i, batch) in batches.iter().enumerate() {
        let key = batch.keys.to_vec3::<f32>().unwrap()[0][0].clone();
        assert_eq!(key, layer.keys.slice(s![0, 100 + 1000 * i, ..]).to_vec());
        let positives = batch.labels[0].positives.iter();
        found.extend(positives.map(|positive| 100 + 1000 * i + positive - 128));
    }
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn drawn_numbers_are_distinct() {
    let mut rng =
        <rand_chacha::ChaCha8Rng as rand_chacha::rand_core::SeedableRng>::from_seed([1; 32]);
    for count in [0, 1, 7, 10] {
        let mut chosen = draw_distinct(10, count, &mut rng);
        chosen.sort_unstable();
        chosen.dedup();
        assert!(chosen.len() == count && chosen.iter().all(|&x| x < 10));
    }
}
