//! Error against density, a labelled point for each pipeline.
//!
//! A promise counts as broken where the rows contradict it, at the level of `vattention verify`.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::metrics::binomial::p_value;
use crate::{Comparison, LEVEL, Measured};

const WIDTH: u32 = 1000;
const LEAST_HEIGHT: u32 = 600;
/// Room for labels at the right.
const LABELS: u32 = 340;
const LINE_HEIGHT: i32 = 20;
/// Smaller errors are drawn here.
const LEAST_ERROR: f64 = 1e-4;
/// Errors that are only rounding.
const ROUNDING: f64 = 1e-5;
/// Characters of a name that fit beside the plot.
const LONGEST_NAME: usize = 44;
/// Above and below the labels.
const TOP: i32 = 48;
const BOTTOM: i32 = 24;

const HELD: RGBColor = RGBColor(0, 114, 178);
const BROKEN: RGBColor = RGBColor(213, 94, 0);
const NO_PROMISE: RGBColor = RGBColor(110, 110, 110);

type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Mean output error against the mean share of tokens read by a KV head, both logarithmic, as SVG.
///
/// Labels stand at the right in the order of their points, each joined to its own.
pub fn plot(comparison: &Comparison) -> String {
    plot_marked(comparison, &Marks::default())
}

/// What else is drawn.
#[derive(Default)]
pub(crate) struct Marks<'a> {
    /// Of each pipeline, whether a line leads through its point; none if empty.
    pub(crate) joined: &'a [bool],
    /// A share of the tokens at which a line stands.
    pub(crate) limit: Option<f64>,
}

/// [`plot`] with marks.
pub(crate) fn plot_marked(comparison: &Comparison, marks: &Marks<'_>) -> String {
    let mut svg = String::new();
    let labels = LINE_HEIGHT * comparison.pipelines.len() as i32;
    let height = LEAST_HEIGHT.max((TOP + labels + BOTTOM) as u32);
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let drawn = draw(&root, comparison, marks);
    drop(root);
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
            Some(promise) if p_value(promise.violations, promise.rows, promise.delta) < LEVEL => {
                &BROKEN
            }
            Some(_) => &HELD,
        };
        let error = pipeline.output_error.mean;
        let note = match error {
            _ if pipeline.output_error.max < ROUNDING => " (exact)",
            _ if error < LEAST_ERROR => " (below 0.0001)",
            _ if error.is_infinite() => " (infinite error)",
            _ => "",
        };
        let name: String = pipeline.name.chars().take(LONGEST_NAME).collect();
        let dots = if name == pipeline.name { "" } else { "…" };
        Self {
            label: format!("{name}{dots}{note}"),
            colour,
            density: pipeline.density.per_kv_head.mean,
            error: if error.is_finite() { error.max(LEAST_ERROR) } else { f64::INFINITY },
        }
    }
}

fn draw<'a>(
    root: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    comparison: &Comparison,
    marks: &Marks<'_>,
) -> Result<(), Failure<'a>> {
    root.fill(&WHITE)?;
    let mut points: Vec<Point<'_>> = comparison.pipelines.iter().map(Point::new).collect();
    let finite = points.iter().map(|p| p.error).filter(|error| error.is_finite());
    let most = 2.0 * finite.fold(0.5, f64::max);
    let densities = points.iter().map(|point| point.density).chain(marks.limit);
    let least = 0.7 * densities.fold(0.2, f64::min);
    for point in &mut points {
        point.error = point.error.min(most);
    }

    let (left, right) = root.split_horizontally(WIDTH - LABELS);
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

    if let Some(limit) = marks.limit {
        let ends = [LEAST_ERROR, most].map(|error| chart.backend_coord(&(limit, error)));
        root.draw(&PathElement::new(ends, BLACK.mix(0.6)))?;
        root.draw(&Text::new("limit", (ends[1].0 + 5, ends[1].1 + 2), ("sans-serif", 13)))?;
    }
    let at = |point: &Point<'_>| chart.backend_coord(&(point.density, point.error));
    let joined = points.iter().zip(marks.joined).filter(|(_, joined)| **joined);
    let mut line: Vec<(i32, i32)> = joined.map(|(point, _)| at(point)).collect();
    line.sort_unstable();
    root.draw(&PathElement::new(line, BLACK.mix(0.4).stroke_width(2)))?;
    points.sort_by_key(|point| at(point).1);
    let own: Vec<i32> = points.iter().map(|point| at(point).1).collect();
    let heights = spread(&own, root.dim_in_pixel().1 as i32);
    for (point, height) in points.iter().zip(heights) {
        let (x, y) = at(point);
        let edge = (WIDTH - LABELS) as i32;
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
        let x = (WIDTH - LABELS) as i32 + 20 + 110 * i as i32;
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
fn spread(heights: &[i32], picture: i32) -> Vec<i32> {
    let mut spread = heights.to_vec();
    let mut least = TOP;
    for height in &mut spread {
        *height = (*height).max(least);
        least = *height + LINE_HEIGHT;
    }
    let mut most = picture - BOTTOM;
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
        for heights in [vec![], vec![300; 26], vec![590, 590, 590], vec![0, 1, 2], vec![90, 300]] {
            let spread = spread(&heights, 600);
            assert!(spread.windows(2).all(|pair| pair[1] - pair[0] >= LINE_HEIGHT), "{spread:?}");
            assert!(
                spread.iter().all(|height| (TOP..=600 - BOTTOM).contains(height)),
                "{spread:?}"
            );
        }
        assert_eq!(super::spread(&[90, 300], 600), [90, 300], "what fits stays");
    }
}
