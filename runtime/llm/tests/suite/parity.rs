//! Tests of small checkpoints of every architecture: against Hugging Face transformers
//! (`tools/make_llm_golden.py`), and between different ways of running them.

use crate::common;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::{CASES, backends, case, cases_with_full_layers, dense, sparse};
use candle_core::{Device, Tensor};
use vattention_backends::Cpu;
use vattention_core::{Options, PipelineConfig, Storage};
use vattention_llm::{
    Config, Generation, LayerReport, Model, PrefillOptions, Prefilled, Prompt, SampleAttention,
    Session, Stop, Strategy,
};

/// Results of transformers.
struct Golden {
    prompt: Vec<u32>,
    /// Logits after the prompt.
    prefill: Vec<f32>,
    decode_tokens: Vec<u32>,
    /// Logits after each of `decode_tokens`.
    decode: Vec<Vec<f32>>,
    greedy: Vec<u32>,
}

impl Golden {
    fn open(name: &str) -> Self {
        let path = case(name).join("golden.safetensors");
        let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
        let tokens = |name: &str| tensors[name].to_vec1().unwrap();
        Self {
            prompt: tokens("prompt"),
            prefill: tensors["prefill"].to_vec1().unwrap(),
            decode_tokens: tokens("decode_tokens"),
            decode: Tensor::to_vec2(&tensors["decode"]).unwrap(),
            greedy: tokens("greedy"),
        }
    }
}

fn open(name: &str) -> Model {
    Model::open(&case(name)).unwrap()
}

fn session<'m>(model: &'m Model, pipeline: &Arc<PipelineConfig>) -> Session<'m> {
    Session::new(model, &Cpu::default(), pipeline, &Options::default()).unwrap()
}

/// Largest difference.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], limit: f32, context: &str) {
    let distance = distance(found, expected);
    assert!(distance <= limit, "{context}: logits differ by {distance:e}");
}

#[test]
fn logits_match_transformers() {
    for name in CASES {
        let (model, golden) = (open(name), Golden::open(name));
        for backend in backends() {
            let mut session =
                Session::new(&model, backend.as_ref(), &dense(), &Options::default()).unwrap();
            let context = format!("{name} on {}", backend.name());
            let logits = session.prefill(&golden.prompt).unwrap();
            assert_close(&logits, &golden.prefill, 1e-4, &format!("{context}, prefill"));
            for (i, &token) in golden.decode_tokens.iter().enumerate() {
                let logits = session.step(token).unwrap();
                assert_close(&logits, &golden.decode[i], 1e-4, &format!("{context}, step {i}"));
            }
            assert_eq!(session.len(), golden.prompt.len() + golden.decode.len());
        }
    }
}

#[test]
fn greedy_continuations_match_transformers() {
    for name in CASES {
        let (model, golden) = (open(name), Golden::open(name));
        assert_eq!(golden.greedy.len(), 50);
        for backend in backends() {
            let mut session =
                Session::new(&model, backend.as_ref(), &dense(), &Options::default()).unwrap();
            let mut shown = Vec::new();
            let generation = session.generate(Prompt::whole(&golden.prompt), 50, |token, _| {
                shown.push(token);
                ControlFlow::Continue(())
            });
            let expected = Generation { tokens: golden.greedy.clone(), stop: Stop::Length };
            assert_eq!(generation.unwrap(), expected, "{name} on {}", backend.name());
            assert_eq!(shown, golden.greedy);
        }
    }
}

#[test]
fn configs_of_transformers_4_and_5_are_read() {
    let llama3 = open("llama3").config().clone();
    assert_eq!(llama3.architecture, "Llama");
    assert!(llama3.tied);
    assert_eq!(llama3.ends, [127]);
    assert_eq!((llama3.context, &*llama3.context_key), (2048, "max_position_embeddings"));
    let text = std::fs::read_to_string(case("llama3").join("config.json")).unwrap();
    assert!(text.contains("rope_scaling") && text.contains("torch_dtype"));
    let text = std::fs::read_to_string(case("llama-sharded").join("config.json")).unwrap();
    assert!(text.contains("rope_parameters") && !text.contains("rope_scaling"));
    let sharded = open("llama-sharded").config().clone();
    assert!(!sharded.tied && sharded.biases.output && sharded.biases.feed_forward);
    let Config { shape, hidden_size, .. } = open("qwen3").config().clone();
    assert_ne!(shape.query_heads * shape.head_dim, hidden_size);
}

fn prefill_options(block: usize, observed: usize) -> PrefillOptions {
    PrefillOptions { block, observed, ..PrefillOptions::default() }
}

#[test]
fn blocks_of_a_prompt_give_the_result_of_the_whole() {
    for name in CASES {
        let (model, golden) = (open(name), Golden::open(name));
        let mut whole = session(&model, &dense());
        let expected = whole.prefill(&golden.prompt).unwrap();
        let next = whole.step(5).unwrap();
        for block in [1, 7, 20, 39, 40] {
            let mut blocks =
                session(&model, &dense()).with_prefill_options(prefill_options(block, 64));
            let context = format!("{name}, blocks of {block}");
            assert_close(&blocks.prefill(&golden.prompt).unwrap(), &expected, 5e-5, &context);
            assert_close(&blocks.step(5).unwrap(), &next, 5e-5, &context);
        }
    }
}

#[test]
fn sequences_can_share_one_prefill() {
    let (model, golden) = (open("llama3"), Golden::open("llama3"));
    let prefilled = model.prefill(&golden.prompt, PrefillOptions::default()).unwrap();
    assert_eq!(prefilled.tokens, golden.prompt);
    for pipeline in [dense(), common::sparse(), common::snapkv()] {
        let mut alone = session(&model, &pipeline);
        let mut begun = session(&model, &pipeline);
        assert_eq!(begun.begin(&prefilled).unwrap(), alone.prefill(&golden.prompt).unwrap());
        assert_eq!(begun.len(), alone.len());
        assert_eq!(begun.step(5).unwrap(), alone.step(5).unwrap());
        let message = begun.begin(&prefilled).unwrap_err().to_string();
        assert!(message.contains("tokens already; expected none"), "{message}");
    }
    let message = session(&open("qwen3"), &dense()).begin(&cut(prefilled)).unwrap_err().to_string();
    assert_eq!(message, "prefill: the prompt has 1 layers; expected the model's 2");
}

#[test]
fn common_prefixes_of_prompts_are_shared() {
    for name in CASES {
        let (model, golden) = (open(name), Golden::open(name));
        for observed in [0, 1, 8, 64] {
            let options = prefill_options(8, observed);
            let alone = model.prefill(&golden.prompt, options).unwrap();
            for common in [0, 7, 8, 20, golden.prompt.len()] {
                let mut other = golden.prompt.clone();
                other.truncate(common);
                other.extend([1, 2, 3]);
                let other = model.prefill(&other, options).unwrap();
                let after = model.prefill_after(Some(&other), &golden.prompt, options).unwrap();
                assert_eq!(after.logits, alone.logits, "{name}: {common} of {observed}");
                for (after, alone) in after.layers.iter().zip(&alone.layers) {
                    assert_eq!(after.keys, alone.keys);
                    assert_eq!(after.values, alone.values);
                    assert_eq!(after.queries, alone.queries);
                }
            }
        }
    }
    let (llama, qwen) = (open("llama3"), open("qwen3"));
    let other = cut(llama.prefill(&[1, 2, 3], PrefillOptions::default()).unwrap());
    let message = qwen.prefill_after(Some(&other), &[1, 2], PrefillOptions::default()).unwrap_err();
    assert_eq!(message.to_string(), "prefill: the prompt has 1 layers; expected the model's 2");
}

fn cut(mut prompt: Prefilled) -> Prefilled {
    prompt.layers.truncate(1);
    prompt
}

#[test]
fn dense_steps_match_a_dense_prompt() {
    for name in CASES {
        let (model, golden) = (open(name), Golden::open(name));
        let mut whole = session(&model, &dense());
        let expected = whole.read_prompt(Prompt::whole(&golden.prompt)).unwrap();
        for cut in [1, 25] {
            let (dense_part, sparse_part) = golden.prompt.split_at(cut);
            let prompt = Prompt { dense: dense_part, sparse: sparse_part };
            let mut cut = session(&model, &dense());
            assert_close(&cut.read_prompt(prompt).unwrap(), &expected, 1e-4, name);
            let mut cut = session(&model, &dense());
            let generation = cut.generate(prompt, 50, |_, _| ControlFlow::Continue(())).unwrap();
            assert_eq!(generation.tokens, golden.greedy, "{name}");
        }
    }
}

/// Includes more tokens than one batch takes.
#[test]
fn steps_in_batches_match_single_steps() {
    let tokens: Vec<u32> = (0..600).map(|i| (i * 37 + i / 11) % 126).collect();
    let (prompt, known) = tokens.split_at(300);
    for name in CASES {
        let model = open(name);
        for (pipeline, known) in
            [(dense(), known), (sparse(), &known[..40]), (sparse(), &known[..3])]
        {
            let start = || {
                let mut session = session(&model, &pipeline);
                let logits = session.prefill(prompt).unwrap();
                (session, logits)
            };
            let ((mut together, logits), (mut alone, _)) = (start(), start());
            let logits = together.steps(logits, known).unwrap();
            let expected = known.iter().map(|&token| alone.step(token).unwrap()).last().unwrap();
            assert_close(&logits, &expected, 1e-4, name);
            assert_eq!(together.len(), alone.len());
            let read = |session: &Session<'_>| -> Vec<usize> {
                session
                    .reports()
                    .iter()
                    .flat_map(|layer| &layer.rows)
                    .map(|row| row.read_by_group)
                    .collect()
            };
            assert_eq!(read(&together), read(&alone), "{name}");
            let logits = [together.step(9).unwrap(), alone.step(9).unwrap()];
            assert_close(&logits[0], &logits[1], 1e-4, name);
        }
    }
}

#[test]
fn invalid_tokens_are_refused_before_the_first_is_added() {
    let model = open("llama3");
    let mut session = session(&model, &dense());
    let logits = session.prefill(&[1, 2, 3]).unwrap();
    assert_eq!(session.steps(logits.clone(), &[]).unwrap(), logits);
    let unknown = model.config().vocab_size as u32;
    let mut tokens = vec![5; 20];
    tokens.push(unknown);
    let message = session.steps(logits, &tokens).unwrap_err().to_string();
    assert!(message.starts_with(&format!("tokens: {unknown} at [20]")), "{message}");
    assert_eq!(session.len(), 3);
    session.step(5).unwrap();
}

#[test]
fn sparse_pipelines_read_less_and_report_it() {
    for name in cases_with_full_layers() {
        let model = open(name);
        let prompt: Vec<u32> = (0..600).map(|i| (i * 37 + i / 11) % 126).collect();
        for backend in backends() {
            let start = |pipeline| {
                Session::new(&model, backend.as_ref(), &pipeline, &Options::default()).unwrap()
            };
            let (mut exact, mut session) = (start(dense()), start(sparse()));
            let exact_logits = exact.read_prompt(Prompt::whole(&prompt)).unwrap();
            let logits = session.read_prompt(Prompt::whole(&prompt)).unwrap();
            assert_eq!(logits, exact_logits, "{name}: prompts are dense");
            assert_eq!(session.density(), None);
            let (expected, found) = (exact.step(9).unwrap(), session.step(9).unwrap());
            assert!(distance(&found, &expected) > 1e-3, "{name}: the step was dense");
            assert_eq!(exact.density(), Some(1.0));
            let density = session.density().unwrap();
            assert!(density > 0.05 && density < 0.9, "{name}: density {density}");
            assert_eq!(session.reports().len(), model.config().layers);
            for report in session.reports() {
                assert_eq!(report.rows.len(), model.config().shape.query_heads);
                assert!(report.rows.iter().all(|row| row.visible == 601));
                let follows = report.sampled() > 0.0 && report.density() < 1.0;
                assert_eq!(follows, report.is_full(), "{name}");
                assert!(!report.time.is_zero());
            }
            let held = |session: &Session<'_>| session.reports().iter().all(LayerReport::held);
            assert!(held(&exact) && !held(&session));
            let mut promised = start(common::promised());
            promised.read_prompt(Prompt::whole(&prompt)).unwrap();
            let close = distance(&promised.step(9).unwrap(), &expected);
            assert!(held(&promised) && promised.density().unwrap() < 1.0, "{name}");
            assert!(close < distance(&found, &expected) * 1.5, "{name}: {close}");
        }
    }
}

fn sampling(coverage: f64, window: f64) -> PrefillOptions {
    let strategy = Strategy::SampleAttention(SampleAttention { sample: 0.1, coverage, window });
    PrefillOptions { block: 128, strategy, ..PrefillOptions::default() }
}

#[test]
fn sample_attention_that_reads_everything_is_dense() {
    let prompt: Vec<u32> = (0..400).map(|i| (i * 37 + i / 11) % 126).collect();
    for name in CASES {
        let model = open(name);
        let dense = PrefillOptions { strategy: Strategy::Dense, ..sampling(1.0, 1.0) };
        let dense = model.prefill(&prompt, dense).unwrap();
        for all in [sampling(1.0, 0.1), sampling(0.1, 1.0)] {
            let found = model.prefill(&prompt, all).unwrap();
            assert_eq!((found.density(), &found.logits), (1.0, &dense.logits), "{name}");
            assert_eq!(found.layers[1].keys, dense.layers[1].keys, "{name}");
        }
    }
}

#[test]
fn sample_attention_reads_less_for_a_lower_coverage() {
    let prompt: Vec<u32> = (0..600).map(|i| (i * 37 + i / 11) % 126).collect();
    for name in cases_with_full_layers() {
        let model = open(name);
        let read = |coverage| {
            let mut session =
                session(&model, &dense()).with_prefill_options(sampling(coverage, 0.05));
            assert_eq!(session.prefill_density(), None);
            let logits = session.prefill(&prompt).unwrap();
            let density = session.prefill_density().unwrap();
            let prefilled = model.prefill(&prompt, sampling(coverage, 0.05)).unwrap();
            assert_eq!((prefilled.density(), &prefilled.logits), (density, &logits), "{name}");
            let before = session.step(9).unwrap();
            let mut begun =
                Session::new(&model, &Cpu::default(), &dense(), &Options::default()).unwrap();
            begun.begin(&prefilled).unwrap();
            assert_eq!(begun.prefill_density(), Some(density));
            assert_eq!(begun.step(9).unwrap(), before, "{name}");
            assert_eq!(session.density(), Some(1.0), "steps are the pipeline's");
            (density, logits)
        };
        let (dense, exact) = read(1.0);
        let (most, near) = read(0.9);
        let (least, far) = read(0.3);
        assert!(dense == 1.0 && most < 1.0 && least < most, "{name}: {most} {least}");
        assert!(distance(&near, &exact) < distance(&far, &exact), "{name}");
    }
}

/// Blocks choose their keys separately, so that common blocks are equal.
#[test]
fn common_prefixes_of_sampled_prompts_are_shared() {
    let (model, golden) = (open("qwen3"), Golden::open("qwen3"));
    let options = PrefillOptions { block: 8, ..sampling(0.5, 0.2) };
    let alone = model.prefill(&golden.prompt, PrefillOptions { observed: 4, ..options }).unwrap();
    assert!(alone.density() < 1.0);
    let mut other = golden.prompt[..20].to_vec();
    other.extend([1, 2, 3]);
    let other = model.prefill(&other, PrefillOptions { observed: 4, ..options }).unwrap();
    let options = PrefillOptions { observed: 4, ..options };
    let after = model.prefill_after(Some(&other), &golden.prompt, options).unwrap();
    assert_eq!((after.density(), &after.logits), (alone.density(), &alone.logits));
    for (after, alone) in after.layers.iter().zip(&alone.layers) {
        assert_eq!((&after.keys, &after.values), (&alone.keys, &alone.values));
    }
}

/// Selectors that vote at the end of a prompt observe its last queries, for any block size.
#[test]
fn selectors_observe_the_last_queries_of_a_prompt() {
    let model = open("llama3");
    let prompt: Vec<u32> = (0..200).map(|i| (i * 37 + i / 11) % 126).collect();
    let run = |block, observed| {
        let mut session = session(&model, &common::snapkv())
            .with_prefill_options(prefill_options(block, observed));
        session.prefill(&prompt).unwrap();
        let logits = session.step(9).unwrap();
        (logits, session.density().unwrap())
    };
    let (expected, density) = run(512, 64);
    assert!(density < 0.3, "{density}");
    for block in [3, 64, 150] {
        assert_close(&run(block, 64).0, &expected, 5e-5, "snapkv");
        assert_close(&run(block, 32).0, &expected, 5e-5, "snapkv");
    }
    assert!(run(512, 0).1 == 1.0, "without queries nothing is evicted");
    assert!(distance(&run(512, 1).0, &expected) > 1e-4, "one query votes otherwise than 32");
}

#[test]
fn progress_is_reported_for_each_layer() {
    let model = open("mistral");
    let (mut reports, layers) = (Vec::new(), model.config().layers);
    let mut session_with_progress = session(&model, &common::dense());
    let logits = session_with_progress
        .prefill_with(&[1, 2, 3], |done, all| reports.push((done, all)))
        .unwrap();
    assert_eq!(logits, session(&model, &common::dense()).prefill(&[1, 2, 3]).unwrap());
    assert_eq!(reports, (1..=layers).map(|done| (done, layers)).collect::<Vec<_>>());
}

#[test]
fn forks_continue_independently() {
    let (model, golden) = (open("qwen3"), Golden::open("qwen3"));
    let mut session = session(&model, &dense());
    session.prefill(&golden.prompt).unwrap();
    let mut fork = session.fork(None).unwrap();
    fork.step(3).unwrap();
    assert_eq!((session.len() + 1, fork.len()), (41, 41));
    for (&token, expected) in golden.decode_tokens.iter().zip(&golden.decode) {
        assert_close(&session.step(token).unwrap(), expected, 1e-4, "after a fork");
    }
}

#[test]
fn generation_ends_at_end_tokens_the_limit_or_a_break() {
    let golden = Golden::open("mistral");
    let end = golden.greedy[10];
    let first = golden.greedy.iter().position(|&token| token == end).unwrap();
    let copy = common::copy("mistral");
    let path = copy.path().join("generation_config.json");
    std::fs::write(path, format!(r#"{{"eos_token_id": [126, {end}]}}"#)).unwrap();
    let model = Model::open(copy.path()).unwrap();
    let prompt = Prompt::whole(&golden.prompt);
    let generation =
        session(&model, &dense()).generate(prompt, 50, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(generation.tokens, golden.greedy[..first]);
    assert_eq!(generation.stop, Stop::End(end));
    let model = open("mistral");
    let mut left = 3;
    let generation = session(&model, &dense()).generate(prompt, 50, |_, _| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let generation = generation.unwrap();
    assert_eq!((&generation.tokens[..], generation.stop), (&golden.greedy[..3], Stop::Interrupted));
    let none = session(&model, &dense()).generate(prompt, 0, |_, _| ControlFlow::Continue(()));
    assert!(none.unwrap().tokens.is_empty());
}

#[test]
fn keys_and_values_may_be_stored_in_two_bytes() {
    let (model, golden) = (open("qwen2"), Golden::open("qwen2"));
    let options = Options { storage: Storage::F16, ..Options::default() };
    let mut session = Session::new(&model, &Cpu::default(), &dense(), &options).unwrap();
    let prefill = session.prefill(&golden.prompt).unwrap();
    assert_close(&prefill, &golden.prefill, 1e-4, "a prompt attends to keys as computed");
    let step = session.step(golden.decode_tokens[0]).unwrap();
    assert_close(&step, &golden.decode[0], 0.1, "a step attends to keys as stored");
    assert!(distance(&step, &golden.decode[0]) > 1e-5);
}
