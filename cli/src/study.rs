//! `vattention study`: the paper's experiments on a trace.

mod table;

use serde::Serialize;
use vattention::experiments::study::{
    self, BaseSampleOptions, BiasOptions, CalibrationOptions, CoverageOptions, EpsilonOptions,
    NormalityOptions, PromiseOptions, Study, TightnessOptions,
};
use vattention::experiments::{Entry, Results, TraceSettings};
use vattention::plots::study as plots;
use vattention::trace::Trace;
use vattention::{Backend, Fraction};

use crate::backends::BackendArg;
use crate::fail::Failure;
use crate::numbers::fraction;
use crate::on_trace::OnTrace;
use crate::pipelines::{LoadedPipelines, PipelineArgs};
use crate::progress;
use crate::sharing::Call;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum StudyCommand {
    /// Sample size and failure rate of each confidence bound on the denominator.
    Tightness {
        /// Relative error allowed.
        #[arg(long, default_value_t = TightnessOptions::default().epsilon, value_parser = fraction)]
        epsilon: Fraction,
        /// Probability with which the error may exceed epsilon.
        #[arg(long, default_value_t = TightnessOptions::default().delta, value_parser = fraction)]
        delta: Fraction,
        /// Samples per row.
        #[arg(long, default_value_t = TightnessOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Mean error as a function of epsilon, for denominator, numerator and output.
    Epsilon {
        /// Relative errors allowed, separated by commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "EPSILONS")]
        #[arg(default_values_t = EpsilonOptions::default().epsilons)]
        epsilons: Vec<Fraction>,
        /// Probability with which the error may exceed epsilon.
        #[arg(long, default_value_t = EpsilonOptions::default().delta, value_parser = fraction)]
        delta: Fraction,
        /// Samples per row.
        #[arg(long, default_value_t = EpsilonOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Error of the variances that base samples of several sizes estimate.
    BaseSample {
        /// Sample sizes in tokens, separated by commas; sizes that are too large for some row are
        /// left out.
        #[arg(long, value_delimiter = ',', value_name = "SIZES")]
        #[arg(default_values_t = BaseSampleOptions::default().sizes)]
        sizes: Vec<usize>,
        /// Samples per row.
        #[arg(long, default_value_t = BaseSampleOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Distance of the denominator's estimate from a normal distribution, by sample size.
    Normality {
        /// Sample sizes in tokens, separated by commas; sizes that are too large for some row are
        /// left out.
        #[arg(long, value_delimiter = ',', value_name = "SIZES")]
        #[arg(default_values_t = NormalityOptions::default().sizes)]
        sizes: Vec<usize>,
        /// Samples per row.
        #[arg(long, default_value_t = NormalityOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Attention weight covered by top-k, top-p and a sample, and their errors.
    Coverage {
        /// Share of the tokens that top-k and the sample read in addition to sink and window.
        #[arg(long, default_value_t = CoverageOptions::default().share, value_parser = fraction)]
        share: Fraction,
        /// Attention weight that top-p covers.
        #[arg(long, default_value_t = CoverageOptions::default().mass, value_parser = fraction)]
        mass: Fraction,
        /// Samples per row.
        #[arg(long, default_value_t = CoverageOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Bias and variance of the output, for top-k and for a sample.
    Bias {
        /// Shares of the tokens to read in addition to sink, window and top 5 %, separated by
        /// commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "SHARES")]
        #[arg(default_values_t = BiasOptions::default().shares)]
        shares: Vec<Fraction>,
        /// Samples per row.
        #[arg(long, default_value_t = BiasOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Share of errors beyond their error bars, at several confidence levels.
    Calibration {
        #[command(flatten)]
        chosen: PipelineArgs,
        /// Shares of the samples whose error may exceed its bar, separated by commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "DELTAS")]
        #[arg(default_values_t = CalibrationOptions::default().deltas)]
        deltas: Vec<Fraction>,
        /// Samples per head, spread over its queries.
        #[arg(long, default_value_t = CalibrationOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Error and density of the paper's natural configuration when one parameter varies.
    Sensitivity {
        #[command(flatten)]
        machine: BackendArg,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Error against density of pipelines, each with and without a sample of the rest.
    Pareto(PromiseStudyArgs),
    /// Density of pipelines, relative to the least that independent sampling needs.
    Limit(PromiseStudyArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct PromiseStudyArgs {
    #[command(flatten)]
    chosen: PipelineArgs,
    /// Relative error of the output that `ratio` or the limit allows.
    #[arg(long, default_value_t = PromiseOptions::default().epsilon, value_parser = fraction)]
    epsilon: Fraction,
    /// Probability with which the error may exceed epsilon.
    #[arg(long, default_value_t = PromiseOptions::default().delta, value_parser = fraction)]
    delta: Fraction,
    #[command(flatten)]
    machine: BackendArg,
    #[command(flatten)]
    on: OnTrace,
}

pub(crate) fn run(command: StudyCommand, call: &Call) -> Result<(), Failure> {
    match command {
        StudyCommand::Tightness { epsilon, delta, trials, on } => {
            let options = TightnessOptions { epsilon, delta, trials };
            let run = |study: &Study<'_>| study::tightness(study, &options);
            measure(&on, "rows", call, run, (plots::tightness, table::tightness))
        }
        StudyCommand::Epsilon { epsilons, delta, trials, on } => {
            let options = EpsilonOptions { epsilons, delta, trials };
            let run = |study: &Study<'_>| study::epsilon(study, &options);
            measure(&on, "rows", call, run, (plots::epsilon, table::epsilon))
        }
        StudyCommand::BaseSample { sizes, trials, on } => {
            let options = BaseSampleOptions { sizes, trials };
            let run = |study: &Study<'_>| study::base_sample(study, &options);
            measure(&on, "rows", call, run, (plots::base_sample, table::base_sample))
        }
        StudyCommand::Normality { sizes, trials, on } => {
            let options = NormalityOptions { sizes, trials };
            let run = |study: &Study<'_>| study::normality(study, &options);
            measure(&on, "rows", call, run, (plots::normality, table::normality))
        }
        StudyCommand::Coverage { share, mass, trials, on } => {
            let options = CoverageOptions { share, mass, trials };
            let run = |study: &Study<'_>| study::coverage(study, &options);
            measure(&on, "rows", call, run, (plots::coverage, table::coverage))
        }
        StudyCommand::Bias { shares, trials, on } => {
            let options = BiasOptions { shares, trials };
            let run = |study: &Study<'_>| study::bias(study, &options);
            measure(&on, "rows", call, run, (plots::bias, table::bias))
        }
        StudyCommand::Calibration { chosen, deltas, trials, on } => {
            let options = CalibrationOptions { deltas, trials };
            let run = |inputs: &StudyInputs<'_>| {
                let StudyInputs { trace, settings, results, progress, .. } = *inputs;
                let study = Study { trace, settings, results, progress };
                study::calibration(&study, inputs.entries, &options)
            };
            let machine = BackendArg::cpu();
            compare(
                &chosen,
                &machine,
                &on,
                "rows",
                call,
                run,
                (plots::calibration, table::calibration),
            )
        }
        StudyCommand::Sensitivity { machine, on } => {
            let backend = machine.find()?;
            let run = |study: &Study<'_>| {
                let Study { trace, settings, results, progress } = *study;
                study::sensitivity(trace, &*backend, settings, results, progress)
            };
            measure(&on, "steps", call, run, (plots::sensitivity, table::sensitivity))
        }
        StudyCommand::Pareto(PromiseStudyArgs { chosen, epsilon, delta, machine, on }) => {
            let options = PromiseOptions { epsilon, delta };
            let run = |inputs: &StudyInputs<'_>| {
                let StudyInputs { entries, trace, backend, settings, results, progress } = *inputs;
                study::pareto(entries, &options, trace, backend, settings, results, progress)
            };
            compare(&chosen, &machine, &on, "steps", call, run, (plots::pareto, table::pareto))
        }
        StudyCommand::Limit(PromiseStudyArgs { chosen, epsilon, delta, machine, on }) => {
            let options = PromiseOptions { epsilon, delta };
            let run = |inputs: &StudyInputs<'_>| {
                let StudyInputs { entries, trace, backend, settings, results, progress } = *inputs;
                study::limit(entries, &options, trace, backend, settings, results, progress)
            };
            compare(&chosen, &machine, &on, "steps", call, run, (plots::limit, table::limit))
        }
    }
}

/// Function that renders results as a plot or a table.
type Render<T> = fn(&T) -> String;

/// Runs and publishes a study that takes no pipelines.
fn measure<T: Serialize>(
    on: &OnTrace,
    unit: &str,
    call: &Call,
    run: impl FnOnce(&Study<'_>) -> vattention::experiments::Result<T>,
    (svg, table): (Render<T>, Render<T>),
) -> Result<(), Failure> {
    let (trace, settings) = on.open(&[], None)?;
    let results = on.results(call, &[])?;
    let bar = progress::bar(unit);
    let show = |done, total| progress::show(&bar, done, total);
    let study = Study { trace: &trace, settings: &settings, results: &results, progress: &show };
    let found = run(&study)?;
    bar.finish_and_clear();
    results.expect_all_shards()?;
    let run = || on.provenance(call, &[], [], None);
    on.outputs.publish(run, &found, || svg(&found), &table(&found))
}

/// Inputs of a study of pipelines.
#[derive(Clone, Copy)]
struct StudyInputs<'a> {
    entries: &'a [Entry],
    trace: &'a Trace,
    backend: &'a dyn Backend,
    settings: &'a TraceSettings,
    results: &'a Results,
    progress: &'a (dyn Fn(usize, usize) + Sync),
}

/// Runs and publishes a study of the pipelines that can run on the trace.
fn compare<T: Serialize>(
    chosen: &PipelineArgs,
    machine: &BackendArg,
    on: &OnTrace,
    unit: &str,
    call: &Call,
    run: impl FnOnce(&StudyInputs<'_>) -> vattention::experiments::Result<T>,
    (svg, table): (Render<T>, Render<T>),
) -> Result<(), Failure> {
    let backend = machine.find()?;
    let LoadedPipelines { lineup, files } = chosen.load()?;
    let (trace, settings) = on.open(&files, None)?;
    let results = on.results(call, &lineup.run)?;
    let lineup = chosen.fit_to_trace(lineup, &trace, &*backend, &settings, &results)?;
    let bar = progress::bar(unit);
    let show = |done, total| progress::show(&bar, done, total);
    let found = run(&StudyInputs {
        entries: &lineup.run,
        trace: &trace,
        backend: &*backend,
        settings: &settings,
        results: &results,
        progress: &show,
    })?;
    bar.finish_and_clear();
    results.expect_all_shards()?;
    let run = || on.provenance(call, &files, lineup.pipelines(), Some(backend.name()));
    on.outputs.publish(run, &lineup.with_left_out(&found), || svg(&found), &table(&found))
}
