//! Text of the results of a study.

use vattention::experiments::study::{
    AtDelta, BaseSample, BaseSize, Bias, BiasSize, BoundCount, Calibration, Coverage,
    CoverageMethod, EpsilonSeries, EpsilonStudy, LimitStudy, Normality, NormalitySize, Pareto,
    Sensitivity, Tightness, Variation,
};
use vattention::experiments::{Comparison, PipelineResult};

use crate::numbers::{percent, promise, short};
use crate::table::{self, Column, or_dash};

pub(super) fn tightness(found: &Tightness) -> String {
    let Tightness { trace, epsilon, delta, trials, .. } = found;
    let columns = [
        Column::<BoundCount>::text("bound", "", |it| it.bound.into()),
        floor(|it| it.floor),
        Column::<BoundCount>::new(
            "tokens",
            "sample size that the bound requires given the true moments, mean over rows",
            |it| format!("{:.0}", it.tokens),
        ),
        Column::<BoundCount>::new("of clt", "tokens relative to clt's", |it| {
            format!("{:.2}", it.of_clt)
        }),
        Column::<BoundCount>::new(
            "failed",
            "share of samples whose error exceeds epsilon; at most delta is allowed",
            |it| digits(it.rate),
        ),
        Column::<BoundCount>::new("worst head", "share in the head with the most failures", |it| {
            digits(it.worst_rate)
        }),
    ];
    format!(
        "{trace}: the denominator at epsilon = {epsilon}, delta = {delta}, {trials} samples per \
         row\n\n{}",
        table::show(&columns, &found.bounds)
    )
}

pub(super) fn epsilon(found: &EpsilonStudy) -> String {
    let EpsilonStudy { trace, delta, trials, series } = found;
    let mut columns = vec![
        Column::<EpsilonSeries>::text("promise", "", |it| it.promise.into()),
        floor(|it| it.floor),
        Column::<EpsilonSeries>::new(
            "correlation",
            "correlation of epsilon and the mean error; - if the mean error is constant",
            |it| if it.correlation.is_nan() { "-".into() } else { digits(it.correlation) },
        ),
    ];
    for (i, point) in series[0].points.iter().enumerate() {
        let title = point.epsilon.to_string();
        columns.push(Column::new(title, "", move |it: &EpsilonSeries| digits(it.points[i].error)));
    }
    format!(
        "{trace}: mean relative error at each epsilon, delta = {delta}, {trials} samples per \
         row\n\n{}",
        table::show(&columns, series)
    )
}

pub(super) fn base_sample(found: &BaseSample) -> String {
    let columns = [
        Column::<BaseSize>::text("tokens", "", |it| it.tokens.to_string()),
        Column::<BaseSize>::new("variance of e", "", |it| digits(it.variance.mean)),
        Column::<BaseSize>::new("p95", "", |it| digits(it.variance.p95)),
        Column::<BaseSize>::new("trace of e v", "", |it| digits(it.trace_numerator.mean)),
        Column::<BaseSize>::new("p95", "", |it| digits(it.trace_numerator.p95)),
        Column::<BaseSize>::new(
            "trace of w",
            "w = e (v - o); means and 95th percentiles over rows and samples",
            |it| digits(it.trace_output.mean),
        ),
        Column::<BaseSize>::new("p95", "", |it| digits(it.trace_output.p95)),
    ];
    format!(
        "{}: relative error of the estimates from a base sample, {} samples per row\n\n{}",
        found.trace,
        found.trials,
        table::show(&columns, &found.sizes)
    )
}

pub(super) fn normality(found: &Normality) -> String {
    let columns = [
        Column::<NormalitySize>::text("tokens", "", |it| it.tokens.to_string()),
        Column::<NormalitySize>::new(
            "distance",
            "Kolmogorov distance from the standard normal distribution",
            |it| digits(it.kolmogorov),
        ),
        Column::<NormalitySize>::new(
            "beyond 1.96",
            "share of the samples; 0.05 for a normal distribution",
            |it| digits(it.beyond),
        ),
    ];
    format!(
        "{}: standardised error of the denominator, {} samples per row\n\n{}",
        found.trace,
        found.trials,
        table::show(&columns, &found.sizes)
    )
}

pub(super) fn coverage(found: &Coverage) -> String {
    let columns = [
        Column::<CoverageMethod>::text("method", "", |it| it.method.into()),
        Column::<CoverageMethod>::new(
            "read",
            "share of the visible tokens, mean over rows",
            |it| percent(it.density),
        ),
        Column::<CoverageMethod>::new("most", "largest share", |it| percent(it.most)),
        Column::<CoverageMethod>::new(
            "mass",
            "attention weight of the tokens read, mean over rows",
            |it| percent(it.coverage),
        ),
        Column::<CoverageMethod>::new("least", "smallest mass", |it| percent(it.least)),
        Column::<CoverageMethod>::new(
            "error",
            "relative error of the output: mean, 95th percentile and largest over rows",
            |it| digits(it.error.mean),
        ),
        Column::<CoverageMethod>::new("p95", "", |it| digits(it.error.p95)),
        Column::<CoverageMethod>::new("max", "", |it| digits(it.error.max)),
    ];
    format!(
        "{}: sink, window and {} of the tokens, or {} of the mass; {} samples per row\n\n{}",
        found.trace,
        found.share,
        found.mass,
        found.trials,
        table::show(&columns, &found.methods)
    )
}

pub(super) fn bias(found: &Bias) -> String {
    let columns = [
        Column::<BiasSize>::text(
            "share",
            "share of the visible tokens read in addition: more top-k tokens or a uniform sample",
            |it| it.share.to_string(),
        ),
        Column::<BiasSize>::new(
            "top-k bias",
            "relative to the output's norm, like the other errors; root mean squares over rows",
            |it| format!("{:.5}", it.top_k),
        ),
        Column::<BiasSize>::new("sample deviation", "", |it| format!("{:.5}", it.deviation)),
        Column::<BiasSize>::new("sample bias", "", |it| format!("{:.5}", it.bias)),
    ];
    format!(
        "{}: tokens read in addition to sink, window and top 5 %, {} samples per row\n\n{}",
        found.trace,
        found.trials,
        table::show(&columns, &found.sizes)
    )
}

pub(super) fn sensitivity(found: &Sensitivity) -> String {
    let columns = [
        Column::<Variation>::text("target", "", |it| it.target.to_string()),
        Column::<Variation>::new("parameter", "", |it| it.parameter.into()),
        Column::<Variation>::new(
            "value",
            "value of the parameter, with all others at their natural values; * the natural value",
            |it| format!("{}{}", it.value, if it.natural { " *" } else { "" }),
        ),
        Column::<Variation>::new("read", "share of the visible tokens", |it| percent(it.density)),
        Column::<Variation>::new("target error", "relative, mean over rows", |it| {
            digits(it.target_error)
        }),
        Column::<Variation>::new("output error", "relative, mean over rows", |it| {
            digits(it.output_error)
        }),
    ];
    let heading = format!("{}, backend {}", found.trace, found.backend);
    format!("{heading}\n\n{}", table::show(&columns, &found.variations))
}

pub(super) fn calibration(found: &Calibration) -> String {
    type PointColumn<'a> = Column<'a, (&'a str, &'a AtDelta)>;
    let columns = [
        PointColumn::text("pipeline", "", |(name, _)| (*name).to_owned()),
        PointColumn::new(
            "delta",
            "share of the samples whose error may exceed its bar",
            |(_, point)| percent(point.delta),
        ),
        PointColumn::new("outside", "share whose error exceeds its bar", |(_, point)| {
            or_dash(point.bars.share_outside().map(percent))
        }),
        PointColumn::new("worst head", "share in the head with the most", |(_, point)| {
            percent(point.worst)
        }),
        PointColumn::new(
            "read",
            "share of the visible tokens that each query head reads",
            |(_, point)| percent(point.density),
        ),
        PointColumn::new(
            "bar",
            "error bar as a relative error, mean over the samples with a finite bar",
            |(_, point)| or_dash(point.bars.mean.map(short)),
        ),
        PointColumn::new(
            "verdict",
            "verdict on the worst head: its share is within delta; above delta, perhaps by chance; \
             or contradicts delta, with a probability below 1e-6 over the heads",
            |(_, point)| or_dash(point.bars.evidence.map(|evidence| evidence.to_string())),
        ),
    ];
    let mut points: Vec<(&str, &AtDelta)> = Vec::new();
    for pipeline in &found.pipelines {
        points.extend(pipeline.at.iter().map(|point| (&*pipeline.pipeline, point)));
    }
    format!(
        "{}: error bars, {} samples of each KV head\n\n{}",
        found.trace,
        found.trials,
        table::show(&columns, &points)
    )
}

type RowColumn<'a> = Column<'a, (&'a PipelineResult, bool)>;

pub(super) fn pareto(found: &Pareto) -> String {
    let pipelines = found.comparison.pipelines.iter().zip(&found.front);
    let mut rows: Vec<(&PipelineResult, bool)> =
        pipelines.map(|(it, front)| (it, *front)).collect();
    rows.sort_by(|a, b| a.0.density.total_cmp(&b.0.density));
    let columns = [
        RowColumn::text("pipeline", "", |(it, _)| it.pipeline.clone()),
        RowColumn::new(
            "read",
            "share of the visible tokens that a KV head's query heads read together",
            |(it, _)| percent(it.density),
        ),
        RowColumn::new("error mean", ERROR, |(it, _)| digits(it.output_error.mean)),
        RowColumn::new("p95", "", |(it, _)| digits(it.output_error.p95)),
        RowColumn::new(
            "front",
            "* no other pipeline in the table has both a smaller density and a smaller error",
            |(_, front)| if *front { "*" } else { "" }.into(),
        ),
    ];
    format!("{}\n\n{}", heading(&found.comparison), table::show(&columns, &rows))
}

pub(super) fn limit(found: &LimitStudy) -> String {
    let LimitStudy { comparison, epsilon, delta, limit, .. } = found;
    let columns = [
        Column::<PipelineResult>::text("pipeline", "", |it| it.pipeline.clone()),
        Column::<PipelineResult>::new(
            "read",
            "share of the visible tokens that each query head reads",
            |it| percent(it.density_per_query_head),
        ),
        Column::<PipelineResult>::new(
            "of limit",
            "density relative to the limit: the mean share that the best independent sample reads \
             if it uses every key and value for its inclusion probabilities",
            |it| format!("{:.2}", it.density_per_query_head / limit.mean),
        ),
        Column::<PipelineResult>::new("error mean", ERROR, |it| digits(it.output_error.mean)),
        Column::<PipelineResult>::new("p95", "", |it| digits(it.output_error.p95)),
        Column::<PipelineResult>::new("promise", "", |it| {
            or_dash(it.guarantee.as_ref().map(|guarantee| promise(&guarantee.promise)))
        }),
    ];
    format!(
        "{}\nlimit for the output at epsilon = {epsilon}, delta = {delta}: {} of the tokens \
         (hardest row {})\n\n{}",
        heading(comparison),
        percent(limit.mean),
        percent(limit.max),
        table::show(&columns, &comparison.pipelines)
    )
}

const ERROR: &str = "|out - exact| / |exact| over all rows";

fn heading(comparison: &Comparison) -> String {
    format!("{}, backend {}", comparison.trace, comparison.backend)
}

fn floor<T: 'static>(has_floor: fn(&T) -> bool) -> Column<'static, T> {
    let help = "minimum sample: none, or the natural configuration's base of 5 %";
    Column::new("floor", help, move |it| if has_floor(it) { "base" } else { "none" }.into())
}

fn digits(x: f64) -> String {
    format!("{x:.4}")
}
