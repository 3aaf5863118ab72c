//! `vattention evaluate`: pipelines measured by what a model answers.

mod benchmark;
mod figure;
mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use vattention::experiments::{Entry, Part, digest_of_file};
use vattention::{FallBack, Fraction, Options, Storage};
use vattention_evaluate::{
    AnswerCache, DensityTexts, Evaluation, EvaluationSettings, Files, LazyWeights, Variant,
    fingerprint,
};
use vattention_tasks::{Texts, tasks};

use benchmark::Published;

use crate::fail::Failure;
use crate::models::answering::AnsweringArgs;
use crate::models::checkpoint::{ModelFiles, row_bytes};
use crate::numbers::fraction;
use crate::outputs::OutputArgs;
use crate::paths::refuse_dash;
use crate::pipelines::{Changes, Lineup, LoadedPipelines, Variations, fits_model};
use crate::progress;
use crate::provenance::Provenance;
use crate::sharing::{self, Call, Sharing};

/// In a model's folder: words of tasks that it was trained on.
const VOCABULARY: &str = "vocabulary.json";

#[derive(Debug, clap::Args)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    answering: AnsweringArgs,
    /// Pipeline files, or names of built-in pipelines.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pipelines: Vec<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    variations: Variations,
    /// Tasks between commas, by RULER's names, or groups: ruler, ruler-hard.
    #[arg(long, value_delimiter = ',', required_unless_present = "benchmark")]
    tasks: Vec<String>,
    #[command(flatten)]
    published: Published,
    /// Tokens of a case, between commas: of context, question and room for the answer. By default
    /// 4096; of a benchmark, whose prompts have at most so many, the model's context.
    #[arg(long, value_delimiter = ',')]
    context: Vec<usize>,
    /// Cases of each task and length; of a dataset that has fewer, all.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cases: u32,
    /// Equal seeds make equal cases.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Leave out the comparison of every step with dense attention.
    #[arg(long)]
    no_errors: bool,
    /// Leave tasks out of the means on which the first dense pipeline scores less than this share.
    #[arg(long, value_name = "SHARE", value_parser = fraction)]
    leave_out_below: Option<Fraction>,
    /// Cases that are asked at the same time, each on its share of the threads: the answers are the
    /// same, and come sooner where a step is too little work for all threads. Each takes memory of its
    /// own.
    #[arg(long, value_name = "CASES", default_value = "1")]
    at_once: NonZeroUsize,
    /// Words of tasks for a small model; by default the model's own vocabulary.json, if it has one,
    /// else words of RULER's kind.
    #[arg(long, value_name = "FILE")]
    vocabulary: Option<PathBuf>,
    /// Prose to hide needles in, instead of random sentences.
    #[arg(long, value_name = "FILE")]
    haystack: Option<PathBuf>,
    /// SQuAD, for qa_1.
    #[arg(long, value_name = "FILE")]
    squad: Option<PathBuf>,
    /// HotpotQA, for qa_2.
    #[arg(long, value_name = "FILE")]
    hotpot: Option<PathBuf>,
    #[command(flatten)]
    sharing: Sharing,
    #[command(flatten)]
    outputs: OutputArgs,
}

pub(crate) fn run(args: &EvaluateArgs, call: &Call) -> Result<(), Failure> {
    let backend = args.answering.machine.find()?;
    let prefill = args.answering.prefill.strategy()?;
    let LoadedPipelines { lineup, files } = args.variations.load(&args.pipelines, &args.changes)?;
    let (texts, tasks, read) = if let Some(benchmark) = args.published.open()? {
        let (tasks, read) = (benchmark.tasks(), benchmark.files().to_vec());
        (texts(args)?.with_benchmark(benchmark), tasks, read)
    } else {
        let tasks = tasks(&args.tasks);
        let tasks = tasks.map_err(|error| Failure::input(format!("--tasks: {error}")))?;
        (texts(args)?, tasks, Vec::new())
    };
    let checkpoint = ModelFiles::open(&args.answering.model)?;
    let contexts = contexts(args, &checkpoint)?;
    let read: Vec<PathBuf> =
        read.into_iter().chain(words(args)).chain(args.answering.prefill.prefill.clone()).collect();
    check_files(args, &[&files[..], &read].concat(), &checkpoint)?;
    if call.replay.is_none() {
        expect_room(args, &contexts, &checkpoint)?;
    }
    let fingerprint = fingerprint(&args.answering.model)?;
    let mut kept = open_answers(args, call, &fingerprint, &lineup.run, &read)?;
    let lineup = lineup
        .each(|entry| fits_model(&entry, &checkpoint.layers(), &*backend).map(|()| vec![entry]))?;
    let talk = args.answering.chat.talk(&checkpoint)?;
    let settings = EvaluationSettings {
        tasks,
        contexts,
        cases: args.cases as usize,
        seed: args.seed.into(),
        setup: args.answering.setup,
        prefill,
        talk,
        errors: !args.no_errors,
        leave_out_below: args.leave_out_below.map_or(0.0, Fraction::get),
        at_once: args.at_once,
        options: Options {
            storage: args.answering.dtype,
            fall_back: FallBack::Never,
            ..Options::default()
        },
    };
    let evaluation = Evaluation {
        config: &checkpoint.config,
        weights: LazyWeights::on_demand(&args.answering.model),
        fingerprint,
        tokenizer: &checkpoint.tokenizer,
        texts: &texts,
        backend: &*backend,
        settings,
        files: Files::default(),
    };
    let lineup = variants(&evaluation, lineup, &args.variations, &mut kept)?;
    let bar = progress::bar("answers");
    let report = evaluation.run(&lineup.run, &mut kept, &|done, total| {
        progress::show(&bar, done, total);
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(model) = evaluation.weights.loaded() {
        checkpoint.note_untied(model);
    }
    let title = table::title(&args.answering.model, &report);
    let own = checkpoint.inputs();
    let inputs: Vec<&Path> = files.iter().chain(&read).chain(&own).map(PathBuf::as_path).collect();
    let pipelines = lineup.run.iter().map(|variant| &*variant.pipeline);
    let run = || Provenance::new(call, &inputs, pipelines, Some(backend.name()));
    let svg = || figure::figure(&report, &title).svg();
    args.outputs.publish(run, &lineup.told(&report), svg, &table::show(&title, &report))
}

/// The lengths that are asked for.
fn contexts(args: &EvaluateArgs, checkpoint: &ModelFiles<'_>) -> Result<Vec<usize>, Failure> {
    let all = &args.context;
    if let Some(twice) = (1..all.len()).find(|&place| all[..place].contains(&all[place])) {
        let twice = all[twice];
        return Err(Failure::input(format!("--context: {twice} is there twice; expected it once")));
    }
    Ok(match &all[..] {
        [] if args.published.is_asked() => vec![checkpoint.config.context],
        [] => vec![4096],
        some => some.to_vec(),
    })
}

/// The words of tasks: those that were given, or the model's own.
fn vocabulary(args: &EvaluateArgs) -> Option<PathBuf> {
    let own = Some(args.answering.model.join(VOCABULARY)).filter(|path| path.exists());
    args.vocabulary.clone().or(own)
}

/// The files that texts are made of.
fn words(args: &EvaluateArgs) -> impl Iterator<Item = PathBuf> {
    let given = [&args.haystack, &args.squad, &args.hotpot];
    vocabulary(args).into_iter().chain(given.into_iter().flatten().cloned())
}

/// Where the words of tasks come from.
fn texts(args: &EvaluateArgs) -> Result<Texts, Failure> {
    let mut texts = match vocabulary(args) {
        Some(path) => Texts::open(&path)?,
        None => Texts::ruler(),
    };
    if let Some(path) = &args.haystack {
        texts = texts.with_haystack(path)?;
    }
    if let Some(path) = &args.squad {
        texts = texts.with_squad(path)?;
    }
    if let Some(path) = &args.hotpot {
        texts = texts.with_hotpot(path)?;
    }
    Ok(texts)
}

/// Refuses outputs that cannot be written or would overwrite what is read.
fn check_files(
    args: &EvaluateArgs,
    read: &[PathBuf],
    checkpoint: &ModelFiles<'_>,
) -> Result<(), Failure> {
    let own = checkpoint.files();
    args.outputs.check(read.iter().chain(&args.sharing.results).chain(&own))
}

/// Refuses lengths whose keys and values do not fit into memory: those that were read, those of a
/// sequence, and those beside it that are attended to densely.
fn expect_room(
    args: &EvaluateArgs,
    contexts: &[usize],
    checkpoint: &ModelFiles<'_>,
) -> Result<(), Failure> {
    let config = &checkpoint.config;
    let tokens = contexts.iter().copied().max().unwrap_or(0);
    checkpoint.check_length(tokens).map_err(Failure::input)?;
    let rows = |storage| row_bytes(&config.shape, storage, config.layers, tokens);
    let at_once = args.at_once.get() as u64;
    let sequences = at_once.saturating_mul(if args.no_errors { 1 } else { 2 });
    // A case and the one before, whose beginning it may share; or texts to find densities on.
    let texts = if args.variations.density.is_empty() { 0 } else { DensityTexts::TEXTS as u64 };
    let bytes = rows(Storage::F32).saturating_mul(at_once.saturating_mul(2).max(texts));
    checkpoint.expect_room(
        tokens,
        bytes.saturating_add(rows(args.answering.dtype).saturating_mul(sequences)),
    )
}

/// Opens the answers: of a shard, with what they depend on.
fn open_answers(
    args: &EvaluateArgs,
    call: &Call,
    model: &str,
    entries: &[Entry],
    files: &[PathBuf],
) -> Result<AnswerCache, Failure> {
    let Some(path) = &args.sharing.results else { return Ok(AnswerCache::default()) };
    refuse_dash("--results", path)?;
    let part = args.sharing.part(call)?;
    if part == Part::All {
        return Ok(AnswerCache::open(path)?);
    }
    let mut inputs = sharing::pipelines(entries)?;
    inputs.insert("the model".into(), model.to_owned());
    for path in files {
        inputs.insert(path.display().to_string(), digest_of_file(path)?);
    }
    Ok(AnswerCache::open_shared(path, &call.header(inputs), part)?)
}

/// Each pipeline at each density, which is measured on texts that are not asked.
fn variants(
    evaluation: &Evaluation<'_>,
    lineup: Lineup<Entry>,
    variations: &Variations,
    kept: &mut AnswerCache,
) -> Result<Lineup<Variant>, Failure> {
    let stand = |entry: Entry| Variant::as_it_stands(entry.pipeline);
    variations.make(lineup, stand, |searches, progress| {
        let searches: Vec<_> =
            searches.iter().map(|(entry, share)| (&entry.pipeline, *share)).collect();
        evaluation.at_densities(&searches, kept, progress)
    })
}
