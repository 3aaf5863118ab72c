//! The laws of samplers. Each says what it demands, and its verdict says what was found instead.

use std::sync::Arc;

use vattention_core::{
    Picks, Pipeline, PipelineConfig, Row, Sampler, SamplerConfig, Share, Site, Step,
    plugin::{Design, SampleEvidence},
    sample::Stratification,
    step::{Score, Stream},
};

use crate::laws::{Verdict, ensure, is_read_again, read_again};
use crate::{Head, Texture};

/// A law: a sampler obeys it on a head, or not.
pub type SamplerLaw = fn(&dyn SamplerConfig, &Head) -> Verdict;

/// Sequences over which draws are counted.
const SEQUENCES: u32 = 2000;

/// With what probability a law of many sequences finds fault where there is none.
const FALSE_ALARM: f64 = 1e-6;

/// A drawn token, and the probability of that.
type DrawnToken = (u32, f64);

/// A config that is written and read again is the same.
///
/// # Errors
/// What became of it.
pub fn round_trips(config: &dyn SamplerConfig, _: &Head) -> Verdict {
    is_read_again::<Box<dyn SamplerConfig>>(config)
}

/// Asked twice, with another row between, a sampler draws the same.
///
/// # Errors
/// The first list that differs.
pub fn repeats(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let sampler = filled(config, head.site(), head)?;
    same(&all_draws(config, &*sampler, head), &all_draws(config, &*sampler, head), "asked again")
}

/// What is appended together does not matter: all at once, one by one, or in two parts.
///
/// # Errors
/// The first list that differs.
pub fn grows(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let at_once = all_draws(config, &*filled(config, head.site(), head)?, head);
    let mut one_by_one = build(config, head.site())?;
    (0..head.tokens).for_each(|token| one_by_one.append(&head.part(token..token + 1)));
    same(&at_once, &all_draws(config, &*one_by_one, head), "with tokens appended one by one")?;
    let (mut in_parts, middle) = (build(config, head.site())?, head.tokens / 3);
    in_parts.append(&head.part(0..middle));
    in_parts.append(&head.part(middle..head.tokens));
    same(&at_once, &all_draws(config, &*in_parts, head), "with tokens appended in two parts")
}

/// A clone goes on as the original would, and leaves it alone.
///
/// # Errors
/// The first list that differs.
pub fn forks(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let middle = head.tokens / 2;
    let rest = head.part(middle..head.tokens);
    let expected = all_draws(config, &*filled(config, head.site(), head)?, head);
    let mut original = build(config, head.site())?;
    original.append(&head.part(0..middle));
    let (mut fork, mut stranger) = (original.clone(), original.clone());
    fork.append(&rest);
    same(&expected, &all_draws(config, &*fork, head), "in a fork")?;
    let other = Head::new(head.tokens, head.dim, head.seed + 1, head.texture);
    stranger.append(&other.part(middle..head.tokens));
    original.append(&rest);
    let when = "in the original, after a fork went another way";
    same(&expected, &all_draws(config, &*original, head), when)
}

/// Tokens that a row does not see change nothing of its draws.
///
/// # Errors
/// The first list that differs.
pub fn causal(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let visible = head.tokens.div_ceil(2);
    let mut sampler = build(config, head.site())?;
    sampler.append(&head.part(0..visible));
    let before = lists(config, &*sampler, head, visible);
    sampler.append(&head.part(visible..head.tokens));
    same(&before, &lists(config, &*sampler, head, visible), "after tokens that it does not see")
}

/// What was taken is not drawn, nor what is not visible, and nothing is drawn twice.
///
/// # Errors
/// The token.
pub fn leaves(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let sampler = filled(config, head.site(), head)?;
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        let step = head.step(visible);
        for readers in readers(config, &step) {
            let mut picks = taken(config, &readers);
            let list = draw(&*sampler, &step, &readers, &picks, &[visible / 2]);
            for (token, p) in list {
                let token = token as usize;
                ensure(token < visible && !picks.contains(token), || {
                    format!("token {token} of {visible} is drawn, but was taken or is not visible")
                })?;
                ensure(p > 0.0 && p <= 1.0, || format!("token {token} has the probability {p}"))?;
                picks.take(token);
            }
        }
    }
    Ok(())
}

/// A larger sample holds a smaller one, however it grew; the largest is everything, for certain.
///
/// # Errors
/// The list.
pub fn nests(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    if config.evidence() == SampleEvidence::Nothing {
        return Ok(());
    }
    let sampler = filled(config, head.site(), head)?;
    let step = head.step(head.tokens);
    for readers in readers(config, &step) {
        let picks = taken(config, &readers);
        let n_s = head.tokens - picks.len();
        let of = |sizes: &[usize]| sorted(draw(&*sampler, &step, &readers, &picks, sizes));
        let (few, more) = (n_s / 4, n_s / 2);
        let (small, large) = (of(&[few]), of(&[more]));
        let mut small_steps = vec![1, 2, few, more];
        small_steps.sort_unstable();
        small_steps.retain(|&size| size <= more);
        for steps in [vec![few, more], small_steps] {
            let grown = of(&steps);
            ensure(large == grown, || format!("drawn by {steps:?} {grown:?}, not {large:?}"))?;
        }
        let tokens = |list: &[DrawnToken]| list.iter().map(|drawn| drawn.0).collect::<Vec<_>>();
        let (held, all) = (tokens(&large), of(&[few, n_s]));
        let lost = tokens(&small).into_iter().find(|token| !held.contains(token));
        ensure(lost.is_none(), || format!("{lost:?} is drawn at size {few}, and not at {more}"))?;
        let rest: Vec<DrawnToken> = picks.residual().map(|token| (token as u32, 1.0)).collect();
        ensure(all == rest, || format!("all {n_s} left are {rest:?}, and drawn {all:?}"))?;
    }
    Ok(())
}

/// Each drawn token has an inclusion probability, already in the smallest sample. A sampler that no
/// estimator may follow may draw nothing; then a pipeline of it alone reads the newest token.
///
/// # Errors
/// The numbers that differ, or the token list.
pub fn answers(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let sampler = filled(config, head.site(), head)?;
    let step = head.step(head.tokens);
    let grows = config.evidence() != SampleEvidence::Nothing;
    let sizes = if grows { &[0, 1, step.visible][..] } else { &[0] };
    for readers in readers(config, &step) {
        let picks = Picks::new(step.visible);
        let mut design = design(&*sampler, &step, &readers, &picks, 0);
        let mut tokens = Vec::new();
        for &size in sizes {
            design.extend(size, &mut tokens);
            let (drawn, known) = (tokens.len(), design.probabilities().len());
            ensure(drawn == known, || {
                format!("at size {size} {drawn} tokens are drawn, with {known} probabilities")
            })?;
        }
    }
    if grows { Ok(()) } else { reads_something(config, head) }
}

/// Checks that a pipeline of the sampler alone reads a token at every step.
fn reads_something(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let (_, sampler) = read_again::<Box<dyn SamplerConfig>>(config)?;
    let config = PipelineConfig {
        share: if config.shares() { Share::Group } else { Share::Head },
        sampler: Some(sampler),
        ..PipelineConfig::default()
    };
    let failed = |error| format!("a pipeline of it alone fails: {error}");
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

/// Over many sequences, each token is drawn as often as its probability says.
///
/// # Errors
/// The token: such a number has a probability of one in a million at the most.
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
            // Of a token that is never drawn the probability is not told; it is not 1, by `nests`.
            let found = f64::from(count) / f64::from(SEQUENCES);
            let part = |x: f64, y: f64| if x > 0.0 { x * (x / y).ln() } else { 0.0 };
            let surprise = part(found, p) + part(1.0 - found, (1.0 - p).max(1e-12));
            let limit = (2.0 * head.tokens as f64 / FALSE_ALARM).ln() / f64::from(SEQUENCES);
            ensure(count == 0 || surprise <= limit, || {
                format!("{texture:?}: token {token} is drawn in {found} of all sequences, not {p}")
            })?;
        }
    }
    Ok(())
}

/// Over many sequences, totals are unbiased, and their variance is predicted, at the size of the
/// sample and at one twice as large: nearly that of their errors, or up to three times as large where
/// strata have neighbours, whose differences a prediction contains.
///
/// # Errors
/// The mean error, or the ratio.
pub fn foretells(config: &dyn SamplerConfig) -> Verdict {
    if config.evidence() == SampleEvidence::Nothing {
        return Ok(());
    }
    let head = Head::new(300, 8, 5, Texture::Gaussian);
    let step = head.step(head.tokens);
    let row = step.row(0);
    let logits = row.scores(Score::Head);
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let x: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let readers = &readers(config, &step)[0];
    let picks = taken(config, readers);
    let exact: f64 = picks.residual().map(|token| x[token]).sum();
    let sizes = [80, 160];
    let (mut bias, mut errors, mut foretold) = ([0.0; 2], [0.0; 2], [0.0; 2]);
    let mut most = 1.25;
    let sampler = filled(config, head.site(), &head)?;
    for sequence in 0..SEQUENCES {
        let mut tokens = Vec::new();
        let mut design = design(&*sampler, &step, readers, &picks, sequence);
        for (which, size) in sizes.into_iter().enumerate() {
            design.extend(size, &mut tokens);
            let of = |&token: &u32| x[token as usize];
            let total: f64 =
                tokens.iter().zip(design.probabilities()).map(|(token, p)| of(token) / p).sum();
            bias[which] += total - exact;
            errors[which] += (total - exact).powi(2);
            if which == 0 {
                let drawn: Vec<f64> = tokens.iter().map(of).collect();
                let has_neighbours =
                    |strata: Stratification| strata.neighbours.iter().any(|of| !of.is_empty());
                if design.strata().is_some_and(has_neighbours) {
                    most = 3.0;
                }
                for (size, foretold) in sizes.into_iter().zip(&mut foretold) {
                    *foretold += variance(&*design, &drawn, size);
                }
            }
        }
    }
    for which in [0, 1] {
        let size = sizes[which];
        // Five standard errors are exceeded once in a million times.
        let mean = bias[which].abs() / errors[which].sqrt();
        ensure(mean <= 5.0, || format!("at size {size} totals are off by {mean} standard errors"))?;
        let ratio = foretold[which] / errors[which];
        ensure((0.8..most).contains(&ratio), || {
            format!("at size {size} the variance predicted is {ratio} times that of the errors")
        })?;
    }
    Ok(())
}

/// Variance that a design predicts for a total of `x` from the tokens drawn.
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

/// A sampler that has seen all tokens.
fn filled(
    config: &dyn SamplerConfig,
    site: &Site,
    head: &Head,
) -> Result<Box<dyn Sampler>, String> {
    let mut sampler = build(config, site)?;
    sampler.append(&head.part(0..head.tokens));
    Ok(sampler)
}

/// Who reads one list: each member by itself, and all together, if that is possible.
fn readers<'a>(config: &dyn SamplerConfig, step: &Step<'a>) -> Vec<Vec<Row<'a>>> {
    let mut readers: Vec<_> = step.rows().into_iter().map(|row| vec![row]).collect();
    if config.shares() {
        readers.push(step.rows());
    }
    readers
}

/// A few tokens, by the best scores if the sampler wants these.
fn taken(config: &dyn SamplerConfig, readers: &[Row<'_>]) -> Picks {
    let visible = readers[0].visible();
    let mut picks = Picks::new(visible);
    picks.take(visible / 3);
    if config.wants_scores() {
        picks.keep_scores();
        picks.take_top(visible / 20, &readers[0].scores(Score::Head));
    }
    picks
}

fn design<'a>(
    sampler: &'a dyn Sampler,
    step: &Step<'_>,
    readers: &[Row<'a>],
    picks: &'a Picks,
    sequence: u32,
) -> Box<dyn Design + 'a> {
    let site = Site { sequence, ..*step.site };
    sampler.design(readers, picks, &Stream::new(&site, 0, step.step, 0))
}

/// A list that grew to these sizes, in draw order.
fn draw(
    sampler: &dyn Sampler,
    step: &Step<'_>,
    readers: &[Row<'_>],
    picks: &Picks,
    sizes: &[usize],
) -> Vec<DrawnToken> {
    let mut design = design(sampler, step, readers, picks, 0);
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

/// The lists of everybody who sees `visible` tokens.
fn lists(
    config: &dyn SamplerConfig,
    sampler: &dyn Sampler,
    head: &Head,
    visible: usize,
) -> Vec<Vec<DrawnToken>> {
    let step = head.step(visible);
    let list = |readers: Vec<Row<'_>>| {
        draw(sampler, &step, &readers, &taken(config, &readers), &[visible.div_ceil(2)])
    };
    readers(config, &step).into_iter().map(list).collect()
}

/// The lists of everybody: seeing all tokens, half of them, and one.
fn all_draws(
    config: &dyn SamplerConfig,
    sampler: &dyn Sampler,
    head: &Head,
) -> Vec<Vec<DrawnToken>> {
    let visible = [head.tokens, head.tokens.div_ceil(2), 1];
    visible.into_iter().flat_map(|visible| lists(config, sampler, head, visible)).collect()
}

/// One list of each sequence, of which each has a sampler of its own.
fn for_each_sequence(
    config: &dyn SamplerConfig,
    head: &Head,
    mut each: impl FnMut(u32, &[DrawnToken]),
) -> Verdict {
    let step = head.step(head.tokens);
    let readers = readers(config, &step).pop().expect("a list has a reader");
    let picks = taken(config, &readers);
    for sequence in 0..SEQUENCES {
        let site = Site { sequence, ..*step.site };
        let sampler = filled(config, &site, head)?;
        let mut design = design(&*sampler, &step, &readers, &picks, sequence);
        let mut tokens = Vec::new();
        design.extend(60, &mut tokens);
        let list: Vec<DrawnToken> = tokens.into_iter().zip(design.probabilities()).collect();
        each(sequence, &list);
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
