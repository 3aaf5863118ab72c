//! Tests of the engine: texts do not depend on what runs beside them, memory and queue are limited,
//! and clients may leave.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{Options, PipelineConfig, Storage};
use vattention_llm::{
    GenerationParams, Model, PrefillOptions, SamplingParams, Session, Stop, TextGenerator,
    TokenLogprob, Tokenizer, score_token,
};
use vattention_serve::{
    EngineHandle, EngineOptions, Event, Finished, Job, JobError, SubmitError, start_engine,
};
use {vattention_estimators as _, vattention_samplers as _, vattention_selectors as _};

const BLOCK: usize = 32;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Shipped model, its tokenizer, and pipelines of each kind: dense, with a promise, learning from
/// steps, and learning from the prompt.
struct World {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    pipelines: Vec<Arc<PipelineConfig>>,
}

impl World {
    fn open() -> Self {
        Self::open_model("models/recall")
    }

    /// Opens another model with the shipped model's tokenizer.
    fn open_model(path: &str) -> Self {
        let model = Model::open(&root().join(path)).unwrap();
        let tokenizer = Tokenizer::open(&root().join("models/recall"), model.config()).unwrap();
        let pipelines = ["dense", "priority", "h2o", "snapkv"].map(|name| {
            Loader::default().load(root().join(format!("configs/{name}.toml"))).unwrap()
        });
        Self { model: Arc::new(model), tokenizer: Arc::new(tokenizer), pipelines: pipelines.into() }
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            pipelines: self.pipelines.clone(),
            max_sequences: 16,
            max_queue: 1000,
            sequence_bytes: 1 << 30,
            cache_bytes: 0,
            cache_dir: None,
            cache_key: String::new(),
            storage: Storage::Bf16,
            block: BLOCK,
            when_idle: || {},
        }
    }

    fn start(&self, options: EngineOptions) -> EngineHandle {
        let (model, tokenizer) = (Arc::clone(&self.model), Arc::clone(&self.tokenizer));
        start_engine(model, tokenizer, Arc::new(Cpu::default()), options).unwrap()
    }

    /// Returns a prompt of `count` tokens; equal seeds have equal beginnings.
    fn prompt(&self, count: usize, seed: usize) -> Vec<u32> {
        let vocabulary = self.model.config().vocab_size;
        (0..count)
            .map(|i| (4 + (i * i * 17 + i * 5 + seed * 101) % (vocabulary - 4)) as u32)
            .collect()
    }

    /// Generates without an engine: a whole prompt, then single steps.
    fn generate_alone(&self, request: &Request) -> Answer {
        let pipeline = &self.pipelines[request.pipeline];
        let options = Options { storage: Storage::Bf16, ..Options::default() };
        let prefill = PrefillOptions { block: BLOCK, ..PrefillOptions::default() };
        let session = Session::new(&self.model, &Cpu::default(), pipeline, &options).unwrap();
        let session = session.with_classes(self.tokenizer.classes_for(pipeline).unwrap());
        let mut session = session.with_prefill_options(prefill);
        let (dense, known) = request.prompt.split_at(request.dense_prefix);
        let mut logits = session.prefill(dense).unwrap();
        let mut scores = Vec::new();
        for &token in known {
            scores.push(score_token(&logits, token, 1));
            logits = session.step(token).unwrap();
        }
        let (params, config) = (&request.params, self.model.config());
        let mut generator =
            TextGenerator::new(params, &self.tokenizer, config, &request.prompt).unwrap();
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let stop = loop {
            let generated = generator.choose(&logits).unwrap();
            tokens.push(generated.choice.token);
            text.push_str(&generated.text);
            match generated.stop {
                Some(stop) => break stop,
                None => logits = session.step(generated.choice.token).unwrap(),
            }
        };
        text.push_str(&generator.finish().unwrap());
        Answer { text, tokens, stop, scores }
    }
}

#[derive(Clone)]
struct Request {
    pipeline: usize,
    prompt: Vec<u32>,
    dense_prefix: usize,
    params: GenerationParams,
}

impl Request {
    /// Returns the request with this number of 200 that differ in everything.
    fn numbered(world: &World, i: usize) -> Self {
        let prompt = world.prompt(20 + i * 13 % 150, i % 9);
        let sampling = SamplingParams {
            temperature: [0.0, 0.7, 1.3][i % 3],
            top_p: [1.0, 0.9][i % 2],
            top_k: [0, 40][i / 2 % 2],
            repetition_penalty: [1.0, 1.1][i / 3 % 2],
            seed: i as u64,
            ..SamplingParams::default()
        };
        let dense_prefix = if i.is_multiple_of(5) { prompt.len() / 2 } else { prompt.len() };
        let params = GenerationParams { sampling, ..GenerationParams::new(3 + i % 12) };
        Self { pipeline: i % world.pipelines.len(), prompt, dense_prefix, params }
    }

    fn submit(&self, engine: &EngineHandle) -> Result<UnboundedReceiver<Event>, SubmitError> {
        let (events, receiver) = unbounded_channel();
        let scored = self.dense_prefix < self.prompt.len();
        let job = Job {
            pipeline: self.pipeline,
            prompt: self.prompt.clone(),
            dense_prefix: Some(self.dense_prefix),
            params: self.params.clone(),
            prompt_logprobs: scored.then_some(1),
            reports: true,
            events,
        };
        engine.submit(job).map(|()| receiver)
    }
}

#[derive(Debug, PartialEq)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    stop: Stop,
    /// Scores of the prompt's tokens after the dense prefix.
    scores: Vec<TokenLogprob>,
}

/// Receives all events of a job.
async fn receive(mut events: UnboundedReceiver<Event>) -> Result<(Answer, Finished), JobError> {
    let (mut text, mut tokens, mut scores) = (String::new(), Vec::new(), Vec::new());
    while let Some(event) = events.recv().await {
        match event {
            Event::PromptScores(found) => scores = found,
            Event::Token(token) => {
                text.push_str(&token.text);
                tokens.push(token.choice.token);
                if let Some(report) = token.report {
                    assert!([3, 4].contains(&report.density.len()), "layers");
                    assert!(report.density.iter().all(|heads| heads.len() == 2), "KV heads");
                    assert!(
                        report.density.iter().flatten().all(|share| (0.0..=1.0).contains(share))
                    );
                }
            }
            Event::Finished(finished) => {
                text.push_str(&finished.text);
                let stop = finished.stop.clone();
                return Ok((Answer { text, tokens, stop, scores }, finished));
            }
            Event::Failed(error) => return Err(error),
        }
    }
    panic!("events end without a last one");
}

#[tokio::test]
async fn two_hundred_texts_do_not_depend_on_their_neighbours() {
    check_independence(&World::open(), 200).await;
}

/// Prompts are longer than the windows, and share blocks.
#[tokio::test]
async fn texts_of_models_with_sliding_layers_do_not_depend_on_their_neighbours() {
    for name in ["gemma2", "gpt-oss"] {
        let world = World::open_model(&format!("runtime/llm/tests/golden/{name}"));
        check_independence(&world, 40).await;
    }
}

async fn check_independence(world: &World, count: usize) {
    let requests: Vec<Request> = (0..count).map(|i| Request::numbered(world, i)).collect();
    for cache_bytes in [0, 1 << 30] {
        let engine = world.start(EngineOptions { cache_bytes, ..world.options() });
        let receivers: Vec<_> = requests.iter().map(|it| it.submit(&engine).unwrap()).collect();
        for (i, (request, events)) in requests.iter().zip(receivers).enumerate() {
            let (mut answer, finished) = receive(events).await.unwrap();
            let expected = world.generate_alone(request);
            // The scores of the dense prefix come first.
            answer.scores.drain(..answer.scores.len() - expected.scores.len());
            assert_eq!(answer, expected, "request {i}");
            assert_eq!(finished.usage.prompt_tokens, request.prompt.len());
        }
        let metrics = engine.metrics();
        assert_eq!(metrics.cached_tokens > 0, cache_bytes > 0, "{metrics:?}");
        assert_eq!(metrics.pipelines.len(), 4);
        engine.shut_down(Duration::from_mins(1)).await;
        assert!(engine.is_shutting_down());
        assert_eq!(requests[0].submit(&engine).unwrap_err(), SubmitError::ShuttingDown);
    }
}

/// Returns a request for `max_tokens` tokens with a promise.
fn ask(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let dense_prefix = prompt.len();
    let params = GenerationParams { ignore_eos: true, ..GenerationParams::new(max_tokens) };
    Request { pipeline: 1, prompt, dense_prefix, params }
}

#[tokio::test]
async fn cached_blocks_are_found_in_memory_and_in_files() {
    let world = World::open();
    let folder = tempfile::tempdir().unwrap();
    let cache_dir = Some(folder.path().join("blocks"));
    let options = EngineOptions { cache_bytes: 1 << 30, cache_dir, ..world.options() };
    let request = ask(world.prompt(200, 3), 5);
    let cached = async |engine: &EngineHandle| {
        let (answer, finished) = receive(request.submit(engine).unwrap()).await.unwrap();
        assert_eq!(answer, world.generate_alone(&request));
        finished.usage.cached_tokens
    };
    let engine = world.start(options.clone());
    assert_eq!(cached(&engine).await, 0);
    assert_eq!(cached(&engine).await, 200);
    engine.shut_down(Duration::from_mins(1)).await;
    // Files have blocks only. The last 64 tokens are read again, since selectors observe their
    // queries.
    let restarted = world.start(options.clone());
    assert_eq!(cached(&restarted).await, 128);
    restarted.shut_down(Duration::from_mins(1)).await;
    // Damaged files are read again.
    for (i, entry) in std::fs::read_dir(folder.path().join("blocks")).unwrap().enumerate() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        match i {
            0 => bytes.truncate(100),
            1 => bytes.clear(),
            _ => {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
    for expected in [0, 128] {
        let restarted = world.start(options.clone());
        assert_eq!(cached(&restarted).await, expected);
        restarted.shut_down(Duration::from_mins(1)).await;
    }
    // Another model's files have other blocks.
    let other = world.start(EngineOptions { cache_key: "another".into(), ..options });
    assert_eq!(cached(&other).await, 0);
    other.shut_down(Duration::from_mins(1)).await;
}

/// The first file of a prompt is a named pipe, whose other end nobody has opened.
#[cfg(unix)]
#[tokio::test]
async fn streams_continue_while_a_file_is_read() {
    let world = World::open();
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        cache_bytes: 1 << 30,
        cache_dir: Some(folder.path().into()),
        ..world.options()
    };
    let request = ask(world.prompt(64 + BLOCK, 3), 3);
    let engine = world.start(options.clone());
    receive(request.submit(&engine).unwrap()).await.unwrap();
    engine.shut_down(Duration::from_mins(1)).await;
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let engine = world.start(options);
    let mut stream = ask(world.prompt(10, 0), 500).submit(&engine).unwrap();
    assert!(matches!(stream.recv().await, Some(Event::Token(_))));
    let mut waiting = request.submit(&engine).unwrap();
    let stream = tokio::time::timeout(Duration::from_mins(1), receive(stream));
    assert_eq!(stream.await.unwrap().unwrap().0.tokens.len(), 499);
    // The engine still serves its queue, whose client has left.
    drop(ask(world.prompt(10, 1), 1).submit(&engine).unwrap());
    while engine.metrics().cancelled == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(waiting.try_recv().is_err());
    // An empty file counts as damaged.
    tokio::task::spawn_blocking(move || std::fs::write(file, []).unwrap()).await.unwrap();
    let (answer, finished) = receive(waiting).await.unwrap();
    assert_eq!(answer, world.generate_alone(&request));
    assert_eq!(finished.usage.cached_tokens, 0);
    engine.shut_down(Duration::ZERO).await;
}

/// Choices of one request arrive together; all but the first copy the whole prompt.
#[tokio::test]
async fn a_prompt_is_read_once_for_all_choices() {
    let world = World::open();
    let engine = world.start(EngineOptions { cache_bytes: 1 << 30, ..world.options() });
    let request = ask(world.prompt(200, 4), 3);
    let receivers: Vec<_> = (0..5).map(|_| request.submit(&engine).unwrap()).collect();
    let expected = world.generate_alone(&request);
    let mut cached = Vec::new();
    for events in receivers {
        let (answer, finished) = receive(events).await.unwrap();
        assert_eq!(answer, expected);
        cached.push(finished.usage.cached_tokens);
    }
    assert_eq!(cached, [0, 200, 200, 200, 200]);
    assert_eq!(engine.metrics().prompt_tokens, 200);
    engine.shut_down(Duration::from_mins(1)).await;
}

#[tokio::test]
async fn the_cache_keeps_its_limit() {
    let world = World::open();
    // Two heads of 64 keys and 64 values in three layers.
    let block = (BLOCK * 3 * 2 * 128 * 4) as u64;
    let folder = tempfile::tempdir().unwrap();
    let cache_dir = Some(folder.path().into());
    let options = EngineOptions { cache_bytes: 5 * block, cache_dir, ..world.options() };
    let engine = world.start(options);
    for seed in 0..6 {
        let request = ask(world.prompt(64 + 4 * BLOCK, seed), 1);
        receive(request.submit(&engine).unwrap()).await.unwrap();
    }
    engine.shut_down(Duration::from_mins(1)).await;
    let metrics = engine.metrics();
    assert!((block..=5 * block).contains(&metrics.cache_bytes), "{metrics:?}");
    let files = std::fs::read_dir(folder.path()).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!((block..=5 * block).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn queue_and_memory_are_limited() {
    let world = World::open();
    let options = EngineOptions { max_queue: 2, sequence_bytes: 1 << 20, ..world.options() };
    let engine = world.start(options);
    // A token needs 1,536 bytes, and those of prompts 3,072 more while they are read.
    let error = ask(world.prompt(10, 0), 700).submit(&engine).unwrap_err();
    let expected = SubmitError::TooLarge { needed: 710 * 1536 + 10 * 3072, limit: 1 << 20 };
    assert_eq!(error, expected);
    let long = ask(world.prompt(10, 0), 600);
    let mut receivers = Vec::new();
    let refused = loop {
        match long.submit(&engine) {
            Ok(events) => receivers.push(events),
            Err(error) => break error,
        }
        assert!(receivers.len() < 1000, "the queue has no limit");
    };
    assert_eq!(refused, SubmitError::QueueFull);
    // Only one fits into memory, and the others wait for it.
    assert!(engine.metrics().running <= 1);
    drop(receivers);
    // All clients have left; the next one is answered.
    let (answer, _) = loop {
        match ask(world.prompt(10, 0), 3).submit(&engine) {
            Ok(events) => break receive(events).await.unwrap(),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(answer.tokens.len(), 3);
    engine.shut_down(Duration::from_mins(1)).await;
    assert!(engine.metrics().cancelled > 0);
}

#[tokio::test]
async fn an_engine_without_jobs_reports_that_it_is_idle() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let world = World::open();
    let when_idle = || {
        CALLS.fetch_add(1, Ordering::SeqCst);
    };
    let engine = world.start(EngineOptions { when_idle, ..world.options() });
    for calls in 1..3 {
        let called = async {
            while CALLS.load(Ordering::SeqCst) < calls {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), called).await.unwrap();
        receive(ask(world.prompt(10, 0), 3).submit(&engine).unwrap()).await.unwrap();
    }
    engine.shut_down(Duration::from_mins(1)).await;
}

/// Each block of a prompt is followed by a step of all other sequences.
#[tokio::test]
async fn a_stream_continues_while_another_prompt_is_read() {
    let world = World::open();
    let engine = world.start(world.options());
    let mut stream = ask(world.prompt(10, 0), 5000).submit(&engine).unwrap();
    assert!(matches!(stream.recv().await, Some(Event::Token(_))));
    let blocks = 12;
    let mut long = ask(world.prompt(blocks * BLOCK, 1), 1).submit(&engine).unwrap();
    let mut before = 0;
    while stream.try_recv().is_ok() {
        before += 1;
    }
    assert!(matches!(long.recv().await, Some(Event::Token(_))));
    let mut during = 0;
    while let Ok(event) = stream.try_recv() {
        assert!(matches!(event, Event::Token(_)));
        during += 1;
    }
    assert!(during + before >= blocks - 1, "{during} tokens during {blocks} blocks");
}

#[tokio::test]
async fn wrong_jobs_fail_alone() {
    let world = World::open();
    let engine = world.start(world.options());
    let good = ask(world.prompt(100, 0), 20).submit(&engine).unwrap();
    let unknown = ask(vec![1_000_000], 1).submit(&engine).unwrap();
    let long = ask(world.prompt(100, 0), 20_000).submit(&engine).unwrap();
    let empty = ask(Vec::new(), 1).submit(&engine).unwrap();
    for (events, part) in [
        (unknown, "expected less than"),
        (long, "max_position_embeddings"),
        (empty, "expected at least 1"),
    ] {
        let JobError::Input(message) = receive(events).await.unwrap_err() else { panic!() };
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(receive(good).await.unwrap().0.tokens.len(), 20);
}

#[tokio::test]
async fn a_shutdown_without_patience_cancels() {
    let world = World::open();
    let engine = world.start(world.options());
    let events = ask(world.prompt(100, 0), 10_000).submit(&engine).unwrap();
    engine.shut_down(Duration::ZERO).await;
    assert!(matches!(receive(events).await, Err(JobError::ShuttingDown)));
}

#[tokio::test]
async fn prompts_may_be_scored_without_an_answer() {
    let world = World::open();
    let engine = world.start(world.options());
    let prompt = world.prompt(90, 1);
    for dense_prefix in [40, 90] {
        let request = Request { pipeline: 0, dense_prefix, ..ask(prompt.clone(), 0) };
        let (events, receiver) = unbounded_channel();
        let job = Job {
            pipeline: 0,
            prompt: request.prompt.clone(),
            dense_prefix: Some(dense_prefix),
            params: request.params,
            prompt_logprobs: Some(2),
            reports: false,
            events,
        };
        engine.submit(job).unwrap();
        let (answer, finished) = receive(receiver).await.unwrap();
        assert_eq!((answer.text.as_str(), answer.tokens.len()), ("", 0));
        assert_eq!(answer.stop, Stop::Length);
        assert_eq!(finished.usage.completion_tokens, 0);
        let tokens: Vec<u32> = answer.scores.iter().map(|score| score.token).collect();
        assert_eq!(tokens, prompt[1..]);
        assert!(answer.scores.iter().all(|score| score.logprob <= 0.0 && score.top.len() == 2));
    }
}
