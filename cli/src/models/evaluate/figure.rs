//! The figure of an evaluation.

use vattention::experiments::Evidence;
use vattention::plots::{Figure, Line, LinePanel};
use vattention_evaluate::{EvaluationReport, VariantResult};

/// What y is of a variant, if it was measured.
type Measure = fn(&VariantResult) -> Option<f64>;

/// Accuracy, and the error of attention if it was measured, against density: a line through the
/// variants of one pipeline, with a mark where its promise was violated, or errors exceeded their
/// bars, more often than delta allows.
pub(super) fn figure(report: &EvaluationReport, title: &str) -> Figure {
    let panel = |y, log, of: Measure| LinePanel {
        y,
        log,
        lines: lines(&report.variants, of),
        marks: marks(&report.variants, of),
    };
    let panels = [
        panel("accuracy", false, |one| Some(one.accuracy)),
        panel("mean |out - dense| / |dense|", true, |one| one.error),
    ];
    let panels = panels.into_iter().filter(|panel| !panel.lines.is_empty()).collect();
    Figure::lines(title, "share of the tokens read, per KV head", panels)
}

fn marks(variants: &[VariantResult], of: Measure) -> Vec<(Evidence, (f64, f64))> {
    let worst = |one: &VariantResult| one.evidence.max(one.bars.evidence);
    let mark = |one: &VariantResult| Some((worst(one)?, (one.density?, of(one)?)));
    let all = variants.iter().filter_map(mark);
    all.filter(|(evidence, _)| *evidence != Evidence::WithinDelta).collect()
}

fn lines(variants: &[VariantResult], of: Measure) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for one in variants {
        let (Some(density), Some(y)) = (one.density, of(one)) else { continue };
        let point = (density, y);
        match lines.iter_mut().find(|(name, _)| *name == one.pipeline) {
            Some((_, points)) => points.push(point),
            None => lines.push((one.pipeline.clone(), vec![point])),
        }
    }
    for (_, points) in &mut lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}
