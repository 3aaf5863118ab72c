//! Plot of the measured errors of heads and rows against the promised epsilon.

use plotters::prelude::*;
use vattention_core::{Fraction, promise::Scope};
use vattention_experiments::{Evidence, TrialCount, Verification};

use crate::axis::{Axis, TickedAxis};
use crate::canvas::{Canvas, DrawFailure, FONT, Pixel, picture, text_width, write};
use crate::labels::{Area, PlotLabels};
use crate::style::Style;

const SIZE: (u32, u32) = (900, 700);
/// Height of title and legend.
const TOP: i32 = 80;
/// Half the size of a head's point.
const POINT: i32 = 4;
/// Half the size of a row's point.
const ROW_POINT: i32 = 2;
/// Distance in pixels from the column of heads to the column of rows.
const ROW_OFFSET: i32 = 14;
/// Maximum number of rows within delta that are drawn at an epsilon, the largest errors first.
const ROWS: usize = 500;
/// Smallest error on the y axis, as a multiple of the least epsilon. Smaller errors are drawn at
/// the axis's lower end.
const LEAST: f64 = 1e-3;
/// Maximum number of heads with names at each epsilon.
const NAMED: usize = 8;

const MEAN: RGBColor = RGBColor(150, 150, 150);

/// Errors of one head (of one layer under scope `step`), or of one row, at one epsilon.
struct HeadPoint {
    name: String,
    epsilon: f64,
    /// (1 − delta)-quantile of the errors.
    quantile: f64,
    /// Mean error; `None` for a row.
    mean: Option<f64>,
    evidence: Evidence,
}

/// Points at one epsilon.
struct HeadColumn {
    epsilon: f64,
    heads: Vec<HeadPoint>,
    rows: Vec<HeadPoint>,
}

/// Plots the (1 − delta)-quantile and the mean of each head's errors against epsilon, both
/// logarithmic, as SVG. Under scope `step`, they belong to each layer's largest errors. Smaller
/// points at the right of these show the quantile of each row (a head at one query).
///
/// `verdicts` belong to one pipeline at several promised epsilons. A quantile above the diagonal
/// belongs to a head or a row that exceeded epsilon more often than delta allows; colour and shape
/// show the evidence. The title has the verdict and the tests that contradict the promise. The
/// worst points have names: `layer.head` for heads, `layer.head@query` for rows that contradict
/// delta, at most eight at each epsilon.
pub fn verification(verdicts: &[Verification]) -> String {
    let mut columns: Vec<HeadColumn> = verdicts.iter().map(HeadColumn::new).collect();
    columns.sort_by(|a, b| a.epsilon.total_cmp(&b.epsilon));
    picture(SIZE, |root| draw(root, &verdicts[0], &columns))
}

impl HeadColumn {
    /// Returns the points of a verdict: all heads, and the rows with the largest errors.
    fn new(verdict: &Verification) -> Self {
        let epsilon = verdict.goal.epsilon().map_or(f64::NAN, Fraction::get);
        let mut rows: Vec<HeadPoint> =
            verdict.rows.iter().map(|row| row_point(verdict, row)).collect();
        rows.sort_by(|a, b| b.evidence.cmp(&a.evidence).then(b.quantile.total_cmp(&a.quantile)));
        let suspicious = rows.iter().filter(|row| row.evidence != Evidence::WithinDelta).count();
        rows.truncate(suspicious + ROWS);
        Self { epsilon, heads: points(verdict), rows }
    }

    fn all(&self) -> impl Iterator<Item = &HeadPoint> {
        self.heads.iter().chain(&self.rows)
    }
}

/// Returns the point of one row.
fn row_point(verdict: &Verification, row: &TrialCount) -> HeadPoint {
    let head = row.query_head.map_or_else(String::new, |head| format!(".{head}"));
    let query = row.query.map_or_else(String::new, |query| format!("@{query}"));
    HeadPoint {
        name: format!("{}{head}{query}", row.layer),
        epsilon: verdict.goal.epsilon().map_or(f64::NAN, Fraction::get),
        quantile: row.error_at_delta,
        mean: None,
        evidence: verdict.evidence_of_row(row),
    }
}

/// Returns a point per head or, under scope `step`, per layer. Their order is the same for all
/// verdicts of a pipeline.
fn points(verdict: &Verification) -> Vec<HeadPoint> {
    let epsilon = verdict.goal.epsilon().map_or(f64::NAN, Fraction::get);
    let heads = verdict.heads.iter().map(|head| HeadPoint {
        name: format!("{}.{}", head.layer, head.query_head),
        epsilon,
        quantile: head.error_at_delta,
        mean: Some(head.error.mean),
        evidence: verdict.evidence_of(head),
    });
    let steps = verdict.steps.iter().map(|step| HeadPoint {
        name: format!("layer {}", step.layer),
        epsilon,
        quantile: step.error_at_delta,
        mean: Some(step.error.mean),
        evidence: verdict.evidence_of(step),
    });
    match verdict.goal.scope {
        Scope::Row => heads.collect(),
        Scope::Step => steps.collect(),
    }
}

fn draw<'a>(
    root: &Canvas<'a>,
    verdict: &Verification,
    columns: &[HeadColumn],
) -> Result<(), DrawFailure<'a>> {
    let [x, y] = [Axis::log("epsilon promised"), Axis::log("error measured")];
    let epsilons: Vec<f64> = columns.iter().map(|column| column.epsilon).collect();
    let across = TickedAxis::with_numbers(&x, &epsilons);
    let up = TickedAxis::new(&y, errors(columns).into_iter().filter_map(|error| y.place(error)));
    let mut chart = ChartBuilder::on(root)
        .margin(16)
        .margin_top(TOP)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(across.clone(), up.clone())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(&x.name)
        .y_desc(&y.name)
        .label_style(("sans-serif", FONT))
        .draw()?;
    let [left, right] = across.ends();
    let [low, high] = up.ends();
    let diagonal = [left.max(low), right.min(high)].map(|place| (place, place));
    chart.draw_series([PathElement::new(diagonal, BLACK)])?;
    let place = |epsilon: f64, error: f64| -> Pixel {
        chart.backend_coord(&(epsilon.log10(), up.clamp(error.log10())))
    };
    let pixel = |point: &HeadPoint| place(point.epsilon, point.quantile);
    for i in 0..columns[0].heads.len() {
        let path: Vec<Pixel> = columns.iter().map(|column| pixel(&column.heads[i])).collect();
        root.draw(&PathElement::new(path, Style::of_evidence(None).colour.mix(0.25)))?;
    }
    let beside = |(x, y): Pixel| (x + ROW_OFFSET, y);
    // The worst rows are drawn last, so that no other point covers them.
    for row in columns.iter().flat_map(|column| column.rows.iter().rev()) {
        let style = Style::of_evidence(Some(row.evidence));
        style.draw_point(root, beside(pixel(row)), ROW_POINT)?;
    }
    let heads = || columns.iter().flat_map(|column| &column.heads);
    for point in heads() {
        let mean = point.mean.unwrap_or(point.quantile);
        root.draw(&Circle::new(place(point.epsilon, mean), 2, MEAN.filled()))?;
    }
    for point in heads() {
        Style::of_evidence(Some(point.evidence)).draw_point(root, pixel(point), POINT)?;
    }
    let (across, up) = chart.plotting_area().get_pixel_range();
    let within = Area { from: (across.start, up.start), to: (across.end, up.end) };
    let rows = columns.iter().flat_map(|column| &column.rows);
    let places: Vec<Pixel> = heads().map(pixel).chain(rows.map(|row| beside(pixel(row)))).collect();
    let diagonal = diagonal.map(|ends| chart.backend_coord(&ends));
    let mut labels = PlotLabels::new(within, &places, &diagonal);
    for point in columns.iter().flat_map(named) {
        let colour = Style::of_evidence(Some(point.evidence)).colour;
        let place = pixel(point);
        let place = if point.mean.is_none() { beside(place) } else { place };
        let Some(label) = labels.place(&point.name, place) else { continue };
        label.write(root, &point.name, colour)?;
    }
    legend(root, verdict)
}

/// Returns the points with names at one epsilon: rows that contradict delta, then heads above the
/// diagonal, in order of decreasing error. If no head is above the diagonal, the worst one has a
/// name.
fn named(column: &HeadColumn) -> Vec<&HeadPoint> {
    let contradict = column.rows.iter().filter(|row| row.evidence == Evidence::Contradicted);
    let mut heads: Vec<&HeadPoint> = column.heads.iter().collect();
    heads.sort_by(|a, b| b.quantile.total_cmp(&a.quantile));
    let above = heads.iter().filter(|point| point.quantile > point.epsilon).count();
    heads.truncate(above.max(1));
    contradict.take(NAMED / 2).chain(heads).take(NAMED).collect()
}

/// Returns the errors that determine the range of the y axis, with [`LEAST`] as their minimum.
fn errors(columns: &[HeadColumn]) -> Vec<f64> {
    let least = LEAST * columns.iter().map(|column| column.epsilon).fold(1.0, f64::min);
    let points = columns.iter().flat_map(HeadColumn::all);
    let all = points
        .flat_map(|point| [point.epsilon, point.quantile, point.mean.unwrap_or(point.quantile)]);
    all.map(|error| error.max(least)).collect()
}

fn legend<'a>(root: &Canvas<'a>, verdict: &Verification) -> Result<(), DrawFailure<'a>> {
    let delta = verdict.goal.delta.get();
    let judged = match verdict.goal.scope {
        Scope::Row => "each head's errors",
        Scope::Step => "each layer's largest errors",
    };
    let (pipeline, target) = (&verdict.pipeline, verdict.goal.target);
    let tests: Vec<String> = verdict.contradicted_by.iter().map(ToString::to_string).collect();
    let by = if tests.is_empty() { String::new() } else { format!(" by {}", tests.join(", ")) };
    let epsilon = verdict.goal.epsilon().map_or(f64::NAN, Fraction::get);
    let promise = format!("{target}, epsilon {epsilon}, delta {delta}");
    let title = format!("{pipeline}: {promise}: {}{by}", verdict.verdict);
    root.draw(&Text::new(title, (24, 10), ("sans-serif", 15)))?;
    let samples = verdict.worst.trials;
    let quantile = format!(
        "quantile 1 - delta of {judged} over {samples} samples (line: promise); grey: mean; small, \
         to the right: rows; names: layer.head@query"
    );
    let limited = if verdict.goal.limit().is_some() {
        "; where the token limit is too small, the promise is the error bar, not the line"
    } else {
        ""
    };
    let quantile = format!("{quantile}{limited}");
    write(root, &quantile, (24, 42), BLACK)?;
    let mut x = 30;
    for evidence in Evidence::ALL {
        let text = match evidence {
            Evidence::WithinDelta => "within delta".into(),
            Evidence::AboveDelta => "above delta, perhaps by chance".into(),
            Evidence::Contradicted => format!("contradicted (p < {:.1e})", verdict.test.limit),
        };
        Style::of_evidence(Some(evidence)).draw_point(root, (x, 64), POINT)?;
        write(root, &text, (x + 11, 64), BLACK)?;
        x += 36 + text_width(&text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, epsilon: f64, quantile: f64) -> HeadPoint {
        let evidence = Evidence::WithinDelta;
        HeadPoint { name: name.into(), epsilon, quantile, mean: Some(quantile / 10.0), evidence }
    }

    fn column(epsilon: f64, heads: Vec<HeadPoint>) -> HeadColumn {
        HeadColumn { epsilon, heads, rows: Vec::new() }
    }

    #[test]
    fn very_small_errors_do_not_extend_the_axis() {
        let columns = [
            column(0.1, vec![point("a", 0.1, 0.3), point("b", 0.1, f64::INFINITY)]),
            column(0.2, vec![point("a", 0.2, 0.0)]),
        ];
        let shown = errors(&columns);
        assert!(shown.iter().all(|&error| error >= 1e-4));
        assert!([0.1, 0.2, 0.3, 0.03].iter().all(|error| shown.contains(error)));
    }

    #[test]
    fn the_worst_rows_and_heads_have_names() {
        let names = |column: &HeadColumn| -> Vec<String> {
            named(column).into_iter().map(|point| point.name.clone()).collect()
        };
        let heads =
            || vec![point("0.0", 0.1, 0.11), point("0.1", 0.1, 0.09), point("2.3", 0.1, 0.3)];
        assert_eq!(names(&column(0.1, heads())), ["2.3", "0.0"]);
        let low = vec![point("0.0", 0.1, 0.01), point("0.1", 0.1, 0.02)];
        assert_eq!(names(&column(0.1, low)), ["0.1"]);
        let many = (0..20).map(|i| point("x", 0.1, 0.2 + f64::from(i))).collect();
        assert_eq!(named(&column(0.1, many)).len(), NAMED);
        let bad = HeadPoint { evidence: Evidence::Contradicted, ..point("0.0@3", 0.1, 0.5) };
        let with_row =
            HeadColumn { rows: vec![bad, point("0.0@4", 0.1, 0.2)], ..column(0.1, heads()) };
        assert_eq!(names(&with_row), ["0.0@3", "2.3", "0.0"]);
    }
}
