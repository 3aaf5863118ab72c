//! Report of an evaluation.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{PipelineConfig, Promise, Shape};
use vattention_experiments::{
    Bars, BarsSummary, Evidence, ListCounts, PairedDifference, ShareInterval, Variant,
    ViolationCount, Violations,
};
use vattention_llm::Strategy;
use vattention_tasks::Task;

use crate::groups::{GroupScore, score_groups};
use crate::record::{AttentionSummary, OtherScore, Record, mean_score};
use crate::settings::{EvaluationSettings, Setup};

/// Results of variants, and all their answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct EvaluationReport {
    /// Part of the prompts that the pipeline read.
    pub setup: Setup,
    /// Prefill of the rest of the prompts.
    pub prefill: PrefillResult,
    /// True if prompts used the model's chat template.
    pub chat: bool,
    /// Name of the backend.
    pub backend: String,
    /// Names of the tasks.
    pub tasks: Vec<String>,
    /// Numbers of tokens of the cases.
    pub contexts: Vec<usize>,
    /// Requested number of cases of each task and length; a smaller dataset is used completely.
    pub cases: usize,
    /// True if the tasks are datasets of a published benchmark. The files of the datasets determine
    /// the lengths of the prompts, which are at most [`contexts`](Self::contexts).
    pub published: bool,
    /// Seed of the cases.
    pub seed: u64,
    /// Result of each variant, in order.
    pub variants: Vec<VariantResult>,
    /// Record of every answer.
    pub records: Vec<Record>,
}

/// Prefill of prompts, before the pipeline begins.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct PrefillResult {
    /// Strategy.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// Share of the causal token-key pairs that was read, mean over cases.
    pub density: f64,
}

impl PrefillResult {
    /// Summarizes the prefill of cases, given one record for each case.
    fn new<'a>(strategy: Strategy, records: impl Iterator<Item = &'a Record>) -> Self {
        let densities = records.map(|record| record.attended.prefill_density.unwrap_or(1.0));
        let (sum, cases) =
            densities.fold((0.0, 0), |(sum, cases), density| (sum + density, cases + 1));
        Self { strategy, density: sum / f64::from(cases.max(1)) }
    }
}

/// Result of one variant.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct VariantResult {
    /// Name of the pipeline, with the density that it was tuned to.
    pub variant: String,
    /// Name of the pipeline.
    pub pipeline: String,
    /// Density that the pipeline was tuned to; `None` if it has its own settings.
    pub asked: Option<f64>,
    /// Settings that tune the pipeline to that density.
    pub set: Option<String>,
    /// Share of the visible tokens that the query heads of a KV head read together, mean over all
    /// steps with the pipeline; `None` without a step.
    pub density: Option<f64>,
    /// Mean of the scores of all cases that count.
    pub accuracy: f64,
    /// 95 % interval of the accuracy.
    pub interval: ShareInterval,
    /// Number of cases that count.
    pub counted: usize,
    /// Number of cases whose answer ended before the pipeline took a step; these cases have no
    /// measurements of attention.
    pub cases_without_rows: usize,
    /// Relative error of the output, mean over rows, if errors were measured.
    pub error: Option<f64>,
    /// Largest error of a row.
    pub largest_error: Option<f64>,
    /// Number of rows: query heads of all layers at all steps with the pipeline.
    pub rows: usize,
    /// Number of rows whose certificate holds.
    pub held: usize,
    /// Promise of the pipeline, if it makes one.
    pub promise: Option<Promise>,
    /// Number of violations, if errors were measured.
    pub violations: Option<ViolationCount>,
    /// Evidence on the promise's delta; query heads that share a token list count as one unit.
    pub evidence: Option<Evidence>,
    /// Error bars, if errors were measured.
    pub bars: BarsSummary,
    /// Scores of each task at each length, in the report's order of lengths, then tasks.
    pub scores: Vec<TaskScore>,
    /// Difference to the score of the first dense variant in the same cases, at each length, over
    /// the cases that count; empty for that variant itself, and if there is none.
    pub to_dense: Vec<Option<PairedDifference>>,
}

/// Accuracy on one task at one length.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TaskScore {
    /// Name of the task.
    pub task: String,
    /// Number of tokens of a case.
    pub context: usize,
    /// Number of cases.
    pub cases: usize,
    /// Mean score over the cases, from 0 to 1.
    pub accuracy: f64,
    /// 95 % interval of the accuracy.
    pub interval: ShareInterval,
    /// Mean scores by the other metrics of a dataset's publishers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherScore>,
    /// Accuracy on each group of cases, if a dataset's publishers assign cases to groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupScore>,
    /// True if the cases count in means: dense attention scores at least
    /// [`EvaluationSettings::leave_out_below`](crate::EvaluationSettings::leave_out_below).
    pub counts: bool,
}

/// Mean scores of a task's cases by its other metrics.
fn other_means(records: &[&Record]) -> Vec<OtherScore> {
    let mean = |(place, first): (usize, &OtherScore)| {
        let sum: f64 = records.iter().map(|record| record.others[place].score).sum();
        OtherScore { metric: first.metric.clone(), score: sum / records.len() as f64 }
    };
    records[0].others.iter().enumerate().map(mean).collect()
}

/// Returns, for the score of each task at each length, whether the task counts: its score is at
/// least `least`, or no score of that length is.
fn find_counted(scores: impl Iterator<Item = f64>, tasks: usize, least: f64) -> Vec<bool> {
    let mut counts: Vec<bool> = scores.map(|score| score >= least).collect();
    for of_length in counts.chunks_mut(tasks.max(1)).filter(|counts| !counts.contains(&true)) {
        of_length.fill(true);
    }
    counts
}

impl EvaluationReport {
    pub(crate) fn new(
        settings: &EvaluationSettings,
        shape: &Shape,
        backend: &str,
        variants: &[Variant],
        records: Vec<Record>,
    ) -> Self {
        let records_of =
            |i: usize| records.iter().skip(i).step_by(variants.len()).collect::<Vec<_>>();
        let dense = variants.iter().position(|variant| variant.pipeline.is_dense());
        let (contexts, tasks) = (settings.contexts.len(), settings.tasks.len());
        let counts = match dense.map(records_of) {
            Some(dense) => {
                let scores = split_by_task(&dense).map(mean_score);
                find_counted(scores, tasks, settings.leave_out_below)
            }
            None => vec![true; contexts * tasks],
        };
        let results = variants.iter().enumerate().map(|(i, variant)| {
            let to_dense = match dense.filter(|&dense| dense != i) {
                Some(dense) => compare_scores(&records_of(i), &records_of(dense), &counts, tasks),
                None => Vec::new(),
            };
            VariantResult {
                to_dense,
                ..VariantResult::new(variant, shape, &records_of(i), &counts)
            }
        });
        Self {
            setup: settings.setup,
            prefill: PrefillResult::new(
                settings.prefill,
                records.iter().step_by(variants.len().max(1)),
            ),
            chat: settings.talk.is_some(),
            backend: backend.into(),
            tasks: settings.tasks.iter().map(ToString::to_string).collect(),
            contexts: settings.contexts.clone(),
            cases: settings.cases,
            published: settings.tasks.iter().any(|task| matches!(task, Task::Dataset(_))),
            seed: settings.seed,
            variants: results.collect(),
            records,
        }
    }
}

impl VariantResult {
    /// Summarizes records, which are ordered by length and task, with at least one record of each.
    /// `counts` has, for each task and length, whether it counts. `shape` is the model's.
    fn new(variant: &Variant, shape: &Shape, records: &[&Record], counts: &[bool]) -> Self {
        let attended = AttentionTotals::new(records);
        let scores: Vec<TaskScore> = split_by_task(records)
            .zip(counts)
            .map(|(records, &counts)| TaskScore::new(records, counts))
            .collect();
        let promise = variant.pipeline.promise();
        let goal = variant.pipeline.parts().find_map(PipelineConfig::goal);
        let heads_per_list = variant.pipeline.share.heads_per_list(shape.group());
        let lists = ListCounts::new(attended.rows, heads_per_list);
        let violations = promise.zip(attended.violations);
        let accuracy = mean_of_counted(&scores);
        Self {
            variant: variant.name(),
            pipeline: variant.pipeline.name.clone(),
            asked: variant.asked,
            set: variant.set.clone(),
            density: attended.mean(attended.density),
            accuracy,
            interval: ShareInterval::new(accuracy, effective_cases(&scores)),
            counted: scores.iter().filter(|score| score.counts).map(|score| score.cases).sum(),
            cases_without_rows: attended.cases_without_rows,
            error: attended.error.and_then(|sum| attended.mean(sum)),
            largest_error: attended.largest_error,
            rows: attended.rows,
            held: attended.held,
            promise,
            violations: violations.map(|(promise, counts)| counts.count(promise.scope)),
            evidence: violations.map(|(promise, counts)| counts.evidence(&promise, lists)),
            bars: attended.bars.judge(goal.as_ref(), shape.query_heads, lists, attended.rows),
            scores,
            to_dense: Vec::new(),
        }
    }
}

/// Sums over the rows of several answers.
#[derive(Default)]
struct AttentionTotals {
    rows: usize,
    /// Sum of densities over rows.
    density: f64,
    held: usize,
    cases_without_rows: usize,
    /// Sum of errors over rows; `None` if errors were not measured.
    error: Option<f64>,
    largest_error: Option<f64>,
    violations: Option<Violations>,
    bars: Bars,
}

impl AttentionTotals {
    /// Computes sums over the answers that have rows, and counts answers without rows.
    fn new(records: &[&Record]) -> Self {
        let mut totals = Self::default();
        for AttentionSummary { rows, density, held, error, bars } in
            records.iter().map(|record| &record.attended.attention)
        {
            if *rows == 0 {
                totals.cases_without_rows += 1;
                continue;
            }
            totals.rows += rows;
            totals.density += *rows as f64 * density.unwrap_or(0.0);
            totals.held += held;
            totals.bars = totals.bars.and(*bars);
            if let Some(error) = error {
                *totals.error.get_or_insert_default() += *rows as f64 * error.mean;
                let largest = totals.largest_error.get_or_insert_default();
                *largest = largest.max(error.max);
                totals.violations = [totals.violations, error.violations]
                    .into_iter()
                    .flatten()
                    .reduce(|sum, counts| [sum, counts].into_iter().sum());
            }
        }
        totals
    }

    /// Mean over rows; `None` without rows.
    fn mean(&self, sum: f64) -> Option<f64> {
        (self.rows > 0).then(|| sum / self.rows as f64)
    }
}

impl TaskScore {
    /// Summarizes the cases of one task at one length; there must be at least one.
    fn new(records: &[&Record], counts: bool) -> Self {
        let accuracy = mean_score(records);
        Self {
            task: records[0].task.clone(),
            context: records[0].context,
            cases: records.len(),
            accuracy,
            interval: ShareInterval::new(accuracy, records.len() as f64),
            others: other_means(records),
            groups: score_groups(records),
            counts,
        }
    }
}

/// Number of independent cases whose mean has the same variance as the mean over tasks that count,
/// each of the same weight (Kish's effective sample size).
pub fn effective_cases(scores: &[TaskScore]) -> f64 {
    let counted = || scores.iter().filter(|score| score.counts);
    let tasks = counted().count() as f64;
    let squares: f64 = counted().map(|score| 1.0 / score.cases as f64).sum();
    if squares > 0.0 { tasks * tasks / squares } else { 0.0 }
}

/// Splits records into those of each task at each length, which are contiguous.
fn split_by_task<'a, 'b>(all: &'a [&'b Record]) -> impl Iterator<Item = &'a [&'b Record]> {
    all.chunk_by(|a, b| (&a.task, a.context) == (&b.task, b.context))
}

/// Mean accuracy over the tasks that count, each of the same weight.
pub fn mean_of_counted(scores: &[TaskScore]) -> f64 {
    let counted = scores.iter().filter(|score| score.counts);
    let (sum, count) =
        counted.fold((0.0, 0), |(sum, count), score| (sum + score.accuracy, count + 1));
    sum / f64::from(count.max(1))
}

/// Compares scores with those of other answers in the same cases, at each length, over the tasks
/// that count.
fn compare_scores(
    records: &[&Record],
    others: &[&Record],
    counts: &[bool],
    tasks: usize,
) -> Vec<Option<PairedDifference>> {
    let difference = |(a, b): (&&Record, &&Record)| a.attended.score - b.attended.score;
    let compare_task = |(records, others): (&[&Record], &[&Record])| -> Vec<f64> {
        records.iter().zip(others).map(difference).collect()
    };
    let all: Vec<Vec<f64>> =
        split_by_task(records).zip(split_by_task(others)).map(compare_task).collect();
    let summarize_length = |(tasks, counts): (&[Vec<f64>], &[bool])| {
        let tasks = tasks.iter().zip(counts);
        let counted = tasks.filter(|(_, counts)| **counts).map(|(task, _)| task.as_slice());
        PairedDifference::new(&counted.collect::<Vec<_>>())
    };
    all.chunks(tasks.max(1)).zip(counts.chunks(tasks.max(1))).map(summarize_length).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vattention_core::{Fraction, PipelineConfig, Share};
    use vattention_estimators::Ratio;

    use super::*;
    use crate::record::{AttentionSummary, CaseAnswer, RowErrorSummary};

    /// Evidence from 64 steps of sixteen heads, where all heads violate the promise in ten steps: a
    /// rate of 0.16.
    fn evidence_of(share: Share) -> Option<Evidence> {
        let tenth = Fraction::try_from(0.1).unwrap();
        let estimator = Some(Box::new(Ratio::new(tenth, tenth)) as _);
        let pipeline = PipelineConfig { share, estimator, ..PipelineConfig::default() };
        let mut violations = Violations::default();
        (0..64).for_each(|step| violations.add_step([step < 10; 16]));
        let error = RowErrorSummary { violations: Some(violations), ..RowErrorSummary::default() };
        let rows = violations.rows;
        let attention = AttentionSummary { rows, error: Some(error), ..Default::default() };
        let record = record(1.0, attention);
        let variant = Variant::untuned(Arc::new(pipeline));
        VariantResult::new(&variant, &SHAPE, &[&record], &[true]).evidence
    }

    /// One group of sixteen query heads.
    const SHAPE: Shape = Shape { query_heads: 16, kv_heads: 1, head_dim: 8, value_dim: 8 };

    fn record(score: f64, attention: AttentionSummary) -> Record {
        let attended =
            CaseAnswer { score, answer: String::new(), attention, prefill_density: None };
        Record {
            digest: String::new(),
            pipeline: String::new(),
            task: "vt".into(),
            context: 300,
            case: 0,
            attended,
            others: Vec::new(),
            groups: Vec::new(),
        }
    }

    #[test]
    fn cases_without_a_step_do_not_change_the_result_of_the_others() {
        let mut violations = Violations::default();
        (0..4).for_each(|step| violations.add_step([step < 1; 16]));
        let error = RowErrorSummary { mean: 0.25, max: 0.5, violations: Some(violations) };
        let rows = violations.rows;
        let some =
            AttentionSummary { rows, density: Some(0.5), error: Some(error), ..Default::default() };
        let tenth = Fraction::try_from(0.1).unwrap();
        let estimator = Some(Box::new(Ratio::new(tenth, tenth)) as _);
        let pipeline = PipelineConfig { estimator, ..PipelineConfig::default() };
        let variant = Variant::untuned(Arc::new(pipeline));
        let records = [record(1.0, AttentionSummary::default()), record(0.0, some)];
        let all: Vec<&Record> = records.iter().collect();
        let found = VariantResult::new(&variant, &SHAPE, &all, &[true]);
        assert_eq!((found.cases_without_rows, found.rows, found.counted), (1, 64, 2));
        assert_eq!(
            (found.density, found.error, found.largest_error),
            (Some(0.5), Some(0.25), Some(0.5))
        );
        assert_eq!(found.violations.map(|counts| counts.to_string()), Some("16 of 64".into()));
        assert_eq!(found.evidence, Some(Evidence::AboveDelta));
        let none = VariantResult::new(&variant, &SHAPE, &all[..1], &[true]);
        assert_eq!((none.density, none.error, none.evidence), (None, None, None));
        assert_eq!(none.cases_without_rows, 1);
    }

    #[test]
    fn tasks_with_few_cases_count_as_few_cases() {
        let score = |cases| TaskScore {
            cases,
            ..TaskScore::new(&[&record(1.0, AttentionSummary::default())], true)
        };
        assert!((effective_cases(&[score(10), score(10)]) - 20.0).abs() < 1e-9);
        assert!((effective_cases(&[score(1), score(1000)]) - 4.0 / 1.001).abs() < 1e-9);
        assert_eq!(effective_cases(&[]), 0.0);
    }

    #[test]
    fn heads_that_share_a_token_list_count_once() {
        assert_eq!(evidence_of(Share::Group), Some(Evidence::AboveDelta));
        assert_eq!(evidence_of(Share::Head), Some(Evidence::Contradicted));
    }

    #[test]
    fn tasks_below_the_least_score_do_not_count_unless_all_are_below() {
        let counted = |scores: [f64; 4]| find_counted(scores.into_iter(), 2, 0.2);
        assert_eq!(counted([0.2, 0.19, 1.0, 0.5]), [true, false, true, true]);
        assert_eq!(counted([0.1, 0.0, 0.0, 0.3]), [true, true, false, true]);
    }
}
