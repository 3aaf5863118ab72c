//! Steps with drafts: logits, reports and the sequence are bitwise equal to those of single steps.

use std::sync::Arc;

use proptest::prelude::*;
use vattention_backends::{Cpu, Reference};
use vattention_config::Loader;
use vattention_core::{
    Attention, Backend, FallBack, Options, PipelineConfig, RowReport, Shape, Storage,
    engine::{SequencePoint, Wrapper, wrap},
};
use vattention_llm::{
    Config, DraftCounts, Generation, GenerationParams, Grammar, MOST_DRAFTS, Model, SamplingParams,
    Session, Speculation, TextGenerator, TokenLogprob, Tokenizer,
};
use vattention_samplers as _;

use crate::common::{CASES, case, dense, promised, snapkv, sparse};

const PERIOD: u32 = 23;

/// Text that repeats itself, except for the tokens at some positions.
fn text(len: u32, differs: impl Fn(u32) -> bool) -> Vec<u32> {
    (0..len).map(|i| if differs(i) { 90 + i % 7 } else { i % PERIOD * 5 % 89 }).collect()
}

/// Sink, window, and a sample by codes whose first size is learned.
fn priority(index: &str) -> Arc<PipelineConfig> {
    let text = format!(
        r#"
        share = "group"

        [[selectors]]
        type = "sink"
        size = 4

        [[selectors]]
        type = "window"
        size = 8

        [sampler]
        type = "priority"
        index = "{index}"
        base = 16

        [estimator]
        type = "ratio"
        epsilon = 0.3
        delta = 0.2
    "#
    );
    Loader::default().parse("priority.toml", &text).unwrap()
}

/// Quest, labels of channels, and a stratified sample by their scores.
fn pages() -> Arc<PipelineConfig> {
    let text = r#"
        [[selectors]]
        type = "quest"
        size = 32
        page = 8

        [sampler]
        type = "stratified"
        base = 32

        [estimator]
        type = "ratio"
        delta = 0.1
        size = 64
    "#;
    Loader::default().parse("pages.toml", text).unwrap()
}

fn start<'m>(
    model: &'m Model,
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
    storage: Storage,
    drafts: usize,
    prompt: &[u32],
) -> Session<'m> {
    let fall_back = FallBack::Never;
    let options = Options { storage, fall_back, rewindable: drafts, ..Options::default() };
    let mut session = Session::new(model, backend, pipeline, &options).unwrap();
    session.prefill(prompt).unwrap();
    session
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|number| number.to_bits()).collect()
}

fn rows(session: &Session<'_>) -> Vec<Vec<RowReport>> {
    session.reports().iter().map(|report| report.rows.clone()).collect()
}

/// Adds tokens with drafts and without, and checks that the results are the same; also those of the
/// steps after the drafts are given back.
fn check(
    mut single: Session<'_>,
    mut drafted: Session<'_>,
    prompt: &[u32],
    new: &[u32],
) -> DraftCounts {
    let mut steps = Speculation::new(&mut drafted, prompt).unwrap();
    for (i, &token) in new.iter().enumerate() {
        let expected = single.step(token).unwrap();
        assert!(bits(&steps.step(token).unwrap()) == bits(&expected), "logits of token {i}");
        assert_eq!(rows(steps.session()), rows(&single), "reports of token {i}");
        assert_eq!(steps.session().len(), single.len());
        assert_eq!(steps.session().density(), single.density());
    }
    let counts = steps.counts();
    drop(steps);
    assert_eq!(drafted.index_bytes(), single.index_bytes());
    for token in [3, 8, 3] {
        assert!(bits(&drafted.step(token).unwrap()) == bits(&single.step(token).unwrap()));
        assert_eq!(rows(&drafted), rows(&single));
    }
    let mut forks = [drafted.fork(None).unwrap(), single.fork(None).unwrap()];
    let [a, b] = forks.each_mut().map(|fork| bits(&fork.step(4).unwrap()));
    assert!(a == b);
    counts
}

/// Drafts are accepted and refused, within and across blocks and chunks of the index and the cache.
#[test]
fn steps_with_drafts_are_equal_to_single_steps() {
    let model = Model::open(&case("llama3")).unwrap();
    let tokens = text(330, |i| i % 31 == 7 || i % 47 == 5);
    let (prompt, new) = tokens.split_at(160);
    let pipelines =
        [dense(), sparse(), promised(), snapkv(), pages(), priority("2-bit"), priority("8-bit")];
    for pipeline in &pipelines {
        for (drafts, storage) in [1, 3, 7, MOST_DRAFTS].into_iter().zip(Storage::ALL) {
            let begin = |drafts| start(&model, &Cpu::default(), pipeline, storage, drafts, prompt);
            let DraftCounts { drafted, accepted } = check(begin(0), begin(drafts), prompt, new);
            let most = if drafts == 1 { 150 } else { 2 * new.len() };
            assert!(
                accepted > 40 && accepted < drafted && drafted < most,
                "{accepted} of {drafted}"
            );
        }
    }
}

/// The CPU's backend, whose layers do not restore the first sizes of samples when they return.
struct ForgetfulBackend;

#[derive(Clone)]
struct SizesStay;

impl Backend for ForgetfulBackend {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    fn summary(&self) -> &'static str {
        "the CPU's, with a mistake for a test"
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> vattention_core::Result<Box<dyn Attention>> {
        Ok(wrap(Cpu::default().start(pipeline, layer, shape, options)?, SizesStay))
    }
}

impl Wrapper for SizesStay {
    fn rewind(
        &mut self,
        inner: &mut dyn Attention,
        to: &SequencePoint,
    ) -> vattention_core::Result<()> {
        let first_sizes = inner.checkpoint()?.first_sizes;
        inner.rewind(&SequencePoint { first_sizes, ..to.clone() })
    }

    fn fork(&self, _: Option<u32>) -> vattention_core::Result<Self> {
        Ok(Self)
    }
}

#[test]
#[should_panic(expected = "of token")]
fn sizes_that_are_not_restored_change_later_steps() {
    let model = Model::open(&case("llama3")).unwrap();
    let tokens = text(330, |i| i % 31 == 7 || i % 47 == 5);
    let (prompt, new) = tokens.split_at(160);
    let begin =
        |drafts| start(&model, &ForgetfulBackend, &priority("2-bit"), Storage::F32, drafts, prompt);
    check(begin(0), begin(7), prompt, new);
}

/// Layers that slide keep the rows that steps after refused drafts read.
#[test]
fn all_families_return_from_drafts() {
    let tokens = text(150, |i| i % 31 == 7);
    let (prompt, new) = tokens.split_at(80);
    for name in CASES {
        let model = Model::open(&case(name)).unwrap();
        let backends: [&dyn Backend; 2] = [&Cpu::default(), &Reference];
        for (backend, pipeline) in backends.into_iter().zip([priority("2-bit"), sparse()]) {
            let begin = |drafts| start(&model, backend, &pipeline, Storage::Bf16, drafts, prompt);
            let counts = check(begin(0), begin(5), prompt, new);
            assert!(counts.accepted > 10, "{name}: {counts:?}");
        }
    }
}

#[test]
fn without_drafts_and_at_the_end_of_the_context_steps_are_single() {
    let model = Model::open(&case("llama3")).unwrap();
    let tokens = text(model.config().context as u32, |_| false);
    let (prompt, new) = tokens.split_at(tokens.len() - 40);
    let begin = |drafts| start(&model, &Cpu::default(), &dense(), Storage::F32, drafts, prompt);
    let mut session = begin(7);
    let mut single = begin(0);
    let mut steps = Speculation::new(&mut session, prompt).unwrap();
    for &token in new {
        assert!(bits(&steps.step(token).unwrap()) == bits(&single.step(token).unwrap()));
    }
    assert!(steps.counts().accepted > 20);
    assert_eq!(steps.step(1).unwrap_err().to_string(), single.step(1).unwrap_err().to_string());
    drop(steps);
    assert_eq!(session.len(), tokens.len());
    let mut plain = begin(0);
    let mut steps = Speculation::new(&mut plain, prompt).unwrap();
    for &token in new {
        steps.step(token).unwrap();
    }
    assert_eq!(steps.counts(), DraftCounts::default());
}

#[test]
fn a_session_with_unused_drafts_does_nothing_else() {
    let model = Model::open(&case("llama3")).unwrap();
    let prompt = text(100, |_| false);
    let mut session = start(&model, &Cpu::default(), &dense(), Storage::F32, 7, &prompt);
    let mut steps = Speculation::new(&mut session, &prompt).unwrap();
    for token in text(110, |_| false).split_off(100) {
        steps.step(token).unwrap();
    }
    assert!(steps.session().fork(None).is_err());
    drop(steps);
    assert!(session.fork(None).is_ok());
}

#[test]
fn selectors_that_cannot_remove_tokens_are_named() {
    let model = Model::open(&case("llama3")).unwrap();
    for (name, toml) in [
        ("h2o", "[[selectors]]\ntype = \"h2o\"\nheavy = 20\nrecent = 20"),
        ("lsh", "share = \"head\"\n[sampler]\ntype = \"lsh\"\ntables = 20\nbits = 4"),
    ] {
        let pipeline = Loader::default().parse("refused.toml", toml).unwrap();
        let mut session =
            start(&model, &Cpu::default(), &pipeline, Storage::F32, 3, &text(60, |_| false));
        let error = Speculation::new(&mut session, &[]).err().unwrap().to_string();
        assert!(error.contains(&format!("`{name}` cannot remove tokens")), "{error}");
        let error = session.check_rewindable().unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// Text of a generation, the log-probabilities of its tokens, and its end.
#[derive(Debug, PartialEq)]
struct Answer {
    generation: Generation,
    text: String,
    scores: Vec<TokenLogprob>,
    reports: Vec<Vec<Vec<RowReport>>>,
}

/// Generates an answer, with the number of drafts that the session allows.
fn answer(
    mut session: Session<'_>,
    logits: Vec<f32>,
    mut generator: TextGenerator<'_>,
    prompt: &[u32],
) -> (Answer, DraftCounts) {
    let mut steps = Speculation::new(&mut session, prompt).unwrap();
    let (mut text, mut scores, mut reports) = (String::new(), Vec::new(), Vec::new());
    let mut logits = logits;
    let stop = loop {
        let token = generator.choose(&logits).unwrap();
        text += &token.text;
        let id = token.choice.token;
        scores.push(token.choice);
        if let Some(stop) = token.stop {
            break stop;
        }
        logits = steps.step(id).unwrap();
        reports.push(rows(steps.session()));
    };
    text += &generator.finish().unwrap();
    let generation = Generation { tokens: generator.tokens().to_vec(), stop };
    (Answer { generation, text, scores, reports }, steps.counts())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24, failure_persistence: None, ..ProptestConfig::default()
    })]
    /// Greedy and sampled answers are the same with drafts, with stop strings, grammars, penalties
    /// and limits.
    #[test]
    fn answers_with_drafts_are_equal(
        seed in 0_u64..1000,
        temperature in prop::sample::select(&[0.0_f32, 0.3, 1.0][..]),
        drafts in 1_usize..9,
        max_tokens in 1_usize..60,
        repetition_penalty in prop::sample::select(&[1.0_f32, 1.1][..]),
        stop in prop::sample::select(&["", "e", "th", "zz"][..]),
        grammar in prop::sample::select(&[None, Some("(ab|the |[a-z]{1,3})+"), Some("(ab )+")][..]),
        sampled in any::<bool>(),
    ) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../cli/tests/golden/chat.gguf");
        let (model, config) = (Model::open(&path).unwrap(), Config::open(&path).unwrap());
        let tokenizer = Tokenizer::open(&path, &config).unwrap();
        let prompt = tokenizer.first(&"ab ab the cat ab ab the dog ab ab ".repeat(6)).unwrap();
        let params = GenerationParams {
            sampling: SamplingParams {
                temperature, repetition_penalty, seed, min_p: 0.01, ..SamplingParams::default()
            },
            stop: if stop.is_empty() { Vec::new() } else { vec![stop.to_owned()] },
            ignore_eos: grammar.is_none() && seed % 2 == 0,
            logprobs: 2,
            grammar: grammar
                .map(|regex| tokenizer.compile_grammar(&Grammar::Regex(regex.into())).unwrap()),
            ..GenerationParams::new(max_tokens)
        };
        let pipeline = if sampled { priority("2-bit") } else { dense() };
        let run = |drafts| {
            let options = Options { rewindable: drafts, ..Options::default() };
            let mut session = Session::new(&model, &Cpu::default(), &pipeline, &options).unwrap();
            let logits = session.prefill(&prompt).unwrap();
            let generator = TextGenerator::new(&params, &tokenizer, &config, &prompt).unwrap();
            answer(session, logits, generator, &prompt)
        };
        let ((found, _), (expected, none)) = (run(drafts), run(0));
        prop_assert_eq!(none, DraftCounts::default());
        prop_assert_eq!(found, expected);
    }
}
