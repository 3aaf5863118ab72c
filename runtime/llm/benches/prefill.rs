//! Prefill of a real model with SampleAttention and with dense attention: time, density, and
//! errors.
//!
//! ```text
//! cargo bench -p vattention-llm --bench prefill -- MODEL.gguf TEXT ROUNDS TOKENS...
//! ```
//!
//! For each length, the strategies read the text in turn, `ROUNDS` times. Seconds are the processor
//! time of all threads, which other programs disturb less than wall time; they are medians, and the
//! ratio is a ratio of medians. `keys` and `values` are the relative errors of the last layer's
//! keys and values, in the Frobenius norm; they contain the errors of all earlier layers.
//!
//! Then each sequence continues by dense steps over the text's next tokens. Its logits after the
//! prompt and after each step are compared with those of the dense prompt: `KL` is the mean
//! divergence in nats, and `top 1 the same` counts the steps with the same most likely token.

#![allow(missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ndarray::Array3;
use vattention_backends::Cpu;
use vattention_core::Options;
use vattention_llm::{
    Model, PrefillOptions, Prefilled, Result, SampleAttention, Session, Strategy, Tokenizer,
    most_likely_token,
};

/// Number of steps after a prompt.
const STEPS: usize = 64;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [model, text, rounds, lengths @ ..] = words.as_slice() else {
        eprintln!("prefill: expected MODEL.gguf TEXT ROUNDS TOKENS...");
        return Ok(());
    };
    let path = Path::new(model);
    let model = Model::open(path)?;
    let tokenizer = Tokenizer::open(path, model.config())?;
    let tokens = tokenizer.first(&std::fs::read_to_string(text)?)?;
    for length in lengths {
        measure(&model, &tokens, length.parse()?, rounds.parse()?)?;
    }
    Ok(())
}

fn measure(model: &Model, tokens: &[u32], length: usize, rounds: usize) -> Result<()> {
    assert!(tokens.len() >= length, "{} tokens of text; expected {length}", tokens.len());
    let (prompt, next) = tokens.split_at(length);
    let next = &next[..STEPS.min(next.len()).min(model.config().context - length)];
    let strategies = strategies();
    let mut seconds = vec![Vec::new(); strategies.len()];
    let mut prompts = Vec::new();
    for _ in 0..rounds {
        prompts.clear();
        for (strategy, seconds) in strategies.iter().zip(&mut seconds) {
            let options = PrefillOptions { strategy: *strategy, ..PrefillOptions::default() };
            let (begin, before) = (Instant::now(), processor_seconds());
            prompts.push(model.prefill(prompt, options)?);
            let wall = begin.elapsed().as_secs_f64();
            seconds.push(
                before.and_then(|before| Some(processor_seconds()? - before)).unwrap_or(wall),
            );
            println!("{strategy:?}: {wall:.2} s of wall time");
        }
    }
    println!("{length} tokens, {rounds} rounds, {} steps after them", next.len());
    let exact = run_steps(model, &prompts[0], next)?;
    let dense = median(&mut seconds[0]);
    let last = |prompt: &Prefilled| prompt.layers.last().expect("a layer").clone();
    for ((strategy, seconds), found) in strategies.iter().zip(&mut seconds).zip(&prompts) {
        let (a, b, logits) = (last(found), last(&prompts[0]), run_steps(model, found, next)?);
        let (mut same, mut kl) = (0, 0.0);
        for (found, exact) in logits.iter().zip(&exact) {
            same += usize::from(most_likely_token(found)? == most_likely_token(exact)?);
            kl += divergence(exact, found);
        }
        let (time, steps) = (median(seconds), logits.len());
        println!(
            "{strategy:?}\n  {time:.2} s, {:.3} of dense; density {:.3}; keys {:.4}, values {:.4}; \
             KL {:.4}; top 1 the same {same} of {steps}; seconds {seconds:.2?}",
            time / dense,
            found.density(),
            error(&a.keys, &b.keys),
            error(&a.values, &b.values),
            kl / steps as f64,
        );
    }
    Ok(())
}

/// Returns dense attention, the paper's parameters, and a smaller coverage.
fn strategies() -> [Strategy; 3] {
    let paper = SampleAttention::default();
    let less = SampleAttention { coverage: 0.8, ..paper };
    [Strategy::Dense, Strategy::SampleAttention(paper), Strategy::SampleAttention(less)]
}

/// Returns the logits after a prompt, and after each of the next tokens by dense steps.
fn run_steps(model: &Model, prompt: &Prefilled, next: &[u32]) -> Result<Vec<Vec<f32>>> {
    let mut session = Session::new(model, &Cpu::default(), &Arc::default(), &Options::default())?;
    let mut logits = vec![session.begin(prompt)?];
    for &token in next {
        logits.push(session.step(token)?);
    }
    Ok(logits)
}

fn error(found: &Array3<f32>, exact: &Array3<f32>) -> f64 {
    let norm = |numbers: &mut dyn Iterator<Item = f32>| -> f64 {
        numbers.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    };
    norm(&mut found.iter().zip(exact).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied())
}

/// Processor time of all threads of this process in ticks of 10 ms, if Linux reports it.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
    Some(fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

/// KL divergence in nats of the distribution with logits `q` from the one with logits `p`.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p, q) = (log_softmax(p), log_softmax(q));
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - largest - total.ln()).collect()
}

/// Middle number, or the mean of the two in the middle.
fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    f64::midpoint(seconds[(seconds.len() - 1) / 2], seconds[seconds.len() / 2])
}
