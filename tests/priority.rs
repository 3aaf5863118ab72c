//! The promise of `priority-sample`: over 2,000 samples of a row, the output's error exceeds epsilon
//! no more often than delta allows, at a level of 1e-6 for each count; and tokens are drawn as often
//! as they are said to be.
//!
//! The sampler is also run with mistakes, which the same count must find.

#![allow(clippy::unwrap_used)]

#[path = "common/claiming.rs"]
mod claiming;
mod common;

use vattention::estimators::Mode;
use vattention::eval::binomial;
use vattention::selectors::{PrioritySample, Promised};
use vattention::{Assumption, Kind, SelectorConfig};

use claiming::{Claiming, half_the_variance};
use common::draws::{
    BASE, Bench, Head, LEVEL, Length, TOKENS, TRIALS, contradicted, for_each_head, only, promised,
};

fn sampler(terms: Promised) -> Box<dyn SelectorConfig> {
    Box::new(PrioritySample::new(terms))
}

/// One that forgets with which probability it drew.
fn without_weights(terms: &Promised) -> Box<dyn SelectorConfig> {
    let sampler = sampler(terms.clone());
    Box::new(Claiming { sampler, claims: terms.clone(), weighs: false })
}

#[test]
fn the_asymptotic_modes_keep_their_promise() {
    let proved = std::sync::atomic::AtomicUsize::new(0);
    for_each_head(|head| {
        for (mode, epsilon, delta) in
            [(Mode::Default, 0.1, 0.2), (Mode::Default, 0.05, 0.05), (Mode::Strict, 0.05, 0.1)]
        {
            let terms = promised(mode, epsilon, delta);
            let promise = terms.promise();
            let run = |sampler| Bench::new(head, only(vec![sampler])).run(&promise);
            let found = run(sampler(terms.clone()));
            let cell = format!("{head:?}, {mode:?}, {epsilon}, {delta}: {found:?}");
            println!("{cell}");
            assert!(!contradicted(&found, delta), "{cell}");
            assert!(found.unheld <= TRIALS as usize / 20, "{cell}");
            let too_easy =
                matches!(head, Head::OneDirection(_)) || found.sampled < 2.0 * BASE as f64;
            if mode == Mode::Strict || delta < 0.2 || too_easy {
                continue;
            }
            let mut mutants = vec![half_the_variance(&terms, sampler)];
            // Where weights vary, and few tokens are certain.
            if [Head::Gaussian, Head::LogNormal(1.0)].contains(&head) {
                mutants.push(without_weights(&terms));
            }
            for mutant in mutants {
                let name = format!("{mutant:?}");
                let broken = run(mutant).broken;
                let p_value = binomial::p_value(broken, TRIALS as usize, delta);
                assert!(p_value < LEVEL, "{cell}: {name} breaks only {broken}");
                proved.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    let proved = proved.into_inner();
    assert!(proved >= 6, "only {proved} cells proved something");
}

/// A few tokens of large influence, of which a sample for so small an epsilon meets too few by itself.
#[test]
fn tokens_that_could_shift_the_output_too_far_are_met() {
    let cells = [(0.01, 0.01, 0.05), (0.02, 0.01, 0.05), (0.02, 0.02, 0.01), (0.1, 0.1, 0.1)];
    for (share, epsilon, delta) in cells {
        for mode in [Mode::Default, Mode::Strict] {
            let terms = promised(mode, epsilon, delta);
            let promise = terms.promise();
            let head = Head::OneDirection(Length::Opposite(share));
            let bench = Bench::new(head, only(vec![sampler(terms)]));
            let found = bench.run(&promise);
            println!("{head:?}, {mode:?}, {epsilon}, {delta}: {found:?}");
            assert!(!contradicted(&found, delta), "{head:?}, {mode:?}, {epsilon}: {found:?}");
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
        let terms = promised(Mode::Rigorous, 0.2, 0.1);
        let promise = terms.promise();
        let bench = Bench::new(head, only(vec![sampler(terms)]));
        let found = bench.run(&promise);
        println!("{head:?}: {found:?}");
        assert!(!contradicted(&found, 0.1) && found.unheld == 0, "{head:?}: {found:?}");
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
    let terms = Promised { rounds: std::num::NonZeroU8::MIN, ..promised(Mode::Default, 0.9, 0.5) };
    let bench = Bench::new(Head::Gaussian, only(vec![sampler(terms)]));
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
