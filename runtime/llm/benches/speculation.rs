//! Times of steps with drafts that are looked up in the text, and of passes over several tokens.
//!
//! ```text
//! cargo bench -p vattention-llm --bench speculation -- known MODEL PIPELINE.toml TEXT TOKENS...
//! cargo bench -p vattention-llm --bench speculation -- chosen MODEL PIPELINE.toml TEXT TOKENS...
//! ```
//!
//! Dense attention and the pipeline add tokens after the text's first `TOKENS` tokens, each with
//! several maximum numbers of drafts. With `known`, keys and values are random, and the tokens are
//! those that follow in the text, and those of an earlier part of the text, whatever the model
//! would choose. With `chosen`, the model reads the text, and chooses the most likely tokens after
//! it, and after a question that asks to repeat the text. The variants take turns, so that other
//! programs slow all of them down alike.

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
use vattention_llm::{
    Model, PrefillOptions, Prefilled, Session, Speculation, Tokenizer, most_likely_token,
};
// Registers the samplers of pipeline files.
use vattention_samplers as _;

type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Maximum numbers of drafts.
const DRAFTS: [usize; 4] = [0, 1, 3, 7];
/// Numbers of tokens in a pass.
const PASSES: [usize; 4] = [1, 2, 4, 8];
const ROUNDS: usize = 15;
const GENERATED: usize = 128;
/// Tokens that a variant generates before the next one has its turn.
const TURN: usize = 16;
const QUESTION: &str = "\n\nThe most important sentences of the text above, word by word:\n";

/// Attention of a sequence.
struct Contender {
    name: &'static str,
    pipeline: Arc<PipelineConfig>,
}

fn main() -> BenchResult<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [mode, model, pipeline, text, lengths @ ..] = words.as_slice() else {
        eprintln!("speculation: expected known|chosen MODEL PIPELINE.toml TEXT TOKENS...");
        return Ok(());
    };
    let path = Path::new(model);
    let model = Model::open(path)?;
    let contenders = [
        Contender { name: "dense", pipeline: Arc::default() },
        Contender { name: "pipeline", pipeline: Loader::default().load(pipeline)? },
    ];
    let tokenizer = Tokenizer::open(path, model.config())?;
    let tokens = tokenizer.first(&std::fs::read_to_string(text)?)?;
    let question = tokenizer.first(QUESTION)?;
    for length in lengths {
        let length = length.parse()?;
        if mode == "known" {
            measure_known(&model, &contenders, &tokens, length)?;
        } else {
            measure_chosen(&model, &contenders, &tokens[..length], &question)?;
        }
    }
    Ok(())
}

/// Measures passes, and known tokens after random keys and values.
fn measure_known(
    model: &Model,
    contenders: &[Contender],
    text: &[u32],
    length: usize,
) -> BenchResult<()> {
    let (before, after) = text.split_at(length);
    for Contender { name, pipeline } in contenders {
        let start = |drafts| random_context(model, pipeline, drafts, length);
        print_passes(name, &start(0)?)?;
        for (kind, known) in [("continued", after), ("repeated", &before[length / 4..])] {
            let sessions = DRAFTS.map(start).into_iter().collect::<BenchResult<Vec<_>>>()?;
            generate(kind, name, sessions, before, known[0], Some(known))?;
        }
    }
    Ok(())
}

/// Measures tokens that the model chooses after a text.
fn measure_chosen(
    model: &Model,
    contenders: &[Contender],
    text: &[u32],
    question: &[u32],
) -> BenchResult<()> {
    let asked = [&text[..text.len() - question.len()], question].concat();
    for (kind, prompt) in [("continued", text), ("asked to repeat", &asked)] {
        let prefilled = model.prefill(prompt, PrefillOptions::default())?;
        let first = most_likely_token(&prefilled.logits)?;
        for Contender { name, pipeline } in contenders {
            let start = |drafts| begin(model, pipeline, drafts, &prefilled);
            let sessions = DRAFTS.map(start).into_iter().collect::<BenchResult<Vec<_>>>()?;
            generate(kind, name, sessions, prompt, first, None)?;
        }
    }
    Ok(())
}

fn options(drafts: usize) -> Options {
    Options { storage: Storage::Bf16, rewindable: drafts, ..Options::default() }
}

fn begin<'m>(
    model: &'m Model,
    pipeline: &Arc<PipelineConfig>,
    drafts: usize,
    prompt: &Prefilled,
) -> BenchResult<Session<'m>> {
    let mut session = Session::new(model, &Cpu::default(), pipeline, &options(drafts))?;
    session.begin(prompt)?;
    Ok(session)
}

/// Begins a sequence with random keys and values, the same in every layer.
fn random_context<'m>(
    model: &'m Model,
    pipeline: &Arc<PipelineConfig>,
    drafts: usize,
    tokens: usize,
) -> BenchResult<Session<'m>> {
    let shape = model.config().shape;
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    // A sum of four uniform numbers is nearly normal; its variance is 1.
    let mut uniform = || (f64::from(rng.next_u32()) / f64::from(u32::MAX) - 0.5) as f32;
    let mut normal = |_| 3f32.sqrt() * (0..4).map(|_| uniform()).sum::<f32>();
    let keys = Array3::from_shape_fn((shape.kv_heads, tokens, shape.head_dim), &mut normal);
    let values = Array3::from_shape_fn((shape.kv_heads, tokens, shape.value_dim), &mut normal);
    let session = Session::new(model, &Cpu::default(), pipeline, &options(drafts))?;
    Ok(session.with_context(tokens, |_| (keys.clone(), values.clone()))?)
}

/// Prints the median times of passes that continue from a context.
fn print_passes(name: &str, context: &Session<'_>) -> BenchResult<()> {
    let mut seconds = PASSES.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (&pass, seconds) in PASSES.iter().zip(&mut seconds) {
            let tokens: Vec<u32> = (0..pass as u32).collect();
            let mut fork = context.fork(None)?;
            let begin = Instant::now();
            fork.steps(Vec::new(), &tokens)?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    let cells = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        format!("{:>8.2}", 1e3 * seconds[ROUNDS / 2])
    });
    println!("{} tokens, {name}: passes over {PASSES:?}: {} ms", context.len(), cells.concat());
    Ok(())
}

/// Sequence that generates tokens with drafts.
struct Generation<'s, 'm> {
    steps: Speculation<'s, 'm>,
    tokens: Vec<u32>,
    seconds: f64,
}

/// Generates tokens in turns, one sequence for each of [`DRAFTS`], and prints the times. The tokens
/// are `known` or greedy.
fn generate(
    kind: &str,
    name: &str,
    mut sessions: Vec<Session<'_>>,
    prompt: &[u32],
    first: u32,
    known: Option<&[u32]>,
) -> BenchResult<()> {
    let length = sessions[0].len();
    let mut generations = Vec::new();
    for session in &mut sessions {
        let steps = Speculation::new(session, prompt)?;
        generations.push(Generation { steps, tokens: vec![first], seconds: 0.0 });
    }
    for _ in 0..GENERATED / TURN {
        for generation in &mut generations {
            let begin = Instant::now();
            for _ in 0..TURN {
                let logits =
                    generation.steps.step(generation.tokens[generation.tokens.len() - 1])?;
                let next = match known {
                    Some(known) => known[generation.tokens.len()],
                    None => most_likely_token(&logits)?,
                };
                generation.tokens.push(next);
            }
            generation.seconds += begin.elapsed().as_secs_f64();
        }
    }
    let single = generations[0].seconds;
    for (most, Generation { steps, tokens, seconds }) in DRAFTS.iter().zip(&generations) {
        assert!(*tokens == generations[0].tokens, "drafts have changed the text");
        let counts = steps.counts();
        let passes = GENERATED - counts.accepted;
        println!(
            "{length} tokens, {kind}, {name}: {most} drafts: {} of {} accepted, {:.2} tokens per \
             pass, {:.2} ms per token, speedup {:.2}",
            counts.accepted,
            counts.drafted,
            GENERATED as f64 / passes as f64,
            1e3 * seconds / GENERATED as f64,
            single / seconds,
        );
    }
    Ok(())
}
