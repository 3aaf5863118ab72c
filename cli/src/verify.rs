//! `vattention verify`: tests whether a pipeline keeps its promise on a trace.

mod summary;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vattention::experiments::{
    Entry, PromiseVerdict, Results, TraceSettings, chosen_layers, expect_classes,
    tune_to_densities, verify_all, with_epsilon,
};
use vattention::plots;
use vattention::trace::Trace;
use vattention::{Fraction, PipelineConfig};

use crate::backends::find_backend;
use crate::fail::Failure;
use crate::numbers::fraction;
use crate::on_trace::{CachedRows, inputs};
use crate::outputs::OutputArgs;
use crate::pipelines::{Changes, expect_fit, shapes};
use crate::progress;
use crate::provenance::Provenance;
use crate::sharing::{Call, Sharing};

const HELP: &str = "\
Errors are relative to the target. A promise about each row is tested for each query head, and for \
each query head at each query; a promise with scope `step` is tested on the largest error of a \
layer's heads. Every sample counts, even if its certificate is not `held`. If the estimator has a \
fixed size, or its limit is too small for epsilon, the error bar is the promise.

Three tests can contradict delta. Each test contradicts a kept promise with a probability below \
1e-6.
  heads          a head (a layer, under scope `step`) has too many violations
                 over all queries: if the promise is kept, this number or more
                 has a probability below 1e-6 divided by the number of heads
  rows           a head has too many violations at one query: the probability
                 is below 1e-6 divided by the number of rows
  rows together  too many rows have at least j violations among their k
                 samples, for some j from 1 to k; query heads that share a
                 token list count once

The verdict determines the exit code:
  0  held          no p-value is below its limit, even with 0.05 in place of
                   1e-6, and every row has enough samples to contradict delta
                   by itself if all of them violated the promise
  1  contradicted  a test contradicts delta
  3  undecided     no test contradicts delta, but a p-value is below its limit
                   with 0.05 in place of 1e-6, or some rows have too few samples
                   to be judged; the --trials that judge all rows are printed
Exit code 2: wrong input, or too few --trials for any head to contradict delta. Each p-value is \
shown with its limit, and with the violation rate that this number of samples can detect. More \
--trials detect smaller rates.

For a contradicted promise, the most frequent fault in the worst head's failing samples is printed:
  tail-seen  reading also the heaviest undrawn tokens (at most 1 % of them, and
             only tokens heavier than every drawn one) would more than halve
             the error; a token's weight is e |v - o| (sdpa), e |v| (numerator)
             or e (denominator)
  moments    not tail-seen, and the sample's variance, over the squared norm
             that errors are relative to, is below half of the residual's
  normal     neither of the two

--plot shows errors of heads and rows at half of the promised epsilon, at epsilon and at twice \
epsilon.

JSON: run (the provenance: version, command line, digests of inputs, pipelines in full, machine); \
goal (target, delta, scope, and epsilon and limit, or size); bars (rows, outside, unbounded, mean, \
widest, evidence); violations (unit, violated, checked); worst and worst_row, \
the counts with the smallest p-values, and test and row_test, their tests: trials, \
limit, contradicted_from (the fewest violations that contradict delta) and rate (their share); \
row_coverage: rows judged and unjudged, the least_samples of a judged row, and the least_trials \
that judge all rows; rows_together: units (token lists at one query, or steps), heads per list, \
samples of each, limit, and worst: at_least (violations), units with at least this number, units \
allowed, p_value; evidence: the numbers of heads (layers) within delta, above delta and \
contradicting delta; \
verdict (held, contradicted or undecided), held (whether it is `held`), contradicted_by and \
suspected_by (tests: pooled, row, rows-together); kind, assumes and not_held (a share) of the \
certificates; fault (layer, query_head, cause, share of its failing samples); steps: each \
layer's count, under scope `step`; heads: for each head the columns of --heads, with held as a \
count, error_at_delta (the quantile 1 - delta of its errors) and failures (samples by cause); \
rows: for each head (layer) and query violated, checked, p_value and error_at_delta.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct VerifyArgs {
    /// Pipeline file with an estimator, or the name of a built-in pipeline with one.
    config: PathBuf,
    /// Trace to draw samples on.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    #[command(flatten)]
    rows: CachedRows,
    /// Samples per KV head, spread over its queries.
    #[arg(long, default_value_t = 2000)]
    trials: u32,
    #[command(flatten)]
    changes: Changes,
    /// Share of the tokens that the pipeline should read, sink and window included; its epsilon is
    /// searched. By default, the pipeline runs unchanged.
    #[arg(long, value_parser = fraction, value_name = "SHARE")]
    density: Option<Fraction>,
    /// Show every query head: its density, its errors, and the spread of its residual.
    #[arg(long)]
    heads: bool,
    #[command(flatten)]
    sharing: Sharing,
    #[command(flatten)]
    outputs: OutputArgs,
}

/// Factors of epsilon in the plot, in addition to 1.
const FACTORS: [f64; 2] = [0.5, 2.0];

pub(crate) fn run(args: &VerifyArgs, call: &Call) -> Result<(), Failure> {
    let (entry, files) = args.changes.load_one(&args.config)?;
    let trace = args.rows.store(Trace::open(&args.trace)?);
    args.outputs.check(files.iter().chain([&args.trace]).chain(&args.sharing.results))?;
    let entries = std::slice::from_ref(&entry);
    let results = args.sharing.open(call, || inputs(&args.trace, entries))?;
    let pipeline = &args.prepare(entry, &trace, &results)?.pipeline;
    let mut runs = vec![pipeline.clone()];
    if args.outputs.plot.is_some() {
        runs.extend(at_other_epsilons(pipeline));
    }
    let bar = progress::bar("samples");
    let show = |done, total| progress::show(&bar, done, total);
    let verdicts = verify_all(&runs, &trace, args.trials, &results, &show)?;
    bar.finish_and_clear();
    results.expect_all_shards()?;
    let verdict = &verdicts[0];
    let table = if args.heads { table::all(verdict) } else { table::worst(verdict) };
    let text = format!("{table}\n\n{}", summary::text(verdict));
    let read: Vec<&Path> = files.iter().chain([&args.trace]).map(PathBuf::as_path).collect();
    let run = || Provenance::new(call, &read, [&**pipeline], Some("cpu"));
    args.outputs.publish(run, verdict, || plots::verification(&verdicts), &text)?;
    match verdict.verdict {
        PromiseVerdict::Held => Ok(()),
        PromiseVerdict::Contradicted => Err(Failure::NegativeVerdict),
        PromiseVerdict::Undecided => Err(Failure::Undecided),
    }
}

impl VerifyArgs {
    /// Returns the pipeline at the density of `--density`.
    ///
    /// # Errors
    /// If the pipeline makes no promise, or cannot run on the trace.
    fn prepare(&self, entry: Entry, trace: &Trace, results: &Results) -> Result<Entry, Failure> {
        if entry.pipeline.parts().all(|part| part.goal().is_none()) {
            let message = "promises nothing; expected an [estimator]";
            return Err(Failure::input(format!("{}: {message}", entry.file)));
        }
        if self.outputs.plot.is_some() && entry.pipeline.promise().is_none() {
            let message =
                "--plot draws errors against epsilon; expected an [estimator] with an epsilon";
            return Err(Failure::input(format!("{}: {message}", entry.file)));
        }
        let (settings, backend) = (TraceSettings::default(), find_backend("cpu")?);
        expect_fit(&entry, &shapes(trace, &settings)?, &*backend)?;
        expect_classes(&entry.pipeline, trace, &chosen_layers(trace, &settings)?)?;
        let Some(density) = self.density else { return Ok(entry) };
        let search = [(&entry, density)];
        let mut found =
            tune_to_densities(&search, trace, &*backend, &settings, results, &|_, _| ())?;
        found.pop().expect("a pipeline for the search").map_err(Failure::input)
    }
}

/// Returns the pipeline at the epsilons of [`FACTORS`] that are valid; empty if it promises none.
fn at_other_epsilons(pipeline: &PipelineConfig) -> Vec<Arc<PipelineConfig>> {
    let Some(promise) = pipeline.promise() else { return Vec::new() };
    let epsilons = FACTORS.into_iter().map(|factor| factor * promise.epsilon.get());
    let epsilons = epsilons.filter_map(|epsilon| Fraction::try_from(epsilon).ok());
    epsilons.filter_map(|epsilon| with_epsilon(pipeline, epsilon)).collect()
}
