//! Commands that need a tensor library: they run language models, or train and calibrate selectors
//! on traces.

mod answering;
mod calibrate;
mod capture;
mod chat;
mod chat_prompt;
mod checkpoint;
mod evaluate;
mod generate;
mod perplexity;
mod plot_steps;
mod prefill;
mod sampling_args;
mod serve;
mod speculation_args;
mod train_hash;
mod train_hata;
mod training_args;

use std::path::Path;

use clap::Subcommand;
use vattention::Shape;

use crate::fail::Failure;
use crate::sharing::Call;

pub(crate) use generate::{GenerationReport, StepsDocument};

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Generate text with a pipeline, and report what it read.
    Generate(Box<generate::GenerateArgs>),
    /// Chat with a model in the terminal; a pipeline computes its answers.
    Chat(Box<chat::ChatArgs>),
    /// Serve a model and its pipelines over HTTP, by OpenAI's API.
    Serve(Box<serve::ServeArgs>),
    /// Show errors, densities and error bars from files of `generate --steps`.
    PlotSteps(plot_steps::PlotStepsArgs),
    /// Evaluate pipelines by a model's accuracy on long-context tasks.
    Evaluate(Box<evaluate::EvaluateArgs>),
    /// Measure the perplexity of a text with pipelines, beside dense attention.
    Perplexity(perplexity::PerplexityArgs),
    /// Write a trace of a language model on a text.
    Capture(capture::CaptureArgs),
    /// Calibrate selectors (channels, bases, head classes) from traces.
    #[command(subcommand)]
    Calibrate(calibrate::CalibrateCommand),
    /// Train the maps of `hash-attention` on traces.
    TrainHash(train_hash::TrainHashArgs),
    /// Train one matrix per KV head for `hash-attention` on traces, as HATA does.
    TrainHata(train_hata::TrainHataArgs),
}

pub(crate) fn run(command: &ModelCommand, call: &Call) -> Result<(), Failure> {
    match command {
        ModelCommand::Generate(args) => generate::run(args, call),
        ModelCommand::Chat(args) => chat::run(args, call),
        ModelCommand::Serve(args) => serve::run(args),
        ModelCommand::PlotSteps(args) => plot_steps::run(args),
        ModelCommand::Evaluate(args) => evaluate::run(args, call),
        ModelCommand::Perplexity(args) => perplexity::run(args, call),
        ModelCommand::Capture(args) => capture::run(args, call),
        ModelCommand::Calibrate(command) => calibrate::run(command),
        ModelCommand::TrainHash(args) => train_hash::run(args),
        ModelCommand::TrainHata(args) => train_hata::run(args),
    }
}

/// Returns the layers of a model, and their shapes.
pub(crate) fn layers(model: &Path) -> Result<Vec<(usize, Shape)>, Failure> {
    checkpoint::expect_exists(model)?;
    Ok(checkpoint::layers(&vattention_llm::Config::open(model)?))
}

impl From<vattention_evaluate::Error> for Failure {
    fn from(error: vattention_evaluate::Error) -> Self {
        match error {
            vattention_evaluate::Error::Experiment(error) => error.into(),
            vattention_evaluate::Error::Setting { field, reason } => Self::option(field, &reason),
            other => Self::input(other),
        }
    }
}

impl From<vattention_tasks::Error> for Failure {
    fn from(error: vattention_tasks::Error) -> Self {
        Self::input(error)
    }
}

impl From<vattention_llm::Error> for Failure {
    fn from(error: vattention_llm::Error) -> Self {
        Self::input(error)
    }
}

impl From<vattention_train::Error> for Failure {
    fn from(error: vattention_train::Error) -> Self {
        match error {
            vattention_train::Error::Trace(error) => error.into(),
            other => Self::input(other),
        }
    }
}
