//! Figure of an evaluation.

use vattention::experiments::Evidence;
use vattention::plots::{Figure, LinePanel, NamedLine};
use vattention_evaluate::{EvaluationReport, VariantResult};

/// Function that returns the y value of a variant, if it was measured.
type Measure = fn(&VariantResult) -> Option<f64>;

/// Returns a figure of accuracy against density, and of the attention's error if it was measured.
///
/// A line connects the variants of one pipeline. A mark shows that violations of the promise, or
/// errors beyond their bars, are more frequent than delta.
pub(super) fn figure(report: &EvaluationReport, title: &str) -> Figure {
    let panel = |y, log, measure: Measure| LinePanel {
        y,
        log,
        lines: lines(&report.variants, measure),
        marks: marks(&report.variants, measure),
    };
    let panels = [
        panel("accuracy", false, |variant| Some(variant.accuracy)),
        panel("mean |out - dense| / |dense|", true, |variant| variant.error),
    ];
    let panels = panels.into_iter().filter(|panel| !panel.lines.is_empty()).collect();
    Figure::lines(title, "share of the tokens read, per KV head", panels)
}

fn marks(variants: &[VariantResult], measure: Measure) -> Vec<(Evidence, (f64, f64))> {
    let mut marks = Vec::new();
    for variant in variants {
        let evidence = variant.evidence.max(variant.bars.evidence);
        let (Some(evidence), Some(density)) = (evidence, variant.density) else { continue };
        let Some(y) = measure(variant) else { continue };
        if evidence != Evidence::WithinDelta {
            marks.push((evidence, (density, y)));
        }
    }
    marks
}

fn lines(variants: &[VariantResult], measure: Measure) -> Vec<NamedLine> {
    let mut lines: Vec<NamedLine> = Vec::new();
    for variant in variants {
        let (Some(density), Some(y)) = (variant.density, measure(variant)) else { continue };
        let point = (density, y);
        match lines.iter_mut().find(|(name, _)| *name == variant.pipeline) {
            Some((_, points)) => points.push(point),
            None => lines.push((variant.pipeline.clone(), vec![point])),
        }
    }
    for (_, points) in &mut lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}
