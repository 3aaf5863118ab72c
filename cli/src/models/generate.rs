//! `vattention generate`: text from a language model with a pipeline, and a report of what it read.

mod args;
mod report;
mod request;
mod saved_session;
mod scores;
mod steps;
mod stream;
mod tally;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vattention::{Backend, FallBack};
use vattention_evaluate::ObservedBackend;
use vattention_llm::{Generation, PrefillOptions, Session, Stop};

use crate::fail::{Failure, complain, note, say};
use crate::models::checkpoint::{ModelFiles, row_bytes};
use crate::models::speculation_args::check_drafts;
use crate::outputs::{Interrupt, check_outputs_with, write_json};
use crate::pipelines::fits_model;

use crate::provenance::Provenance;
use crate::sharing::Call;

use request::Request;
use saved_session::SessionFiles;
use scores::TokenScore;

pub(crate) use args::GenerateArgs;
pub(crate) use report::GenerationReport;
pub(super) use report::{MemoryReport, stop_name};
pub(super) use request::TokenCounts;
pub(crate) use steps::{DenseComparison, OutsideCount, StepRow, StepsDocument};
use steps::{ErrorLog, StepLog};
pub(super) use stream::AnswerStream;
use tally::StepOrigin;
pub(super) use tally::StepTally;

pub(crate) fn run(args: &GenerateArgs, call: &Call) -> Result<(), Failure> {
    let backend = args.answering.machine.find()?;
    let (entry, files) = args.changes.load_one(&args.pipeline)?;
    let reading = PrefillOptions {
        strategy: args.answering.prefill.strategy()?,
        ..PrefillOptions::default()
    };
    check_fall_back(args)?;
    let checkpoint = ModelFiles::open(&args.answering.model)?;
    fits_model(&entry, &checkpoint.layers(), &*backend)
        .map_err(|reason| Failure::input(format!("{}: {reason}", entry.file)))?;
    let storage = args.answering.dtype;
    let mut session_files =
        SessionFiles::open(&args.saved, storage, &checkpoint, &entry.pipeline, &reading)?;
    let request = Request::new(args, &checkpoint, &session_files)?;
    let generator = request.start_answer(&checkpoint)?;
    let config = &checkpoint.config;
    let rows = |tokens| row_bytes(&config.shape, storage, config.layers, tokens);
    // With --steps, the sequence is stored three times: for the pipeline, for the dense attention
    // that measures its errors, and for the dense answer.
    let copies = if args.steps.is_some() { 3 } else { 1 };
    checkpoint.expect_room(request.max_tokens(), copies * rows(request.max_tokens()))?;
    let model_files = checkpoint.files();
    let inputs = files.iter().chain(&model_files).chain(args.files());
    let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
    let interrupt = Interrupt::default();
    check_outputs_with(&interrupt, &args.outputs(), &inputs)?;
    let options = args.options();
    let model = checkpoint.load()?;
    let observed = ObservedBackend::new(&*backend, true, ErrorLog::default());
    let machine: &dyn Backend = if args.steps.is_some() { &observed } else { &*backend };
    let session = |pipeline, machine: &dyn Backend| -> Result<Session<'_>, Failure> {
        let session =
            Session::new(&model, machine, pipeline, &options)?.with_prefill_options(reading);
        Ok(session.with_classes(checkpoint.tokenizer.classes_for(pipeline)?))
    };
    let mut answered = session(&entry.pipeline, machine)?;
    check_drafts(&answered, args.speculation.speculate)?;
    let mut tally = StepTally::new(args.steps.as_ref().map(|_| StepLog::new(&observed)));
    let mut stream =
        AnswerStream::new(&mut answered, request.prompt(), &interrupt, generator, &mut tally);
    stream.silent = args.prints_json();
    let (generation, prefill) = answer(&mut stream, &request, &mut session_files)?;
    let AnswerStream { text, scores, .. } = stream;
    let with_text = |score| TokenScore::new(score, &checkpoint.tokenizer);
    let scores = args.logprobs.map(|_| scores.iter().map(with_text).collect());
    let record = tally.take_record();
    let beside = if record.is_some() && generation.stop != Stop::Interrupted {
        let dense = session(&Arc::default(), &*backend)?;
        let generator = request.start_answer(&checkpoint)?;
        let files = &mut session_files;
        Some(DenseComparison::new(dense, generator, &request, files, &generation)?)
    } else {
        None
    };
    let report = GenerationReport {
        model: args.answering.model.display().to_string(),
        pipeline: entry.pipeline.name.clone(),
        file: entry.file.clone(),
        backend: args.answering.machine.backend.clone(),
        setup: args.answering.setup,
        answer: text,
        stop: stop_name(&generation.stop),
        logprobs: scores.transpose()?,
        tokens: request.counts(&generation),
        prefill_seconds: prefill.as_secs_f64(),
        prefill_density: answered.prefill_density(),
        steps: tally.steps(),
        drafts: (args.speculation.speculate > 0).then(|| tally.drafts()),
        memory: MemoryReport {
            weights: checkpoint.weight_bytes,
            keys_values: rows(answered.len()),
            index: answered.index_bytes() as u64,
        },
        density: tally.density(),
        layers: tally.layers(),
        beside,
        bars: record.as_ref().map(StepLog::outside),
    };
    let model_files = checkpoint.inputs();
    let read = files.iter().chain(args.files()).chain(&model_files);
    let read: Vec<&Path> = read.map(PathBuf::as_path).collect();
    let run = || Provenance::new(call, &read, [&*entry.pipeline], Some(backend.name()));
    if let (Some(path), Some(record)) = (&args.steps, record) {
        write_json(path, run, &report.with_steps(record.into_steps()))?;
    }
    if !args.prints_json() {
        say("")?;
    }
    if let Some(path) = &args.json {
        write_json(path, run, &report)?;
    }
    if !args.quiet {
        complain(&format!("\n{}\n", report.text()));
    }
    if report.is_empty() && !args.answering.chat.chat && checkpoint.has_chat_template() {
        note("the answer is empty. The model has a chat template; add --chat to apply it");
    }
    Ok(())
}

/// Checks that answers do not depend on measured times if drafts are checked.
fn check_fall_back(args: &GenerateArgs) -> Result<(), Failure> {
    if args.speculation.speculate == 0 || args.fall_back != FallBack::ByClock {
        return Ok(());
    }
    Err(Failure::input(
        "--speculate: expected --fall-back by-count or never, found by-clock, with which an \
         answer depends on measured times",
    ))
}

/// Reads the request, and streams the answer. Returns the answer and the time of the prefill.
fn answer(
    stream: &mut AnswerStream<'_, '_, '_, '_>,
    request: &Request,
    files: &mut SessionFiles,
) -> Result<(Generation, Duration), Failure> {
    let begin = Instant::now();
    let mut logits = files.read(stream.session, &request.dense)?;
    let prefill = begin.elapsed();
    files.save(stream.session, &request.dense, &request.context_text, &logits)?;
    stream.interrupt.stop_work_first();
    stream.tally.start_step();
    for &token in &request.sparse {
        if stream.interrupt.is_requested() {
            let tokens = Vec::new();
            return Ok((Generation { tokens, stop: Stop::Interrupted }, prefill));
        }
        logits = stream.session.step(token)?;
        stream.tally.add_step(stream.session, StepOrigin::Chosen);
    }
    let stop = stream.write_answer(logits)?;
    Ok((Generation { tokens: stream.generator.tokens().to_vec(), stop }, prefill))
}
