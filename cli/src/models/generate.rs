//! `vattention generate`: a language model's answer by a pipeline, and what that read and cost.

mod report;
mod request;
mod steps;
mod tally;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vattention::{Backend, Options, Storage};
use vattention_evaluate::ObservedBackend;
use vattention_llm::{Generation, PrefillOptions, Session, Stop, TextStream};

use crate::compare::find_backend;
use crate::dtype::Dtype;
use crate::fail::{complain, note};
use crate::fall_back::FallBack;
use crate::models::chat::ChatArgs;
use crate::models::checkpoint::{Checkpoint, row_bytes};
use crate::models::prefill::PrefillArgs;
use crate::models::setup::Setup;
use crate::outputs::{Interrupt, check_outputs_unless, is_standard_output, write_json};
use crate::pipelines::{Changes, fits_model};
use crate::provenance::Provenance;
use crate::sharing::Call;
use crate::{Failure, progress, say};

use report::Report;
use request::Request;
use tally::Tally;

pub(crate) use steps::{Beside, Outside, Step, Written};
use steps::{Errors, Record};

const HELP: &str = "\
The model is a Hugging Face directory (config.json, tokenizer.json, and safetensors) or a GGUF \
file, of a Llama, Mistral, Qwen2 or Qwen3. It answers greedily, until it ends the text or there \
are --tokens.

Context and question are tokenized apart, the question as what goes on from the context. With \
--chat they are what a user says, one after the other, in the model's chat template; what the \
template puts after the context belongs to the question. Without it the model goes on from the \
text as it is.

Setups: a reads context and question by dense attention, and the pipeline begins with the \
answer; b reads the context by dense attention, and the pipeline begins with the question. With \
--prefill that is done by another strategy in place of dense attention.

With --steps, attention is dense beside, to know the errors, and the answer is compared with the \
one by dense attention after the same reading of the prompt: times tell little then. `vattention \
plot-steps` shows the file.

Ctrl-C ends the answer, and shows what was measured until then.

JSON: answer and stop (end, length, interrupted); tokens; prefill_seconds; prefill_density, the \
share of the causal pairs of tokens and keys that was read; steps, those by the pipeline: count, \
median_seconds, attention_share of their time, and of the time that threads spent there, \
select_share, sample_share and attend_share, null where the backend does not tell; memory, in \
bytes; density, and layers: of each its density, sampled, held and bar as the table shows them; \
with --steps beside: compared, how many tokens of the answer, its end among them, and same, how \
many before the first that dense attention would not give; and bars: rows that have an error bar \
and did not read everything, and how many errors were outside.

--steps: model, pipeline, setup, beside, and steps: of each tokens, how many the sequence had, \
and each layer's error (the mean relative error of its query heads), density and bar, null where \
there is none, how many of its query heads have one and did not read everything (barred), and \
whose error was larger (outside).";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The folder of a model, or a GGUF file.
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// The pipeline file, or the name of a built-in pipeline.
    #[arg(long, value_name = "FILE")]
    pipeline: PathBuf,
    #[command(flatten)]
    changes: Changes,
    /// Where the pipeline begins: a, with the answer; b, with the question.
    #[arg(long, value_enum, default_value_t = Setup::B)]
    setup: Setup,
    /// A file of text that is read first.
    #[arg(long, value_name = "FILE", required_unless_present = "prompt")]
    context: Option<PathBuf>,
    /// The text itself, in place of a file.
    #[arg(long, value_name = "TEXT", conflicts_with = "context")]
    prompt: Option<String>,
    /// A text that goes on from it; by default, the answer does.
    #[arg(long, value_name = "TEXT")]
    question: Option<String>,
    #[command(flatten)]
    chat: ChatArgs,
    /// Tokens of the answer, at most.
    #[arg(long, default_value_t = 128, value_name = "N")]
    tokens: usize,
    #[command(flatten)]
    prefill: PrefillArgs,
    /// The machine for the steps by the pipeline: cpu, cuda or reference.
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// How keys and values are stored.
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// The sequence's number: with another one, samples are drawn anew.
    #[arg(long, default_value_t = 0, value_name = "N")]
    sequence: u32,
    /// When to read everything in place of what the pipeline chose, because that is faster.
    #[arg(long, value_enum, default_value = "by-count")]
    fall_back: FallBack,
    /// Take no token for the end of the answer: go on to --tokens.
    #[arg(long)]
    ignore_eos: bool,
    /// Print the answer alone, without the report on standard error.
    #[arg(long, short)]
    quiet: bool,
    /// Write the answer and the report as JSON; `-`: to standard output, in place of the answer.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write each layer's error, density and error bar at every step by the pipeline, and where the answer
    /// departs from that by dense attention, as JSON.
    #[arg(long, value_name = "FILE")]
    steps: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, call: &Call) -> Result<(), Failure> {
    let backend = find_backend(&args.backend)?;
    let (entry, files) = args.changes.load_one(&args.pipeline)?;
    let reading =
        PrefillOptions { strategy: args.prefill.strategy()?, ..PrefillOptions::default() };
    let checkpoint = Checkpoint::open(&args.model)?;
    fits_model(&entry, &checkpoint.layers(), &*backend)
        .map_err(|reason| Failure::input(format!("{}: {reason}", entry.file)))?;
    let request = Request::new(args, &checkpoint)?;
    let (config, storage) = (&checkpoint.config, Storage::from(args.dtype));
    let rows = |tokens| row_bytes(&config.shape, storage, config.layers, tokens);
    // The pipeline's; with --steps that of dense attention beside, and of the dense answer.
    let copies = if args.steps.is_some() { 3 } else { 1 };
    checkpoint.expect_room(request.most(), copies * rows(request.most()))?;
    let model_files = checkpoint.files();
    let texts = args.context.iter().chain(&args.prefill.prefill);
    let inputs: Vec<&Path> =
        files.iter().chain(&model_files).chain(texts.clone()).map(PathBuf::as_path).collect();
    let interrupt = Interrupt::default();
    let outputs = [("--json", args.json.as_ref()), ("--steps", args.steps.as_ref())];
    check_outputs_unless(&interrupt, &outputs, &inputs)?;
    let options = Options {
        sequence: args.sequence,
        storage,
        timed: true,
        fall_back: args.fall_back.into(),
        ..Options::default()
    };
    let model = checkpoint.load()?;
    let observed = ObservedBackend::new(&*backend, true, Errors::default());
    let machine: &dyn Backend = if args.steps.is_some() { &observed } else { &*backend };
    let session = |pipeline, machine: &dyn Backend| -> Result<Session<'_>, Failure> {
        let session =
            Session::new(&model, machine, pipeline, &options)?.with_prefill_options(reading);
        let session = session.with_classes(checkpoint.tokenizer.classes_for(pipeline)?);
        Ok(if args.ignore_eos { session.without_end() } else { session })
    };
    let mut answering = Answering {
        session: session(&entry.pipeline, machine)?,
        interrupt,
        stream: checkpoint.tokenizer.stream(),
        silent: args.prints_json(),
        tally: Tally::new(args.steps.as_ref().map(|_| Record::new(&observed))),
    };
    let (generation, prefill) = answering.answer(&request)?;
    let Answering { session: answered, mut tally, .. } = answering;
    let record = tally.take_record();
    let beside = match generation.stop {
        Stop::End(_) | Stop::Length if record.is_some() => {
            let dense = session(&Arc::default(), &*backend)?;
            Some(Beside::new(dense, &request, &generation)?)
        }
        _ => None,
    };
    let report = Report {
        model: args.model.display().to_string(),
        pipeline: entry.pipeline.name.clone(),
        file: entry.file.clone(),
        backend: args.backend.clone(),
        setup: args.setup.name(),
        answer: checkpoint.tokenizer.decode(&generation.tokens)?,
        stop: report::stop(&generation),
        tokens: request.counts(&generation),
        prefill_seconds: prefill.as_secs_f64(),
        prefill_density: answered.prefill_density(),
        steps: tally.steps(),
        memory: report::Memory {
            weights: checkpoint.weight_bytes,
            keys_values: rows(answered.len()),
            index: answered.index_bytes() as u64,
        },
        density: tally.density(),
        layers: tally.layers(),
        beside,
        bars: record.as_ref().map(Record::outside),
    };
    let own = checkpoint.inputs();
    let read: Vec<&Path> = files.iter().chain(texts).chain(&own).map(PathBuf::as_path).collect();
    let run = || Provenance::new(call, &read, [&*entry.pipeline], Some(backend.name()));
    if let (Some(path), Some(record)) = (&args.steps, record) {
        write_json(path, run, &record.written(&report))?;
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
    let ended = matches!(generation.stop, Stop::End(_));
    let unanswered = ended && report.answer.trim().is_empty() && !args.chat.chat;
    if unanswered && checkpoint.has_chat_template() {
        note(UNANSWERED);
    }
    Ok(())
}

/// What may be wrong when the model ends the text at once.
const UNANSWERED: &str = "\
the answer is empty. The model has a chat template, which is applied with --chat";

/// A sequence that is told a request.
struct Answering<'m, 't, 'r> {
    session: Session<'m>,
    interrupt: Interrupt,
    stream: TextStream<'t>,
    /// True if the answer is not streamed, because the JSON goes to standard output.
    silent: bool,
    tally: Tally<'r>,
}

impl Args {
    /// Returns whether the JSON goes to standard output.
    fn prints_json(&self) -> bool {
        self.json.as_deref().is_some_and(is_standard_output)
    }
}

impl Answering<'_, '_, '_> {
    /// Reads the request, and prints the answer as it comes. Returns the time of the dense part too.
    fn answer(&mut self, request: &Request) -> Result<(Generation, Duration), Failure> {
        let begin = Instant::now();
        let mut logits = read_prompt(&mut self.session, &request.dense)?;
        let prefill = begin.elapsed();
        self.interrupt.end_work_only();
        self.tally.go_on();
        for &token in &request.sparse {
            if self.interrupt.asked() {
                let tokens = Vec::new();
                return Ok((Generation { tokens, stop: Stop::Asked }, prefill));
            }
            logits = self.session.step(token)?;
            self.tally.see(&self.session);
        }
        Ok((self.stream_answer(logits, request.answer)?, prefill))
    }

    fn stream_answer(&mut self, logits: Vec<f32>, most: usize) -> Result<Generation, Failure> {
        let Self { session, interrupt, stream, silent, tally } = self;
        let mut failed = Ok(());
        let generation = session.go_on(logits, most, |token, session| {
            tally.see(session);
            if !*silent {
                failed = stream.push(token).map_err(Failure::from).and_then(print);
            }
            tally.go_on();
            if failed.is_err() || interrupt.asked() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        failed?;
        if !*silent {
            print(stream.finish()?)?;
        }
        // The step after the last token shown, if that is where the model ended the text.
        tally.see(session);
        Ok(generation)
    }
}

/// Returns the logits after the last token.
fn read_prompt(session: &mut Session<'_>, tokens: &[u32]) -> Result<Vec<f32>, Failure> {
    let bar = progress::bar("layers");
    let logits = session.prefill_with(tokens, |done, total| progress::show(&bar, done, total))?;
    bar.finish_and_clear();
    Ok(logits)
}

/// Prints a part of the answer; a closed pipe is no error.
fn print(text: Option<String>) -> Result<(), Failure> {
    let Some(text) = text else { return Ok(()) };
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::input(error)),
        _ => Ok(()),
    }
}
