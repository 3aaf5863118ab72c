//! Measured errors against the epsilon promised, of every head.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use vattention_core::Scope;

use super::Verification;

const SIZE: (u32, u32) = (900, 700);
/// Smaller errors are drawn here, as multiples of the least epsilon.
const LEAST: f64 = 1e-3;

const HELD: RGBColor = RGBColor(0, 114, 178);
const BROKEN: RGBColor = RGBColor(213, 94, 0);
const MEAN: RGBColor = RGBColor(150, 150, 150);

type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// What one head (a layer) came to at one epsilon.
struct Point {
    epsilon: f64,
    at_delta: f64,
    mean: f64,
    broken: bool,
}

/// The (1 − delta)-quantile and the mean of each head's errors (of each layer's largest errors, if
/// the promise is about its heads together) against epsilon, both logarithmic, as SVG.
///
/// `verdicts` are of one pipeline at several epsilons. A quantile above the diagonal is of a head that
/// exceeded epsilon more often than delta allows; it is called broken where that is no chance.
pub fn plot_errors(verdicts: &[Verification]) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let drawn = draw(&root, verdicts);
    drop(root);
    drawn.expect("drawing into a string cannot fail");
    svg
}

/// Of each verdict, what the promise is judged by, in the same order in all.
fn points(verdict: &Verification) -> Vec<Point> {
    let epsilon = verdict.promise.epsilon.get();
    let point = |at_delta, mean, p_value| {
        let broken = p_value < verdict.limit();
        Point { epsilon, at_delta, mean, broken }
    };
    match verdict.promise.scope {
        Scope::Row => {
            let heads = verdict.heads.iter();
            heads.map(|head| point(head.error_at_delta, head.error.mean, head.p_value)).collect()
        }
        Scope::Step => {
            let steps = verdict.steps.iter();
            steps.map(|step| point(step.error_at_delta, step.error.mean, step.p_value)).collect()
        }
    }
}

fn draw<'a>(
    root: &DrawingArea<SVGBackend<'a>, Shift>,
    verdicts: &[Verification],
) -> Result<(), Failure<'a>> {
    root.fill(&WHITE)?;
    let mut columns: Vec<Vec<Point>> = verdicts.iter().map(points).collect();
    columns.sort_by(|a, b| a[0].epsilon.total_cmp(&b[0].epsilon));
    let (across, up) = ranges(&columns);
    let into = |error: f64| if error.is_nan() { up.end } else { error.clamp(up.start, up.end) };
    let mut chart = ChartBuilder::on(root)
        .margin(16)
        .margin_top(56)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(across.clone().log_scale(), up.clone().log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("epsilon promised")
        .y_desc("error measured")
        .x_label_formatter(&|epsilon| short(*epsilon))
        .y_label_formatter(&|error| short(*error))
        .label_style(("sans-serif", 13))
        .draw()?;
    let diagonal = [across.start.max(up.start), across.end.min(up.end)].map(|x| (x, x));
    chart.draw_series([PathElement::new(diagonal, BLACK)])?;
    for i in 0..columns[0].len() {
        let place = |column: &Vec<Point>| (column[i].epsilon, into(column[i].at_delta));
        let path: Vec<_> = columns.iter().map(place).collect();
        chart.draw_series([PathElement::new(path, HELD.mix(0.2))])?;
    }
    for point in columns.iter().flatten() {
        let mean = (point.epsilon, into(point.mean));
        let colour = if point.broken { &BROKEN } else { &HELD };
        chart.draw_series([Circle::new(mean, 2, MEAN.filled())])?;
        let at_delta = (point.epsilon, into(point.at_delta));
        chart.draw_series([Circle::new(at_delta, 4, colour.filled())])?;
    }
    legend(root, &verdicts[0])
}

/// Epsilons and errors to show: all, but for errors far below.
fn ranges(columns: &[Vec<Point>]) -> (Range<f64>, Range<f64>) {
    let points = || columns.iter().flatten();
    let least = points().map(|point| point.epsilon).fold(1.0, f64::min);
    let most = points().map(|point| point.epsilon).fold(0.0, f64::max);
    let errors = || points().flat_map(|point| [point.at_delta, point.mean]);
    let smallest = errors().fold(least, f64::min).max(LEAST * least);
    let largest = errors().filter(|error| error.is_finite()).fold(most, f64::max);
    (least / 1.5..most * 1.5, smallest / 1.5..largest * 1.5)
}

/// Without the last digits of a float.
fn short(x: f64) -> String {
    format!("{x:.6}").trim_end_matches('0').to_string()
}

fn legend<'a>(
    root: &DrawingArea<SVGBackend<'a>, Shift>,
    verdict: &Verification,
) -> Result<(), Failure<'a>> {
    let delta = verdict.promise.delta.get();
    let judged = match verdict.promise.scope {
        Scope::Row => "of a head",
        Scope::Step => "of the largest in a layer",
    };
    let title = format!("{}: {}, delta {delta}", verdict.pipeline, verdict.promise.target);
    root.draw(&Text::new(title, (24, 10), ("sans-serif", 15)))?;
    let quantile = format!("error {judged} that 1 - delta of the samples do not exceed");
    let meanings = [(&HELD, quantile.as_str()), (&BROKEN, "promise broken"), (&MEAN, "mean error")];
    let mut x = 30;
    for (colour, meaning) in meanings {
        root.draw(&Circle::new((x, 41), 4, colour.filled()))?;
        root.draw(&Text::new(meaning, (x + 10, 34), ("sans-serif", 13)))?;
        x += 40 + 7 * meaning.len() as i32;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(epsilon: f64, at_delta: f64) -> Point {
        Point { epsilon, at_delta, mean: at_delta / 10.0, broken: false }
    }

    #[test]
    fn everything_is_in_the_picture() {
        let columns = [vec![point(0.1, 0.3), point(0.1, f64::INFINITY)], vec![point(0.2, 0.0)]];
        let (across, up) = ranges(&columns);
        assert!(across.contains(&0.1) && across.contains(&0.2));
        assert!(up.contains(&0.3) && up.contains(&0.03) && up.start > 0.0 && up.end < 1.0);
    }
}
