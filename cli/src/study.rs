//! `vattention study`: the paper's experiments, on a trace.

mod table;

use std::path::{Path, PathBuf};

use serde::Serialize;
use vattention::experiments::study::{
    self, BaseSampleOptions, BiasOptions, CalibrationOptions, CoverageOptions, EpsilonOptions,
    NormalityOptions, PromiseOptions, Study, TightnessOptions,
};
use vattention::experiments::{Entry, Results, TraceSettings};
use vattention::plots::study as plots;
use vattention::trace::{Trace, write_beside};
use vattention::{Backend, Fraction, PipelineConfig};

use crate::backends::find_backend;
use crate::fail::Failure;
use crate::layers::{LayerRange, layer_numbers};
use crate::numbers::fraction;
use crate::outputs::{check_outputs, publish};
use crate::pipelines::{Lineup, Loaded, PipelineArgs};
use crate::progress;
use crate::provenance::Provenance;
use crate::sharing::{Call, Sharing, inputs};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
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
        on: On,
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
        on: On,
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
        on: On,
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
        on: On,
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
        on: On,
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
        on: On,
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
        on: On,
    },
    /// Error and density of the paper's natural configuration, one parameter at a time.
    Sensitivity {
        #[command(flatten)]
        machine: Machine,
        #[command(flatten)]
        on: On,
    },
    /// Error against density of pipelines, each with a sample of the rest and without.
    Pareto(Pipelines),
    /// What pipelines read beside the fewest tokens that independent sampling needs.
    Limit(Pipelines),
}

/// What is measured on, and what is written.
#[derive(Debug, clap::Args)]
pub(crate) struct On {
    /// The trace to measure on.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Layers of the trace, between commas, or ranges such as 9-23; by default, all.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    layers: Option<Vec<LayerRange>>,
    /// How many of each layer's queries, the last ones; by default, all.
    #[arg(long, value_name = "N")]
    queries: Option<usize>,
    #[command(flatten)]
    sharing: Sharing,
    /// Write the results as JSON; `-`: to standard output, in place of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Machine {
    /// The machine to run pipelines with: cpu, cuda or reference.
    #[arg(long, default_value = "cpu")]
    backend: String,
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
    machine: Machine,
    #[command(flatten)]
    on: On,
}

pub(crate) fn run(command: Command, call: &Call) -> Result<(), Failure> {
    match command {
        Command::Tightness { epsilon, delta, trials, on } => {
            let options = TightnessOptions { epsilon, delta, trials };
            let found = on.sampled(call, |study| study::tightness(study, &options))?;
            on.publish_alone(call, &found, plots::tightness, table::tightness)
        }
        Command::Epsilon { epsilons, delta, trials, on } => {
            let options = EpsilonOptions { epsilons, delta, trials };
            let found = on.sampled(call, |study| study::epsilon(study, &options))?;
            on.publish_alone(call, &found, plots::epsilon, table::epsilon)
        }
        Command::BaseSample { sizes, trials, on } => {
            let options = BaseSampleOptions { sizes, trials };
            let found = on.sampled(call, |study| study::base_sample(study, &options))?;
            on.publish_alone(call, &found, plots::base_sample, table::base_sample)
        }
        Command::Normality { sizes, trials, on } => {
            let options = NormalityOptions { sizes, trials };
            let found = on.sampled(call, |study| study::normality(study, &options))?;
            on.publish_alone(call, &found, plots::normality, table::normality)
        }
        Command::Coverage { share, mass, trials, on } => {
            let options = CoverageOptions { share, mass, trials };
            let found = on.sampled(call, |study| study::coverage(study, &options))?;
            on.publish_alone(call, &found, plots::coverage, table::coverage)
        }
        Command::Bias { shares, trials, on } => {
            let options = BiasOptions { shares, trials };
            let found = on.sampled(call, |study| study::bias(study, &options))?;
            on.publish_alone(call, &found, plots::bias, table::bias)
        }
        Command::Calibration { chosen, deltas, trials, on } => {
            let backend = find_backend("cpu")?;
            let Loaded { lineup, files } = chosen.load()?;
            let (trace, settings) = on.open(&files)?;
            let results = on.results(call, &lineup.run)?;
            let lineup = chosen.lineup(lineup, &trace, &*backend, &settings, &results)?;
            let options = CalibrationOptions { deltas, trials };
            let found = sampled(&trace, &settings, &results, |study| {
                study::calibration(study, &lineup.run, &options)
            })?;
            let ran = Ran::new(&files, &lineup, &*backend);
            on.publish(
                call,
                &ran,
                &lineup.told(&found),
                || plots::calibration(&found),
                &table::calibration(&found),
            )
        }
        Command::Sensitivity { machine, on } => {
            let backend = find_backend(&machine.backend)?;
            let (trace, settings) = on.open(&[])?;
            let bar = progress::bar("steps");
            let show = |done, total| progress::show(&bar, done, total);
            let results = on.results(call, &[])?;
            let found = study::sensitivity(&trace, &*backend, &settings, &results, &show)?;
            bar.finish_and_clear();
            results.expect_whole()?;
            on.publish_alone(call, &found, plots::sensitivity, table::sensitivity)
        }
        Command::Pareto(pipelines) => pipelines.pareto(call),
        Command::Limit(pipelines) => pipelines.limit(call),
    }
}

impl Pipelines {
    fn pareto(&self, call: &Call) -> Result<(), Failure> {
        let options = PromiseOptions { epsilon: self.epsilon, delta: self.delta };
        let compared =
            self.compared(call, |entries, trace, backend, settings, results, progress| {
                study::pareto(entries, &options, trace, backend, settings, results, progress)
            })?;
        compared.publish(&self.on, call, plots::pareto, table::pareto)
    }

    fn limit(&self, call: &Call) -> Result<(), Failure> {
        let options = PromiseOptions { epsilon: self.epsilon, delta: self.delta };
        let compared =
            self.compared(call, |entries, trace, backend, settings, results, progress| {
                study::limit(entries, &options, trace, backend, settings, results, progress)
            })?;
        compared.publish(&self.on, call, plots::limit, table::limit)
    }

    /// Runs a study of those pipelines that can run on the trace.
    fn compared<T>(
        &self,
        call: &Call,
        run: impl FnOnce(
            &[Entry],
            &Trace,
            &dyn Backend,
            &TraceSettings,
            &Results,
            &dyn Fn(usize, usize),
        ) -> vattention::experiments::Result<T>,
    ) -> Result<Compared<T>, Failure> {
        let backend = find_backend(&self.machine.backend)?;
        let Loaded { lineup, files } = self.chosen.load()?;
        let (trace, settings) = self.on.open(&files)?;
        let results = self.on.results(call, &lineup.run)?;
        let lineup = self.chosen.lineup(lineup, &trace, &*backend, &settings, &results)?;
        let bar = progress::bar("steps");
        let show = |done, total| progress::show(&bar, done, total);
        let found = run(&lineup.run, &trace, &*backend, &settings, &results, &show)?;
        bar.finish_and_clear();
        results.expect_whole()?;
        Ok(Compared { found, lineup, files, backend })
    }
}

/// Result of a study of several pipelines, and its inputs.
struct Compared<T> {
    found: T,
    lineup: Lineup<Entry>,
    files: Vec<PathBuf>,
    backend: Box<dyn Backend>,
}

impl<T: Serialize> Compared<T> {
    fn publish(
        &self,
        on: &On,
        call: &Call,
        svg: fn(&T) -> String,
        table: fn(&T) -> String,
    ) -> Result<(), Failure> {
        let Self { found, lineup, files, backend } = self;
        let ran = Ran::new(files, lineup, &**backend);
        on.publish(call, &ran, &lineup.told(found), || svg(found), &table(found))
    }
}

/// Pipelines that a study ran, none by default.
#[derive(Default)]
struct Ran<'a> {
    files: &'a [PathBuf],
    pipelines: Vec<&'a PipelineConfig>,
    backend: Option<&'a str>,
}

impl<'a> Ran<'a> {
    fn new(files: &'a [PathBuf], lineup: &'a Lineup<Entry>, backend: &'a dyn Backend) -> Self {
        Self { files, pipelines: lineup.pipelines().collect(), backend: Some(backend.name()) }
    }
}

impl On {
    /// Runs a study that samples rows.
    fn sampled<T>(
        &self,
        call: &Call,
        run: impl FnOnce(&Study<'_>) -> vattention::experiments::Result<T>,
    ) -> Result<T, Failure> {
        let (trace, settings) = self.open(&[])?;
        sampled(&trace, &settings, &self.results(call, &[])?, run)
    }

    /// Opens the results of these pipelines on the trace.
    fn results(&self, call: &Call, entries: &[Entry]) -> Result<Results, Failure> {
        self.sharing.open(call, || inputs(&self.trace, entries))
    }

    /// Opens the trace, and checks the outputs against it and `files`.
    fn open(&self, files: &[PathBuf]) -> Result<(Trace, TraceSettings), Failure> {
        let trace = Trace::open(&self.trace)?;
        let read = files.iter().chain([&self.trace]).chain(&self.sharing.results);
        let read: Vec<&Path> = read.map(PathBuf::as_path).collect();
        check_outputs(&[("--json", self.json.as_ref()), ("--plot", self.plot.as_ref())], &read)?;
        let (layers, queries) = (layer_numbers(self.layers.as_ref()), self.queries);
        Ok((trace, TraceSettings { layers, queries, dump: false }))
    }

    /// Writes and prints the results of a study that runs no pipelines.
    fn publish_alone<T: Serialize>(
        &self,
        call: &Call,
        found: &T,
        svg: fn(&T) -> String,
        table: fn(&T) -> String,
    ) -> Result<(), Failure> {
        self.publish(call, &Ran::default(), found, || svg(found), &table(found))
    }

    /// Writes and prints the results.
    fn publish(
        &self,
        call: &Call,
        ran: &Ran<'_>,
        found: &impl Serialize,
        svg: impl FnOnce() -> String,
        table: &str,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.plot {
            write_beside(path, svg().as_bytes())?;
        }
        let inputs: Vec<&Path> =
            ran.files.iter().chain([&self.trace]).map(PathBuf::as_path).collect();
        let run = || Provenance::new(call, &inputs, ran.pipelines.iter().copied(), ran.backend);
        publish(self.json.as_deref(), run, found, table)
    }
}

/// Runs a study that samples rows.
fn sampled<T>(
    trace: &Trace,
    settings: &TraceSettings,
    results: &Results,
    run: impl FnOnce(&Study<'_>) -> vattention::experiments::Result<T>,
) -> Result<T, Failure> {
    let bar = progress::bar("rows");
    let show = |done, total| progress::show(&bar, done, total);
    let found = run(&Study { trace, settings, results, progress: &show })?;
    bar.finish_and_clear();
    results.expect_whole()?;
    Ok(found)
}
