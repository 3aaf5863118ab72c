//! Plots of the paper's studies, as SVG.

use vattention_core::Target;
use vattention_experiments::ErrorSummary;
use vattention_experiments::study::{
    AtDelta, BaseSample, BaseSize, Bias, BiasSize, BoundCount, Calibrated, Calibration, Coverage,
    CoverageMethod, EpsilonSeries, EpsilonStudy, LimitStudy, Normality, NormalitySize, Pareto,
    RowCoverage, Sensitivity, Tightness, Variation,
};

use crate::axis::Axis;
use crate::comparison::{comparison, comparison_with_limit};
use crate::figure::{Figure, Panel, Series};

/// Plots the share of failed samples against the required sample size, with a point per head and
/// bound.
pub fn tightness(found: &Tightness) -> String {
    let bounds = distinct(found.bounds.iter().map(|count: &BoundCount| count.bound));
    let series = |floor: bool, bound: &str| {
        let heads = found.heads.iter().filter(|head| head.floor == floor && head.bound == bound);
        Series::points(bound, heads.map(|head| (head.tokens, head.rate())).collect())
    };
    let panel = |floor, title: &str| Panel {
        title: title.into(),
        x: Axis::log("required sample size in tokens, mean over queries"),
        y: Axis::linear("share of samples whose error exceeds ε"),
        series: bounds.iter().map(|bound| series(floor, bound)).collect(),
        level: Some(found.delta),
    };
    let (trace, epsilon, delta) = (&found.trace, found.epsilon, found.delta);
    let title =
        format!("{trace}: denominator at ε = {epsilon}, δ = {delta} (line), a point per head");
    let panels =
        vec![panel(false, "the bound alone"), panel(true, "at least the base sample of 5 %")];
    Figure { title, columns: 2, panels }.svg()
}

/// Plots the mean error against epsilon.
pub fn epsilon(found: &EpsilonStudy) -> String {
    let line = |curve: &EpsilonSeries| {
        Series::line(curve.promise, curve.points.iter().map(|p| (p.epsilon, p.error)).collect())
    };
    let panel = |floor, title: &str| Panel {
        title: title.into(),
        x: Axis::linear("ε"),
        y: Axis::linear("relative error, mean over rows"),
        series: found.series.iter().filter(|curve| curve.floor == floor).map(line).collect(),
        level: None,
    };
    let title = format!("{}: mean error at δ = {}", found.trace, found.delta);
    let panels =
        vec![panel(false, "the budget alone"), panel(true, "at least the base sample of 5 %")];
    Figure { title, columns: 2, panels }.svg()
}

/// Plots the mean error of the estimated variances against the size of the base sample.
pub fn base_sample(found: &BaseSample) -> String {
    let series = |name: &str, summary: fn(&BaseSize) -> ErrorSummary| {
        let points = found.sizes.iter().map(|size| (size.tokens as f64, summary(size).mean));
        Series::line(name, points.collect())
    };
    let panel = Panel {
        title: "mean over rows and samples".into(),
        x: Axis::log("tokens in the base sample"),
        y: Axis::log("relative error"),
        series: vec![
            series("variance of e", |size| size.variance),
            series("trace of Cov(e v)", |size| size.trace_numerator),
            series("trace of Cov(w)", |size| size.trace_output),
        ],
        level: None,
    };
    let title = format!("{}: spread estimated from a base sample", found.trace);
    Figure { title, columns: 1, panels: vec![panel] }.svg()
}

/// Plots the measured quantiles against those of the normal distribution.
pub fn normality(found: &Normality) -> String {
    let line = |size: &NormalitySize| {
        Series::line(&format!("{} tokens", size.tokens), size.quantiles.clone())
    };
    let mut series: Vec<Series> = found.sizes.iter().map(line).collect();
    let normal = found.sizes.iter().flat_map(|size| &size.quantiles).map(|(normal, _)| *normal);
    let (low, high) = ends(normal);
    series.push(Series::curve("normal", vec![(low, low), (high, high)]));
    let panel = Panel {
        title: "quantiles, pooled over rows".into(),
        x: Axis::linear("standard normal quantile"),
        y: Axis::linear("quantile of the standardised error"),
        series,
        level: None,
    };
    let title = format!("{}: error of the denominator", found.trace);
    Figure { title, columns: 1, panels: vec![panel] }.svg()
}

/// Plots each head's errors against the attention weight that top-k does not cover.
pub fn coverage(found: &Coverage) -> String {
    let heads = distinct(found.rows.iter().map(|row| (row.layer, row.query_head)));
    let mean_of = |method: &str, head: (usize, usize), element: fn(&RowCoverage) -> f64| {
        let rows = found.rows.iter().filter(|row| row.method == method);
        mean(rows.filter(|row| (row.layer, row.query_head) == head).map(element))
    };
    let methods = found.methods.iter().map(|method: &CoverageMethod| method.method);
    let methods: Vec<&str> = methods.collect();
    let uncovered = |head| 1.0 - mean_of("top-k", head, |row| row.coverage);
    let points = |method: &str, element: fn(&RowCoverage) -> f64| {
        let point = |&head: &(usize, usize)| (uncovered(head), mean_of(method, head, element));
        Series::points(method, heads.iter().map(point).collect())
    };
    let panel = |title: &str, y: Axis, series| Panel {
        title: title.into(),
        x: Axis::log("attention weight not covered by top-k").in_percent(),
        y,
        series,
        level: None,
    };
    let errors = methods.iter().map(|method| points(method, |row| row.error)).collect();
    let needed = vec![points("top-p", |row| row.density)];
    let panels = vec![
        panel("error", Axis::log("relative error of the output"), errors),
        panel("density of top-p", Axis::log("share of the tokens").in_percent(), needed),
    ];
    let title = format!("{}: coverage, a point per head", found.trace);
    Figure { title, columns: 2, panels }.svg()
}

/// Plots bias and standard deviation against the share of additional tokens.
pub fn bias(found: &Bias) -> String {
    let series = |name: &str, measure: fn(&BiasSize) -> f64| {
        Series::line(name, found.sizes.iter().map(|size| (size.share, measure(size))).collect())
    };
    let panel = Panel {
        title: "root mean squares over rows".into(),
        x: Axis::log("tokens read in addition to sink, window and top 5 %").in_percent(),
        y: Axis::log("relative to the output"),
        series: vec![
            series("more top-k tokens: bias", |size| size.top_k),
            series("a sample: standard deviation", |size| size.deviation),
            series("a sample: bias", |size| size.bias),
        ],
        level: None,
    };
    let title = format!("{}: bias and variance", found.trace);
    Figure { title, columns: 1, panels: vec![panel] }.svg()
}

/// Plots the share of the samples within their error bars against the claimed confidence: over all
/// heads, and of the worst head, which is marked with the evidence on the confidence.
pub fn calibration(found: &Calibration) -> String {
    let panel = |title: &str, outside: fn(&AtDelta) -> f64| {
        let line = |pipeline: &Calibrated| {
            let place = |point: &AtDelta| (1.0 - point.delta, 1.0 - outside(point));
            Series::line(&pipeline.pipeline, pipeline.at.iter().map(place).collect())
        };
        let points = found.pipelines.iter().flat_map(|pipeline| &pipeline.at);
        let deltas = points.map(|point| point.delta);
        let claimed = Series::line("as claimed", deltas.map(|d| (1.0 - d, 1.0 - d)).collect());
        Panel {
            title: title.into(),
            x: Axis::linear("confidence claimed"),
            y: Axis::linear("share of samples within their bars"),
            series: [claimed].into_iter().chain(found.pipelines.iter().map(line)).collect(),
            level: None,
        }
    };
    let all = panel("all heads", |point| point.bars.share_outside().unwrap_or(0.0));
    let mut worst = panel("the worst head", |point| point.worst);
    let mark =
        |point: &AtDelta| Some((point.bars.evidence?, (1.0 - point.delta, 1.0 - point.worst)));
    let points = found.pipelines.iter().flat_map(|pipeline| &pipeline.at);
    let marks: Vec<_> = points.filter_map(mark).collect();
    worst.series.extend(Series::marked(&marks));
    let title = format!("{}: calibration of error bars", found.trace);
    Figure { title, columns: 2, panels: vec![all, worst] }.svg()
}

/// Plots errors (above) and densities (below) against each parameter.
pub fn sensitivity(found: &Sensitivity) -> String {
    let targets = distinct(found.variations.iter().map(|variation| variation.target));
    let parameters = distinct(found.variations.iter().map(|variation| variation.parameter));
    let series = |target: Target, parameter: &str, measure: fn(&Variation) -> f64| {
        let belongs =
            |variation: &&Variation| variation.target == target && variation.parameter == parameter;
        let variations = found.variations.iter().filter(belongs);
        let points = variations.map(|variation| (variation.value, measure(variation)));
        Series::line(&target.to_string(), points.collect())
    };
    let panel = |parameter: &str, name: &str, measure: fn(&Variation) -> f64| Panel {
        title: parameter.into(),
        x: Axis::log(unit(parameter)),
        y: Axis::linear(name),
        series: targets.iter().map(|&target| series(target, parameter, measure)).collect(),
        level: None,
    };
    let errors =
        parameters.iter().map(|p| panel(p, "relative error of the output", |v| v.output_error));
    let densities = parameters.iter().map(|p| panel(p, "share of tokens read", |v| v.density));
    let title = format!("{}: the natural configuration, one parameter varied", found.trace);
    Figure { title, columns: 3, panels: errors.chain(densities).collect() }.svg()
}

/// Plots error against density, with the Pareto front.
pub fn pareto(found: &Pareto) -> String {
    comparison(&found.comparison)
}

/// Plots error against density, with a line at the mean limit.
pub fn limit(found: &LimitStudy) -> String {
    comparison_with_limit(&found.comparison, Some(found.limit.mean))
}

/// Returns the unit of a parameter of the natural configuration.
fn unit(parameter: &str) -> &'static str {
    match parameter {
        "sink" | "window" => "tokens",
        "top-k" | "base" => "share of the visible tokens",
        "epsilon" => "ε",
        _ => "δ",
    }
}

/// Returns each item once, in the order of first occurrences.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

/// Returns the smallest and the largest element.
fn ends(elements: impl Iterator<Item = f64>) -> (f64, f64) {
    elements.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
}

fn mean(elements: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = elements.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
    sum / count
}
