//! Answers, summed up.

use serde::Serialize;
use vattention_core::Promise;
use vattention_eval::{Bars, Evidence, Figure, Line, LinePanel, PairedDifference, Violations};

use crate::{Contender, Evaluation, Record, Setup};

/// What contenders answered.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Who read the questions.
    pub setup: Setup,
    /// Whether cases were put in the model's chat template.
    pub chat: bool,
    /// The machine.
    pub backend: String,
    /// The tasks.
    pub tasks: Vec<String>,
    /// Tokens of the cases.
    pub contexts: Vec<usize>,
    /// Cases of each task and length.
    pub cases: usize,
    /// Of the cases.
    pub seed: u64,
    /// Each contender's, in order.
    pub contenders: Vec<Asked>,
    /// Every answer.
    pub records: Vec<Record>,
}

/// What one contender answered.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
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
    /// The mean of the scores of all cases.
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
    /// How often that was broken, if errors were measured.
    pub violations: Option<Violations>,
    /// What that says of the promise's delta.
    pub evidence: Option<Evidence>,
    /// Error bars, if errors were measured.
    pub bars: Bars,
    /// Of each task at each length, in the report's order of lengths, then tasks.
    pub scores: Vec<Score>,
    /// The score less that of the first dense contender in the same case, over the cases of each
    /// length; empty without such a contender, for itself, and of fewer than two cases.
    pub to_dense: Vec<PairedDifference>,
}

/// Accuracy on one task at one length.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The task's name.
    pub task: String,
    /// Tokens of the cases.
    pub context: usize,
    /// The mean of RULER's score over the cases, from 0 to 1.
    pub accuracy: f64,
}

/// How much better the answers are than the others to the same questions, so many at a time.
fn differences(own: &[&Record], others: &[&Record], cases: usize) -> Vec<PairedDifference> {
    let difference = |(a, b): (&&Record, &&Record)| a.attended.score - b.attended.score;
    let all: Vec<f64> = own.iter().zip(others).map(difference).collect();
    all.chunks(cases.max(1)).filter_map(PairedDifference::new).collect()
}

impl Report {
    pub(crate) fn new(
        evaluation: &Evaluation<'_>,
        contenders: &[Contender],
        records: Vec<Record>,
    ) -> Self {
        let settings = &evaluation.settings;
        let own = |i: usize| records.iter().skip(i).step_by(contenders.len()).collect::<Vec<_>>();
        let dense = contenders.iter().position(|contender| contender.pipeline.is_dense());
        let cases = settings.tasks.len() * settings.cases;
        let asked = contenders.iter().enumerate().map(|(i, contender)| {
            let to_dense = match dense.filter(|&dense| dense != i) {
                Some(dense) => differences(&own(i), &own(dense), cases),
                None => Vec::new(),
            };
            Asked { to_dense, ..Asked::new(contender, &own(i), settings.cases) }
        });
        Self {
            setup: settings.setup,
            chat: settings.talk.is_some(),
            backend: evaluation.backend.name().into(),
            tasks: settings.tasks.iter().map(ToString::to_string).collect(),
            contexts: settings.contexts.clone(),
            cases: settings.cases,
            seed: settings.seed,
            contenders: asked.collect(),
            records,
        }
    }

    /// Accuracy, and the error of attention if it was measured, against density: a line through the
    /// contenders of one pipeline, with a mark where its promise was broken more often than delta
    /// allows.
    pub fn figure(&self, title: &str) -> Figure {
        let panel = |y, log, of: fn(&Asked) -> Option<f64>| LinePanel {
            y,
            log,
            lines: self.lines(of),
            marks: self.marks(of),
        };
        let panels = [
            panel("accuracy", false, |asked| Some(asked.accuracy)),
            panel("mean |out - dense| / |dense|", true, |asked| asked.error),
        ];
        let panels = panels.into_iter().filter(|panel| !panel.lines.is_empty()).collect();
        Figure::lines(title, "share of the tokens read, per KV head", panels)
    }

    fn marks(&self, of: impl Fn(&Asked) -> Option<f64>) -> Vec<(Evidence, (f64, f64))> {
        let mark = |asked: &Asked| Some((asked.evidence?, (asked.density, of(asked)?)));
        let all = self.contenders.iter().filter_map(mark);
        all.filter(|(evidence, _)| *evidence != Evidence::WithinDelta).collect()
    }

    fn lines(&self, of: impl Fn(&Asked) -> Option<f64>) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for asked in &self.contenders {
            let Some(y) = of(asked) else { continue };
            let point = (asked.density, y);
            match lines.iter_mut().find(|(name, _)| *name == asked.pipeline) {
                Some((_, points)) => points.push(point),
                None => lines.push((asked.pipeline.clone(), vec![point])),
            }
        }
        for (_, points) in &mut lines {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        lines
    }
}

impl Asked {
    /// Of at least one record of each task and length, `cases` of each after the other.
    fn new(contender: &Contender, records: &Vec<&Record>, cases: usize) -> Self {
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
        let mean = |records: &[&Record]| {
            let sum: f64 = records.iter().map(|record| record.attended.score).sum();
            sum / records.len().max(1) as f64
        };
        let score = |records: &[&Record]| Score {
            task: records[0].task.clone(),
            context: records[0].context,
            accuracy: mean(records),
        };
        let promise = contender.pipeline.promise();
        let violations: Option<Violations> = errors().map(|one| one?.1.violations).sum();
        Self {
            name: contender.name(),
            pipeline: contender.pipeline.name.clone(),
            asked: contender.asked,
            set: contender.set.clone(),
            density: by_rows(attention().map(|one| one.rows as f64 * one.density).sum()),
            accuracy: mean(records),
            error: error(|sum, weighted, _| sum + weighted).map(by_rows),
            largest_error: error(|most, _, max| most.max(max)),
            rows,
            held: attention().map(|one| one.held).sum(),
            promise,
            violations,
            evidence: promise.zip(violations).map(|(promise, seen)| seen.evidence(&promise)),
            bars: attention().map(|one| one.bars).sum(),
            scores: records.chunks(cases.max(1)).map(score).collect(),
            to_dense: Vec::new(),
        }
    }
}
