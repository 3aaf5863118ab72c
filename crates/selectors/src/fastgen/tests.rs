//! Laws of selectors, outputs of a transcription of algorithms 1 and 2
//! (`tests/golden/fastgen.json`), and definition of the policies.

use proptest::prelude::*;
use vattention_core::ndarray::{Array3, s};
use vattention_testkit::{Head, Texture, laws};

use super::*;
use crate::prompt_attention::testing::{
    GoldenStream, check_stream, pick, prompt, queries, read_all,
};

const ALL: [Policy; 5] =
    [Policy::Special, Policy::Punctuation, Policy::Frequent, Policy::Local, Policy::Full];

fn config(recover: f64) -> FastGen {
    FastGen { recover: recover.try_into().unwrap(), frequent: share(), local: share() }
}

laws!(recovers_little, config(0.02));
laws!(recovers_a_third, config(0.3));
laws!(recovers_most, config(0.8));
laws!(recovers_everything, config(0.999_999));
laws!(
    sizes_in_tokens,
    FastGen { frequent: Size::Tokens(5), local: Size::Tokens(3), ..config(0.5) }
);

#[test]
fn kept_tokens_match_the_golden_file() {
    #[derive(Deserialize)]
    struct Case {
        config: FastGen,
        #[serde(flatten)]
        stream: GoldenStream,
        /// Recovered attention, per policy.
        recovered: Vec<f64>,
        choice: usize,
    }
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../tests/golden/fastgen.json")).unwrap();
    assert_eq!(cases.iter().map(|case| case.choice).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for Case { config, stream, recovered, choice } in cases {
        let mut selector = FastgenSelector::new(config);
        check_stream(&stream, &mut selector);
        assert_eq!(selector.policy, Some(ALL[choice]), "recovered {recovered:?}");
    }
}

/// Returns a selector that has observed the head's first tokens as a prompt with these last
/// queries.
fn after_prompt(
    config: FastGen,
    head: &Head,
    tokens: usize,
    queries: &Array3<f32>,
) -> FastgenSelector {
    let mut selector = FastgenSelector::new(config);
    selector.append(&head.part(0..tokens));
    selector.observe(&prompt(head, tokens, queries.view()));
    selector
}

/// Share of a prompt's attention on the `kept` tokens, by definition: the mean over its rows.
fn recovered(head: &Head, tokens: usize, queries: &Array3<f32>, kept: &[usize]) -> f64 {
    let (members, count, _) = queries.dim();
    let keys = head.part(0..tokens).keys;
    let mut sum = 0.0;
    for member in 0..members {
        for i in 0..count {
            let query = queries.slice(s![member, i, ..]).to_vec();
            let visible = tokens - count + i + 1;
            let e: Vec<f64> = (0..visible).map(|t| f64::from(keys.dot(t, &query)).exp()).collect();
            let of_kept: f64 = kept.iter().filter(|&&t| t < visible).map(|&t| e[t]).sum();
            sum += of_kept / e.iter().sum::<f64>();
        }
    }
    sum / (members * count) as f64
}

fn textures() -> impl Strategy<Value = Texture> {
    prop::sample::select(vec![
        Texture::Flat,
        Texture::Gaussian,
        Texture::HeavyTail,
        Texture::Needle,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The chosen policy recovers enough, and no cheaper one does.
    #[test]
    fn the_cheapest_policy_that_recovers_enough_is_chosen(
        recover in 0.02_f64..0.98,
        texture in textures(),
        tokens in 8_usize..80,
        count in 1_usize..8,
        seed in 0_u64..1000,
    ) {
        let head = Head::new(tokens, 8, seed, texture);
        let queries = queries(&head, count);
        let selector = after_prompt(config(recover), &head, tokens, &queries);
        let chosen = selector.policy.unwrap();
        let mass = recovered(&head, tokens, &queries, &pick(&selector, &head, tokens));
        prop_assert!(mass >= recover - 1e-5, "{chosen:?} recovers {mass} of {recover}");
        for cheaper in ALL.into_iter().take_while(|&policy| policy < chosen) {
            let mut other = FastgenSelector::new(config(recover));
            other.policy = Some(cheaper);
            other.append(&head.part(0..tokens));
            other.observe(&prompt(&head, tokens, queries.view()));
            let mass = recovered(&head, tokens, &queries, &pick(&other, &head, tokens));
            prop_assert!(
                mass < recover + 1e-5,
                "{cheaper:?} recovers {mass} of {recover}, and {chosen:?} was chosen"
            );
        }
    }

    /// Recovering everything requires all tokens, at the prompt and later.
    #[test]
    fn full_recovery_keeps_all_tokens(tokens in 8_usize..80, seed in 0_u64..1000) {
        let head = Head::new(tokens, 8, seed, Texture::Gaussian);
        let half = tokens.div_ceil(2);
        let mut selector = after_prompt(config(1.0 - 1e-12), &head, half, &queries(&head, 3));
        prop_assert_eq!(selector.policy, Some(Policy::Full));
        selector.append(&head.part(half..tokens));
        read_all(&mut selector, &head.step(tokens));
        prop_assert_eq!(pick(&selector, &head, tokens).len(), tokens);
    }

    /// After every step, all tokens of the policy's classes are kept, other tokens up to the
    /// configured numbers, and the recent ones if the policy keeps them. Evicted tokens never come
    /// back.
    #[test]
    fn exactly_the_policys_tokens_are_kept(
        recover in 0.02_f64..0.9,
        texture in textures(),
        seed in 0_u64..1000,
    ) {
        const TOKENS: usize = 60;
        let head = Head::new(TOKENS, 8, seed, texture);
        let mut selector = after_prompt(config(recover), &head, 30, &queries(&head, 4));
        let policy = selector.policy.unwrap();
        let classes = head.part(0..TOKENS).classes.unwrap();
        let count_class = |class, end: usize| (0..end).filter(|&t| classes[t] == class).count();
        let mut evicted: Vec<usize> = Vec::new();
        for visible in 30..=TOKENS {
            if visible > 30 {
                selector.append(&head.part(visible - 1..visible));
                read_all(&mut selector, &head.step(visible));
            }
            let kept = pick(&selector, &head, visible);
            let many = selector.config.frequent.to_tokens(visible);
            let of_class = |&&t: &&usize| policy.keeps(classes[t]);
            let others = kept.iter().filter(|t| !of_class(t)).count();
            let recent = visible - many..visible;
            prop_assert!(evicted.iter().all(|t| !kept.contains(t)));
            evicted = (0..visible).filter(|t| !kept.contains(t)).collect();
            let specials = kept.iter().filter(|&&t| classes[t] == TokenClass::Special).count();
            let points = kept.iter().filter(|&&t| classes[t] == TokenClass::Punctuation).count();
            prop_assert_eq!(specials, count_class(TokenClass::Special, visible));
            let all_points = count_class(TokenClass::Punctuation, visible);
            match policy {
                Policy::Special => prop_assert_eq!(kept.len(), specials),
                Policy::Punctuation => prop_assert_eq!((others, points), (0, all_points)),
                Policy::Frequent => prop_assert!(others <= many && points == all_points),
                Policy::Local => {
                    prop_assert!(others <= 2 * many);
                    prop_assert!(recent.clone().all(|t| kept.contains(&t)));
                }
                Policy::Full => prop_assert_eq!(kept.len(), visible),
            }
        }
    }
}

/// The first prompt chooses the policy; neither steps before it nor later prompts do.
#[test]
fn the_first_prompt_chooses_the_policy() {
    let head = Head::new(40, 8, 3, Texture::Gaussian);
    let mut selector = FastgenSelector::new(config(0.02));
    selector.append(&head.part(0..20));
    read_all(&mut selector, &head.step(20));
    assert_eq!((selector.policy, pick(&selector, &head, 20).len()), (None, 20));
    selector.observe(&prompt(&head, 20, queries(&head, 2).view()));
    let (chosen, kept) = (selector.policy, pick(&selector, &head, 20));
    assert!(kept.len() < 20);
    selector.config.recover = 0.999.try_into().unwrap();
    selector.append(&head.part(20..40));
    selector.observe(&prompt(&head, 40, queries(&head, 2).view()));
    assert_eq!(selector.policy, chosen);
    let later = pick(&selector, &head, 40);
    assert!(later.iter().all(|&token| token >= 20 || kept.contains(&token)));
    assert_eq!(selector.index_bytes(), 13 * later.len());
}
