use super::*;
use crate::learned::rounded;
use crate::learned::testing::{MEMBERS, picked, prompt, queries};
use proptest::prelude::*;
use vattention_core::ndarray::s;
use vattention_testkit::{Head, Texture, heads, laws};

const SHARES: &str = r#"{ "type": "h2o" }"#;

laws!(by_share, H2o { heavy: tenth(), recent: tenth() });
laws!(by_count, H2o { heavy: Size::Tokens(5), recent: Size::Tokens(3) });

fn worker(heavy: usize, recent: usize) -> H2oSelector {
    let config = H2o { heavy: Size::Tokens(heavy), recent: Size::Tokens(recent) };
    H2oSelector { config, kept: KeptTokens::default(), seen: 0, received: Received::default() }
}

/// Tokens kept with their scores, one evicted after the other: the definition.
#[derive(Default)]
struct Model {
    kept: Vec<(u32, f64)>,
}

impl Model {
    fn add(&mut self, attended: &Attended<'_>) {
        let weight = |token: u32| {
            let place = attended.tokens.iter().position(|&read| read == token);
            place.map_or(0.0, |place| attended.weights[place])
        };
        let sum: f64 = self.kept.iter().map(|&(token, _)| f64::from(weight(token))).sum();
        for (token, score) in &mut self.kept {
            *score += rounded((f64::from(weight(*token)) / sum.max(1e-300)) as f32);
        }
    }

    fn evict(&mut self, seen: usize, heavy: usize, recent: usize) {
        let first_recent = seen.saturating_sub(recent);
        loop {
            let old = self.kept.iter().filter(|(token, _)| (*token as usize) < first_recent);
            if old.clone().count() <= heavy {
                return;
            }
            let worst = old.fold(&(0, f64::INFINITY), |worst, one| {
                if one.1 as f32 <= worst.1 as f32 { one } else { worst }
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
    /// Whatever was read, in steps of several tokens, what is kept is what the definition keeps.
    #[test]
    fn evicts_the_lowest_scores_one_by_one(
        heavy in 1_usize..8,
        recent in 1_usize..8,
        steps in prop::collection::vec((1_usize..4, prop::collection::vec(0_u8..4, 60)), 1..12),
    ) {
        let head = Head::new(60, 2, 0, Texture::Flat);
        let (mut worker, mut model) = (worker(heavy, recent), Model::default());
        let mut tokens = 0;
        for (new, weights) in steps {
            worker.append(&head.part(tokens..tokens + new));
            model.kept.extend((tokens..tokens + new).map(|token| (token as u32, 0.0)));
            tokens += new;
            for (member, shift) in [0_u8, 3].into_iter().enumerate() {
                // 3 stands for a token that was not read.
                let all = weights[..tokens].iter().map(|&w| (w + shift) % 4).zip(0_u32..);
                let (read, weights): (Vec<u32>, Vec<f32>) =
                    all.filter(|&(w, _)| w < 3).map(|(w, token)| (token, f32::from(w))).unzip();
                let attended = Attended { tokens: &read, weights: &weights };
                worker.feedback(&head.step(tokens).row(member), &attended);
                model.add(&attended);
            }
            model.evict(tokens, heavy, recent);
            prop_assert_eq!(picked(&worker, &head, tokens), model.tokens());
            prop_assert!(model.kept.len() <= heavy + recent);
        }
    }

    /// A prompt and steps after it score what a longer prompt scores, where nothing is evicted.
    #[test]
    fn scores_add(head in heads(60), shown in 1_usize..20, steps in 1_usize..20) {
        prop_assume!(shown + steps <= head.tokens);
        let before = head.tokens - steps;
        let queries = queries(&head, shown + steps);
        let mut at_once = worker(1000, 1000);
        at_once.append(&head.part(0..head.tokens));
        at_once.observe(&prompt(&head, head.tokens, queries.view()));

        let mut stepwise = worker(1000, 1000);
        stepwise.append(&head.part(0..before));
        stepwise.observe(&prompt(&head, before, queries.slice(s![.., ..shown, ..])));
        for step in 0..steps {
            let tokens = before + step + 1;
            stepwise.append(&head.part(tokens - 1..tokens));
            for member in 0..MEMBERS {
                let query = queries.slice(s![member, shown + step, ..]).to_vec();
                let exp = |token| f64::from(head.part(0..tokens).keys.dot(token, &query)).exp();
                let sum: f64 = (0..tokens).map(exp).sum();
                let weights: Vec<f32> = (0..tokens).map(|t| (exp(t) / sum) as f32).collect();
                let read: Vec<u32> = (0..tokens as u32).collect();
                let attended = Attended { tokens: &read, weights: &weights };
                stepwise.feedback(&head.step(tokens).row(member), &attended);
            }
        }
        for (a, b) in at_once.received.sums.iter().zip(&stepwise.received.sums) {
            prop_assert!((a - b).abs() <= 1e-3 * a.max(1e-4), "{a} {b}");
        }
        let total = (MEMBERS * (shown + steps)) as f64;
        prop_assert!((at_once.received.sums.iter().sum::<f64>() - total).abs() < 1e-3 * total);
    }
}

/// Tokens that no query could see yet are not judged, and a query that sees less judges nothing.
#[test]
fn what_nobody_could_see_is_left_alone() {
    let head = Head::new(40, 2, 0, Texture::Flat);
    let mut worker = worker(2, 3);
    worker.append(&head.part(0..40));
    let mut step = |visible: usize| {
        for member in 0..MEMBERS {
            let attended = Attended { tokens: &[1, 4, 6], weights: &[0.2, 0.3, 0.5] };
            worker.feedback(&head.step(visible).row(member), &attended);
        }
        (picked(&worker, &head, visible), picked(&worker, &head, 40).len())
    };
    assert_eq!(step(10), (vec![4, 6, 7, 8, 9], 35));
    assert_eq!(step(8), (vec![4, 6, 7], 35));
    assert_eq!(step(12), (vec![4, 6, 9, 10, 11], 33));
}

/// Shares are of all tokens that were visible so far: a query that sees less makes no room smaller.
#[test]
fn a_query_that_sees_less_evicts_nothing() {
    let head = Head::new(40, 2, 0, Texture::Flat);
    let quarter = Size::Share(Fraction::try_from(0.25).unwrap());
    let mut worker = H2o { heavy: quarter, recent: quarter }.build(head.site()).unwrap();
    worker.append(&head.part(0..40));
    for visible in [40, 10] {
        for member in 0..MEMBERS {
            let (tokens, weights) = ((0..10).collect::<Vec<u32>>(), [0.1; 10]);
            let attended = Attended { tokens: &tokens, weights: &weights };
            worker.feedback(&head.step(visible).row(member), &attended);
        }
        let kept: Vec<usize> = (0..10).chain(30..40).collect();
        assert_eq!(picked(&*worker, &head, 40), kept, "after a query that sees {visible}");
    }
}

/// What else was read, and how much of all attention that is, changes nothing.
#[test]
fn only_the_shares_of_what_is_kept_count() {
    let head = Head::new(8, 2, 0, Texture::Flat);
    let mut sampled = worker(2, 1);
    sampled.append(&head.part(0..8));
    sampled.kept.evict(7, 4, &[1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    sampled.received.sums.truncate(5);
    let mut alone = sampled.clone();
    let tell = |worker: &mut H2oSelector, tokens: &[u32], weights: &[f32]| {
        worker.feedback(&head.step(8).row(0), &Attended { tokens, weights });
    };
    tell(&mut alone, &[0, 1, 3, 5, 7], &[0.1, 0.2, 0.3, 0.4, 0.0]);
    tell(&mut sampled, &[0, 1, 2, 3, 4, 5, 7], &[0.05, 0.1, 0.3, 0.15, 0.2, 0.2, 0.0]);
    assert_eq!(alone.received.sums, sampled.received.sums);
    assert_eq!(alone.received.sums[2], rounded(0.3));
}

#[test]
fn sizes_are_a_tenth_unless_they_are_given() {
    let config: Box<dyn SelectorConfig> = serde_json::from_str(SHARES).unwrap();
    let head = Head::new(100, 8, 3, Texture::Gaussian);
    let mut worker = config.build(head.site()).unwrap();
    worker.append(&head.part(0..100));
    assert_eq!(picked(&*worker, &head, 100).len(), 100, "nobody has looked");
    assert_eq!(worker.index_bytes(), 1200);
    worker.observe(&head.prompt());
    assert_eq!(picked(&*worker, &head, 100).len(), 20);
    assert_eq!(picked(&*worker, &head, 100)[10..], (90..100).collect::<Vec<_>>());
    assert_eq!(worker.index_bytes(), 240);
}
