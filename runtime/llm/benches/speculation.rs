//! Times and acceptance that decide whether lossless speculation pays.
//!
//! ```text
//! cargo bench -p vattention-llm --bench speculation -- MODEL PIPELINE.toml TEXT TOKENS...
//! cargo bench -p vattention-llm --bench speculation -- MODEL PIPELINE.toml random TOKENS...
//! ```
//!
//! For each length, prints the time of a pass over 1 to 8 tokens, whose weights are read once and
//! whose tokens attend one by one: a batch of forks, one per token. With `random`, keys and values
//! are random. With a text, the model then generates tokens after the text's first `TOKENS` tokens,
//! and after a question that asks to repeat the text. Drafts are compared with these tokens:
//!
//! - *pipeline*: the pipeline drafts, and a dense pass checks. Accepted drafts are those that dense
//!   decoding would have chosen.
//! - *lookup*: the tokens that followed the last occurrence of the newest two to four tokens, and a
//!   pass of the pipeline (or of dense attention) checks.
//!
//! The speedup is over decoding without drafts by the attention that checks, from the measured
//! times of passes.

#![allow(missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ndarray::Array3;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{Options, PipelineConfig, Storage};
// Registers the samplers of pipeline files.
use vattention_llm::{Model, PrefillOptions, Prefilled, Session, Tokenizer, most_likely_token};
use vattention_samplers as _;

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Numbers of tokens in a pass.
const PASSES: [usize; 4] = [1, 2, 4, 8];
const ROUNDS: usize = 15;
const GENERATED: usize = 192;
const QUESTION: &str = "\n\nThe most important sentences of the text above, word by word:\n";

/// Median seconds of a pass, for each of [`PASSES`].
type PassTimes = [f64; PASSES.len()];

fn main() -> BenchResult<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [model, pipeline, text, lengths @ ..] = words.as_slice() else {
        eprintln!("speculation: expected MODEL PIPELINE.toml TEXT|random TOKENS...");
        return Ok(());
    };
    let path = Path::new(model);
    let model = Model::open(path)?;
    let pipelines = [Arc::default(), Loader::default().load(pipeline)?];
    println!("pass over | {}", PASSES.map(|pass| format!("{pass:>8}")).concat());
    for length in lengths {
        let length = length.parse()?;
        if text == "random" {
            let contexts = pipelines.each_ref().map(|it| random_context(&model, it, length));
            for (name, context) in ["dense", "pipeline"].into_iter().zip(contexts) {
                print_times(name, length, &time_passes(&context?)?);
            }
            continue;
        }
        let tokenizer = Tokenizer::open(path, model.config())?;
        let tokens = tokenizer.first(&std::fs::read_to_string(text)?)?;
        let question = tokenizer.first(QUESTION)?;
        measure(&model, &pipelines, &tokens[..length], &question)?;
    }
    Ok(())
}

/// Measures passes after a text, and the drafts of its continuation and of the answer.
fn measure(
    model: &Model,
    pipelines: &[Arc<PipelineConfig>; 2],
    text: &[u32],
    question: &[u32],
) -> BenchResult<()> {
    let asked = &[&text[..text.len() - question.len()], question].concat();
    for (name, prompt) in [("continued", text), ("asked to repeat", asked)] {
        let prefilled = model.prefill(prompt, PrefillOptions::default())?;
        let [dense, sparse] = pipelines.each_ref().map(|it| begin(model, it, &prefilled));
        let (dense, sparse) = (dense?, sparse?);
        let times = [time_passes(&dense)?, time_passes(&sparse)?];
        print_times("dense", prompt.len(), &times[0]);
        print_times("pipeline", prompt.len(), &times[1]);
        let first = most_likely_token(&prefilled.logits)?;
        let (by_dense, drafts) = generate(dense, Some(sparse.fork(None)?), first)?;
        let (by_pipeline, _) = generate(sparse, None, first)?;
        println!("{} tokens, {name}:", prompt.len());
        println!("  drafts by  checked by  most drafts  accepted  tokens per pass  speedup");
        for most in PASSES.map(|pass| pass - 1).into_iter().filter(|&most| most > 0) {
            let accepts = |at: usize| {
                let end = (at + most).min(by_dense.len());
                Some((most, (at..end).take_while(|&i| by_dense[i] == drafts[i]).count()))
            };
            let cost = |drafts: usize| drafts as f64 * times[1][0] + interpolate(&times[0], drafts);
            print_drafts(["pipeline", "dense"], most, GENERATED, times[0][0], accepts, cost);
            for (checker, tokens, times) in
                [("dense", &by_dense, &times[0]), ("pipeline", &by_pipeline, &times[1])]
            {
                let all = [prompt, &tokens[..]].concat();
                let accepts = |at: usize| {
                    let (before, rest) = all.split_at(prompt.len() + at);
                    let draft = look_up(before, most);
                    let accepted = draft.iter().zip(rest).take_while(|(a, b)| a == b).count();
                    (!draft.is_empty()).then_some((draft.len(), accepted))
                };
                let cost = |drafts: usize| interpolate(times, drafts);
                print_drafts(["lookup", checker], most, GENERATED, times[0], accepts, cost);
            }
        }
    }
    Ok(())
}

fn begin<'m>(
    model: &'m Model,
    pipeline: &Arc<PipelineConfig>,
    prompt: &Prefilled,
) -> BenchResult<Session<'m>> {
    let mut session = Session::new(model, &Cpu::default(), pipeline, &options())?;
    session.begin(prompt)?;
    Ok(session)
}

/// Begins a sequence with random keys and values, the same in every layer.
fn random_context<'m>(
    model: &'m Model,
    pipeline: &Arc<PipelineConfig>,
    tokens: usize,
) -> BenchResult<Session<'m>> {
    let shape = model.config().shape;
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    // A sum of four uniform numbers is nearly normal; its variance is 1.
    let mut uniform = || (f64::from(rng.next_u32()) / f64::from(u32::MAX) - 0.5) as f32;
    let mut normal = |_| 3f32.sqrt() * (0..4).map(|_| uniform()).sum::<f32>();
    let keys = Array3::from_shape_fn((shape.kv_heads, tokens, shape.head_dim), &mut normal);
    let values = Array3::from_shape_fn((shape.kv_heads, tokens, shape.value_dim), &mut normal);
    let session = Session::new(model, &Cpu::default(), pipeline, &options())?;
    Ok(session.with_context(tokens, |_| (keys.clone(), values.clone()))?)
}

fn options() -> Options {
    Options { storage: Storage::Bf16, ..Options::default() }
}

/// Times passes that continue from a context.
fn time_passes(context: &Session<'_>) -> BenchResult<PassTimes> {
    let mut seconds = PASSES.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (&pass, seconds) in PASSES.iter().zip(&mut seconds) {
            let mut forks: Vec<_> =
                (0..pass).map(|_| context.fork(None)).collect::<Result<_, _>>()?;
            let mut batch: Vec<_> =
                forks.iter_mut().enumerate().map(|(i, fork)| (fork, i as u32)).collect();
            let begin = Instant::now();
            let results = Session::step_batch(&mut batch);
            seconds.push(begin.elapsed().as_secs_f64());
            results.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
    }
    Ok(seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[ROUNDS / 2]
    }))
}

fn print_times(name: &str, length: usize, times: &PassTimes) {
    let cells = times.map(|time| format!("{:>8.2}", 1e3 * time)).concat();
    println!("{name:<9} | {cells} ms, {length} tokens");
}

/// Time of a pass over the newest token and `drafts` drafts, interpolated between [`PASSES`].
fn interpolate(times: &PassTimes, drafts: usize) -> f64 {
    let tokens = drafts + 1;
    let above = PASSES.iter().position(|&pass| pass >= tokens).expect("at most 8 tokens");
    if PASSES[above] == tokens {
        return times[above];
    }
    let (low, high) = (PASSES[above - 1], PASSES[above]);
    let share = (tokens - low) as f64 / (high - low) as f64;
    times[above - 1] + share * (times[above] - times[above - 1])
}

/// Generates tokens by a session, and the drafts that another session makes for each of them after
/// the same tokens.
fn generate(
    mut session: Session<'_>,
    mut drafter: Option<Session<'_>>,
    first: u32,
) -> BenchResult<(Vec<u32>, Vec<u32>)> {
    let (mut tokens, mut drafts) = (vec![first], vec![first]);
    while tokens.len() < GENERATED {
        let token = tokens[tokens.len() - 1];
        tokens.push(most_likely_token(&session.step(token)?)?);
        if let Some(drafter) = &mut drafter {
            drafts.push(most_likely_token(&drafter.step(token)?)?);
        }
    }
    Ok((tokens, drafts))
}

/// Drafts up to `most` tokens: those after the last occurrence of the newest four, three or two.
fn look_up(tokens: &[u32], most: usize) -> &[u32] {
    for length in [4, 3, 2] {
        let (before, newest) = tokens.split_at(tokens.len() - length);
        let found = before.windows(length).rposition(|window| window == newest);
        if let Some(begin) = found {
            let begin = begin + length;
            return &tokens[begin..tokens.len().min(begin + most)];
        }
    }
    &[]
}

/// Prints the result of drafts for `count` tokens. `accepts` returns the numbers of drafted and of
/// accepted tokens at a position, or `None` if nothing is drafted; `cost` is the time of a pass
/// with this number of drafts, and `single` that of a step.
fn print_drafts(
    [drafter, checker]: [&str; 2],
    most: usize,
    count: usize,
    single: f64,
    accepts: impl Fn(usize) -> Option<(usize, usize)>,
    cost: impl Fn(usize) -> f64,
) {
    let (mut at, mut passes, mut drafted, mut accepted, mut time) = (1, 0, 0, 0, 0.0);
    while at < count {
        let (drafts, kept) = accepts(at).unwrap_or((0, 0));
        time += if drafts > 0 { cost(drafts) } else { single };
        (passes, drafted, accepted) = (passes + 1, drafted + drafts, accepted + kept);
        at += kept + 1;
    }
    let tokens = (at - 1) as f64;
    println!(
        "  {drafter:<9}  {checker:<10}  {most:>11}  {:>7.0}%  {:>15.2}  {:>7.2}",
        100.0 * accepted as f64 / f64::from(drafted.max(1) as u32),
        tokens / f64::from(passes),
        tokens * single / time,
    );
}
