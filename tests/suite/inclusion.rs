//! The `lsh` sampler draws tokens at their inclusion probabilities, over random hash tables.

use std::num::NonZeroU16;

use vattention::experiments::binomial::p_value;
use vattention::index::{BLOCK, HashTables, Rule, TableBits, Transform};
use vattention::plugin::{Picks, SamplerConfig, Site, Stream};
use vattention::samplers::LshSampler;
use vattention_testkit::{Head, Texture};

/// Number of sequences, each with its own tables.
const DRAWS: u32 = 4000;

/// Least probability of a count, on either side.
const LEVEL: f64 = 1e-6;

/// Counts of the tokens of one block, over all draws for one query.
struct Counts {
    hits: Vec<usize>,
    /// Inclusion probability of each token that was drawn at least once.
    probability: Vec<Option<f64>>,
    /// `Σ e / p` of each draw.
    sums: Vec<f64>,
}

fn count(config: &LshSampler, head: &Head) -> Counts {
    let row = head.step(BLOCK).row(0);
    let mut counts =
        Counts { hits: vec![0; BLOCK], probability: vec![None; BLOCK], sums: Vec::new() };
    for sequence in 0..DRAWS {
        let site = Site { sequence, ..*head.site() };
        let mut sampler = config.build(&site).unwrap();
        sampler.append(&head.part(0..head.tokens));
        let (picks, mut tokens) = (Picks::new(BLOCK), Vec::new());
        let mut design = sampler.design(&[row], &picks, &Stream::new(&site, 0, 0, 0));
        design.extend(0, &mut tokens);
        let mut sum = 0.0;
        for (token, p) in tokens.into_iter().zip(design.probabilities()) {
            let token = token as usize;
            counts.hits[token] += 1;
            let first = counts.probability[token].get_or_insert(p);
            assert_eq!(*first, p, "a token's probability is the same in every draw");
            sum += f64::from(row.logit(token)).exp() / p;
        }
        counts.sums.push(sum);
    }
    counts
}

fn check(config: &LshSampler) {
    let head = Head::new(BLOCK, 8, 21, Texture::Gaussian);
    let Counts { hits, probability, sums } = count(config, &head);
    let draws = DRAWS as usize;
    let mut drawn = 0;
    for (hits, p) in hits.into_iter().zip(probability) {
        let Some(p) = p else { continue };
        let (many, few) = (p_value(hits, draws, p), p_value(draws - hits, draws, 1.0 - p));
        assert!(many.min(few) >= LEVEL, "{hits} of {draws} at {p}: {config:?}");
        drawn += 1;
    }
    assert!(drawn >= 120, "only {drawn} tokens were drawn: {config:?}");

    // The Horvitz-Thompson sum is unbiased, within five standard errors.
    let row = head.step(BLOCK).row(0);
    let whole: f64 = (0..BLOCK).map(|token| f64::from(row.logit(token)).exp()).sum();
    let mean = sums.iter().sum::<f64>() / draws as f64;
    let variance = sums.iter().map(|sum| (sum - mean).powi(2)).sum::<f64>() / (draws - 1) as f64;
    let apart = (mean - whole).abs() / (variance / draws as f64).sqrt();
    assert!(apart < 5.0, "{mean} for {whole}, {apart} standard errors: {config:?}");
}

#[test]
fn lsh_draws_at_its_probabilities() {
    for rule in [Rule::Any, Rule::Two] {
        for transform in [Transform::Angular, Transform::SimpleLsh] {
            for center in [true, false] {
                let (tables, bits) = (NonZeroU16::new(10).unwrap(), 2);
                let bits = TableBits::try_from(bits).unwrap();
                check(&LshSampler(HashTables { tables, bits, rule, transform, center }));
            }
        }
    }
}
