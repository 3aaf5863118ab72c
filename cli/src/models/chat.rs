//! `vattention chat`: a conversation with a language model in the terminal.

mod args;
mod conversation;
mod input;
mod messages;
mod sequence;
mod session;
mod stats;

use std::path::{Path, PathBuf};

use vattention::Options;
use vattention_evaluate::Setup;
use vattention_llm::{Error, TextGenerator};

use crate::fail::{Failure, note, say};
use crate::models::chat_prompt::open_template;
use crate::models::checkpoint::{ModelFiles, row_bytes};
use crate::models::generate::{GenerationReport, TokenCounts, stop_name};
use crate::models::sampling_args::name_option;
use crate::outputs::{Interrupt, check_outputs_with, write_json};
use crate::pipelines::{Changes, fits_model};
use crate::provenance::Provenance;
use crate::sharing::Call;

use conversation::Conversation;
use input::{COMMANDS, InputLines, UserInput};
use messages::MessagesFile;
use session::{ChatModel, ChatSession};

pub(crate) use args::ChatArgs;

pub(crate) fn run(args: &ChatArgs, call: &Call) -> Result<(), Failure> {
    let backend = args.machine.find()?;
    let (entry, files) = args.changes.load_one(&args.pipeline)?;
    let checkpoint = ModelFiles::open(&args.model)?;
    fits_model(&entry, &checkpoint.layers(), &*backend)
        .map_err(|reason| Failure::input(format!("{}: {reason}", entry.file)))?;
    let conversation = open_conversation(args, &checkpoint)?;
    let limit = find_limit(args, &checkpoint)?;
    let params =
        args.sampling.to_params(&checkpoint.tokenizer, args.tokens.unwrap_or(usize::MAX))?;
    // Wrong parameters are refused before the weights are loaded.
    TextGenerator::new(&params, &checkpoint.tokenizer, &checkpoint.config, &[])
        .map_err(name_option)?;
    let model_files = checkpoint.files();
    let inputs = files.iter().chain(&model_files).chain(args.files());
    let inputs: Vec<&Path> = inputs.map(PathBuf::as_path).collect();
    let interrupt = Interrupt::default();
    check_outputs_with(&interrupt, &[("--json", args.json.as_ref())], &inputs)?;
    let model = checkpoint.load()?;
    let options = Options {
        storage: args.dtype,
        timed: true,
        rewindable: args.speculation.speculate,
        ..Options::default()
    };
    let chat_model = ChatModel {
        model: &model,
        checkpoint: &checkpoint,
        backend: &*backend,
        options: &options,
        limit,
    };
    let mut session = ChatSession::new(chat_model, conversation, entry, params, interrupt)?;
    if args.messages.is_none() {
        return talk(&mut session, &args.changes);
    }
    let report = answer_file(args, &mut session)?;
    let Some(path) = &args.json else { return Ok(()) };
    let model_files = checkpoint.inputs();
    let read = files.iter().chain(args.files()).chain(&model_files);
    let read: Vec<&Path> = read.map(PathBuf::as_path).collect();
    let pipeline = [&*session.entry.pipeline];
    write_json(path, || Provenance::new(call, &read, pipeline, Some(backend.name())), &report)
}

/// Opens the template and the file of `--messages`, and checks that the template accepts the
/// messages.
fn open_conversation(
    args: &ChatArgs,
    checkpoint: &ModelFiles<'_>,
) -> Result<Conversation, Failure> {
    let template = open_template(args.template.as_deref(), checkpoint)?;
    let mut variables = args.chat_template_kwargs.clone().unwrap_or_default();
    let system = args.system.clone();
    let Some(path) = &args.messages else {
        let messages = Vec::new();
        return Ok(Conversation { template, system, messages, tools: None, variables });
    };
    let file = MessagesFile::open(path)?;
    variables.extend(file.variables);
    let (messages, tools) = (file.messages, file.tools);
    let conversation = Conversation { template, system, messages, tools, variables };
    let named = |error| match error {
        Error::Input { .. } => Failure::input(format!("--messages {}: {error}", path.display())),
        other => other.into(),
    };
    conversation.render().map_err(named)?;
    Ok(conversation)
}

/// Returns the maximum number of tokens of a conversation.
fn find_limit(args: &ChatArgs, checkpoint: &ModelFiles<'_>) -> Result<usize, Failure> {
    let config = &checkpoint.config;
    let rows = |tokens| row_bytes(&config.shape, args.dtype, config.layers, tokens);
    let reserved = args.context_size.unwrap_or(0);
    checkpoint
        .check_length(reserved)
        .map_err(|error| Failure::input(format!("--context-size: {error}")))?;
    checkpoint.expect_room(reserved, rows(reserved))?;
    Ok(args.context_size.unwrap_or(config.context))
}

/// Answers messages until the input ends.
fn talk(session: &mut ChatSession<'_>, changes: &Changes) -> Result<(), Failure> {
    let mut lines = InputLines::open()?;
    if lines.is_terminal() {
        note("/help lists the commands");
    }
    while let Some(text) = lines.next_text()? {
        let input = input::parse(&text);
        if matches!(input, Ok(UserInput::Quit)) {
            break;
        }
        let is_message = matches!(input, Ok(UserInput::Message(_)));
        let executed = input.and_then(|input| execute(session, input, changes));
        match executed {
            Err(failure) if lines.is_terminal() => {
                failure.report();
                if is_message {
                    note(TAKEN_BACK);
                }
            }
            executed => executed?,
        }
    }
    Ok(())
}

/// Note after an error during an answer.
const TAKEN_BACK: &str = "\
the message was taken back; the conversation continues without it, and /reset begins a new one";

fn execute(
    session: &mut ChatSession<'_>,
    input: UserInput,
    changes: &Changes,
) -> Result<(), Failure> {
    match input {
        UserInput::Message(text) => {
            session.conversation.push_question(&text);
            session.answer(false)?;
            say("")
        }
        UserInput::Pipeline(file) => session.use_pipeline(&file, changes),
        UserInput::Reset => session.reset(),
        UserInput::Stats => say(&session.describe()),
        UserInput::Help => say(COMMANDS),
        UserInput::Quit => Ok(()),
    }
}

/// Answers the last message of a file.
fn answer_file(
    args: &ChatArgs,
    session: &mut ChatSession<'_>,
) -> Result<GenerationReport, Failure> {
    let answer = session.answer(args.prints_json())?;
    if !args.prints_json() {
        say("")?;
    }
    let entry = &session.entry;
    Ok(GenerationReport {
        model: args.model.display().to_string(),
        pipeline: entry.pipeline.name.clone(),
        file: entry.file.clone(),
        backend: args.machine.backend.clone(),
        setup: Setup::A,
        stop: stop_name(&answer.stop),
        logprobs: None,
        tokens: TokenCounts {
            context: session.sequence.len() - answer.tokens,
            question: 0,
            answer: answer.tokens,
        },
        answer: answer.text,
        prefill_seconds: answer.reading.as_secs_f64(),
        prefill_density: session.sequence.session.prefill_density(),
        steps: session.tally.steps(),
        drafts: (args.speculation.speculate > 0).then(|| session.tally.drafts()),
        memory: session.memory(),
        density: session.tally.density(),
        layers: session.tally.layers(),
        beside: None,
        bars: None,
    })
}
