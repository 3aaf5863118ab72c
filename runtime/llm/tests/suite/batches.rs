//! Tests of batched steps and of prompts that are read in blocks: the results are bitwise equal to
//! those of single steps and whole prompts.

use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use vattention_backends::Cpu;
use vattention_core::{Options, PipelineConfig, Storage};
use vattention_llm::{
    Model, PrefillOptions, Prefilled, PromptReader, SampleAttention, Session, Strategy,
    TokenLogprob, score_token,
};

use crate::common::{CASES, case, dense, promised, snapkv, sparse};
use crate::gguf::quantised;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|number| number.to_bits()).collect()
}

/// Returns tokens that do not repeat.
fn tokens(model: &Model, count: usize, seed: usize) -> Vec<u32> {
    let vocabulary = model.config().vocab_size;
    (0..count).map(|i| ((i * i * 31 + i * 7 + seed * 13) % vocabulary) as u32).collect()
}

fn start<'m>(model: &'m Model, pipeline: &Arc<PipelineConfig>, prompt: &[u32]) -> Session<'m> {
    let options = Options { storage: Storage::Bf16, ..Options::default() };
    let mut session = Session::new(model, &Cpu::default(), pipeline, &options).unwrap();
    session.prefill(prompt).unwrap();
    session
}

/// Returns the models of all cases and of a quantised file.
fn models() -> impl Iterator<Item = (String, Model)> {
    let folders = CASES.map(|name| (name.to_owned(), Model::open(&case(name)).unwrap()));
    let packed = [GgmlDType::Q4_1, GgmlDType::Q8_0].map(|dtype| {
        let (_folder, path) = quantised(dtype);
        (format!("{dtype:?}"), Model::open(&path).unwrap())
    });
    folders.into_iter().chain(packed)
}

#[test]
fn sequences_together_are_equal_to_sequences_alone() {
    let pipelines = [dense(), sparse(), promised(), snapkv()];
    for (name, model) in models() {
        for count in [2, 3, 17] {
            let prompt = |i: usize| tokens(&model, 40 + 3 * i, i);
            let begin = |i: usize| start(&model, &pipelines[i % pipelines.len()], &prompt(i));
            let mut alone: Vec<Session<'_>> = (0..count).map(begin).collect();
            let mut together: Vec<Session<'_>> = (0..count).map(begin).collect();
            for step in 0..3 {
                let next = |i: usize| tokens(&model, step + 1, i + 5)[step];
                let mut batch: Vec<_> = together
                    .iter_mut()
                    .enumerate()
                    .map(|(i, session)| (session, next(i)))
                    .collect();
                let results = Session::step_batch(&mut batch);
                for (i, (session, result)) in alone.iter_mut().zip(results).enumerate() {
                    let expected = session.step(next(i)).unwrap();
                    assert!(bits(&expected) == bits(&result.unwrap()), "{name}: {i} of {count}");
                }
            }
            for (alone, together) in alone.iter().zip(&together) {
                assert_eq!(alone.density(), together.density());
                assert_eq!(alone.len(), together.len());
            }
        }
    }
}

#[test]
fn a_few_known_tokens_are_equal_to_single_steps() {
    for (name, model) in models() {
        let (mut alone, new) =
            (start(&model, &sparse(), &tokens(&model, 50, 1)), tokens(&model, 9, 2));
        let mut together = alone.fork(None).unwrap();
        let found = together.steps(Vec::new(), &new).unwrap();
        let mut expected = Vec::new();
        for &token in &new {
            expected = alone.step(token).unwrap();
        }
        assert!(bits(&found) == bits(&expected), "{name}");
    }
}

#[test]
fn a_sequence_that_is_refused_leaves_the_others_alone() {
    let model = Model::open(&case("llama3")).unwrap();
    let begin = || start(&model, &dense(), &tokens(&model, 20, 0));
    let [mut alone, mut first, mut refused, mut last] = [(); 4].map(|()| begin());
    let wrong = model.config().vocab_size as u32;
    let mut results =
        Session::step_batch(&mut [(&mut first, 3), (&mut refused, wrong), (&mut last, 3)]);
    let expected = bits(&alone.step(3).unwrap());
    assert!(expected == bits(&results.pop().unwrap().unwrap()));
    let message = results.pop().unwrap().unwrap_err().to_string();
    assert!(message.contains("expected less than"), "{message}");
    assert!(expected == bits(&results.pop().unwrap().unwrap()));
    assert!(expected == bits(&refused.step(3).unwrap()), "the sequence is unchanged");
    assert!(Session::step_batch(&mut []).is_empty());
}

fn assert_same(found: &Prefilled, expected: &Prefilled, context: &str) {
    assert_eq!(found.tokens, expected.tokens);
    assert!(bits(&found.logits) == bits(&expected.logits), "{context}");
    for (found, expected) in found.layers.iter().zip(&expected.layers) {
        assert!(found.keys == expected.keys && found.values == expected.values, "{context}");
        assert!(found.queries == expected.queries, "{context}");
        assert_eq!(found.read_pairs, expected.read_pairs, "{context}");
    }
}

#[test]
fn prompts_in_blocks_are_equal_to_whole_prompts() {
    let sample = Strategy::SampleAttention(SampleAttention::default());
    for (name, model) in models() {
        for (count, block, observed, strategy) in
            [(1, 16, 4, Strategy::Dense), (48, 16, 4, Strategy::Dense), (75, 32, 64, sample)]
        {
            let options = PrefillOptions { block, observed, strategy };
            let prompt = tokens(&model, count, 3);
            let expected = model.prefill(&prompt, options).unwrap();
            let mut reader = PromptReader::new(&model, &prompt, options).unwrap();
            while !reader.is_finished() {
                reader.read_block();
            }
            let blocks: Vec<_> = (0..reader.sharable_blocks()).map(|i| reader.block(i)).collect();
            let context = format!("{name}, {count} tokens");
            assert_same(&reader.finish().unwrap(), &expected, &context);
            let mut reader = PromptReader::new(&model, &prompt, options).unwrap();
            for block in &blocks {
                reader.copy_block(block);
            }
            while !reader.is_finished() {
                reader.read_block();
            }
            assert_same(&reader.finish().unwrap(), &expected, &format!("{context}, copied"));
        }
    }
}

#[test]
fn scores_are_those_of_the_logits_after_each_token() {
    let model = Model::open(&case("qwen3")).unwrap();
    let prompt = tokens(&model, 70, 4);
    let options = PrefillOptions { block: 32, ..PrefillOptions::default() };
    let mut reader = PromptReader::new(&model, &prompt, options).unwrap();
    let mut scores: Vec<TokenLogprob> = Vec::new();
    while !reader.is_finished() {
        reader.read_block();
        scores.extend(reader.score_next_tokens(2).unwrap());
    }
    assert_eq!(scores.len(), prompt.len() - 1);
    for (i, score) in scores.iter().enumerate() {
        let logits = model.prefill(&prompt[..=i], options).unwrap().logits;
        let expected = score_token(&logits, prompt[i + 1], 2);
        assert_eq!(score.token, expected.token);
        assert!((score.logprob - expected.logprob).abs() < 1e-4, "token {i}");
        assert_eq!(score.top.len(), 2);
    }
}
