//! Evaluations of the shipped model, and the cache of answers.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{FallBack, Fraction, Options, PipelineConfig, engine::Selection};
use vattention_evaluate::{
    AnswerCache, Error, Evaluation, EvaluationReport, EvaluationSettings, FileDigests,
    LayerAttention, LazyWeights, ObservedBackend, Observer, Setup, Variant, fingerprint,
};
use vattention_experiments::{self as experiments, Evidence, Header, Part, Shard, merge_results};
use vattention_llm::{
    LayerPrompt, Model, PrefillOptions, SampleAttention, Session, Strategy, Tokenizer,
};
use vattention_tasks::{Task, Texts};
use {vattention_estimators as _, vattention_selectors as _};

const EDGES: &str = r#"
    name = "edges"

    [[selectors]]
    type = "sink"
    size = 8

    [[selectors]]
    type = "window"
    size = 24
"#;

/// Parses a pipeline of sink, window and further settings.
fn pipeline(name: &str, more: &str) -> Arc<PipelineConfig> {
    let text = EDGES.replace("edges", name);
    Loader::default().parse("test.toml", &format!("{text}\n{more}")).unwrap()
}

fn dense() -> Arc<PipelineConfig> {
    Loader::default().parse("dense.toml", "name = \"dense\"").unwrap()
}

const TOP_K: &str = "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.05";
const PROMISE: &str =
    "[sampler]\nbase = 32\n[estimator]\ntype = \"ratio\"\nepsilon = 0.2\ndelta = 0.1";

/// The shipped model and its vocabulary.
struct World {
    dir: PathBuf,
    model: Model,
    tokenizer: Tokenizer,
    texts: Texts,
    backend: Cpu,
}

impl World {
    fn new() -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall");
        let model = Model::open(&dir).unwrap();
        let tokenizer = Tokenizer::open(&dir, model.config()).unwrap();
        let texts = Texts::open(&dir.join("vocabulary.json")).unwrap();
        Self { dir, model, tokenizer, texts, backend: Cpu::default() }
    }

    /// Creates an evaluation on short texts.
    fn evaluation(&self, setup: Setup, seed: u64) -> Evaluation<'_> {
        let settings = EvaluationSettings {
            tasks: vec![Task::NiahSingle1, Task::Vt],
            contexts: vec![300, 400],
            cases: 2,
            seed,
            setup,
            prefill: Strategy::Dense,
            talk: None,
            errors: true,
            leave_out_below: 0.0,
            at_once: NonZeroUsize::MIN,
            options: Options { fall_back: FallBack::Never, ..Options::default() },
        };
        Evaluation {
            config: self.model.config(),
            weights: LazyWeights::Loaded(&self.model),
            fingerprint: fingerprint(&self.dir).unwrap(),
            tokenizer: &self.tokenizer,
            texts: &self.texts,
            backend: &self.backend,
            settings,
            files: FileDigests::default(),
        }
    }
}

fn variants() -> Vec<Variant> {
    let pipelines = [
        dense(),
        pipeline("edges", ""),
        pipeline("top-k", TOP_K),
        pipeline("promise", &format!("{TOP_K}\n{PROMISE}")),
    ];
    pipelines.into_iter().map(Variant::untuned).collect()
}

fn run(evaluation: &Evaluation<'_>, cache: &mut AnswerCache) -> EvaluationReport {
    evaluation.run(&variants(), cache, &|_, _| ()).unwrap()
}

#[test]
fn answers_are_right_if_the_pipeline_reads_the_needle() {
    let world = World::new();
    let report = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::default());
    let [dense, edges, top_k, promise] = &report.variants[..] else { panic!() };

    assert_eq!((dense.density, dense.error), (Some(1.0), Some(0.0)));
    assert!(dense.accuracy > 0.95 && top_k.accuracy > 0.95 && promise.accuracy > 0.95);
    assert!(edges.accuracy < 0.3, "{}", edges.accuracy);

    assert!(edges.density < top_k.density && top_k.density < promise.density);
    assert!(edges.error > top_k.error && top_k.error > promise.error);
    assert!(promise.largest_error > promise.error);
    assert_eq!((dense.violations, edges.violations), (None, None));
    let violations = promise.violations.unwrap();
    assert!(violations.violated * 10 < violations.checked, "{promise:?}");
    assert_eq!((violations.checked, promise.evidence), (promise.rows, Some(Evidence::WithinDelta)));

    // The density is that of a KV head, also if its query heads have separate token lists.
    let apart = format!("share = \"head\"\n{EDGES}\n{TOP_K}");
    let apart = Variant::untuned(Loader::default().parse("apart.toml", &apart).unwrap());
    let evaluation = world.evaluation(Setup::B, 0);
    let report = evaluation.run(&[apart], &mut AnswerCache::default(), &|_, _| ()).unwrap();
    let [density, shared] = [&report.variants[0], top_k].map(|variant| variant.density.unwrap());
    assert!((density - shared).abs() < 0.01, "{density}, {shared}");
}

#[test]
fn records_are_in_the_order_of_cases_and_variants() {
    let world = World::new();
    let report = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::default());
    let [dense, edges, ..] = &report.variants[..] else { panic!() };
    assert_eq!(report.records.len(), 2 * 2 * 2 * 4);
    let places: Vec<_> =
        dense.scores.iter().map(|score| (score.task.as_str(), score.context)).collect();
    let tasks = ["niah_single_1", "vt"];
    assert_eq!(places, [(tasks[0], 300), (tasks[1], 300), (tasks[0], 400), (tasks[1], 400)]);
    let mean = edges.scores.iter().map(|score| score.accuracy).sum::<f64>() / 4.0;
    assert!((edges.accuracy - mean).abs() < 1e-12);
}

#[test]
fn the_pipeline_reads_the_question_in_setup_b_only() {
    let world = World::new();
    let rows = |setup| {
        let report = run(&world.evaluation(setup, 0), &mut AnswerCache::default());
        (report.variants[1].rows, report.variants[1].accuracy)
    };
    let (a, b) = (rows(Setup::A), rows(Setup::B));
    assert!(2 * a.0 < b.0, "{a:?}, {b:?}");
    assert!(a.1 > b.1, "tokens of a dense prefill contain the answer: {a:?}, {b:?}");
}

#[test]
fn parallel_cases_have_the_same_answers() {
    let world = World::new();
    let one_by_one = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::default());
    let mut parallel = world.evaluation(Setup::B, 0);
    parallel.settings.at_once = NonZeroUsize::new(3).unwrap();
    let (answered, last) = (Mutex::new(0), variants().len() * 8);
    let count = |done: usize, total: usize| {
        let mut answered = answered.lock().unwrap();
        *answered += 1;
        assert_eq!((done, total), (*answered, last));
    };
    let report = parallel.run(&variants(), &mut AnswerCache::default(), &count).unwrap();
    assert!(report.records == one_by_one.records);
    assert_eq!(answered.into_inner().unwrap(), last);
}

#[test]
fn an_evaluation_continues_from_stored_answers() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("answers.jsonl");
    let whole = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::open(&path).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), whole.records.len());

    // The file is cut in the middle of a line, and one answer is changed to one that no run gives.
    let cut = text.len() * 2 / 3;
    assert_ne!(&text[cut - 1..cut], "\n");
    let answer = &whole.records[0].attended.answer;
    fs::write(&path, text[..cut].replacen(answer, "kept", 1)).unwrap();
    let again = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::open(&path).unwrap());
    assert_eq!(again.records[0].attended.answer, "kept");
    assert!(again.records[1..] == whole.records[1..], "only what was changed differs");
    assert_eq!(fs::read_to_string(&path).unwrap(), text.replacen(answer, "kept", 1));

    // Answers with other inputs are computed again.
    let other = pipeline("top-k", &TOP_K.replace("0.05", "0.06"));
    let evaluation = world.evaluation(Setup::B, 0);
    let mut cache = AnswerCache::open(&path).unwrap();
    evaluation.run(&[Variant::untuned(other)], &mut cache, &|_, _| ()).unwrap();
    let lines = || fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!(lines(), whole.records.len() + 8, "another pipeline of the same name");
    let words = fs::read_to_string(world.dir.join("vocabulary.json")).unwrap();
    let words = words.replace("The grass is green.", "The sky is yellow.");
    fs::write(folder.path().join("words.json"), words).unwrap();
    let texts = Texts::open(&folder.path().join("words.json")).unwrap();
    let evaluation = Evaluation { texts: &texts, ..world.evaluation(Setup::B, 0) };
    evaluation.run(&[Variant::untuned(dense())], &mut cache, &|_, _| ()).unwrap();
    assert_eq!(lines(), whole.records.len() + 16, "other texts with the same answers");
    drop(cache);
    for other in [world.evaluation(Setup::A, 0), world.evaluation(Setup::B, 1)] {
        let report = run(&other, &mut AnswerCache::open(&path).unwrap());
        assert!(report.records.iter().all(|record| record.attended.answer != "kept"));
    }
}

#[test]
fn other_files_are_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    for (text, line) in [("a note", 1), ("a note\n", 1), ("{\"digest\":\"1\"}\n", 1)] {
        fs::write(&path, text).unwrap();
        let message = AnswerCache::open(&path).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{}, line {line}: ", path.display())), "{message}");
        assert!(message.ends_with("wrote"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    let message = AnswerCache::open(folder.path()).unwrap_err().to_string();
    assert!(message.starts_with(&folder.path().display().to_string()), "{message}");
}

#[test]
fn pipelines_are_tuned_to_a_density() {
    let world = World::new();
    let evaluation = world.evaluation(Setup::B, 0);
    let density_texts = evaluation.density_texts().unwrap();
    let density = Fraction::try_from(0.6).unwrap();
    let mut cache = AnswerCache::default();
    let mut tune = |pipeline| evaluation.at_density(&pipeline, density, &density_texts, &mut cache);
    let mass = "[[selectors]]\ntype = \"oracle-top-p\"\nmass = 0.5";
    let tuned: Vec<Variant> = [
        pipeline("top-k", TOP_K),
        pipeline("top-p", mass),
        pipeline("promise", &format!("{TOP_K}\n{PROMISE}")),
        pipeline("promise over mass", &format!("{mass}\n{PROMISE}")),
    ]
    .map(|pipeline| tune(pipeline).unwrap())
    .into();
    let set = |i: usize| tuned[i].set.as_deref().unwrap();
    assert!(set(0).starts_with("size ") && set(1).starts_with("mass "));
    assert!(set(2).starts_with("epsilon "));
    assert!(set(3).starts_with("mass ") && set(3).contains(", epsilon "), "{}", set(3));
    assert_eq!(tuned[0].name(), "top-k, 60 %");
    let report = evaluation.run(&tuned, &mut AnswerCache::default(), &|_, _| ()).unwrap();
    for variant in &report.variants {
        assert!((0.5..0.7).contains(&variant.density.unwrap()), "{variant:?}");
    }
    let tables = r#"
        name = "tables"
        share = "head"

        [[selectors]]
        type = "magic-pig"
    "#;
    let tables = Loader::default().parse("tables.toml", tables).unwrap();
    let message = tune(tables).unwrap_err().to_string();
    assert!(message.contains("tables") && message.contains("has no size to set"), "{message}");
}

/// Answers depend on the calibrated parameters of selectors.
#[test]
fn answers_depend_on_the_files_of_a_pipeline() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let (path, maps) = (folder.path().join("kept.jsonl"), folder.path().join("maps.safetensors"));
    let mut bytes = fs::read(world.dir.join("hash.safetensors")).unwrap();
    fs::write(&maps, &bytes).unwrap();
    let text = format!(
        "[[selectors]]\ntype = \"hash-attention\"\nsize = 0.1\nweights = {:?}\n",
        maps.display().to_string()
    );
    let variant = Variant::untuned(pipeline("codes", &text));
    let count_answers = || {
        let evaluation = world.evaluation(Setup::B, 0);
        let mut cache = AnswerCache::open(&path).unwrap();
        evaluation.run(std::slice::from_ref(&variant), &mut cache, &|_, _| ()).unwrap();
        fs::read_to_string(&path).unwrap().lines().count()
    };
    let first = count_answers();
    assert_eq!(count_answers(), first);
    // The sign of the last number changes.
    *bytes.last_mut().unwrap() ^= 0x80;
    fs::write(&maps, &bytes).unwrap();
    assert_eq!(count_answers(), 2 * first);
}

#[test]
fn measured_densities_are_stored() {
    let world = World::new();
    let evaluation = world.evaluation(Setup::B, 0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let density = Fraction::try_from(0.6).unwrap();
    let find = || {
        let (density_texts, mut cache) =
            (evaluation.density_texts().unwrap(), AnswerCache::open(&path).unwrap());
        let found =
            evaluation.at_density(&pipeline("top-k", TOP_K), density, &density_texts, &mut cache);
        (found.unwrap().set, fs::read_to_string(&path).unwrap())
    };
    let first = find();
    assert!(first.1.lines().count() >= 8, "{}", first.1);
    assert_eq!(find(), first, "nothing is measured again");
    // Stored densities are used without a check.
    let all = first.1.lines().map(|line| {
        let (digest, _) = line.split_once(",\"density\":").unwrap();
        format!("{digest},\"density\":0.9}}\n")
    });
    fs::write(&path, all.collect::<String>()).unwrap();
    assert_ne!(find().0, first.0);
}

/// Prefill strategy that reads a small part of a prompt.
fn sampling(coverage: f64) -> Strategy {
    Strategy::SampleAttention(SampleAttention { sample: 0.05, coverage, window: 0.02 })
}

/// Stored answers of earlier versions, which took hours to compute, must be found by their digests.
#[test]
fn digests_after_a_dense_prefill_never_change() {
    let world = World::new();
    let mut evaluation = world.evaluation(Setup::B, 0);
    evaluation.fingerprint = "a model".into();
    (evaluation.settings.cases, evaluation.settings.contexts) = (1, vec![300]);
    let report = run(&evaluation, &mut AnswerCache::default());
    let found = report.records.iter().take(3).map(|record| record.digest.as_str());
    let first = [
        "0171ee192b0dfed9b446c3342edf51f4",
        "f70924c1718a1b0456993e90f107f08f",
        "d93dc1ffa22f0a7ce239a665d7364f9b",
    ];
    assert_eq!(found.collect::<Vec<_>>(), first);
}

#[test]
fn answers_depend_on_the_prefill_strategy() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let (variant, mut before) = (variants().remove(2), 0);
    let mut evaluate = |strategy, density: Option<f64>| {
        let mut evaluation = world.evaluation(Setup::B, 0);
        evaluation.settings.prefill = strategy;
        let mut cache = AnswerCache::open(&path).unwrap();
        let variants = [variant.clone(), Variant::untuned(dense())];
        let report = evaluation.run(&variants, &mut cache, &|_, _| ()).unwrap();
        if let Some(density) = density {
            let share = Fraction::try_from(density).unwrap();
            let texts = evaluation.density_texts().unwrap();
            evaluation.at_density(&variant.pipeline, share, &texts, &mut cache).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        let new = lines - before;
        before = lines;
        (report, new)
    };
    let (exact, new) = evaluate(Strategy::Dense, None);
    assert_eq!((exact.prefill.strategy, exact.prefill.density, new), (Strategy::Dense, 1.0, 16));
    assert!(exact.records.iter().all(|record| record.attended.prefill_density.is_none()));

    let (sparse, new) = evaluate(sampling(0.2), None);
    assert_eq!(new, 16);
    let densities = sparse.records.iter().map(|record| record.attended.prefill_density.unwrap());
    let densities: Vec<f64> = densities.collect();
    assert!(densities.chunks(2).all(|case| case[0] == case[1]), "a prompt is read once");
    assert!(densities.iter().all(|density| (0.02..0.9).contains(density)), "{densities:?}");
    let mean = densities.iter().sum::<f64>() / 16.0;
    assert!((sparse.prefill.density - mean).abs() < 1e-12);

    let (again, new) = evaluate(sampling(0.2), Some(0.5));
    assert!(again.records == sparse.records && new >= 8, "densities are measured anew: {new}");
    assert_eq!(evaluate(sampling(0.2), Some(0.5)).1, 0);
    assert_eq!(evaluate(sampling(0.21), None).1, 16);
    assert!(evaluate(Strategy::Dense, Some(0.5)).1 >= 8, "not those after another prefill");
    let (exact_again, new) = evaluate(Strategy::Dense, Some(0.5));
    assert!(exact_again.records == exact.records && new == 0);
}

/// Observer that stores the selection of each layer.
#[derive(Default)]
struct Selections(Vec<Selection>);

impl Observer for Selections {
    fn observe(&mut self, attended: &LayerAttention<'_>) {
        self.0.push(attended.output.selection.clone().unwrap());
    }
}

/// Returns the best 8 of the tokens before the last 32, by the votes of the last 32 queries of a KV
/// head's query heads, computed by definition, in f64, over all keys.
fn find_voted_tokens(prompt: &LayerPrompt, kv_head: usize) -> Vec<u32> {
    let (query_heads, observed, dim) = prompt.queries.dim();
    let (kv_heads, tokens, _) = prompt.keys.dim();
    let (group, old) = (query_heads / kv_heads, tokens - 32);
    let mut votes = vec![0.0; old];
    for head in kv_head * group..(kv_head + 1) * group {
        for i in observed - 32..observed {
            let position = tokens - observed + i;
            let weight = |key: usize| {
                let product = |d: usize| {
                    f64::from(prompt.queries[[head, i, d]])
                        * f64::from(prompt.keys[[kv_head, key, d]])
                };
                ((0..dim).map(product).sum::<f64>() / (dim as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = (0..=position).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            votes.iter_mut().zip(weights).for_each(|(vote, weight)| *vote += weight / sum);
        }
    }
    let mut order: Vec<u32> = (0..old as u32).collect();
    order.sort_by(|&a, &b| votes[b as usize].total_cmp(&votes[a as usize]));
    let mut best = order[..8].to_vec();
    best.sort_unstable();
    best
}

/// Selectors that learn from a prompt observe its last queries, and use the attention of these
/// queries over all keys, even if the prefill read only a few.
#[test]
fn selectors_learn_from_a_prompt_that_was_read_sparsely() {
    let world = World::new();
    let text = "[[selectors]]\ntype = \"snapkv\"\nsize = 40\nwindow = 32\npool = 1";
    let snapkv = Loader::default().parse("snapkv.toml", text).unwrap();
    let prompt: Vec<u32> = (0..700).map(|i| (i * 37 + i / 11) % 60).collect();
    let options = Options { return_selection: true, ..Options::default() };
    let mut all = Vec::new();
    for strategy in [Strategy::Dense, sampling(0.2)] {
        let reading = PrefillOptions { strategy, ..PrefillOptions::default() };
        let read = world.model.prefill(&prompt, reading).unwrap();
        let observed = ObservedBackend::new(&world.backend, false, Selections::default());
        let mut session = Session::new(&world.model, &observed, &snapkv, &options).unwrap();
        session.begin(&read).unwrap();
        session.step(9).unwrap();
        let Selections(layers) = &*observed.observer();
        let group = world.model.config().shape.group();
        for (layer, selection) in layers.iter().enumerate() {
            for kv_head in 0..world.model.config().shape.kv_heads {
                let selected = selection.row(kv_head * group).0;
                let mut expected = find_voted_tokens(&read.layers[layer], kv_head);
                expected.extend(700 - 32..=700);
                assert_eq!(selected, expected, "{strategy}, layer {layer}, KV head {kv_head}");
            }
        }
        all.push(layers.iter().map(|selection| selection.indices.clone()).collect::<Vec<_>>());
    }
    assert_ne!(all[0], all[1], "the keys and queries differ");
}

/// The model always finds a single number, but not always all four numbers of several keys.
#[test]
fn means_leave_out_tasks_that_dense_attention_fails() {
    let world = World::new();
    let mut evaluation = world.evaluation(Setup::B, 0);
    evaluation.settings.tasks = vec![Task::NiahSingle1, Task::NiahMultiquery];
    evaluation.settings.contexts = vec![400, 500];
    let mut cache = AnswerCache::default();
    let all = run(&evaluation, &mut cache);
    evaluation.settings.leave_out_below = 0.95;
    let some = run(&evaluation, &mut cache);
    for (all, some) in all.variants.iter().zip(&some.variants) {
        let accuracy = |place: usize| some.scores[place].accuracy;
        assert!((all.accuracy - (0..4).map(accuracy).sum::<f64>() / 4.0).abs() < 1e-12);
        assert!((some.accuracy - f64::midpoint(accuracy(0), accuracy(2))).abs() < 1e-12);
        assert_eq!([0, 1, 2, 3].map(|i| some.scores[i].counts), [true, false, true, false]);
        assert!(all.scores.iter().all(|score| score.counts));
    }
    let [dense, edges, ..] = &some.variants[..] else { panic!() };
    for (place, difference) in edges.to_dense.iter().enumerate() {
        let scores = [edges, dense].map(|variant| variant.scores[2 * place].accuracy);
        assert!((difference.unwrap().mean - (scores[0] - scores[1])).abs() < 1e-12);
    }
}

fn header() -> Header {
    Header {
        vattention: "1".into(),
        command: vec!["evaluate".into()],
        inputs: [].into(),
        shards: None,
        shard: None,
    }
}

/// Stored answers are reported without loading weights; missing answers are named.
#[test]
fn stored_answers_are_reported_without_weights() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let path = |number: usize| folder.path().join(number.to_string());
    let run_shard = |number| {
        let part = Part::Shard(Shard::new(number, 2).unwrap());
        let mut cache = AnswerCache::open_shared(&path(number), &header(), part).unwrap();
        let (evaluation, answered) = (world.evaluation(Setup::B, 0), Mutex::new(0));
        let count = |_: usize, _: usize| *answered.lock().unwrap() += 1;
        let share = evaluation.run(&variants(), &mut cache, &count);
        assert!(matches!(share, Err(Error::Experiment(experiments::Error::Incomplete(_)))));
        answered.into_inner().unwrap()
    };
    let report = |files: &[PathBuf]| {
        let merged = folder.path().join("merged");
        fs::write(&merged, merge_results(files).unwrap().text).unwrap();
        let part = Part::Nothing { shards: Some(2) };
        let mut cache = AnswerCache::open_shared(&merged, &header(), part).unwrap();
        let weights = LazyWeights::on_demand(Path::new("no such model"));
        let evaluation = Evaluation { weights, ..world.evaluation(Setup::B, 0) };
        evaluation.run(&variants(), &mut cache, &|_, _| ())
    };
    assert_eq!((run_shard(2), run_shard(1)), (16, 16));
    let whole = report(&[path(2), path(1)]).unwrap();
    let undivided = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::default());
    assert!(whole.records == undivided.records);
    let Err(Error::Experiment(experiments::Error::Incomplete(missing))) = report(&[path(1)]) else {
        panic!()
    };
    assert_eq!((missing.missing.len(), missing.total, missing.shards()), (16, 32, vec![2]));
    assert_eq!(missing.missing[0].unit, "niah_single_1, 300 tokens, case 1, dense");
}

/// `just real` continues from the stored answers in the repository.
#[test]
fn the_answers_in_the_repository_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["answers.jsonl", "answers-prefill.jsonl"] {
        let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../real/results").join(name);
        let copy = folder.path().join(name);
        fs::copy(stored, &copy).unwrap();
        AnswerCache::open(&copy).unwrap();
    }
}
