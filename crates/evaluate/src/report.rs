//! Answers, summed up.

use serde::Serialize;
use vattention_core::Promise;
use vattention_experiments::{Bars, Evidence, PairedDifference, TokenLists, Violations};
use vattention_llm::Strategy;

use crate::{Evaluation, OtherScore, Record, Setup, Variant};

/// What variants answered.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Who read the questions.
    pub setup: Setup,
    /// How the rest of the prompts was read.
    pub prefill: PrefillResult,
    /// Whether cases were put in the model's chat template.
    pub chat: bool,
    /// The machine.
    pub backend: String,
    /// The tasks.
    pub tasks: Vec<String>,
    /// Tokens of the cases.
    pub contexts: Vec<usize>,
    /// Cases of each task and length; of a dataset that has fewer, all.
    pub cases: usize,
    /// Of the cases.
    pub seed: u64,
    /// Each variant's, in order.
    pub variants: Vec<VariantResult>,
    /// Every answer.
    pub records: Vec<Record>,
}

/// How prompts were read before the pipeline begins.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PrefillResult {
    /// By what.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// The share of the causal pairs of tokens and keys that was read: the mean over cases.
    pub density: f64,
}

impl PrefillResult {
    /// Of one record for each case.
    fn new<'a>(strategy: Strategy, records: impl Iterator<Item = &'a Record>) -> Self {
        let densities = records.map(|record| record.attended.prefill_density.unwrap_or(1.0));
        let (sum, cases) = densities.fold((0.0, 0), |(sum, cases), one| (sum + one, cases + 1));
        Self { strategy, density: sum / f64::from(cases.max(1)) }
    }
}

/// What one variant answered.
#[derive(Clone, Debug, Serialize)]
pub struct VariantResult {
    /// Its name.
    pub name: String,
    /// The pipeline's.
    pub pipeline: String,
    /// The share of the tokens that was asked for.
    pub asked: Option<f64>,
    /// What was set so that it reads so much.
    pub set: Option<String>,
    /// The mean share of the tokens that a KV head read, over all steps by the pipeline.
    pub density: f64,
    /// The mean of the scores of all cases that count.
    pub accuracy: f64,
    /// The mean over rows of the output's relative error, if it was measured.
    pub error: Option<f64>,
    /// The largest.
    pub largest_error: Option<f64>,
    /// Rows: query heads of all layers at all steps by the pipeline.
    pub rows: usize,
    /// Rows whose certificate holds.
    pub held: usize,
    /// What the pipeline promises, if anything.
    pub promise: Option<Promise>,
    /// How often that was violated, if errors were measured.
    pub violations: Option<Violations>,
    /// Evidence on the promise's delta; query heads that share a token list count as one unit.
    pub evidence: Option<Evidence>,
    /// Error bars, if errors were measured.
    pub bars: Bars,
    /// Of each task at each length, in the report's order of lengths, then tasks.
    pub scores: Vec<TaskScore>,
    /// The score less that of the first dense variant in the same case, over the cases of each
    /// length that count, `None` of fewer than two; empty without such a variant, and for itself.
    pub to_dense: Vec<Option<PairedDifference>>,
}

/// Accuracy on one task at one length.
#[derive(Clone, Debug, Serialize)]
pub struct TaskScore {
    /// The task's name.
    pub task: String,
    /// Tokens of the cases.
    pub context: usize,
    /// Cases there are.
    pub cases: usize,
    /// The mean score over the cases, from 0 to 1.
    pub accuracy: f64,
    /// The mean by each of the other metrics that the publishers of a dataset have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherScore>,
    /// Whether its cases count in means: at least as many are answered by dense attention as
    /// [`EvaluationSettings::leave_out_below`](crate::EvaluationSettings::leave_out_below) says.
    pub counts: bool,
}

/// The mean score of some cases.
fn mean_score(records: &[&Record]) -> f64 {
    let sum: f64 = records.iter().map(|record| record.attended.score).sum();
    sum / records.len().max(1) as f64
}

/// The means of some cases of a task by its other metrics.
fn other_means(records: &[&Record]) -> Vec<OtherScore> {
    let mean = |(place, first): (usize, &OtherScore)| {
        let sum: f64 = records.iter().map(|record| record.others[place].score).sum();
        OtherScore { metric: first.metric.clone(), score: sum / records.len() as f64 }
    };
    records[0].others.iter().enumerate().map(mean).collect()
}

/// Of scores on each of `tasks` at each length, those of at least so much; all of a length, if none is.
fn countable(scores: impl Iterator<Item = f64>, tasks: usize, least: f64) -> Vec<bool> {
    let mut counts: Vec<bool> = scores.map(|score| score >= least).collect();
    for of_length in counts.chunks_mut(tasks.max(1)).filter(|counts| !counts.contains(&true)) {
        of_length.fill(true);
    }
    counts
}

impl Report {
    pub(crate) fn new(
        evaluation: &Evaluation<'_>,
        variants: &[Variant],
        records: Vec<Record>,
    ) -> Self {
        let settings = &evaluation.settings;
        let own = |i: usize| records.iter().skip(i).step_by(variants.len()).collect::<Vec<_>>();
        let dense = variants.iter().position(|variant| variant.pipeline.is_dense());
        let (contexts, tasks) = (settings.contexts.len(), settings.tasks.len());
        let counts = match dense.map(own) {
            Some(dense) => {
                let scores = of_places(&dense).map(mean_score);
                countable(scores, tasks, settings.leave_out_below)
            }
            None => vec![true; contexts * tasks],
        };
        let asked = variants.iter().enumerate().map(|(i, variant)| {
            let to_dense = match dense.filter(|&dense| dense != i) {
                Some(dense) => differences(&own(i), &own(dense), &counts, tasks),
                None => Vec::new(),
            };
            let group = evaluation.config.shape.group();
            VariantResult { to_dense, ..VariantResult::new(variant, group, &own(i), &counts) }
        });
        Self {
            setup: settings.setup,
            prefill: PrefillResult::new(
                settings.prefill,
                records.iter().step_by(variants.len().max(1)),
            ),
            chat: settings.talk.is_some(),
            backend: evaluation.backend.name().into(),
            tasks: settings.tasks.iter().map(ToString::to_string).collect(),
            contexts: settings.contexts.clone(),
            cases: settings.cases,
            seed: settings.seed,
            variants: asked.collect(),
            records,
        }
    }
}

impl VariantResult {
    /// Of at least one record of each task and length, those of each after the other; some of them
    /// count. `group` query heads of the model share a KV head.
    fn new(variant: &Variant, group: usize, records: &[&Record], counts: &[bool]) -> Self {
        let attention = || records.iter().map(|record| &record.attended.attention);
        let rows: usize = attention().map(|one| one.rows).sum();
        let by_rows = |sum: f64| sum / rows.max(1) as f64;
        let errors = || attention().map(|one| Some((one.rows, one.error?)));
        let error = |of: fn(f64, f64, f64) -> f64| {
            errors().try_fold(0.0, |sum, one| {
                let (rows, error) = one?;
                Some(of(sum, rows as f64 * error.mean, error.max))
            })
        };
        let score = |(records, &counts): (&[&Record], &bool)| TaskScore {
            task: records[0].task.clone(),
            context: records[0].context,
            cases: records.len(),
            accuracy: mean_score(records),
            others: other_means(records),
            counts,
        };
        let scores: Vec<TaskScore> = of_places(records).zip(counts).map(score).collect();
        let promise = variant.pipeline.promise();
        let violations: Option<Violations> = errors().map(|one| one?.1.violations).sum();
        Self {
            name: variant.name(),
            pipeline: variant.pipeline.name.clone(),
            asked: variant.asked,
            set: variant.set.clone(),
            density: by_rows(attention().map(|one| one.rows as f64 * one.density).sum()),
            accuracy: mean_of_counted(&scores),
            error: error(|sum, weighted, _| sum + weighted).map(by_rows),
            largest_error: error(|most, _, max| most.max(max)),
            rows,
            held: attention().map(|one| one.held).sum(),
            promise,
            violations,
            evidence: promise.zip(violations).map(|(promise, violations)| {
                let heads_per_list = variant.pipeline.share.heads_per_list(group);
                violations.evidence(&promise, TokenLists::new(violations.rows, heads_per_list))
            }),
            bars: attention().map(|one| one.bars).sum(),
            scores,
            to_dense: Vec::new(),
        }
    }
}

/// The records of each task at each length, which are one after the other.
fn of_places<'a, 'b>(all: &'a [&'b Record]) -> impl Iterator<Item = &'a [&'b Record]> {
    all.chunk_by(|a, b| (&a.task, a.context) == (&b.task, b.context))
}

/// The mean over tasks that count, each of the same weight.
pub fn mean_of_counted(scores: &[TaskScore]) -> f64 {
    let counted = scores.iter().filter(|score| score.counts);
    let (sum, count) =
        counted.fold((0.0, 0), |(sum, count), score| (sum + score.accuracy, count + 1));
    sum / f64::from(count.max(1))
}

/// How much better the answers are than the others to the same questions, of each length, over the tasks that count.
fn differences(
    own: &[&Record],
    others: &[&Record],
    counts: &[bool],
    tasks: usize,
) -> Vec<Option<PairedDifference>> {
    let difference = |(a, b): (&&Record, &&Record)| a.attended.score - b.attended.score;
    let of_place = |(own, others): (&[&Record], &[&Record])| -> Vec<f64> {
        own.iter().zip(others).map(difference).collect()
    };
    let all: Vec<Vec<f64>> = of_places(own).zip(of_places(others)).map(of_place).collect();
    let of_length = |(differences, counts): (&[Vec<f64>], &[bool])| {
        let of_tasks = differences.iter().zip(counts);
        let counted = of_tasks.filter(|(_, counts)| **counts).flat_map(|(some, _)| some);
        PairedDifference::new(&counted.copied().collect::<Vec<_>>())
    };
    all.chunks(tasks.max(1)).zip(counts.chunks(tasks.max(1))).map(of_length).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vattention_core::{Fraction, PipelineConfig, Share};
    use vattention_estimators::Ratio;

    use super::*;
    use crate::record::{Answered, AttentionSummary, ErrorOf};

    /// 64 steps of sixteen heads: ten steps in which all are violated, at a rate of 0.16.
    fn evidence_of(share: Share) -> Option<Evidence> {
        let tenth = Fraction::try_from(0.1).unwrap();
        let estimator = Some(Box::new(Ratio::new(tenth, tenth)) as _);
        let pipeline = PipelineConfig { share, estimator, ..PipelineConfig::default() };
        let mut violations = Violations::default();
        (0..64).for_each(|step| violations.add_step([step < 10; 16]));
        let error = ErrorOf { violations: Some(violations), ..ErrorOf::default() };
        let rows = violations.rows;
        let attention = AttentionSummary { rows, error: Some(error), ..Default::default() };
        let attended =
            Answered { score: 1.0, answer: String::new(), attention, prefill_density: None };
        let record = Record {
            digest: String::new(),
            pipeline: String::new(),
            task: "vt".into(),
            context: 300,
            case: 0,
            attended,
            others: Vec::new(),
        };
        let variant = Variant::as_it_stands(Arc::new(pipeline));
        VariantResult::new(&variant, 16, &[&record], &[true]).evidence
    }

    #[test]
    fn heads_that_share_a_list_count_once() {
        assert_eq!(evidence_of(Share::Group), Some(Evidence::AboveDelta));
        assert_eq!(evidence_of(Share::Head), Some(Evidence::Contradicted));
    }

    #[test]
    fn tasks_below_the_least_do_not_count_unless_all_are() {
        let of = |scores: [f64; 4]| countable(scores.into_iter(), 2, 0.2);
        assert_eq!(of([0.2, 0.19, 1.0, 0.5]), [true, false, true, true]);
        assert_eq!(of([0.1, 0.0, 0.0, 0.3]), [true, true, false, true]);
    }
}
