//! Measurements of a pipeline's passes.

use std::time::Duration;

use ndarray::s;
use vattention_core::{Output, Promise, RowReport, Share, Target, engine::Timings};

use crate::Exact;
use crate::Variant;
use crate::metrics::{RowError, Violations};

/// Measurements of a group of pipelines.
pub(super) struct MeasuredGroup<'a> {
    /// Speed of the sequential read in each round, in GB/s.
    pub(super) bandwidth: Vec<f64>,
    /// Share of memory in huge pages, if the system reports it.
    pub(super) huge_pages: Option<f64>,
    /// Dense attention, then the other pipelines; each has made a pass in each round.
    pub(super) tallies: Vec<(&'a Variant, BenchTally)>,
}

/// Measurements of one pipeline's passes.
#[derive(Clone, Debug)]
pub(super) struct BenchTally {
    share: Share,
    group: usize,
    row_bytes: u64,
    /// Time of appending, and number of appended rows.
    appended: (Duration, usize),
    passes: Vec<PassResult>,
    rows: usize,
    density: f64,
    sampled: usize,
    fell_back: usize,
    timings: Option<Timings>,
    /// Sum of the errors of compared outputs.
    errors: f64,
    /// Violations of the pipeline's promise; `None` without a promise.
    violations: Option<Violations>,
}

/// One decode step in each layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassResult {
    /// Seconds of one step, mean over the layers.
    pub(super) seconds: f64,
    /// Bytes of keys and values read in all layers over the time of the pass, in GB/s.
    pub(super) gb_s: f64,
}

impl BenchTally {
    /// Creates an empty tally. `group` query heads share a KV head, whose key and value of one
    /// token are `row_bytes` bytes.
    pub(super) fn new(share: Share, group: usize, row_bytes: u64) -> Self {
        Self {
            share,
            group,
            row_bytes,
            appended: (Duration::ZERO, 0),
            passes: Vec::new(),
            rows: 0,
            density: 0.0,
            sampled: 0,
            fell_back: 0,
            timings: None,
            errors: 0.0,
            violations: None,
        }
    }

    /// Discards the passes so far.
    pub(super) fn discard_passes(&mut self) {
        let appended = self.appended;
        *self = Self { appended, ..Self::new(self.share, self.group, self.row_bytes) };
    }

    /// Records the time of appending `rows` rows; a row is a token of a KV head.
    pub(super) fn add_append(&mut self, time: Duration, rows: usize) {
        self.appended.0 += time;
        self.appended.1 += rows;
    }

    /// Nanoseconds for appending a row, mean over rows.
    pub(super) fn append_ns(&self) -> f64 {
        let (time, rows) = self.appended;
        time.as_nanos() as f64 / rows.max(1) as f64
    }

    pub(super) fn add(&mut self, time: Duration, outputs: &[Output]) {
        let seconds = time.as_secs_f64().max(1e-9);
        let reads: f64 = outputs.iter().map(|output| self.rows_read(output)).sum();
        let gb_s = reads * self.row_bytes as f64 / seconds / 1e9;
        self.passes.push(PassResult { seconds: seconds / outputs.len() as f64, gb_s });
        for output in outputs {
            self.rows += output.rows.len();
            self.density += output.rows.iter().map(RowReport::density_of_group).sum::<f64>();
            self.sampled += output.rows.iter().map(|row| row.sampled).sum::<usize>();
            self.fell_back += output.rows.iter().filter(|row| row.fell_back).count();
            if let Some(timings) = &output.timings {
                *self.timings.get_or_insert_default() += *timings;
            }
        }
    }

    /// Compares the outputs of the last pass with those of dense attention, and counts violations
    /// of the promise.
    pub(super) fn compare(
        &mut self,
        outputs: &[Output],
        dense: &[Output],
        promise: Option<&Promise>,
    ) {
        for (output, dense) in outputs.iter().zip(dense) {
            let heads = 0..output.rows.len();
            let errors: Vec<RowError> = heads.map(|head| error(output, dense, head)).collect();
            self.errors += errors.iter().map(|error| error.relative(Target::Sdpa)).sum::<f64>();
            if let Some(promise) = promise {
                let violations = self.violations.get_or_insert_default();
                violations.add_step(
                    errors
                        .iter()
                        .zip(&output.rows)
                        .map(|(error, report)| error.violates(promise, &report.certificate)),
                );
            }
        }
    }

    /// Mean relative error of the output.
    pub(super) fn error(&self) -> f64 {
        self.errors / self.rows as f64
    }

    /// Violations of the promise.
    pub(super) fn violations(&self) -> Option<Violations> {
        self.violations
    }

    /// Number of rows of keys and values that one step reads: rows of a shared token list once for
    /// the KV head, rows of separate lists once for each list.
    fn rows_read(&self, output: &Output) -> f64 {
        let reads = |row: &RowReport| {
            if self.share == Share::Head && !row.fell_back {
                (row.certain + row.sampled) as f64
            } else {
                row.read_by_group as f64 / self.group as f64
            }
        };
        output.rows.iter().map(reads).sum()
    }

    pub(super) fn passes(&self) -> &[PassResult] {
        &self.passes
    }

    /// Share of the visible tokens that a KV head's query heads read together, mean over rows.
    pub(super) fn density(&self) -> f64 {
        self.density / self.rows as f64
    }

    /// Number of sampled tokens of a query head, mean over rows.
    pub(super) fn sampled(&self) -> f64 {
        self.sampled as f64 / self.rows as f64
    }

    /// Share of rows that read all tokens because that is faster.
    pub(super) fn fell_back(&self) -> f64 {
        self.fell_back as f64 / self.rows as f64
    }

    /// Shares of the time that selecting, sampling and attending took, if the backend reports
    /// timings.
    pub(super) fn shares(&self) -> Option<[f64; 3]> {
        let Timings { select, sample, attend } = self.timings?;
        let all = (select + sample + attend).as_secs_f64();
        let share = |part: Duration| part.as_secs_f64() / all;
        (all > 0.0).then(|| [select, sample, attend].map(share))
    }
}

/// Returns the error of a head's row against dense attention.
fn error(output: &Output, dense: &Output, head: usize) -> RowError {
    let exact = Exact {
        output: dense.out.slice(s![head, 0, ..]).mapv(f64::from),
        log_denominator: f64::from(dense.log_denominator[[head, 0]]),
    };
    let log_denominator = f64::from(output.log_denominator[[head, 0]]);
    RowError::new(output.out.slice(s![head, 0, ..]), log_denominator, &exact)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Array3};
    use vattention_core::{
        Certificate, Fraction, Kind,
        promise::{Assumptions, ReferenceRows, Scope},
    };

    use super::*;

    fn row(certain: usize, sampled: usize, read_by_group: usize, fell_back: bool) -> RowReport {
        RowReport {
            visible: 100,
            certain,
            sampled,
            read_by_group,
            budget: None,
            fell_back,
            unobserved: false,
            rounding: None,
            certificate: Certificate {
                promise: None,
                bar: None,
                kind: Kind::None,
                assumes: Assumptions::NONE,
                held: false,
            },
        }
    }

    fn output(rows: Vec<RowReport>, timings: Option<Timings>) -> Output {
        Output {
            out: Array3::zeros((rows.len(), 1, 1)),
            log_denominator: Array2::zeros((rows.len(), 1)),
            rows,
            selection: None,
            timings,
        }
    }

    fn tally(share: Share, outputs: &[Output]) -> BenchTally {
        let mut tally = BenchTally::new(share, 2, 1000);
        tally.add(Duration::from_secs(9), outputs);
        tally.discard_passes();
        tally.add(Duration::from_micros(1), outputs);
        tally
    }

    /// Two query heads of one KV head; 1000 bytes in a microsecond are 1 GB/s.
    #[test]
    fn a_shared_list_is_read_once_and_separate_lists_are_read_one_by_one() {
        let outputs = [output(vec![row(10, 20, 40, false), row(10, 10, 40, false)], None)];
        let shared = tally(Share::Group, &outputs);
        assert!((shared.passes()[0].gb_s - 40.0).abs() < 1e-9);
        assert!((shared.density() - 0.4).abs() < 1e-12);
        assert_eq!((shared.sampled(), shared.fell_back(), shared.shares()), (15.0, 0.0, None));
        let separate = tally(Share::Head, &outputs);
        assert!((separate.passes()[0].gb_s - 50.0).abs() < 1e-9);
        let dense = [output(vec![row(100, 0, 100, true), row(100, 0, 100, true)], None)];
        let dense = tally(Share::Head, &dense);
        assert!((dense.passes()[0].gb_s - 100.0).abs() < 1e-9, "read once for both heads");
        assert_eq!(dense.fell_back(), 1.0);
    }

    #[test]
    fn errors_are_relative_to_dense_attention() {
        let rows = || vec![row(10, 20, 40, false), row(10, 10, 40, false)];
        let (mut dense, mut sparse) = (output(rows(), None), output(rows(), None));
        dense.out.fill(2.0);
        sparse.out.assign(&ndarray::array![[[2.1]], [[2.6]]]);
        let promise = Promise {
            target: Target::Sdpa,
            epsilon: Fraction::from_percent(10.0).unwrap(),
            delta: Fraction::from_percent(10.0).unwrap(),
            scope: Scope::Row,
            reference: ReferenceRows::Stored,
        };
        let mut tally = BenchTally::new(Share::Group, 2, 1000);
        tally.add(Duration::from_micros(1), std::slice::from_ref(&sparse));
        tally.compare(&[sparse.clone()], &[dense.clone()], Some(&promise));
        assert!((tally.error() - 0.175).abs() < 1e-6, "{}", tally.error());
        assert_eq!(
            tally.violations().map(|counts| (counts.violated_rows, counts.rows)),
            Some((1, 2))
        );
    }

    #[test]
    fn a_step_takes_the_mean_time_of_a_layer_and_times_add_up() {
        let timings = |select| {
            let [select, sample, attend] = [select, 1, 2].map(Duration::from_micros);
            Some(Timings { select, sample, attend })
        };
        let timed = |select| output(vec![row(1, 0, 1, false); 2], timings(select));
        let tally = tally(Share::Group, &[timed(1), timed(3)]);
        assert!((tally.passes()[0].seconds - 0.5e-6).abs() < 1e-15);
        let close = |(got, want): (&f64, f64)| (got - want).abs() < 1e-12;
        let shares = tally.shares().unwrap();
        assert!(shares.iter().zip([0.4, 0.2, 0.4]).all(close), "{shares:?}");
    }
}
