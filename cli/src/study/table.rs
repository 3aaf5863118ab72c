//! What is printed of a study.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use vattention::experiments::study::{
    AtDelta, BaseSample, Bias, Calibration, Coverage, EpsilonStudy, LimitStudy, Normality, Pareto,
    Sensitivity, Tightness,
};
use vattention::experiments::{Comparison, ErrorSummary, Measured};

use crate::numbers::promise;
use crate::numbers::{percent, short};

/// A heading, rows under a header, and what the columns mean. Numbers stand at the right.
fn show(heading: &str, header: &[&str], rows: Vec<Vec<String>>, legend: &str) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{heading}\n\n{table}\n\n{legend}")
}

pub(super) fn tightness(found: &Tightness) -> String {
    let Tightness { trace, epsilon, delta, trials, .. } = found;
    let row = |one: &vattention::experiments::study::BoundCount| {
        vec![
            one.bound.into(),
            floor(one.floor).into(),
            format!("{:.0}", one.tokens),
            format!("{:.2}", one.of_clt),
            format!("{:.4}", one.rate),
            format!("{:.4}", one.worst_rate),
        ]
    };
    let heading = format!(
        "{trace}: the denominator at epsilon = {epsilon}, delta = {delta}, {trials} samples of each row"
    );
    let header = ["bound", "floor", "tokens", "of clt", "failed", "worst head"];
    let legend = "\
floor       the least sample: none, or the natural configuration's base of 5 %
tokens      that the bound asks for if it knows the true moments, mean over rows
of clt      that, relative to clt's
failed      share of samples whose error exceeds epsilon; delta is what may
worst head  the same, of the head with most";
    show(&heading, &header, found.bounds.iter().map(row).collect(), legend)
}

pub(super) fn epsilon(found: &EpsilonStudy) -> String {
    let EpsilonStudy { trace, delta, trials, series } = found;
    let epsilons = series[0].points.iter().map(|point| point.epsilon.to_string());
    let header: Vec<String> =
        ["promise", "floor", "correlation"].map(String::from).into_iter().chain(epsilons).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let row = |one: &vattention::experiments::study::EpsilonSeries| {
        let start = [one.promise.into(), floor(one.floor).into(), correlation(one.correlation)];
        let errors = one.points.iter().map(|point| format!("{:.4}", point.error));
        start.into_iter().chain(errors).collect()
    };
    let heading = format!(
        "{trace}: mean relative error at each epsilon, delta = {delta}, {trials} samples of each row"
    );
    let legend = "\
floor        the least sample: none, or the natural configuration's base of 5 %
correlation  of epsilon and the mean error; - if that is the same throughout";
    show(&heading, &header, series.iter().map(row).collect(), legend)
}

pub(super) fn base_sample(found: &BaseSample) -> String {
    let cells = |error: ErrorSummary| [format!("{:.4}", error.mean), format!("{:.4}", error.p95)];
    let row = |one: &vattention::experiments::study::BaseSize| {
        let errors = [one.variance, one.trace_numerator, one.trace_output].map(cells);
        [one.tokens.to_string()].into_iter().chain(errors.into_iter().flatten()).collect()
    };
    let header = ["tokens", "variance of e", "p95", "trace of e v", "p95", "trace of w", "p95"];
    let heading = format!(
        "{}: relative error of what a base sample tells, {} samples of each row",
        found.trace, found.trials
    );
    let legend = "w = e (v - o); means and 95th percentiles over rows and samples";
    show(&heading, &header, found.sizes.iter().map(row).collect(), legend)
}

pub(super) fn normality(found: &Normality) -> String {
    let row = |one: &vattention::experiments::study::NormalitySize| {
        vec![one.tokens.to_string(), format!("{:.4}", one.kolmogorov), format!("{:.4}", one.beyond)]
    };
    let header = ["tokens", "distance", "beyond 1.96"];
    let heading = format!(
        "{}: standardised error of the denominator, {} samples of each row",
        found.trace, found.trials
    );
    let legend = "\
distance     Kolmogorov's, from the standard normal: the largest of the distribution functions
beyond 1.96  share of samples; 0.05 of a normal";
    show(&heading, &header, found.sizes.iter().map(row).collect(), legend)
}

pub(super) fn coverage(found: &Coverage) -> String {
    let row = |one: &vattention::experiments::study::CoverageMethod| {
        let shares = [one.density, one.most, one.coverage, one.least].map(percent);
        let errors = [one.error.mean, one.error.p95, one.error.max].map(|x| format!("{x:.4}"));
        std::iter::once(one.method.to_owned()).chain(shares).chain(errors).collect()
    };
    let heading = format!(
        "{}: sink, window and {} of the tokens, or {} of the mass; {} samples of each row",
        found.trace, found.share, found.mass, found.trials
    );
    let header = ["method", "read", "most", "mass", "least", "error", "p95", "max"];
    let legend = "\
read, most   share of the visible tokens: mean over rows, and the largest
mass, least  softmax mass of these: mean over rows, and the smallest
error        relative error of the output: mean, 95th percentile and largest over rows";
    show(&heading, &header, found.methods.iter().map(row).collect(), legend)
}

pub(super) fn bias(found: &Bias) -> String {
    let row = |one: &vattention::experiments::study::BiasSize| {
        let errors = [one.top_k, one.deviation, one.bias].map(|x| format!("{x:.5}"));
        std::iter::once(one.share.to_string()).chain(errors).collect()
    };
    let heading = format!(
        "{}: tokens read besides sink, window and top 5 %, {} samples of each row",
        found.trace, found.trials
    );
    let header = ["share", "top-k bias", "sample deviation", "sample bias"];
    let legend = "\
share   of the visible tokens, read besides: more of the top, or a uniform sample
errors  relative to the output's length, root mean squares over rows";
    show(&heading, &header, found.sizes.iter().map(row).collect(), legend)
}

pub(super) fn sensitivity(found: &Sensitivity) -> String {
    let row = |one: &vattention::experiments::study::Variation| {
        let natural = if one.natural { " *" } else { "" };
        vec![
            one.target.to_string(),
            one.parameter.into(),
            format!("{}{natural}", one.value),
            percent(one.density),
            format!("{:.4}", one.target_error),
            format!("{:.4}", one.output_error),
        ]
    };
    let header = ["target", "parameter", "value", "read", "target error", "output error"];
    let heading = format!("{}, backend {}", found.trace, found.backend);
    let legend = "\
value   of the parameter, all others being natural; * the natural one
read    share of the visible tokens
errors  relative, mean over rows";
    show(&heading, &header, found.variations.iter().map(row).collect(), legend)
}

pub(super) fn calibration(found: &Calibration) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let row = |name: &str, at: &AtDelta| {
        vec![
            name.to_owned(),
            percent(at.delta),
            or_dash(at.bars.share_outside().map(percent)),
            percent(at.worst),
            percent(at.density),
            or_dash(at.bars.mean.map(short)),
            or_dash(at.bars.evidence.map(|evidence| evidence.to_string())),
        ]
    };
    let rows =
        found.pipelines.iter().flat_map(|one| one.at.iter().map(|at| row(&one.pipeline, at)));
    let heading = format!("{}: error bars, {} samples of each KV head", found.trace, found.trials);
    let header = ["pipeline", "delta", "outside", "worst head", "read", "bar", "verdict"];
    let legend = "\
delta       the share of the samples whose error may exceed its bar
outside     the share whose error did
worst head  the same, of the head with most
read        share of the visible tokens that each query head reads
bar         relative error, mean over the samples where it is finite
verdict     on the head with most: no more than delta, more by chance, or less probable than 1e-6 over the heads";
    show(&heading, &header, rows.collect(), legend)
}

pub(super) fn pareto(found: &Pareto) -> String {
    let mut order: Vec<usize> = (0..found.front.len()).collect();
    let density = |i: usize| found.comparison.pipelines[i].density;
    order.sort_by(|&a, &b| density(a).total_cmp(&density(b)));
    let row = |i: usize| {
        let mark = if found.front[i] { "*" } else { "" };
        pipeline(&found.comparison.pipelines[i]).into_iter().chain([mark.into()]).collect()
    };
    let header = ["pipeline", "read", "error mean", "p95", "front"];
    let legend = "\
read   share of the visible tokens that a KV head's query heads read together
error  |out - exact| / |exact| over all rows
front  * no other pipeline here reads as little and errs as little";
    show(&heading(&found.comparison), &header, order.into_iter().map(row).collect(), legend)
}

pub(super) fn limit(found: &LimitStudy) -> String {
    let LimitStudy { comparison, epsilon, delta, limit, .. } = found;
    let row = |one: &Measured| {
        let times = one.density_per_query_head / limit.mean;
        let mut cells = pipeline(one);
        cells[1] = percent(one.density_per_query_head);
        cells.insert(2, format!("{times:.2}"));
        let promise = one.guarantee.as_ref().map(|guarantee| promise(&guarantee.promise));
        cells.push(promise.unwrap_or_else(|| "-".into()));
        cells
    };
    let header = ["pipeline", "read", "of limit", "error mean", "p95", "promise"];
    let heading = format!(
        "{}\nlimit for the output at epsilon = {epsilon}, delta = {delta}: {} of the tokens (hardest row {})",
        heading(comparison),
        percent(limit.mean),
        percent(limit.max)
    );
    let legend = "\
limit     what the best independent sample reads that knows every key and value, mean over rows
read      share of the visible tokens that each query head reads
of limit  that, relative to the limit
error     |out - exact| / |exact| over all rows";
    show(&heading, &header, comparison.pipelines.iter().map(row).collect(), legend)
}

fn heading(comparison: &Comparison) -> String {
    format!("{}, backend {}", comparison.trace, comparison.backend)
}

/// Name, density and error.
fn pipeline(measured: &Measured) -> Vec<String> {
    let error = measured.output_error;
    let density = percent(measured.density);
    vec![
        measured.pipeline.clone(),
        density,
        format!("{:.4}", error.mean),
        format!("{:.4}", error.p95),
    ]
}

fn correlation(of: f64) -> String {
    if of.is_nan() { "-".into() } else { format!("{of:.4}") }
}

fn floor(floor: bool) -> &'static str {
    if floor { "base" } else { "none" }
}
