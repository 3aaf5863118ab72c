//! Error against density, a labelled point for each pipeline.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{Comparison, Measured};

const SIZE: (u32, u32) = (1000, 600);
/// Room for labels at the right.
const LABELS: u32 = 340;
const LINE_HEIGHT: i32 = 20;
/// Smaller errors are rounding; they are drawn here.
const LEAST_ERROR: f64 = 1e-4;

const HELD: RGBColor = RGBColor(0, 114, 178);
const BROKEN: RGBColor = RGBColor(213, 94, 0);
const NO_PROMISE: RGBColor = RGBColor(110, 110, 110);

type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Mean output error against the mean share of tokens read by a KV head, both logarithmic, as SVG.
///
/// Labels stand at the right in the order of their points, each joined to its own.
pub fn plot(comparison: &Comparison) -> String {
    let mut svg = String::new();
    let drawn = draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), comparison);
    drawn.expect("drawing into a string cannot fail");
    svg
}

/// A pipeline's place in the plot.
struct Point<'a> {
    label: String,
    colour: &'a RGBColor,
    density: f64,
    error: f64,
}

impl Point<'_> {
    fn new(pipeline: &Measured) -> Self {
        let colour = match &pipeline.guarantee {
            None => &NO_PROMISE,
            Some(promise) if promise.violations as f64 > promise.delta * promise.rows as f64 => {
                &BROKEN
            }
            Some(_) => &HELD,
        };
        let error = pipeline.output_error.mean;
        let exact = if error < LEAST_ERROR { " (exact)" } else { "" };
        Self {
            label: format!("{}{exact}", pipeline.name),
            colour,
            density: pipeline.density.per_kv_head.mean,
            error: if error.is_finite() { error.max(LEAST_ERROR) } else { f64::INFINITY },
        }
    }
}

fn draw<'a>(
    root: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    comparison: &Comparison,
) -> Result<(), Failure<'a>> {
    root.fill(&WHITE)?;
    let mut points: Vec<Point<'_>> = comparison.pipelines.iter().map(Point::new).collect();
    let finite = points.iter().map(|p| p.error).filter(|error| error.is_finite());
    let most = 2.0 * finite.fold(0.5, f64::max);
    let least = 0.7 * points.iter().map(|point| point.density).fold(0.2, f64::min);
    for point in &mut points {
        point.error = point.error.min(most);
    }

    let (left, right) = root.split_horizontally(SIZE.0 - LABELS);
    let mut chart = ChartBuilder::on(&left)
        .margin(16)
        .margin_top(40)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((least..1.15).log_scale(), (LEAST_ERROR * 0.8..most).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("share of the tokens read, per KV head")
        .y_desc("mean |out - exact| / |exact|")
        .x_label_formatter(&|share| percent(*share))
        .y_label_formatter(&|error| format!("{error}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    let title = format!("{}, backend {}", comparison.trace, comparison.backend);
    root.draw(&Text::new(title, (24, 14), ("sans-serif", 15)))?;

    let at = |point: &Point<'_>| chart.backend_coord(&(point.density, point.error));
    points.sort_by_key(|point| at(point).1);
    let heights = spread(&points.iter().map(|point| at(point).1).collect::<Vec<_>>());
    for (point, height) in points.iter().zip(heights) {
        let (x, y) = at(point);
        let edge = (SIZE.0 - LABELS) as i32;
        let line = vec![(x, y), (edge, height), (edge + 14, height)];
        root.draw(&PathElement::new(line, point.colour.mix(0.35)))?;
        root.draw(&Circle::new((x, y), 5, point.colour.filled()))?;
        let style = ("sans-serif", 14).into_font().color(point.colour);
        let style = style.pos(Pos::new(HPos::Left, VPos::Center));
        right.draw(&Text::new(point.label.as_str(), (20, height), style))?;
    }
    legend(root)
}

fn legend<'a>(
    root: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
) -> Result<(), Failure<'a>> {
    let meanings =
        [(&HELD, "promise kept"), (&BROKEN, "promise broken"), (&NO_PROMISE, "no promise")];
    for (i, (colour, meaning)) in meanings.into_iter().enumerate() {
        let x = (SIZE.0 - LABELS) as i32 + 20 + 110 * i as i32;
        root.draw(&Circle::new((x, 21), 5, colour.filled()))?;
        root.draw(&Text::new(meaning, (x + 10, 14), ("sans-serif", 13)))?;
    }
    Ok(())
}

/// Percents that begin with 1, 2, 3 or 5; labels between them would run into each other.
fn percent(share: f64) -> String {
    let percent = (100_000.0 * share).round() / 1000.0;
    let text = percent.to_string();
    let leading = text.trim_start_matches(['0', '.']);
    if leading.starts_with(['1', '2', '3', '5']) { format!("{text} %") } else { String::new() }
}

/// Heights in the same order, a line apart, each as near to its own as a pass down and one up
/// bring it.
fn spread(heights: &[i32]) -> Vec<i32> {
    let mut spread = heights.to_vec();
    let top = 48;
    let bottom = SIZE.1 as i32 - 24;
    let mut least = top;
    for height in &mut spread {
        *height = (*height).max(least);
        least = *height + LINE_HEIGHT;
    }
    let mut most = bottom;
    for height in spread.iter_mut().rev() {
        *height = (*height).min(most);
        most = *height - LINE_HEIGHT;
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap_and_stay_in_the_picture() {
        for heights in [vec![], vec![300; 12], vec![590, 590, 590], vec![0, 1, 2], vec![90, 300]] {
            let spread = spread(&heights);
            assert!(spread.windows(2).all(|pair| pair[1] - pair[0] >= LINE_HEIGHT), "{spread:?}");
            assert!(spread.iter().all(|height| (30..=SIZE.1 as i32).contains(height)));
        }
        assert_eq!(super::spread(&[90, 300]), [90, 300], "what fits stays");
    }
}
