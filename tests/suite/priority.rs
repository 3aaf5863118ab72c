//! The promise of a `priority` sample: over 2,000 samples of a row, the output's error exceeds epsilon
//! no more often than delta allows, at a level of 1e-6 for each count; and tokens are drawn as often
//! as they are said to be.
//!
//! The sampler is also run with mistakes, which the same count must find.

use vattention::estimators::Mode;
use vattention::experiments::binomial;
use vattention::samplers::{LogitIndex, Priority};
use vattention::selectors::OracleTopK;
use vattention::{
    Kind, Size,
    plugin::{Assumption, Score},
};

use vattention_testkit::promises::{
    LEVEL, Length, PromiseHead, TOKENS, TRIALS, contradicted, for_each_head,
};

use crate::common::draws::{BASE, ENDS, FIRST, bench, only, ratio};
use crate::common::mistakes::QuarterOfTheVariance;

fn priority(index: LogitIndex) -> Priority {
    Priority { base: FIRST, index }
}

#[test]
fn codes_keep_the_promise() {
    the_asymptotic_modes_keep_their_promise(LogitIndex::Codes);
}

#[test]
fn keys_keep_the_promise() {
    the_asymptotic_modes_keep_their_promise(LogitIndex::Keys);
}

fn the_asymptotic_modes_keep_their_promise(index: LogitIndex) {
    let proved = std::sync::atomic::AtomicUsize::new(0);
    for_each_head(|head| {
        for (mode, epsilon, delta) in
            [(Mode::Default, 0.1, 0.2), (Mode::Default, 0.05, 0.05), (Mode::Strict, 0.05, 0.1)]
        {
            let ratio = || Box::new(ratio(mode, epsilon, delta));
            let run = |config| bench(head, config).run();
            let found = run(only(Box::new(priority(index)), ratio()));
            let cell = format!("{head:?}, {mode:?}, {epsilon}, {delta}: {found:?}");
            println!("{cell}");
            assert!(!contradicted(found.violated, delta), "{cell}");
            assert!(found.unheld <= TRIALS as usize / 20, "{cell}");
            let too_easy = matches!(head, PromiseHead::OneDirection(_))
                || found.read < (ENDS + 2 * BASE) as f64;
            if mode == Mode::Strict || delta < 0.2 || too_easy {
                continue;
            }
            let mutant = only(Box::new(priority(index)), Box::new(QuarterOfTheVariance(ratio())));
            let violated = run(mutant).violated;
            let found = binomial::p_value(violated, TRIALS as usize, delta) < LEVEL;
            println!("{head:?}: a quarter of the variance violates {violated}");
            proved.fetch_add(usize::from(found), std::sync::atomic::Ordering::Relaxed);
        }
    });
    let proved = proved.into_inner();
    assert!(proved >= 3, "only {proved} cells proved something");
}

/// The same after a top-k whose scores are taken for the logits' in place of copies of the keys. Nothing is proved
/// of what they miss.
#[test]
fn the_scores_of_a_selector_keep_the_promise() {
    for_each_head(|head| {
        for (epsilon, delta) in [(0.1, 0.1), (0.05, 0.2)] {
            let estimator = Box::new(ratio(Mode::Default, epsilon, delta));
            let mut config = only(Box::new(priority(LogitIndex::Selectors)), estimator);
            let size = Size::Tokens(TOKENS / 50);
            config.selectors.push(Box::new(OracleTopK { size, score: Score::Head }));
            let bench = bench(head, config);
            let found = bench.run();
            let cell = format!("{head:?}, {epsilon}, {delta}: {found:?}");
            println!("{cell}");
            assert!(!contradicted(found.violated, delta), "{cell}");
            bench.read(0, |_, reading| {
                let certificate = &reading.report(0).certificate;
                let all = certificate.kind == Kind::Exact;
                assert!(all || certificate.assumes.contains(Assumption::TailSeen), "{cell}");
            });
        }
    });
}

/// A few tokens of large influence, of which a sample for so small an epsilon meets too few by itself.
#[test]
fn tokens_that_could_shift_the_output_too_far_are_met() {
    let cells = [(0.01, 0.01, 0.05), (0.02, 0.01, 0.05), (0.02, 0.02, 0.01), (0.1, 0.1, 0.1)];
    for (share, epsilon, delta) in cells {
        for mode in [Mode::Default, Mode::Strict] {
            let head = PromiseHead::OneDirection(Length::Opposite(share));
            let estimator = Box::new(ratio(mode, epsilon, delta));
            let bench = bench(head, only(Box::new(priority(LogitIndex::Keys)), estimator));
            let found = bench.run();
            println!("{head:?}, {mode:?}, {epsilon}, {delta}: {found:?}");
            assert!(
                !contradicted(found.violated, delta),
                "{head:?}, {mode:?}, {epsilon}: {found:?}"
            );
            bench.read(0, |_, reading| {
                let assumes = reading.report(0).certificate.assumes;
                assert!(!assumes.contains(Assumption::TailSeen), "{assumes:?}");
            });
        }
    }
}

/// Nothing is assumed, nor need be: every row says that all was proved, and it reads less than all.
#[test]
fn the_rigorous_mode_keeps_its_promise() {
    let sampled = std::sync::atomic::AtomicUsize::new(0);
    for_each_head(|head| {
        let estimator = Box::new(ratio(Mode::Rigorous, 0.2, 0.1));
        let bench = bench(head, only(Box::new(priority(LogitIndex::Keys)), estimator));
        let found = bench.run();
        println!("{head:?}: {found:?}");
        assert!(!contradicted(found.violated, 0.1) && found.unheld == 0, "{head:?}: {found:?}");
        bench.read(0, |_, reading| {
            let certificate = reading.report(0).certificate;
            assert!(certificate.kind >= Kind::FiniteSample && certificate.assumes.is_empty());
        });
        sampled.fetch_add(usize::from(found.exact == 0), std::sync::atomic::Ordering::Relaxed);
    });
    assert!(sampled.into_inner() >= 6, "too many heads are read as a whole");
}

/// At one threshold, tokens are drawn as often as their probabilities say, and pairs of neighbours
/// as if independently.
#[test]
fn tokens_are_drawn_with_the_probability_that_is_told() {
    let mut once = ratio(Mode::Default, 0.9, 0.5);
    once.rounds = std::num::NonZeroU8::MIN;
    let bench =
        bench(PromiseHead::Gaussian, only(Box::new(priority(LogitIndex::Codes)), Box::new(once)));
    let (mut drawn, mut pairs) = (vec![0; TOKENS], vec![0; TOKENS]);
    let mut told = vec![0.0; TOKENS];
    for sequence in 0..TRIALS {
        bench.read(sequence, |_, reading| {
            let list = reading.list(1);
            let mut last = usize::MAX - 1;
            for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
                let token = token as usize;
                drawn[token] += 1;
                told[token] = f64::from(p);
                pairs[token] += usize::from(last + 1 == token);
                last = token;
            }
        });
    }
    let trials = TRIALS as usize;
    let level = LEVEL / TOKENS as f64;
    let extreme = |count: usize, p: f64| {
        let more = binomial::p_value(count, trials, p);
        let less = binomial::p_value(trials - count, trials, 1.0 - p);
        more.min(less) < level
    };
    for token in 9..TOKENS - 9 {
        let p = told[token];
        assert!(!extreme(drawn[token], p), "token {token}: {} for {p}", drawn[token]);
        assert!(!extreme(pairs[token], p * told[token - 1]), "tokens to {token}: {}", pairs[token]);
    }
    let expected: f64 = told[8..TOKENS - 8].iter().sum();
    assert!((expected / BASE as f64 - 1.0).abs() < 0.05, "{expected} are expected");
}
