//! `vattention study`: the paper's experiments, on a trace.

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
    /// How many tokens each bound of the denominator asks for, and how often it fails.
    Tightness {
        /// The relative error allowed.
        #[arg(long, default_value_t = TightnessOptions::default().epsilon, value_parser = fraction)]
        epsilon: Fraction,
        /// The probability with which it may be exceeded.
        #[arg(long, default_value_t = TightnessOptions::default().delta, value_parser = fraction)]
        delta: Fraction,
        /// Samples of each row.
        #[arg(long, default_value_t = TightnessOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// How the mean error follows epsilon, for denominator, numerator and output.
    Epsilon {
        /// The relative errors allowed, between commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "EPSILONS")]
        #[arg(default_values_t = EpsilonOptions::default().epsilons)]
        epsilons: Vec<Fraction>,
        /// The probability with which they may be exceeded.
        #[arg(long, default_value_t = EpsilonOptions::default().delta, value_parser = fraction)]
        delta: Fraction,
        /// Samples of each row.
        #[arg(long, default_value_t = EpsilonOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// How well base samples of several sizes know the variances that budgets rest on.
    BaseSample {
        /// Tokens in the sample, between commas; those that no row has are left out.
        #[arg(long, value_delimiter = ',', value_name = "SIZES")]
        #[arg(default_values_t = BaseSampleOptions::default().sizes)]
        sizes: Vec<usize>,
        /// Samples of each row.
        #[arg(long, default_value_t = BaseSampleOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// How near to normal the estimate of the denominator is, by the size of the sample.
    Normality {
        /// Tokens in the sample, between commas; those that no row has are left out.
        #[arg(long, value_delimiter = ',', value_name = "SIZES")]
        #[arg(default_values_t = NormalityOptions::default().sizes)]
        sizes: Vec<usize>,
        /// Samples of each row.
        #[arg(long, default_value_t = NormalityOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// What top-k, top-p and a sample see of each row, and how far off they are.
    Coverage {
        /// Tokens that top-k and the sample read besides sink and window, of all.
        #[arg(long, default_value_t = CoverageOptions::default().share, value_parser = fraction)]
        share: Fraction,
        /// The softmax mass that top-p holds.
        #[arg(long, default_value_t = CoverageOptions::default().mass, value_parser = fraction)]
        mass: Fraction,
        /// Samples of each row.
        #[arg(long, default_value_t = CoverageOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// What of the output's error is bias, and what variance, after top-k and after a sample.
    Bias {
        /// Tokens read besides sink, window and top 5 %, of all, between commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "SHARES")]
        #[arg(default_values_t = BiasOptions::default().shares)]
        shares: Vec<Fraction>,
        /// Samples of each row.
        #[arg(long, default_value_t = BiasOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Whether error bars are as sure as they say, at several confidences.
    Calibration {
        #[command(flatten)]
        chosen: PipelineArgs,
        /// Shares of the samples whose error may exceed its bar, between commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction, value_name = "DELTAS")]
        #[arg(default_values_t = CalibrationOptions::default().deltas)]
        deltas: Vec<Fraction>,
        /// Samples of each head, spread over its queries.
        #[arg(long, default_value_t = CalibrationOptions::default().trials)]
        trials: u32,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Error and density of the paper's natural configuration, one parameter at a time.
    Sensitivity {
        #[command(flatten)]
        machine: BackendArg,
        #[command(flatten)]
        on: OnTrace,
    },
    /// Error against density of pipelines, each with a sample of the rest and without.
    Pareto(Pipelines),
    /// What pipelines read beside the fewest tokens that independent sampling needs.
    Limit(Pipelines),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Pipelines {
    #[command(flatten)]
    chosen: PipelineArgs,
    /// The relative error of the output that `ratio` or the limit allows.
    #[arg(long, default_value_t = PromiseOptions::default().epsilon, value_parser = fraction)]
    epsilon: Fraction,
    /// The probability with which it may be exceeded.
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
            let run = |on: &MeasuredOn<'_>| {
                let MeasuredOn { trace, settings, results, progress, .. } = *on;
                let study = Study { trace, settings, results, progress };
                study::calibration(&study, on.entries, &options)
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
        StudyCommand::Pareto(Pipelines { chosen, epsilon, delta, machine, on }) => {
            let options = PromiseOptions { epsilon, delta };
            let run = |on: &MeasuredOn<'_>| {
                let MeasuredOn { entries, trace, backend, settings, results, progress } = *on;
                study::pareto(entries, &options, trace, backend, settings, results, progress)
            };
            compare(&chosen, &machine, &on, "steps", call, run, (plots::pareto, table::pareto))
        }
        StudyCommand::Limit(Pipelines { chosen, epsilon, delta, machine, on }) => {
            let options = PromiseOptions { epsilon, delta };
            let run = |on: &MeasuredOn<'_>| {
                let MeasuredOn { entries, trace, backend, settings, results, progress } = *on;
                study::limit(entries, &options, trace, backend, settings, results, progress)
            };
            compare(&chosen, &machine, &on, "steps", call, run, (plots::limit, table::limit))
        }
    }
}

/// Makes a plot or a table of results.
type View<T> = fn(&T) -> String;

/// Runs and publishes a study that takes no pipelines.
fn measure<T: Serialize>(
    on: &OnTrace,
    unit: &str,
    call: &Call,
    run: impl FnOnce(&Study<'_>) -> vattention::experiments::Result<T>,
    (svg, table): (View<T>, View<T>),
) -> Result<(), Failure> {
    let (trace, settings) = on.open(&[], None)?;
    let results = on.results(call, &[])?;
    let bar = progress::bar(unit);
    let show = |done, total| progress::show(&bar, done, total);
    let study = Study { trace: &trace, settings: &settings, results: &results, progress: &show };
    let found = run(&study)?;
    bar.finish_and_clear();
    results.expect_whole()?;
    let run = || on.provenance(call, &[], [], None);
    on.outputs.publish(run, &found, || svg(&found), &table(&found))
}

/// Pipelines, and the trace that a study runs them on.
#[derive(Clone, Copy)]
struct MeasuredOn<'a> {
    entries: &'a [Entry],
    trace: &'a Trace,
    backend: &'a dyn Backend,
    settings: &'a TraceSettings,
    results: &'a Results,
    progress: &'a (dyn Fn(usize, usize) + Sync),
}

/// Runs and publishes a study of those pipelines that can run on the trace.
fn compare<T: Serialize>(
    chosen: &PipelineArgs,
    machine: &BackendArg,
    on: &OnTrace,
    unit: &str,
    call: &Call,
    run: impl FnOnce(&MeasuredOn<'_>) -> vattention::experiments::Result<T>,
    (svg, table): (View<T>, View<T>),
) -> Result<(), Failure> {
    let backend = machine.find()?;
    let LoadedPipelines { lineup, files } = chosen.load()?;
    let (trace, settings) = on.open(&files, None)?;
    let results = on.results(call, &lineup.run)?;
    let lineup = chosen.lineup(lineup, &trace, &*backend, &settings, &results)?;
    let bar = progress::bar(unit);
    let show = |done, total| progress::show(&bar, done, total);
    let found = run(&MeasuredOn {
        entries: &lineup.run,
        trace: &trace,
        backend: &*backend,
        settings: &settings,
        results: &results,
        progress: &show,
    })?;
    bar.finish_and_clear();
    results.expect_whole()?;
    let run = || on.provenance(call, &files, lineup.pipelines(), Some(backend.name()));
    on.outputs.publish(run, &lineup.told(&found), || svg(&found), &table(&found))
}
