//! `vattention study`: the paper's experiments, on a trace.

mod table;

use std::path::{Path, PathBuf};

use serde::Serialize;
use vattention::experiments::study::{self, Study};
use vattention::experiments::{Entry, TraceSettings};
use vattention::plots::study as plots;
use vattention::trace::{Trace, write_beside};
use vattention::{Backend, Fraction};

use crate::compare::find_backend;
use crate::numbers::fraction;
use crate::outputs::{check_outputs, write_json};
use crate::pipelines::{Lineup, Loaded, PipelineArgs};
use crate::{Failure, progress, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// How many tokens each bound of the denominator asks for, and how often it fails.
    Tightness {
        /// The relative error allowed.
        #[arg(long, default_value = "0.05", value_parser = fraction)]
        epsilon: Fraction,
        /// The probability with which it may be exceeded.
        #[arg(long, default_value = "0.2", value_parser = fraction)]
        delta: Fraction,
        /// Samples of each row.
        #[arg(long, default_value_t = 200)]
        trials: u32,
        #[command(flatten)]
        on: On,
    },
    /// How the mean error follows epsilon, for denominator, numerator and output.
    Epsilon {
        /// The relative errors allowed, between commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction)]
        #[arg(default_value = "0.05,0.1,0.15,0.2,0.25,0.3", value_name = "EPSILONS")]
        epsilons: Vec<Fraction>,
        /// The probability with which they may be exceeded.
        #[arg(long, default_value = "0.1", value_parser = fraction)]
        delta: Fraction,
        /// Samples of each row.
        #[arg(long, default_value_t = 20)]
        trials: u32,
        #[command(flatten)]
        on: On,
    },
    /// How well base samples of several sizes know the variances that budgets rest on.
    BaseSample {
        /// Tokens in the sample, between commas; those that no row has are left out.
        #[arg(long, value_delimiter = ',', value_name = "SIZES")]
        #[arg(default_value = "64,128,256,512,1000,2000,4000")]
        sizes: Vec<usize>,
        /// Samples of each row.
        #[arg(long, default_value_t = 10)]
        trials: u32,
        #[command(flatten)]
        on: On,
    },
    /// How near to normal the estimate of the denominator is, by the size of the sample.
    Normality {
        /// Tokens in the sample, between commas; those that no row has are left out.
        #[arg(long, value_delimiter = ',', value_name = "SIZES")]
        #[arg(default_value = "4,16,64,256,1024")]
        sizes: Vec<usize>,
        /// Samples of each row.
        #[arg(long, default_value_t = 200)]
        trials: u32,
        #[command(flatten)]
        on: On,
    },
    /// What top-k, top-p and a sample see of each row, and how far off they are.
    Coverage {
        /// Tokens that top-k and the sample read besides sink and window, of all.
        #[arg(long, default_value = "0.05", value_parser = fraction)]
        share: Fraction,
        /// The softmax mass that top-p holds.
        #[arg(long, default_value = "0.9", value_parser = fraction)]
        mass: Fraction,
        /// Samples of each row.
        #[arg(long, default_value_t = 20)]
        trials: u32,
        #[command(flatten)]
        on: On,
    },
    /// What of the output's error is bias, and what variance, after top-k and after a sample.
    Bias {
        /// Tokens read besides sink, window and top 5 %, of all, between commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction)]
        #[arg(default_value = "0.01,0.02,0.05,0.1,0.2", value_name = "SHARES")]
        shares: Vec<Fraction>,
        /// Samples of each row.
        #[arg(long, default_value_t = 100)]
        trials: u32,
        #[command(flatten)]
        on: On,
    },
    /// Whether error bars are as sure as they say, at several confidences.
    Calibration {
        #[command(flatten)]
        chosen: PipelineArgs,
        /// Shares of the samples whose error may exceed its bar, between commas.
        #[arg(long, value_delimiter = ',', value_parser = fraction)]
        #[arg(default_value = "0.02,0.05,0.1,0.2,0.3,0.5", value_name = "DELTAS")]
        deltas: Vec<Fraction>,
        /// Samples of each head, spread over its queries.
        #[arg(long, default_value_t = 500)]
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
    /// Layers of the trace, between commas; by default, all.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    layers: Option<Vec<usize>>,
    /// How many of each layer's queries, the last ones; by default, all.
    #[arg(long, value_name = "N")]
    queries: Option<usize>,
    /// Write the results as JSON.
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
    #[arg(long, default_value = "0.1", value_parser = fraction)]
    epsilon: Fraction,
    /// The probability with which it may be exceeded.
    #[arg(long, default_value = "0.1", value_parser = fraction)]
    delta: Fraction,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    on: On,
}

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Tightness { epsilon, delta, trials, on } => {
            let found = on.sampled(*trials, |study| study::tightness(study, *epsilon, *delta))?;
            on.tell(&found, || plots::tightness(&found), &table::tightness(&found))
        }
        Command::Epsilon { epsilons, delta, trials, on } => {
            let found = on.sampled(*trials, |study| study::epsilon(study, epsilons, *delta))?;
            on.tell(&found, || plots::epsilon(&found), &table::epsilon(&found))
        }
        Command::BaseSample { sizes, trials, on } => {
            let found = on.sampled(*trials, |study| study::base_sample(study, sizes))?;
            on.tell(&found, || plots::base_sample(&found), &table::base_sample(&found))
        }
        Command::Normality { sizes, trials, on } => {
            let found = on.sampled(*trials, |study| study::normality(study, sizes))?;
            on.tell(&found, || plots::normality(&found), &table::normality(&found))
        }
        Command::Coverage { share, mass, trials, on } => {
            let found = on.sampled(*trials, |study| study::coverage(study, *share, *mass))?;
            on.tell(&found, || plots::coverage(&found), &table::coverage(&found))
        }
        Command::Bias { shares, trials, on } => {
            let found = on.sampled(*trials, |study| study::bias(study, shares))?;
            on.tell(&found, || plots::bias(&found), &table::bias(&found))
        }
        Command::Calibration { chosen, deltas, trials, on } => {
            let backend = find_backend("cpu")?;
            let Loaded { entries, files } = chosen.load()?;
            let (trace, settings) = on.open(&files)?;
            let lineup = chosen.lineup(entries, &trace, &*backend, &settings)?;
            let found = sampled(&trace, &settings, *trials, |study| {
                study::calibration(study, &lineup.run, deltas)
            })?;
            on.tell(
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
            let found = study::sensitivity(&trace, &*backend, &settings, &show)?;
            bar.finish_and_clear();
            on.tell(&found, || plots::sensitivity(&found), &table::sensitivity(&found))
        }
        Command::Pareto(pipelines) => pipelines.pareto(),
        Command::Limit(pipelines) => pipelines.limit(),
    }
}

impl Pipelines {
    fn pareto(&self) -> Result<(), Failure> {
        let promise = (self.epsilon, self.delta);
        let (found, lineup) = self.compared(|entries, trace, backend, settings, progress| {
            study::pareto(entries, promise, trace, backend, settings, progress)
        })?;
        self.on.tell(&lineup.told(&found), || plots::pareto(&found), &table::pareto(&found))
    }

    fn limit(&self) -> Result<(), Failure> {
        let promise = (self.epsilon, self.delta);
        let (found, lineup) = self.compared(|entries, trace, backend, settings, progress| {
            study::limit(entries, promise, trace, backend, settings, progress)
        })?;
        self.on.tell(&lineup.told(&found), || plots::limit(&found), &table::limit(&found))
    }

    /// Runs a study of those pipelines that can run on the trace.
    fn compared<T>(
        &self,
        run: impl FnOnce(
            &[Entry],
            &Trace,
            &dyn Backend,
            &TraceSettings,
            &dyn Fn(usize, usize),
        ) -> vattention::experiments::Result<T>,
    ) -> Result<(T, Lineup<Entry>), Failure> {
        let backend = find_backend(&self.machine.backend)?;
        let Loaded { entries, files } = self.chosen.load()?;
        let (trace, settings) = self.on.open(&files)?;
        let lineup = self.chosen.lineup(entries, &trace, &*backend, &settings)?;
        let bar = progress::bar("steps");
        let show = |done, total| progress::show(&bar, done, total);
        let found = run(&lineup.run, &trace, &*backend, &settings, &show)?;
        bar.finish_and_clear();
        Ok((found, lineup))
    }
}

impl On {
    /// Runs a study that samples rows.
    fn sampled<T>(
        &self,
        trials: u32,
        run: impl FnOnce(&Study<'_>) -> vattention::experiments::Result<T>,
    ) -> Result<T, Failure> {
        let (trace, settings) = self.open(&[])?;
        sampled(&trace, &settings, trials, run)
    }

    /// Opens the trace, and checks the outputs against it and `files`.
    fn open(&self, files: &[PathBuf]) -> Result<(Trace, TraceSettings), Failure> {
        let trace = Trace::open(&self.trace)?;
        let inputs: Vec<&Path> = files.iter().chain([&self.trace]).map(PathBuf::as_path).collect();
        check_outputs(&[("--json", self.json.as_ref()), ("--plot", self.plot.as_ref())], &inputs)?;
        let (layers, queries) = (self.layers.clone(), self.queries);
        Ok((trace, TraceSettings { layers, queries, dump: false }))
    }

    /// Writes what was found, and prints it.
    fn tell(
        &self,
        found: &impl Serialize,
        svg: impl FnOnce() -> String,
        table: &str,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.json {
            write_json(path, found)?;
        }
        if let Some(path) = &self.plot {
            write_beside(path, svg().as_bytes())?;
        }
        say(table)
    }
}

/// Runs a study that samples rows.
fn sampled<T>(
    trace: &Trace,
    settings: &TraceSettings,
    trials: u32,
    run: impl FnOnce(&Study<'_>) -> vattention::experiments::Result<T>,
) -> Result<T, Failure> {
    let bar = progress::bar("rows");
    let show = |done, total| progress::show(&bar, done, total);
    let found = run(&Study { trace, settings, trials, progress: &show })?;
    bar.finish_and_clear();
    Ok(found)
}
