use ndarray::{Array2, Array3};
use proptest::prelude::*;
use vattention_core::Target;
use vattention_estimators::formula::q_rob;

use super::*;

/// Equal numbers have equal probabilities, and `q n² s² (1/b − 1/n) = τ²` has a closed form.
#[test]
fn equal_tokens_have_a_closed_form() {
    for (n, delta, tolerance) in [(1000, 0.05, 0.2), (400, 0.1, 0.01), (50, 0.2, 1.0)] {
        let w = Array2::from_shape_fn((n, 1), |(i, _)| if i % 2 == 0 { 0.1 } else { -0.1 });
        let n = n as f64;
        let squared = q_rob(delta, 1.0, 1) * 0.01 * n * n;
        let want = squared / (tolerance * tolerance + squared / n);
        let found = compute_limit(w.view(), tolerance, delta);
        assert!((found / want - 1.0).abs() < 1e-4, "{found}, not {want}");
    }
}

#[test]
fn only_tokens_whose_values_deviate_are_sampled() {
    assert_eq!(compute_limit(Array2::zeros((10, 3)).view(), 0.1, 0.1), 0.0);
    let mut one = Array2::zeros((10, 3));
    one[[4, 1]] = 1.0;
    let found = compute_limit(one.view(), 0.0, 0.1);
    assert!((found - 1.0).abs() < 1e-4, "one token deviates: {found}");
}

/// Two query heads with one query each, for which the last token is invisible.
fn layer(values: &[f32]) -> TraceLayer {
    let tokens = values.len() / 2;
    TraceLayer {
        queries: Array3::from_shape_fn((2, 1, 2), |(head, _, i)| (head + i) as f32),
        keys: Array3::from_shape_fn((1, tokens, 2), |(_, token, i)| ((token + i) % 5) as f32),
        values: Array3::from_shape_vec((1, tokens, 2), values.to_vec()).unwrap(),
        visible: Some(vec![tokens - 1]),
        prompt: None,
        prompt_tokens: None,
        classes: None,
        soft_cap: None,
        sink_logits: None,
    }
}

fn promise(epsilon: f64) -> Promise {
    Promise::new(Target::Sdpa, epsilon.try_into().unwrap(), 0.1.try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Limits grow as epsilon shrinks, and do not exceed the visible tokens.
    #[test]
    fn limits_are_monotone(
        values in prop::collection::vec(-2.0_f32..2.0, 60..200),
        sink in 0_usize..9,
    ) {
        let layer = layer(&values[..values.len() / 2 * 2]);
        let visible = values.len() / 2 - 1;
        let always_read = AlwaysRead { sink, window: 3 };
        let run = |promise: &Promise| compute_limits(&layer, 0.5, 1, promise, always_read);
        let (tight, loose) = (run(&promise(0.05)), run(&promise(0.2)));
        for (tight, loose) in tight.iter().zip(&loose) {
            prop_assert!(loose.tokens <= tight.tokens * (1.0 + 1e-4));
            prop_assert!(tight.tokens <= visible as f64 + 1e-9 && tight.visible == visible);
            prop_assert!(loose.tokens >= (sink + 3) as f64);
        }
        prop_assert!(tight[0].query_head == 0 && tight[1].query_head == 1);
    }

    /// No other probabilities of the same expected sum have a smaller variance.
    #[test]
    fn no_other_probabilities_reach_the_tolerance(
        w in prop::collection::vec(0.01_f64..3.0, 20..60),
        tilt in prop::collection::vec(0.5_f64..2.0, 60),
    ) {
        let tolerance = 0.1 * w.iter().sum::<f64>();
        let w = Array2::from_shape_vec((w.len(), 1), w).unwrap();
        let best = compute_limit(w.view(), tolerance, 0.1);
        let other: Vec<f64> = w.iter().zip(&tilt).map(|(w, tilt)| w * tilt).collect();
        let probability = |t: f64| -> Vec<f64> { other.iter().map(|x| (t * x).min(1.0)).collect() };
        let (mut low, mut high) = (0.0, 1e4);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            let expected: f64 = probability(middle).iter().sum();
            if expected > best { high = middle } else { low = middle }
        }
        let variances = w.iter().zip(probability(low)).map(|(w, p)| w * w * (1.0 / p - 1.0));
        let variance: f64 = variances.sum();
        prop_assert!(q_rob(0.1, 1.0, 1) * variance >= tolerance * tolerance * (1.0 - 1e-3));
    }
}
