use super::*;
use crate::prompt_attention::round_weight;
use crate::prompt_attention::testing::{MEMBERS, pick, prompt, queries};
use proptest::prelude::*;
use vattention_core::ndarray::s;
use vattention_testkit::{Head, Texture, heads, laws};

const SHARES: &str = r#"{ "type": "h2o" }"#;

laws!(sizes_as_shares, H2o { heavy: tenth(), recent: tenth() });
laws!(sizes_in_tokens, H2o { heavy: Size::Tokens(5), recent: Size::Tokens(3) });

fn selector(heavy: usize, recent: usize) -> H2oSelector {
    let config = H2o { heavy: Size::Tokens(heavy), recent: Size::Tokens(recent) };
    H2oSelector {
        config,
        kept: KeptTokens::default(),
        max_visible: 0,
        received: ReceivedAttention::default(),
    }
}

/// Reference implementation: kept tokens with their scores, evicted one by one.
#[derive(Default)]
struct Model {
    kept: Vec<(u32, f64)>,
}

impl Model {
    fn add(&mut self, attended: &AttentionWeights<'_>) {
        let weight = |token: u32| {
            let place = attended.tokens.iter().position(|&read| read == token);
            place.map_or(0.0, |place| attended.weights[place])
        };
        let sum: f64 = self.kept.iter().map(|&(token, _)| f64::from(weight(token))).sum();
        for (token, score) in &mut self.kept {
            *score += round_weight((f64::from(weight(*token)) / sum.max(1e-300)) as f32);
        }
    }

    fn evict(&mut self, visible: usize, heavy: usize, recent: usize) {
        let first_recent = visible.saturating_sub(recent);
        loop {
            let old = self.kept.iter().filter(|(token, _)| (*token as usize) < first_recent);
            if old.clone().count() <= heavy {
                return;
            }
            let worst = old.fold(&(0, f64::INFINITY), |worst, entry| {
                if entry.1 as f32 <= worst.1 as f32 { entry } else { worst }
            });
            let worst = worst.0;
            self.kept.retain(|&(token, _)| token != worst);
        }
    }

    fn tokens(&self) -> Vec<usize> {
        self.kept.iter().map(|&(token, _)| token as usize).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever is read, in steps of one or more tokens, the kept tokens are those of the
    /// reference.
    #[test]
    fn evicts_the_lowest_scores_one_by_one(
        heavy in 1_usize..8,
        recent in 1_usize..8,
        steps in prop::collection::vec((1_usize..4, prop::collection::vec(0_u8..4, 60)), 1..12),
    ) {
        let head = Head::new(60, 2, 0, Texture::Flat);
        let (mut selector, mut model) = (selector(heavy, recent), Model::default());
        let mut tokens = 0;
        for (new, weights) in steps {
            selector.append(&head.part(tokens..tokens + new));
            model.kept.extend((tokens..tokens + new).map(|token| (token as u32, 0.0)));
            tokens += new;
            for (member, shift) in [0_u8, 3].into_iter().enumerate() {
                // 3 marks a token that was not read.
                let all = weights[..tokens].iter().map(|&w| (w + shift) % 4).zip(0_u32..);
                let (read, weights): (Vec<u32>, Vec<f32>) =
                    all.filter(|&(w, _)| w < 3).map(|(w, token)| (token, f32::from(w))).unzip();
                let attended = AttentionWeights { tokens: &read, weights: &weights, sink: 0.0 };
                selector.feedback(&head.step(tokens).row(member), &attended);
                model.add(&attended);
            }
            model.evict(tokens, heavy, recent);
            prop_assert_eq!(pick(&selector, &head, tokens), model.tokens());
            prop_assert!(model.kept.len() <= heavy + recent);
        }
    }

    /// A prompt and later steps give the scores of a longer prompt if nothing is evicted.
    #[test]
    fn a_prompt_and_steps_score_like_a_longer_prompt(
        head in heads(60), observed in 1_usize..20, steps in 1_usize..20,
    ) {
        prop_assume!(observed + steps <= head.tokens);
        let before = head.tokens - steps;
        let queries = queries(&head, observed + steps);
        let mut as_prompt = selector(1000, 1000);
        as_prompt.append(&head.part(0..head.tokens));
        as_prompt.observe(&prompt(&head, head.tokens, queries.view()));

        let mut stepwise = selector(1000, 1000);
        stepwise.append(&head.part(0..before));
        stepwise.observe(&prompt(&head, before, queries.slice(s![.., ..observed, ..])));
        for step in 0..steps {
            let tokens = before + step + 1;
            stepwise.append(&head.part(tokens - 1..tokens));
            for member in 0..MEMBERS {
                let query = queries.slice(s![member, observed + step, ..]).to_vec();
                let exp = |token| f64::from(head.part(0..tokens).keys.dot(token, &query)).exp();
                let sum: f64 = (0..tokens).map(exp).sum();
                let weights: Vec<f32> = (0..tokens).map(|t| (exp(t) / sum) as f32).collect();
                let read: Vec<u32> = (0..tokens as u32).collect();
                let attended = AttentionWeights { tokens: &read, weights: &weights, sink: 0.0 };
                stepwise.feedback(&head.step(tokens).row(member), &attended);
            }
        }
        for (a, b) in as_prompt.received.sums.iter().zip(&stepwise.received.sums) {
            prop_assert!((a - b).abs() <= 1e-3 * a.max(1e-4), "{a} {b}");
        }
        let total = (MEMBERS * (observed + steps)) as f64;
        prop_assert!((as_prompt.received.sums.iter().sum::<f64>() - total).abs() < 1e-3 * total);
    }
}

/// Tokens that no query could see yet are not evicted, and a query that sees fewer tokens than an
/// earlier one evicts nothing.
#[test]
fn tokens_not_yet_visible_are_not_evicted() {
    let head = Head::new(40, 2, 0, Texture::Flat);
    let mut selector = selector(2, 3);
    selector.append(&head.part(0..40));
    let mut step = |visible: usize| {
        for member in 0..MEMBERS {
            let attended =
                AttentionWeights { tokens: &[1, 4, 6], weights: &[0.2, 0.3, 0.5], sink: 0.0 };
            selector.feedback(&head.step(visible).row(member), &attended);
        }
        (pick(&selector, &head, visible), pick(&selector, &head, 40).len())
    };
    assert_eq!(step(10), (vec![4, 6, 7, 8, 9], 35));
    assert_eq!(step(8), (vec![4, 6, 7], 35));
    assert_eq!(step(12), (vec![4, 6, 9, 10, 11], 33));
}

/// Shares are taken of all tokens visible so far, so that a query that sees fewer tokens shrinks no
/// set.
#[test]
fn a_query_that_sees_less_evicts_nothing() {
    let head = Head::new(40, 2, 0, Texture::Flat);
    let quarter = Size::Share(Fraction::try_from(0.25).unwrap());
    let mut selector = H2o { heavy: quarter, recent: quarter }.build(head.site()).unwrap();
    selector.append(&head.part(0..40));
    for visible in [40, 10] {
        for member in 0..MEMBERS {
            let (tokens, weights) = ((0..10).collect::<Vec<u32>>(), [0.1; 10]);
            let attended = AttentionWeights { tokens: &tokens, weights: &weights, sink: 0.0 };
            selector.feedback(&head.step(visible).row(member), &attended);
        }
        let kept: Vec<usize> = (0..10).chain(30..40).collect();
        assert_eq!(pick(&*selector, &head, 40), kept, "after a query that sees {visible}");
    }
}

/// Neither reads of evicted tokens nor their share of the attention change the scores.
#[test]
fn weights_are_normalised_over_kept_tokens() {
    let head = Head::new(8, 2, 0, Texture::Flat);
    let mut sampled = selector(2, 1);
    sampled.append(&head.part(0..8));
    sampled.kept.evict(7, 4, &[1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    sampled.received.sums.truncate(5);
    let mut alone = sampled.clone();
    let give_feedback = |selector: &mut H2oSelector, tokens: &[u32], weights: &[f32]| {
        selector.feedback(&head.step(8).row(0), &AttentionWeights { tokens, weights, sink: 0.0 });
    };
    give_feedback(&mut alone, &[0, 1, 3, 5, 7], &[0.1, 0.2, 0.3, 0.4, 0.0]);
    give_feedback(&mut sampled, &[0, 1, 2, 3, 4, 5, 7], &[0.05, 0.1, 0.3, 0.15, 0.2, 0.2, 0.0]);
    assert_eq!(alone.received.sums, sampled.received.sums);
    assert_eq!(alone.received.sums[2], round_weight(0.3));
}

#[test]
fn sizes_default_to_a_tenth() {
    let config: Box<dyn SelectorConfig> = serde_json::from_str(SHARES).unwrap();
    let head = Head::new(100, 8, 3, Texture::Gaussian);
    let mut selector = config.build(head.site()).unwrap();
    selector.append(&head.part(0..100));
    assert_eq!(pick(&*selector, &head, 100).len(), 100, "no attention was observed yet");
    assert_eq!(selector.index_bytes(), 1200);
    selector.observe(&head.prompt());
    assert_eq!(pick(&*selector, &head, 100).len(), 20);
    assert_eq!(pick(&*selector, &head, 100)[10..], (90..100).collect::<Vec<_>>());
    assert_eq!(selector.index_bytes(), 240);
}
