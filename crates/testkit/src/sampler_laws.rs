//! The laws of samplers. A verdict describes the first violation.

mod shares;

use std::sync::Arc;

use vattention_core::{
    Picks, Pipeline, PipelineConfig, Row, Sampler, SamplerConfig, Share, Site, Step,
    plugin::{Design, SampleEvidence},
    sample::Stratification,
    step::{Score, Stream},
};

pub use shares::shares;

use crate::laws::{check_round_trip, read_again};
use crate::verdict::{Verdict, ensure};
use crate::{Head, Texture};

/// A law, which a sampler obeys or violates on a head.
pub type SamplerLaw = fn(&dyn SamplerConfig, &Head) -> Verdict;

/// Number of sequences over which draws are counted.
const SEQUENCES: u32 = 2000;

/// Probability of a false alarm of a law over many sequences.
const FALSE_ALARM: f64 = 1e-6;

/// A drawn token, and its inclusion probability.
type DrawnToken = (u32, f64);

/// A config stays the same if it is written and read again.
///
/// # Errors
/// The config before and after.
pub fn round_trips(config: &dyn SamplerConfig, _: &Head) -> Verdict {
    check_round_trip::<Box<dyn SamplerConfig>>(config)
}

/// A sampler draws the same tokens for the same query again, after other queries.
///
/// # Errors
/// The first token list that differs.
pub fn repeats(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let sampler = filled(config, head.site(), head)?;
    let first = all_draws(config, &*sampler, head);
    same(&first, &all_draws(config, &*sampler, head), "the second time")
}

/// Draws do not depend on the number of calls that append the tokens: one call, one per token, or
/// two.
///
/// # Errors
/// The first token list that differs.
pub fn grows(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let expected = all_draws(config, &*filled(config, head.site(), head)?, head);
    let mut one_by_one = build(config, head.site())?;
    (0..head.tokens).for_each(|token| one_by_one.append(&head.part(token..token + 1)));
    same(&expected, &all_draws(config, &*one_by_one, head), "with tokens appended one by one")?;
    let (mut in_parts, middle) = (build(config, head.site())?, head.tokens / 3);
    in_parts.append(&head.part(0..middle));
    in_parts.append(&head.part(middle..head.tokens));
    same(&expected, &all_draws(config, &*in_parts, head), "with tokens appended in two parts")
}

/// A clone draws the same tokens as the original, and does not change it.
///
/// # Errors
/// The first list that differs.
pub fn forks(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let middle = head.tokens / 2;
    let rest = head.part(middle..head.tokens);
    let expected = all_draws(config, &*filled(config, head.site(), head)?, head);
    let mut original = build(config, head.site())?;
    original.append(&head.part(0..middle));
    let (mut fork, mut other_fork) = (original.clone(), original.clone());
    fork.append(&rest);
    same(&expected, &all_draws(config, &*fork, head), "in a fork")?;
    let other = Head::new(head.tokens, head.dim, head.seed + 1, head.texture);
    other_fork.append(&other.part(middle..head.tokens));
    original.append(&rest);
    let when = "in the original, after a fork got other tokens";
    same(&expected, &all_draws(config, &*original, head), when)
}

/// Draws do not depend on tokens that are not visible.
///
/// # Errors
/// The first list that differs.
pub fn causal(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let visible = head.tokens.div_ceil(2);
    let mut sampler = build(config, head.site())?;
    sampler.append(&head.part(0..visible));
    let before = lists(config, &*sampler, head, visible);
    sampler.append(&head.part(visible..head.tokens));
    same(&before, &lists(config, &*sampler, head, visible), "after tokens that are not visible")
}

/// After tokens were removed, and after others were appended in their place, a sampler that can
/// remove tokens draws as if it had never received them.
///
/// # Errors
/// The first list that differs.
pub fn truncates(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    if !build(config, head.site())?.can_truncate() {
        return Ok(());
    }
    let removed = Head::new(head.tokens, head.dim, head.seed + 1, head.texture);
    for kept in [0, 1, head.tokens.div_ceil(2), head.tokens] {
        let first = head.first(kept);
        let mut cut = build(config, head.site())?;
        cut.append(&head.part(0..kept));
        cut.append(&removed.part(kept..head.tokens));
        cut.truncate(&first.part(0..kept).keys);
        if kept > 0 {
            let expected = all_draws(config, &*filled(config, head.site(), &first)?, &first);
            let when = format!("after {} tokens were removed", head.tokens - kept);
            same(&expected, &all_draws(config, &*cut, &first), &when)?;
        }
        cut.append(&head.part(kept..head.tokens));
        let expected = all_draws(config, &*filled(config, head.site(), head)?, head);
        same(&expected, &all_draws(config, &*cut, head), "after others replaced removed tokens")?;
    }
    Ok(())
}

/// Neither picked nor invisible tokens are drawn, and no token is drawn twice.
///
/// # Errors
/// The token.
pub fn excludes(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let sampler = filled(config, head.site(), head)?;
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        let step = head.step(visible);
        for rows in rows_of_lists(config, &step) {
            let mut picks = pick(config, &rows);
            let list = draw(&*sampler, &step, &rows, &picks, &[visible / 2]);
            for (token, p) in list {
                let token = token as usize;
                ensure(token < visible && !picks.contains(token), || {
                    format!(
                        "token {token} of {visible} is drawn, although it is picked, invisible or \
                         drawn before"
                    )
                })?;
                ensure(p > 0.0 && p <= 1.0, || format!("token {token} has the probability {p}"))?;
                picks.take(token);
            }
        }
    }
    Ok(())
}

/// A larger sample contains a smaller one and does not depend on the sizes in between. The largest
/// sample contains all tokens that are not picked, with probability 1.
///
/// # Errors
/// The token list.
pub fn nests(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    if config.evidence() == SampleEvidence::Nothing {
        return Ok(());
    }
    let sampler = filled(config, head.site(), head)?;
    let step = head.step(head.tokens);
    for rows in rows_of_lists(config, &step) {
        let picks = pick(config, &rows);
        let n_s = head.tokens - picks.len();
        let draw_sorted = |sizes: &[usize]| sorted(draw(&*sampler, &step, &rows, &picks, sizes));
        let (few, more) = (n_s / 4, n_s / 2);
        let (small, large) = (draw_sorted(&[few]), draw_sorted(&[more]));
        let mut small_steps = vec![1, 2, few, more];
        small_steps.sort_unstable();
        small_steps.retain(|&size| size <= more);
        for sizes in [vec![few, more], small_steps] {
            let grown = draw_sorted(&sizes);
            ensure(large == grown, || {
                format!("sizes {sizes:?} draw {grown:?}, but size {more} alone {large:?}")
            })?;
        }
        let tokens = |list: &[DrawnToken]| list.iter().map(|drawn| drawn.0).collect::<Vec<_>>();
        let large = tokens(&large);
        let lost = tokens(&small).into_iter().find(|token| !large.contains(token));
        ensure(lost.is_none(), || {
            format!("token {lost:?} is drawn at size {few}, but not at {more}")
        })?;
        let all = draw_sorted(&[few, n_s]);
        let rest: Vec<DrawnToken> = picks.residual().map(|token| (token as u32, 1.0)).collect();
        ensure(all == rest, || format!("size {n_s} must draw {rest:?}, found {all:?}"))?;
    }
    Ok(())
}

/// Each drawn token has an inclusion probability, even in the smallest sample. A sampler without
/// evidence for an estimator may draw nothing; a pipeline of this sampler alone then reads the
/// newest token.
///
/// # Errors
/// The numbers that differ, or the token list.
pub fn covers(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let sampler = filled(config, head.site(), head)?;
    let step = head.step(head.tokens);
    let grows = config.evidence() != SampleEvidence::Nothing;
    let sizes = if grows { &[0, 1, step.visible][..] } else { &[0] };
    for rows in rows_of_lists(config, &step) {
        let picks = Picks::new(step.visible);
        let mut design = design(&*sampler, &step, &rows, &picks, 0);
        let mut tokens = Vec::new();
        for &size in sizes {
            design.extend(size, &mut tokens);
            let (drawn, probabilities) = (tokens.len(), design.probabilities().len());
            ensure(drawn == probabilities, || {
                format!("at size {size}, {drawn} tokens have {probabilities} probabilities")
            })?;
        }
    }
    if grows { Ok(()) } else { check_reads_a_token(config, head) }
}

/// Checks that a pipeline of the sampler alone reads a token at every step.
fn check_reads_a_token(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let (_, sampler) = read_again::<Box<dyn SamplerConfig>>(config)?;
    let config = PipelineConfig {
        share: if config.shares() { Share::Group } else { Share::Head },
        sampler: Some(sampler),
        ..PipelineConfig::default()
    };
    let failed = |error| format!("a pipeline of this sampler alone fails: {error}");
    let mut pipeline = Pipeline::new(&Arc::new(config), *head.site()).map_err(failed)?;
    pipeline.append(&head.part(0..head.tokens)).map_err(failed)?;
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        let step = head.step(visible);
        let reading = pipeline.read(&step).map_err(failed)?;
        for row in step.rows() {
            let entries = reading.read_by(row.member()).entries();
            let certain_newest = entries == [(visible as u32 - 1, 1.0)];
            let sampled = entries.iter().any(|&(_, p)| p > 0.0 && p <= 1.0);
            ensure(certain_newest || sampled, || {
                format!("member {} reads {entries:?} of {visible} tokens", row.member())
            })?;
        }
    }
    Ok(())
}

/// Over many sequences, each token is drawn at its inclusion probability.
///
/// # Errors
/// The token, if a count this far off has a probability of at most one in a million.
pub fn includes(config: &dyn SamplerConfig) -> Verdict {
    for texture in [Texture::Gaussian, Texture::HeavyTail] {
        let head = Head::new(260, 8, 3, texture);
        let mut counts = vec![0_u32; head.tokens];
        let mut expected = vec![f64::NAN; head.tokens];
        for_each_sequence(config, &head, |_, list| {
            for &(token, p) in list {
                counts[token as usize] += 1;
                expected[token as usize] = p;
            }
        })?;
        for (token, (&count, &p)) in counts.iter().zip(&expected).enumerate() {
            // The probability of a token is unknown if it is never drawn.
            let found = f64::from(count) / f64::from(SEQUENCES);
            let part = |x: f64, y: f64| if x > 0.0 { x * (x / y).ln() } else { 0.0 };
            let surprise = part(found, p) + part(1.0 - found, (1.0 - p).max(1e-12));
            let limit = (2.0 * head.tokens as f64 / FALSE_ALARM).ln() / f64::from(SEQUENCES);
            ensure(count == 0 || surprise <= limit, || {
                format!("{texture:?}: token {token} is drawn at the rate {found}, expected {p}")
            })?;
        }
    }
    Ok(())
}

/// Over many sequences, totals are unbiased and have the predicted variance, at the size of the
/// sample and at twice that size. The prediction may be up to three times as large if strata have
/// neighbours, because it then contains their differences.
///
/// # Errors
/// The mean error, or the ratio of the variances.
pub fn predicts(config: &dyn SamplerConfig) -> Verdict {
    if config.evidence() == SampleEvidence::Nothing {
        return Ok(());
    }
    let head = Head::new(300, 8, 5, Texture::Gaussian);
    let step = head.step(head.tokens);
    let row = step.row(0);
    let logits = row.scores(Score::Head);
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let x: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let rows = &rows_of_lists(config, &step)[0];
    let picks = pick(config, rows);
    let exact: f64 = picks.residual().map(|token| x[token]).sum();
    let sizes = [80, 160];
    let (mut bias, mut errors, mut predicted) = ([0.0; 2], [0.0; 2], [0.0; 2]);
    let mut largest_ratio = 1.25;
    let sampler = filled(config, head.site(), &head)?;
    for sequence in 0..SEQUENCES {
        let mut tokens = Vec::new();
        let mut design = design(&*sampler, &step, rows, &picks, sequence);
        for (which, size) in sizes.into_iter().enumerate() {
            design.extend(size, &mut tokens);
            let drawn: Vec<f64> = tokens.iter().map(|&token| x[token as usize]).collect();
            let total: f64 = drawn.iter().zip(design.probabilities()).map(|(x, p)| x / p).sum();
            bias[which] += total - exact;
            errors[which] += (total - exact).powi(2);
            if which == 0 {
                let has_neighbours = |strata: Stratification| {
                    strata.neighbours.iter().any(|neighbours| !neighbours.is_empty())
                };
                if design.strata().is_some_and(has_neighbours) {
                    largest_ratio = 3.0;
                }
                for (size, predicted) in sizes.into_iter().zip(&mut predicted) {
                    *predicted += variance(&*design, &drawn, size);
                }
            }
        }
    }
    for which in [0, 1] {
        let size = sizes[which];
        // Five standard errors are exceeded with a probability of about one in a million.
        let mean = bias[which].abs() / errors[which].sqrt();
        ensure(mean <= 5.0, || format!("at size {size} totals are off by {mean} standard errors"))?;
        let ratio = predicted[which] / errors[which];
        ensure((0.8..largest_ratio).contains(&ratio), || {
            format!("at size {size} the predicted variance is {ratio} times that of the errors")
        })?;
    }
    Ok(())
}

/// Variance that a design predicts for a total at a sample size, from the drawn terms `x`.
fn variance(design: &dyn Design, x: &[f64], size: usize) -> f64 {
    let centres = design.strata().map(|stratification| {
        let drawn = stratification.drawn();
        let mut means = vec![vec![0.0]; drawn.len()];
        for (&stratum, x) in stratification.strata.iter().zip(x) {
            means[stratum][0] += x / drawn[stratum] as f64;
        }
        let centres = stratification.average_neighbours(&means);
        stratification.strata.into_iter().map(|stratum| centres[stratum][0]).collect()
    });
    let centres: Vec<f64> = centres.unwrap_or_else(|| vec![0.0; x.len()]);
    let deviations = x.iter().zip(centres).map(|(x, centre)| x - centre);
    design.factors(size).iter().zip(deviations).map(|(factor, x)| factor * x * x).sum()
}

fn build(config: &dyn SamplerConfig, site: &Site) -> Result<Box<dyn Sampler>, String> {
    config.build(site).map_err(|error| format!("cannot be built: {error}"))
}

/// Builds a sampler, and makes it index all tokens.
fn filled(
    config: &dyn SamplerConfig,
    site: &Site,
    head: &Head,
) -> Result<Box<dyn Sampler>, String> {
    let mut sampler = build(config, site)?;
    sampler.append(&head.part(0..head.tokens));
    Ok(sampler)
}

/// Query heads of each token list to test: a list for each query head, and one for all of them if
/// the sampler supports it.
fn rows_of_lists<'a>(config: &dyn SamplerConfig, step: &Step<'a>) -> Vec<Vec<Row<'a>>> {
    let mut lists: Vec<_> = step.rows().into_iter().map(|row| vec![row]).collect();
    if config.shares() {
        lists.push(step.rows());
    }
    lists
}

/// Picks one token, and those with the best scores if the sampler needs scores.
fn pick(config: &dyn SamplerConfig, rows: &[Row<'_>]) -> Picks {
    let visible = rows[0].visible();
    let mut picks = Picks::new(visible);
    picks.take(visible / 3);
    if config.needs_scores() {
        picks.store_scores();
        picks.take_top(visible / 20, &rows[0].scores(Score::Head));
    }
    picks
}

fn design<'a>(
    sampler: &'a dyn Sampler,
    step: &Step<'_>,
    rows: &[Row<'a>],
    picks: &'a Picks,
    sequence: u32,
) -> Box<dyn Design + 'a> {
    let site = Site { sequence, ..*step.site };
    sampler.design(rows, picks, &Stream::new(&site, 0, step.step, 0))
}

/// Draws a sample that grows to each of the sizes. Returns its tokens in draw order.
fn draw(
    sampler: &dyn Sampler,
    step: &Step<'_>,
    rows: &[Row<'_>],
    picks: &Picks,
    sizes: &[usize],
) -> Vec<DrawnToken> {
    let mut design = design(sampler, step, rows, picks, 0);
    let mut tokens = Vec::new();
    for &size in sizes {
        design.extend(size, &mut tokens);
    }
    tokens.into_iter().zip(design.probabilities()).collect()
}

fn sorted(mut list: Vec<DrawnToken>) -> Vec<DrawnToken> {
    list.sort_unstable_by_key(|drawn| drawn.0);
    list
}

/// Samples of all token lists, with `visible` tokens.
fn lists(
    config: &dyn SamplerConfig,
    sampler: &dyn Sampler,
    head: &Head,
    visible: usize,
) -> Vec<Vec<DrawnToken>> {
    let step = head.step(visible);
    let list = |rows: Vec<Row<'_>>| {
        draw(sampler, &step, &rows, &pick(config, &rows), &[visible.div_ceil(2)])
    };
    rows_of_lists(config, &step).into_iter().map(list).collect()
}

/// Samples of all token lists, with all tokens visible, half of them, and one.
fn all_draws(
    config: &dyn SamplerConfig,
    sampler: &dyn Sampler,
    head: &Head,
) -> Vec<Vec<DrawnToken>> {
    let visible = [head.tokens, head.tokens.div_ceil(2), 1];
    visible.into_iter().flat_map(|visible| lists(config, sampler, head, visible)).collect()
}

/// Builds a sampler for each sequence, and calls `f` with the sample that it draws.
fn for_each_sequence(
    config: &dyn SamplerConfig,
    head: &Head,
    mut f: impl FnMut(u32, &[DrawnToken]),
) -> Verdict {
    let step = head.step(head.tokens);
    let rows = rows_of_lists(config, &step).pop().expect("there is at least one query head");
    let picks = pick(config, &rows);
    for sequence in 0..SEQUENCES {
        let site = Site { sequence, ..*step.site };
        let sampler = filled(config, &site, head)?;
        let mut design = design(&*sampler, &step, &rows, &picks, sequence);
        let mut tokens = Vec::new();
        design.extend(60, &mut tokens);
        let list: Vec<DrawnToken> = tokens.into_iter().zip(design.probabilities()).collect();
        f(sequence, &list);
    }
    Ok(())
}

fn same(expected: &[Vec<DrawnToken>], found: &[Vec<DrawnToken>], when: &str) -> Verdict {
    let differs = expected.iter().zip(found).position(|(a, b)| a != b);
    ensure(differs.is_none(), || {
        let list = differs.unwrap_or_default();
        format!("list {list} is {:?} {when}, not {:?}", found[list], expected[list])
    })
}
