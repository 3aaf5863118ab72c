//! The figures of the paper's studies, one function for each study that has a figure of its own, as SVG.

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

/// The share of samples that fail against the tokens asked for, a point for each head and bound.
pub fn tightness(found: &Tightness) -> String {
    let bounds = distinct(found.bounds.iter().map(|one: &BoundCount| one.bound));
    let series = |floor: bool, bound: &str| {
        let heads = found.heads.iter().filter(|head| head.floor == floor && head.bound == bound);
        Series::points(bound, heads.map(|head| (head.tokens, head.rate())).collect())
    };
    let panel = |floor, title: &str| Panel {
        title: title.into(),
        x: Axis::log("tokens asked for, mean over queries"),
        y: Axis::linear("share of samples whose error exceeds ε"),
        series: bounds.iter().map(|bound| series(floor, bound)).collect(),
        level: Some(found.delta),
    };
    let (trace, epsilon, delta) = (&found.trace, found.epsilon, found.delta);
    let title =
        format!("{trace}: denominator at ε = {epsilon}, δ = {delta} (line), a point for each head");
    let panels =
        vec![panel(false, "the bound alone"), panel(true, "at least the base sample of 5 %")];
    Figure { title, columns: 2, panels }.svg()
}

/// The mean error against epsilon.
pub fn epsilon(found: &EpsilonStudy) -> String {
    let drawn = |one: &EpsilonSeries| {
        Series::line(one.promise, one.points.iter().map(|p| (p.epsilon, p.error)).collect())
    };
    let panel = |floor, title: &str| Panel {
        title: title.into(),
        x: Axis::linear("ε"),
        y: Axis::linear("relative error, mean over rows"),
        series: found.series.iter().filter(|one| one.floor == floor).map(drawn).collect(),
        level: None,
    };
    let title = format!("{}: mean error at δ = {}", found.trace, found.delta);
    let panels =
        vec![panel(false, "the budget alone"), panel(true, "at least the base sample of 5 %")];
    Figure { title, columns: 2, panels }.svg()
}

/// The mean error of the variances against the size of the base sample.
pub fn base_sample(found: &BaseSample) -> String {
    let series = |name: &str, of: fn(&BaseSize) -> ErrorSummary| {
        let points = found.sizes.iter().map(|size| (size.tokens as f64, of(size).mean));
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

/// The measured quantiles against the normal's.
pub fn normality(found: &Normality) -> String {
    let one = |size: &NormalitySize| {
        Series::line(&format!("{} tokens", size.tokens), size.quantiles.clone())
    };
    let mut series: Vec<Series> = found.sizes.iter().map(one).collect();
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

/// The errors of each head against what the first method, top-k, covers of it.
pub fn coverage(found: &Coverage) -> String {
    let heads = distinct(found.rows.iter().map(|row| (row.layer, row.query_head)));
    let of = |method: &str, head: (usize, usize), element: fn(&RowCoverage) -> f64| {
        let own = found.rows.iter().filter(|row| row.method == method);
        mean(own.filter(|row| (row.layer, row.query_head) == head).map(element))
    };
    let methods: Vec<&str> = found.methods.iter().map(|one: &CoverageMethod| one.method).collect();
    let left = |head| 1.0 - of("top-k", head, |row| row.coverage);
    let points = |method: &str, element: fn(&RowCoverage) -> f64| {
        let point = |&head: &(usize, usize)| (left(head), of(method, head, element));
        Series::points(method, heads.iter().map(point).collect())
    };
    let panel = |title: &str, y: Axis, series| Panel {
        title: title.into(),
        x: Axis::log("softmax mass that top-k leaves out").in_percent(),
        y,
        series,
        level: None,
    };
    let errors = methods.iter().map(|method| points(method, |row| row.error)).collect();
    let needed = vec![points("top-p", |row| row.density)];
    let panels = vec![
        panel("error", Axis::log("relative error of the output"), errors),
        panel("what top-p needs", Axis::log("share of the tokens").in_percent(), needed),
    ];
    let title = format!("{}: coverage, a point for each head", found.trace);
    Figure { title, columns: 2, panels }.svg()
}

/// Bias and standard deviation against the tokens read besides.
pub fn bias(found: &Bias) -> String {
    let series = |name: &str, of: fn(&BiasSize) -> f64| {
        Series::line(name, found.sizes.iter().map(|size| (size.share, of(size))).collect())
    };
    let panel = Panel {
        title: "root mean squares over rows".into(),
        x: Axis::log("tokens read besides sink, window and top 5 %").in_percent(),
        y: Axis::log("relative to the output"),
        series: vec![
            series("more of the top: bias", |size| size.top_k),
            series("a sample: standard deviation", |size| size.deviation),
            series("a sample: bias", |size| size.bias),
        ],
        level: None,
    };
    let title = format!("{}: bias and variance", found.trace);
    Figure { title, columns: 1, panels: vec![panel] }.svg()
}

/// The confidence that error bars claim against the share of the samples that they hold: of all heads,
/// and of the head where they hold the fewest, marked by what that says of the confidence.
pub fn calibration(found: &Calibration) -> String {
    let panel = |title: &str, outside: fn(&AtDelta) -> f64| {
        let line = |one: &Calibrated| {
            let place = |at: &AtDelta| (1.0 - at.delta, 1.0 - outside(at));
            Series::line(&one.pipeline, one.at.iter().map(place).collect())
        };
        let deltas = found.pipelines.iter().flat_map(|one| &one.at).map(|at| at.delta);
        let claimed = Series::line("as claimed", deltas.map(|d| (1.0 - d, 1.0 - d)).collect());
        Panel {
            title: title.into(),
            x: Axis::linear("confidence claimed"),
            y: Axis::linear("share of samples within their bars"),
            series: [claimed].into_iter().chain(found.pipelines.iter().map(line)).collect(),
            level: None,
        }
    };
    let all = panel("all heads", |at| at.bars.share_outside().unwrap_or(0.0));
    let mut worst = panel("the worst head", |at| at.worst);
    let mark = |at: &AtDelta| Some((at.bars.evidence?, (1.0 - at.delta, 1.0 - at.worst)));
    let marks: Vec<_> = found.pipelines.iter().flat_map(|one| &one.at).filter_map(mark).collect();
    worst.series.extend(Series::marked(&marks));
    let title = format!("{}: are error bars as sure as they say?", found.trace);
    Figure { title, columns: 2, panels: vec![all, worst] }.svg()
}

/// A panel for each parameter: errors above, densities below.
pub fn sensitivity(found: &Sensitivity) -> String {
    let targets = distinct(found.variations.iter().map(|one| one.target));
    let parameters = distinct(found.variations.iter().map(|one| one.parameter));
    let series = |target: Target, parameter: &str, of: fn(&Variation) -> f64| {
        let own = |one: &&Variation| one.target == target && one.parameter == parameter;
        let points = found.variations.iter().filter(own).map(|one| (one.value, of(one)));
        Series::line(&target.to_string(), points.collect())
    };
    let panel = |parameter: &str, name: &str, of: fn(&Variation) -> f64| Panel {
        title: parameter.into(),
        x: Axis::log(unit(parameter)),
        y: Axis::linear(name),
        series: targets.iter().map(|&target| series(target, parameter, of)).collect(),
        level: None,
    };
    let errors =
        parameters.iter().map(|p| panel(p, "relative error of the output", |v| v.output_error));
    let densities = parameters.iter().map(|p| panel(p, "share of tokens read", |v| v.density));
    let title = format!("{}: the natural configuration, one parameter varied", found.trace);
    Figure { title, columns: 3, panels: errors.chain(densities).collect() }.svg()
}

/// Error against density, the front joined.
pub fn pareto(found: &Pareto) -> String {
    comparison(&found.comparison)
}

/// Error against density, with a line at the mean limit.
pub fn limit(found: &LimitStudy) -> String {
    comparison_with_limit(&found.comparison, Some(found.limit.mean))
}

/// What the values of a parameter of the natural configuration are.
fn unit(parameter: &str) -> &'static str {
    match parameter {
        "sink" | "window" => "tokens",
        "top-k" | "base" => "share of the visible tokens",
        "epsilon" => "ε",
        _ => "δ",
    }
}

/// Each item once, in the order of its first.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

/// The smallest and the largest element.
fn ends(elements: impl Iterator<Item = f64>) -> (f64, f64) {
    elements.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
}

fn mean(elements: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = elements.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
    sum / count
}
