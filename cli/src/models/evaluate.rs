//! `vattention evaluate`: pipelines measured by a model's accuracy on tasks.

mod benchmark;
mod details;
mod figure;
mod scores;
mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use vattention::experiments::{Entry, Part, digest_of_file};
use vattention::{FallBack, Fraction, Options, Storage};
use vattention_evaluate::{
    AnswerCache, DensityTexts, Evaluation, EvaluationSettings, FileDigests, LazyWeights, Variant,
    fingerprint,
};
use vattention_tasks::{Texts, tasks};

use benchmark::BenchmarkArgs;

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

/// File in a model's folder with the words of the tasks that the model was trained on.
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
    /// Tasks by RULER's names, or the groups ruler and ruler-hard, separated by commas.
    #[arg(long, value_delimiter = ',', required_unless_present = "benchmark")]
    tasks: Vec<String>,
    #[command(flatten)]
    published: BenchmarkArgs,
    /// Tokens of a case, separated by commas: context, question and room for the answer; by
    /// default, 4096. For a benchmark, the maximum length of a prompt; by default, the model's
    /// context.
    #[arg(long, value_delimiter = ',')]
    context: Vec<usize>,
    /// Cases per task and length; a smaller dataset contributes all of its cases.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cases: u32,
    /// Random seed; equal seeds make equal cases.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Omit the comparison of every step with dense attention.
    #[arg(long)]
    no_errors: bool,
    /// Leave tasks out of the means if the first dense pipeline's score on them is below this
    /// share.
    #[arg(long, value_name = "SHARE", value_parser = fraction)]
    leave_out_below: Option<Fraction>,
    /// Cases that run in parallel, each on a part of the threads and with memory of its own. The
    /// answers stay the same; this is faster if a step is too little work for all threads.
    #[arg(long, value_name = "CASES", default_value = "1")]
    at_once: NonZeroUsize,
    /// Words of tasks for a small model; by default, the model's vocabulary.json if it exists,
    /// otherwise words like RULER's.
    #[arg(long, value_name = "FILE")]
    vocabulary: Option<PathBuf>,
    /// Text file to hide needles in, instead of random sentences.
    #[arg(long, value_name = "FILE")]
    haystack: Option<PathBuf>,
    /// SQuAD file, for qa_1.
    #[arg(long, value_name = "FILE")]
    squad: Option<PathBuf>,
    /// HotpotQA file, for qa_2.
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
        (open_texts(args)?.with_benchmark(benchmark), tasks, read)
    } else {
        let tasks = tasks(&args.tasks);
        let tasks = tasks.map_err(|error| Failure::input(format!("--tasks: {error}")))?;
        (open_texts(args)?, tasks, Vec::new())
    };
    let checkpoint = ModelFiles::open(&args.answering.model)?;
    let contexts = contexts(args, &checkpoint)?;
    let (strategy, template) = (&args.answering.prefill.prefill, &args.answering.chat.template);
    let options = strategy.iter().chain(template).cloned();
    let read: Vec<PathBuf> = read.into_iter().chain(text_files(args)).chain(options).collect();
    check_files(args, &[&files[..], &read].concat(), &checkpoint)?;
    if call.replay.is_none() {
        expect_room(args, &contexts, &checkpoint)?;
    }
    let fingerprint = fingerprint(&args.answering.model)?;
    let mut answers = open_answers(args, call, &fingerprint, &lineup.run, &read)?;
    let lineup = lineup.expand(|entry| {
        fits_model(&entry, &checkpoint.layers(), &*backend).map(|()| vec![entry])
    })?;
    let talk = args.answering.chat.open_prompt(&checkpoint)?;
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
        files: FileDigests::default(),
    };
    let lineup = find_variants(&evaluation, lineup, &args.variations, &mut answers)?;
    let bar = progress::bar("answers");
    let report = evaluation.run(&lineup.run, &mut answers, &|done, total| {
        progress::show(&bar, done, total);
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(model) = evaluation.weights.loaded() {
        checkpoint.note_untied(model);
    }
    let title = table::title(&args.answering.model, &report);
    let model_files = checkpoint.inputs();
    let inputs = files.iter().chain(&read).chain(&model_files);
    let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
    let pipelines = lineup.run.iter().map(|variant| &*variant.pipeline);
    let run = || Provenance::new(call, &inputs, pipelines, Some(backend.name()));
    let svg = || figure::figure(&report, &title).svg();
    args.outputs.publish(run, &lineup.with_left_out(&report), svg, &table::show(&title, &report))
}

/// Returns the lengths of `--context`, or the default.
fn contexts(args: &EvaluateArgs, checkpoint: &ModelFiles<'_>) -> Result<Vec<usize>, Failure> {
    let all = &args.context;
    if let Some(twice) = (1..all.len()).find(|&place| all[..place].contains(&all[place])) {
        let reason = format!("{} is given twice; expected each length once", all[twice]);
        return Err(Failure::input(format!("--context: {reason}")));
    }
    Ok(match &all[..] {
        [] if args.published.is_given() => vec![checkpoint.config.context],
        [] => vec![4096],
        some => some.to_vec(),
    })
}

/// Returns the file of the tasks' words: `--vocabulary`, or the model's own.
fn vocabulary(args: &EvaluateArgs) -> Option<PathBuf> {
    let of_model = Some(args.answering.model.join(VOCABULARY)).filter(|path| path.exists());
    args.vocabulary.clone().or(of_model)
}

/// Returns the files from which the tasks' texts are made.
fn text_files(args: &EvaluateArgs) -> impl Iterator<Item = PathBuf> {
    let options = [&args.haystack, &args.squad, &args.hotpot];
    vocabulary(args).into_iter().chain(options.into_iter().flatten().cloned())
}

/// Opens the texts of the tasks.
fn open_texts(args: &EvaluateArgs) -> Result<Texts, Failure> {
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

/// Refuses outputs that cannot be written or would overwrite an input.
fn check_files(
    args: &EvaluateArgs,
    read: &[PathBuf],
    checkpoint: &ModelFiles<'_>,
) -> Result<(), Failure> {
    let model_files = checkpoint.files();
    args.outputs.check(read.iter().chain(&args.sharing.results).chain(&model_files))
}

/// Refuses lengths whose keys and values do not fit into memory. The memory holds stored prompts,
/// sequences and, if errors are measured, a dense copy of each sequence.
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
    // Stored prompts belong to a case and to the previous one, whose beginning it may share, or to
    // the texts of a density search.
    let texts = if args.variations.density.is_empty() { 0 } else { DensityTexts::TEXTS as u64 };
    let bytes = rows(Storage::F32).saturating_mul(at_once.saturating_mul(2).max(texts));
    checkpoint.expect_room(
        tokens,
        bytes.saturating_add(rows(args.answering.dtype).saturating_mul(sequences)),
    )
}

/// Opens the stored answers. The file of a shard has a header with everything that the answers
/// depend on.
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
    let mut inputs = sharing::digest_pipelines(entries)?;
    inputs.insert("the model".into(), model.to_owned());
    for path in files {
        inputs.insert(path.display().to_string(), digest_of_file(path)?);
    }
    Ok(AnswerCache::open_shared(path, &call.header(inputs), part)?)
}

/// Returns each pipeline at each density. Densities are searched on texts that are not evaluated.
fn find_variants(
    evaluation: &Evaluation<'_>,
    lineup: Lineup<Entry>,
    variations: &Variations,
    answers: &mut AnswerCache,
) -> Result<Lineup<Variant>, Failure> {
    let unchanged = |entry: Entry| Variant::untuned(entry.pipeline);
    variations.apply_densities(lineup, unchanged, |searches, progress| {
        let searches: Vec<_> =
            searches.iter().map(|(entry, share)| (&entry.pipeline, *share)).collect();
        evaluation.tune_to_densities(&searches, answers, progress)
    })
}
