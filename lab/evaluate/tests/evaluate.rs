//! The shipped model is asked, and answers are kept.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{FallBack, Fraction, Options, PipelineConfig, engine::Selection};
use vattention_evaluate::{
    AnswerCache, Error, Evaluation, EvaluationReport, EvaluationSettings, Files, LayerAttended,
    LazyWeights, ObservedBackend, Observer, Setup, Variant, fingerprint,
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

/// A pipeline of sink, window and what else is said.
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

/// The shipped model and its words.
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

    /// An evaluation on short texts.
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
            files: Files::default(),
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
    pipelines.into_iter().map(Variant::as_it_stands).collect()
}

fn run(evaluation: &Evaluation<'_>, kept: &mut AnswerCache) -> EvaluationReport {
    evaluation.run(&variants(), kept, &|_, _| ()).unwrap()
}

#[test]
fn answers_are_right_where_the_needle_is_read() {
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

    // Lists that are separate are read by the same KV head.
    let apart = format!("share = \"head\"\n{EDGES}\n{TOP_K}");
    let apart = Variant::as_it_stands(Loader::default().parse("apart.toml", &apart).unwrap());
    let evaluation = world.evaluation(Setup::B, 0);
    let report = evaluation.run(&[apart], &mut AnswerCache::default(), &|_, _| ()).unwrap();
    let [density, shared] = [&report.variants[0], top_k].map(|it| it.density.unwrap());
    assert!((density - shared).abs() < 0.01, "{density}, {shared}");
}

#[test]
fn records_are_in_the_order_of_cases_and_variants() {
    let world = World::new();
    let report = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::default());
    let [dense, edges, ..] = &report.variants[..] else { panic!() };
    assert_eq!(report.records.len(), 2 * 2 * 2 * 4);
    let places: Vec<_> = dense.scores.iter().map(|it| (it.task.as_str(), it.context)).collect();
    let tasks = ["niah_single_1", "vt"];
    assert_eq!(places, [(tasks[0], 300), (tasks[1], 300), (tasks[0], 400), (tasks[1], 400)]);
    let mean = edges.scores.iter().map(|it| it.accuracy).sum::<f64>() / 4.0;
    assert!((edges.accuracy - mean).abs() < 1e-12);
}

#[test]
fn the_question_is_the_pipelines_in_setup_b_alone() {
    let world = World::new();
    let rows = |setup| {
        let report = run(&world.evaluation(setup, 0), &mut AnswerCache::default());
        (report.variants[1].rows, report.variants[1].accuracy)
    };
    let (a, b) = (rows(Setup::A), rows(Setup::B));
    assert!(2 * a.0 < b.0, "{a:?}, {b:?}");
    assert!(a.1 > b.1, "what was read densely knows the answer: {a:?}, {b:?}");
}

#[test]
fn cases_asked_at_once_are_answered_alike() {
    let world = World::new();
    let one_by_one = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::default());
    let mut at_once = world.evaluation(Setup::B, 0);
    at_once.settings.at_once = NonZeroUsize::new(3).unwrap();
    let (asked, last) = (Mutex::new(0), variants().len() * 8);
    let count = |done: usize, total: usize| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        assert_eq!((done, total), (*asked, last));
    };
    let report = at_once.run(&variants(), &mut AnswerCache::default(), &count).unwrap();
    assert!(report.records == one_by_one.records);
    assert_eq!(asked.into_inner().unwrap(), last);
}

#[test]
fn an_evaluation_goes_on_from_the_answers_that_were_kept() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("answers.jsonl");
    let whole = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::open(&path).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), whole.records.len());

    // An interruption in the middle of a line; and one answer that nobody would give again.
    let cut = text.len() * 2 / 3;
    assert_ne!(&text[cut - 1..cut], "\n");
    let answer = &whole.records[0].attended.answer;
    fs::write(&path, text[..cut].replacen(answer, "kept", 1)).unwrap();
    let again = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::open(&path).unwrap());
    assert_eq!(again.records[0].attended.answer, "kept");
    assert!(again.records[1..] == whole.records[1..], "only what was changed differs");
    assert_eq!(fs::read_to_string(&path).unwrap(), text.replacen(answer, "kept", 1));

    // What depends on something else is asked again.
    let other = pipeline("top-k", &TOP_K.replace("0.05", "0.06"));
    let evaluation = world.evaluation(Setup::B, 0);
    let mut kept = AnswerCache::open(&path).unwrap();
    evaluation.run(&[Variant::as_it_stands(other)], &mut kept, &|_, _| ()).unwrap();
    let lines = || fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!(lines(), whole.records.len() + 8, "another pipeline of the same name");
    let words = fs::read_to_string(world.dir.join("vocabulary.json")).unwrap();
    let words = words.replace("The grass is green.", "The sky is yellow.");
    fs::write(folder.path().join("words.json"), words).unwrap();
    let texts = Texts::open(&folder.path().join("words.json")).unwrap();
    let evaluation = Evaluation { texts: &texts, ..world.evaluation(Setup::B, 0) };
    evaluation.run(&[Variant::as_it_stands(dense())], &mut kept, &|_, _| ()).unwrap();
    assert_eq!(lines(), whole.records.len() + 16, "other texts with the same answers");
    drop(kept);
    for other in [world.evaluation(Setup::A, 0), world.evaluation(Setup::B, 1)] {
        let report = run(&other, &mut AnswerCache::open(&path).unwrap());
        assert!(report.records.iter().all(|record| record.attended.answer != "kept"));
    }
}

#[test]
fn other_files_are_refused_and_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    for (text, line) in [("a note", 1), ("a note\n", 1), ("{\"digest\":\"1\"}\n", 1)] {
        fs::write(&path, text).unwrap();
        let said = AnswerCache::open(&path).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{}, line {line}: ", path.display())), "{said}");
        assert!(said.ends_with("kept"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    let said = AnswerCache::open(folder.path()).unwrap_err().to_string();
    assert!(said.starts_with(&folder.path().display().to_string()), "{said}");
}

#[test]
fn pipelines_are_made_to_read_a_share() {
    let world = World::new();
    let evaluation = world.evaluation(Setup::B, 0);
    let density_texts = evaluation.density_texts().unwrap();
    let density = Fraction::try_from(0.6).unwrap();
    let mut kept = AnswerCache::default();
    let mut at = |pipeline| evaluation.at_density(&pipeline, density, &density_texts, &mut kept);
    let mass = "[[selectors]]\ntype = \"oracle-top-p\"\nmass = 0.5";
    let fitted: Vec<Variant> = [
        pipeline("top-k", TOP_K),
        pipeline("top-p", mass),
        pipeline("promise", &format!("{TOP_K}\n{PROMISE}")),
        pipeline("promise over mass", &format!("{mass}\n{PROMISE}")),
    ]
    .map(|pipeline| at(pipeline).unwrap())
    .into();
    let set = |i: usize| fitted[i].set.as_deref().unwrap();
    assert!(set(0).starts_with("size ") && set(1).starts_with("mass "));
    assert!(set(2).starts_with("epsilon "));
    assert!(set(3).starts_with("mass ") && set(3).contains(", epsilon "), "{}", set(3));
    assert_eq!(fitted[0].name(), "top-k, 60 %");
    let report = evaluation.run(&fitted, &mut AnswerCache::default(), &|_, _| ()).unwrap();
    for asked in &report.variants {
        assert!((0.5..0.7).contains(&asked.density.unwrap()), "{asked:?}");
    }
    let tables = r#"
        name = "tables"
        share = "head"

        [[selectors]]
        type = "magic-pig"
    "#;
    let tables = Loader::default().parse("tables.toml", tables).unwrap();
    let said = at(tables).unwrap_err().to_string();
    assert!(said.contains("tables") && said.contains("has no size to set"), "{said}");
}

/// What selectors have learnt is part of what an answer depends on.
#[test]
fn other_files_of_a_pipeline_are_asked_anew() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let (path, maps) = (folder.path().join("kept.jsonl"), folder.path().join("maps.safetensors"));
    let mut bytes = fs::read(world.dir.join("hash.safetensors")).unwrap();
    fs::write(&maps, &bytes).unwrap();
    let text = format!(
        "[[selectors]]\ntype = \"hash-attention\"\nsize = 0.1\nweights = {:?}\n",
        maps.display().to_string()
    );
    let variant = Variant::as_it_stands(pipeline("codes", &text));
    let asked = || {
        let evaluation = world.evaluation(Setup::B, 0);
        let mut kept = AnswerCache::open(&path).unwrap();
        evaluation.run(std::slice::from_ref(&variant), &mut kept, &|_, _| ()).unwrap();
        fs::read_to_string(&path).unwrap().lines().count()
    };
    let first = asked();
    assert_eq!(asked(), first);
    // The last number of the last map, which stays a number.
    *bytes.last_mut().unwrap() ^= 0x80;
    fs::write(&maps, &bytes).unwrap();
    assert_eq!(asked(), 2 * first);
}

#[test]
fn densities_that_were_measured_are_kept() {
    let world = World::new();
    let evaluation = world.evaluation(Setup::B, 0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let density = Fraction::try_from(0.6).unwrap();
    let find = || {
        let (density_texts, mut kept) =
            (evaluation.density_texts().unwrap(), AnswerCache::open(&path).unwrap());
        let found =
            evaluation.at_density(&pipeline("top-k", TOP_K), density, &density_texts, &mut kept);
        (found.unwrap().set, fs::read_to_string(&path).unwrap())
    };
    let first = find();
    assert!(first.1.lines().count() >= 8, "{}", first.1);
    assert_eq!(find(), first, "nothing is measured again");
    // What is kept is what is believed.
    let all = first.1.lines().map(|line| {
        let (digest, _) = line.split_once(",\"density\":").unwrap();
        format!("{digest},\"density\":0.9}}\n")
    });
    fs::write(&path, all.collect::<String>()).unwrap();
    assert_ne!(find().0, first.0);
}

/// A little of a prompt.
fn sampling(coverage: f64) -> Strategy {
    Strategy::SampleAttention(SampleAttention { sample: 0.05, coverage, window: 0.02 })
}

/// The answers of hours are found by what they depended on when they were given.
#[test]
fn digests_after_a_dense_prefill_are_those_of_the_first_answers() {
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
fn answers_after_one_prefill_are_not_those_after_another() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let (variant, mut before) = (variants().remove(2), 0);
    let mut asked = |strategy, density: Option<f64>| {
        let mut evaluation = world.evaluation(Setup::B, 0);
        evaluation.settings.prefill = strategy;
        let mut kept = AnswerCache::open(&path).unwrap();
        let variants = [variant.clone(), Variant::as_it_stands(dense())];
        let report = evaluation.run(&variants, &mut kept, &|_, _| ()).unwrap();
        if let Some(density) = density {
            let share = Fraction::try_from(density).unwrap();
            let texts = evaluation.density_texts().unwrap();
            evaluation.at_density(&variant.pipeline, share, &texts, &mut kept).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        let new = lines - before;
        before = lines;
        (report, new)
    };
    let (exact, new) = asked(Strategy::Dense, None);
    assert_eq!((exact.prefill.strategy, exact.prefill.density, new), (Strategy::Dense, 1.0, 16));
    assert!(exact.records.iter().all(|record| record.attended.prefill_density.is_none()));

    let (sparse, new) = asked(sampling(0.2), None);
    assert_eq!(new, 16);
    let densities = sparse.records.iter().map(|record| record.attended.prefill_density.unwrap());
    let densities: Vec<f64> = densities.collect();
    assert!(densities.chunks(2).all(|case| case[0] == case[1]), "a prompt is read once");
    assert!(densities.iter().all(|density| (0.02..0.9).contains(density)), "{densities:?}");
    let mean = densities.iter().sum::<f64>() / 16.0;
    assert!((sparse.prefill.density - mean).abs() < 1e-12);

    let (again, new) = asked(sampling(0.2), Some(0.5));
    assert!(again.records == sparse.records && new >= 8, "densities are measured anew: {new}");
    assert_eq!(asked(sampling(0.2), Some(0.5)).1, 0);
    assert_eq!(asked(sampling(0.21), None).1, 16);
    assert!(asked(Strategy::Dense, Some(0.5)).1 >= 8, "not those behind another prefill");
    let (exact_again, new) = asked(Strategy::Dense, Some(0.5));
    assert!(exact_again.records == exact.records && new == 0);
}

/// Keeps what each layer read.
#[derive(Default)]
struct Picked(Vec<Selection>);

impl Observer for Picked {
    fn see(&mut self, attended: &LayerAttended<'_>) {
        self.0.push(attended.output.selection.clone().unwrap());
    }
}

/// The best 8 of the tokens before the last 32, by the votes of the last 32 queries of a KV head's query heads: by
/// definition, in f64, over all keys.
fn voted(prompt: &LayerPrompt, kv_head: usize) -> Vec<u32> {
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

/// Selectors that learn from a prompt are shown its last queries, and take their attention over all keys, however few
/// the prefill read.
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
        let observed = ObservedBackend::new(&world.backend, false, Picked::default());
        let mut session = Session::new(&world.model, &observed, &snapkv, &options).unwrap();
        session.begin(&read).unwrap();
        session.step(9).unwrap();
        let Picked(layers) = &*observed.observer();
        let group = world.model.config().shape.group();
        for (layer, selection) in layers.iter().enumerate() {
            for kv_head in 0..world.model.config().shape.kv_heads {
                let kept = selection.row(kv_head * group).0;
                let mut expected = voted(&read.layers[layer], kv_head);
                expected.extend(700 - 32..=700);
                assert_eq!(kept, expected, "{strategy}, layer {layer}, KV head {kv_head}");
            }
        }
        all.push(layers.iter().map(|one| one.indices.clone()).collect::<Vec<_>>());
    }
    assert_ne!(all[0], all[1], "of other keys and queries");
}

/// The model finds one number always, and not always all four of several keys.
#[test]
fn means_are_of_the_tasks_that_dense_attention_does() {
    let world = World::new();
    let mut evaluation = world.evaluation(Setup::B, 0);
    evaluation.settings.tasks = vec![Task::NiahSingle1, Task::NiahMultiquery];
    evaluation.settings.contexts = vec![400, 500];
    let mut kept = AnswerCache::default();
    let all = run(&evaluation, &mut kept);
    evaluation.settings.leave_out_below = 0.95;
    let some = run(&evaluation, &mut kept);
    for (all, some) in all.variants.iter().zip(&some.variants) {
        let own = |place: usize| some.scores[place].accuracy;
        assert!((all.accuracy - (0..4).map(own).sum::<f64>() / 4.0).abs() < 1e-12);
        assert!((some.accuracy - f64::midpoint(own(0), own(2))).abs() < 1e-12);
        assert_eq!([0, 1, 2, 3].map(|i| some.scores[i].counts), [true, false, true, false]);
        assert!(all.scores.iter().all(|score| score.counts));
    }
    let [dense, edges, ..] = &some.variants[..] else { panic!() };
    for (place, difference) in edges.to_dense.iter().enumerate() {
        let scores = [edges, dense].map(|one| one.scores[2 * place].accuracy);
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

/// Answers that are kept are told without weights; of those that are not, which they are.
#[test]
fn answers_are_told_without_weights() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let path = |number: usize| folder.path().join(number.to_string());
    let shared = |number| {
        let part = Part::Shard(Shard::new(number, 2).unwrap());
        let mut kept = AnswerCache::open_shared(&path(number), &header(), part).unwrap();
        let (evaluation, asked) = (world.evaluation(Setup::B, 0), Mutex::new(0));
        let count = |_: usize, _: usize| *asked.lock().unwrap() += 1;
        let share = evaluation.run(&variants(), &mut kept, &count);
        assert!(matches!(share, Err(Error::Experiment(experiments::Error::Incomplete(_)))));
        asked.into_inner().unwrap()
    };
    let told = |files: &[PathBuf]| {
        let merged = folder.path().join("merged");
        fs::write(&merged, merge_results(files).unwrap().text).unwrap();
        let part = Part::Nothing { shards: Some(2) };
        let mut kept = AnswerCache::open_shared(&merged, &header(), part).unwrap();
        let weights = LazyWeights::on_demand(Path::new("no such model"));
        let evaluation = Evaluation { weights, ..world.evaluation(Setup::B, 0) };
        evaluation.run(&variants(), &mut kept, &|_, _| ())
    };
    assert_eq!((shared(2), shared(1)), (16, 16));
    let whole = told(&[path(2), path(1)]).unwrap();
    let one = run(&world.evaluation(Setup::B, 0), &mut AnswerCache::default());
    assert!(whole.records == one.records);
    let Err(Error::Experiment(experiments::Error::Incomplete(missing))) = told(&[path(1)]) else {
        panic!()
    };
    assert_eq!((missing.missing.len(), missing.total, missing.shards()), (16, 32, vec![2]));
    assert_eq!(missing.missing[0].unit, "niah_single_1, 300 tokens, case 1, dense");
}

/// What `just real` has kept is what it goes on from.
#[test]
fn the_answers_in_the_repository_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["answers.jsonl", "answers-prefill.jsonl"] {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../real/results").join(name);
        let copy = folder.path().join(name);
        fs::copy(kept, &copy).unwrap();
        AnswerCache::open(&copy).unwrap();
    }
}
