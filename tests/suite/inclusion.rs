//! Tokens are drawn as often as is said of them, over draws of the hash tables.

use std::num::NonZeroU16;

use vattention::experiments::binomial::p_value;
use vattention::index::{BLOCK, HashTables, Rule, TableBits, Transform};
use vattention::plugin::{Picks, SamplerConfig, Site, Stream};
use vattention::samplers::LshSampler;
use vattention_testkit::{Head, Texture};

/// Sequences, each with its own tables.
const DRAWS: u32 = 4000;

/// No count of tokens may be less likely, on either side.
const LEVEL: f64 = 1e-6;

/// What was drawn of one block by one query, over all draws.
struct Counts {
    hits: Vec<usize>,
    /// What was said, of the tokens that were drawn at all.
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
            let said = counts.probability[token].get_or_insert(p);
            assert_eq!(*said, p, "a token's probability is the same in every draw");
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
    let mut known = 0;
    for (hits, p) in hits.into_iter().zip(probability) {
        let Some(p) = p else { continue };
        let (many, few) = (p_value(hits, draws, p), p_value(draws - hits, draws, 1.0 - p));
        assert!(many.min(few) >= LEVEL, "{hits} of {draws} at {p}: {config:?}");
        known += 1;
    }
    assert!(known >= 120, "{known} tokens were ever drawn: {config:?}");

    // The weighted sum has the mean that it should have, within five deviations.
    let row = head.step(BLOCK).row(0);
    let whole: f64 = (0..BLOCK).map(|token| f64::from(row.logit(token)).exp()).sum();
    let mean = sums.iter().sum::<f64>() / draws as f64;
    let variance = sums.iter().map(|sum| (sum - mean).powi(2)).sum::<f64>() / (draws - 1) as f64;
    let apart = (mean - whole).abs() / (variance / draws as f64).sqrt();
    assert!(apart < 5.0, "{mean} for {whole}, {apart} deviations: {config:?}");
}

#[test]
fn tables_find_as_often_as_they_say() {
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
