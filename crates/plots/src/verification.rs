//! Measured errors against the epsilon promised, of every head.

use plotters::prelude::*;
use vattention_core::{Fraction, Scope};
use vattention_experiments::Evidence;
use vattention_experiments::Verification;

use crate::axis::{Axis, Ticked};
use crate::canvas::{Canvas, FONT, Failure, Pixel, picture, text_width, write};
use crate::labels::{Area, Labels};
use crate::style::Style;

const SIZE: (u32, u32) = (900, 700);
/// Of title and legend.
const TOP: i32 = 80;
/// Half of a point.
const POINT: i32 = 4;
/// Smaller errors are drawn here, as multiples of the least epsilon.
const LEAST: f64 = 1e-3;
/// Heads named at each epsilon, at most.
const NAMED: usize = 8;

const MEAN: RGBColor = RGBColor(150, 150, 150);

/// What one head (a layer) came to at one epsilon.
struct Point {
    name: String,
    epsilon: f64,
    at_delta: f64,
    mean: f64,
    evidence: Evidence,
}

/// The (1 − delta)-quantile and the mean of each head's errors (of each layer's largest errors, if
/// the promise is about its heads together) against epsilon, both logarithmic, as SVG.
///
/// `verdicts` are of one pipeline at several epsilons, all promised. A quantile above the diagonal is of a head that
/// exceeded epsilon more often than delta allows; colour and shape say whether that may be chance.
/// Named, as `layer.head`, are the heads above the diagonal, at most eight at each epsilon; if there
/// are none, the worst.
pub fn verification(verdicts: &[Verification]) -> String {
    let mut columns: Vec<Vec<Point>> = verdicts.iter().map(points).collect();
    columns.sort_by(|a, b| a[0].epsilon.total_cmp(&b[0].epsilon));
    picture(SIZE, |root| draw(root, &verdicts[0], &columns))
}

/// Of each verdict, what the promise is judged by, in the same order in all.
fn points(verdict: &Verification) -> Vec<Point> {
    let epsilon = verdict.demand.epsilon.map_or(f64::NAN, Fraction::get);
    let heads = verdict.heads.iter().map(|head| Point {
        name: format!("{}.{}", head.layer, head.query_head),
        epsilon,
        at_delta: head.error_at_delta,
        mean: head.error.mean,
        evidence: verdict.evidence_of(head),
    });
    let steps = verdict.steps.iter().map(|step| Point {
        name: format!("layer {}", step.layer),
        epsilon,
        at_delta: step.error_at_delta,
        mean: step.error.mean,
        evidence: verdict.evidence_of(step),
    });
    match verdict.demand.scope {
        Scope::Row => heads.collect(),
        Scope::Step => steps.collect(),
    }
}

fn draw<'a>(
    root: &Canvas<'a>,
    verdict: &Verification,
    columns: &[Vec<Point>],
) -> Result<(), Failure<'a>> {
    let [x, y] = [Axis::log("epsilon promised"), Axis::log("error measured")];
    let epsilons: Vec<f64> = columns.iter().map(|column| column[0].epsilon).collect();
    let across = Ticked::at(&x, &epsilons);
    let up = Ticked::new(&y, errors(columns).into_iter().filter_map(|error| y.place(error)));
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
    let at_delta = |point: &Point| place(point.epsilon, point.at_delta);
    for i in 0..columns[0].len() {
        let path: Vec<Pixel> = columns.iter().map(|column| at_delta(&column[i])).collect();
        root.draw(&PathElement::new(path, Style::of_evidence(None).colour.mix(0.25)))?;
    }
    for point in columns.iter().flatten() {
        root.draw(&Circle::new(place(point.epsilon, point.mean), 2, MEAN.filled()))?;
    }
    for point in columns.iter().flatten() {
        Style::of_evidence(Some(point.evidence)).draw_point(root, at_delta(point), POINT)?;
    }
    let (across, up) = chart.plotting_area().get_pixel_range();
    let within = Area { from: (across.start, up.start), to: (across.end, up.end) };
    let places: Vec<Pixel> = columns.iter().flatten().map(at_delta).collect();
    let diagonal = diagonal.map(|ends| chart.backend_coord(&ends));
    let mut labels = Labels::new(within, &places, &diagonal);
    for point in columns.iter().flat_map(|column| named(column)) {
        let colour = Style::of_evidence(Some(point.evidence)).colour;
        let Some(label) = labels.place(&point.name, at_delta(point)) else { continue };
        label.write(root, &point.name, colour)?;
    }
    legend(root, verdict)
}

/// Of the heads at one epsilon, those above it, the worst first; or else the worst.
fn named(column: &[Point]) -> Vec<&Point> {
    let mut all: Vec<&Point> = column.iter().collect();
    all.sort_by(|a, b| b.at_delta.total_cmp(&a.at_delta));
    let above = all.iter().filter(|point| point.at_delta > point.epsilon).count();
    all.truncate(above.clamp(1, NAMED));
    all
}

/// Errors to show: all, but for those far below.
fn errors(columns: &[Vec<Point>]) -> Vec<f64> {
    let points = || columns.iter().flatten();
    let least = LEAST * points().map(|point| point.epsilon).fold(1.0, f64::min);
    let all = points().flat_map(|point| [point.epsilon, point.at_delta, point.mean]);
    all.map(|error| error.max(least)).collect()
}

fn legend<'a>(root: &Canvas<'a>, verdict: &Verification) -> Result<(), Failure<'a>> {
    let delta = verdict.demand.delta.get();
    let judged = match verdict.demand.scope {
        Scope::Row => "of each head",
        Scope::Step => "of the largest of each layer",
    };
    let (pipeline, target) = (&verdict.pipeline, verdict.demand.target);
    let title = format!("{pipeline}: {target}, delta {delta}: {}", verdict.verdict);
    root.draw(&Text::new(title, (24, 10), ("sans-serif", 15)))?;
    let samples = verdict.worst.trials;
    let quantile = format!(
        "error {judged} that 1 - delta of its {samples} samples do not exceed (line: as promised); small \
         and grey: mean error"
    );
    write(root, &quantile, (24, 42), BLACK)?;
    let mut x = 30;
    for evidence in Evidence::ALL {
        let text = match evidence {
            Evidence::WithinDelta => "within delta".into(),
            Evidence::AboveDelta => "above delta, maybe by chance".into(),
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

    fn point(name: &str, epsilon: f64, at_delta: f64) -> Point {
        let evidence = Evidence::WithinDelta;
        Point { name: name.into(), epsilon, at_delta, mean: at_delta / 10.0, evidence }
    }

    #[test]
    fn errors_far_below_do_not_stretch_the_picture() {
        let columns = [
            vec![point("a", 0.1, 0.3), point("b", 0.1, f64::INFINITY)],
            vec![point("a", 0.2, 0.0)],
        ];
        let shown = errors(&columns);
        assert!(shown.iter().all(|&error| error >= 1e-4));
        assert!([0.1, 0.2, 0.3, 0.03].iter().all(|error| shown.contains(error)));
    }

    #[test]
    fn heads_above_the_diagonal_are_named_or_else_the_worst() {
        let names = |column: &[Point]| -> Vec<String> {
            named(column).into_iter().map(|point| point.name.clone()).collect()
        };
        let above = [point("0.0", 0.1, 0.11), point("0.1", 0.1, 0.09), point("2.3", 0.1, 0.3)];
        assert_eq!(names(&above), ["2.3", "0.0"]);
        assert_eq!(names(&[point("0.0", 0.1, 0.01), point("0.1", 0.1, 0.02)]), ["0.1"]);
        let many: Vec<Point> = (0..20).map(|i| point("x", 0.1, 0.2 + f64::from(i))).collect();
        assert_eq!(named(&many).len(), NAMED);
    }
}
