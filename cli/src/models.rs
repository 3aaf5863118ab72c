//! Commands that run language models, or learn from traces what selectors rank by: those that need a tensor library.

mod answering;
mod calibrate;
mod capture;
mod chat;
mod checkpoint;
mod evaluate;
mod generate;
mod learning;
mod plot_steps;
mod prefill;
mod train_hash;
mod train_hata;

use std::path::Path;

use clap::Subcommand;
use vattention::Shape;

use crate::fail::Failure;
use crate::sharing::Call;

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Let a language model answer by a pipeline, and tell what that read.
    Generate(generate::GenerateArgs),
    /// Show what `generate --steps` wrote: how errors, densities and error bars went.
    PlotSteps(plot_steps::PlotStepsArgs),
    /// Ask a model tasks whose answers lie far back, and judge pipelines by what it answers.
    Evaluate(Box<evaluate::EvaluateArgs>),
    /// Make a trace of a language model and a text.
    Capture(capture::CaptureArgs),
    /// Find in traces what a selector ranks by.
    #[command(subcommand)]
    Calibrate(calibrate::CalibrateCommand),
    /// Train the maps of `hash-attention` on traces.
    TrainHash(train_hash::TrainHashArgs),
    /// Train one matrix for each KV head for `hash-attention`, as HATA has them, on traces.
    TrainHata(train_hata::TrainHataArgs),
}

pub(crate) fn run(command: &ModelCommand, call: &Call) -> Result<(), Failure> {
    match command {
        ModelCommand::Generate(args) => generate::run(args, call),
        ModelCommand::PlotSteps(args) => plot_steps::run(args),
        ModelCommand::Evaluate(args) => evaluate::run(args, call),
        ModelCommand::Capture(args) => capture::run(args, call),
        ModelCommand::Calibrate(command) => calibrate::run(command),
        ModelCommand::TrainHash(args) => train_hash::run(args),
        ModelCommand::TrainHata(args) => train_hata::run(args),
    }
}

/// The layers of a model, and their shapes.
pub(crate) fn layers(model: &Path) -> Result<Vec<(usize, Shape)>, Failure> {
    checkpoint::expect_exists(model)?;
    Ok(checkpoint::layers(&vattention_llm::Config::open(model)?))
}

impl From<vattention_evaluate::Error> for Failure {
    fn from(error: vattention_evaluate::Error) -> Self {
        match error {
            vattention_evaluate::Error::Experiment(error) => error.into(),
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
