//! Plot of error against density, with a point per pipeline.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use vattention_experiments::Evidence;
use vattention_experiments::{Comparison, LEVEL, PipelineResult};

use crate::axis::{Axis, TickedAxis};
use crate::canvas::{Canvas, DrawFailure, FONT, Pixel, picture, text_width, write, write_from};
use crate::labels::{Area, Label, PlotLabels};
use crate::style::Style;

/// Width of the plot without the list of pipelines at its right; in pixels, like all lengths here.
const WIDTH: u32 = 860;
/// Height of the plot.
const HEIGHT: u32 = 700;
/// Width of the list.
const LIST: u32 = 380;
/// Height of a line of the list.
const LINE: i32 = 19;
/// Height of title and legend.
const TOP: i32 = 72;
/// Half the size of a point.
const POINT: i32 = 5;
/// Maximum number of pipelines that are all named beside their points. With more pipelines, only
/// those on the Pareto front are.
const FEW: usize = 12;
/// Errors below this are rounding errors, and are drawn below all others.
const ROUNDING: f64 = 1e-5;

/// Plots the mean output error against the mean density of a KV head, both logarithmic, as SVG.
///
/// A line joins the Pareto front. If there are many pipelines, those on the front have names beside
/// their points, and the others have numbers, which are listed at the right. Colour and shape of a
/// point show the evidence on the promise or on the error bars, whichever is worse.
pub fn comparison(comparison: &Comparison) -> String {
    comparison_with_limit(comparison, None)
}

/// Plots a [`comparison`] with a vertical line at `limit`, a share of the tokens.
pub(crate) fn comparison_with_limit(comparison: &Comparison, limit: Option<f64>) -> String {
    let scatter = Scatter::new(comparison, limit);
    let (within, places) = scatter.places();
    let names = Names::new(&scatter.points, within, &places);
    let list = if names.listed.is_empty() { 0 } else { LIST };
    let height = HEIGHT.max((TOP + LINE * (names.listed.len() as i32 + 1)) as u32);
    picture((WIDTH + list, height), |root| scatter.draw(root, &places, &names))
}

/// Points and axes of the plot.
struct Scatter<'a> {
    title: String,
    points: Vec<ComparisonPoint<'a>>,
    x: TickedAxis,
    y: TickedAxis,
    /// Position of the vertical line on the x axis.
    limit: Option<f64>,
}

/// Returns the evidence on a pipeline's promise or on its error bars, whichever is worse.
fn worst_evidence(measured: &PipelineResult) -> Option<Evidence> {
    measured.guarantee.map(|guarantee| guarantee.evidence).max(measured.bars.evidence)
}

/// Point of a pipeline.
struct ComparisonPoint<'a> {
    name: &'a str,
    style: Style,
    /// True if the pipeline is on the Pareto front.
    front: bool,
    /// Position on both axes.
    position: (f64, f64),
    /// Text after the name; not empty if the position does not show the error.
    note: &'static str,
}

impl<'a> Scatter<'a> {
    fn new(comparison: &'a Comparison, limit: Option<f64>) -> Self {
        let x = Axis::log("").in_percent();
        let y = Axis::log("");
        let pipelines = &comparison.pipelines;
        let shares = pipelines.iter().map(|measured| measured.density).chain(limit);
        let errors = pipelines.iter().map(|measured| measured.output_error.mean);
        let across = TickedAxis::new(&x, shares.filter_map(|share| x.place(share)));
        let inexact = errors.filter(|&error| error >= ROUNDING).filter_map(|error| y.place(error));
        let mut up = TickedAxis::new(&y, inexact);
        let mut below = 0.0;
        if pipelines.iter().any(|measured| measured.output_error.mean < ROUNDING) {
            (up, below) = up.with_below("< 1e-5");
        }
        let front = comparison.front();
        let point = |(measured, front): (&'a PipelineResult, bool)| {
            let error = measured.output_error.mean;
            let place = if error < ROUNDING { below } else { up.clamp(error.log10()) };
            ComparisonPoint {
                name: &measured.pipeline,
                style: Style::of_evidence(worst_evidence(measured)),
                front,
                position: (measured.density.log10(), place),
                note: if error.is_infinite() { " (infinite error)" } else { "" },
            }
        };
        let points = pipelines.iter().zip(front).map(point).collect();
        let title = format!("{}, backend {}", comparison.trace, comparison.backend);
        let limit = limit.and_then(|share| x.place(share));
        Self { title, points, x: across, y: up, limit }
    }

    /// Returns the area of the points, and the pixel of each point.
    fn places(&self) -> (Area, Vec<Pixel>) {
        let mut found = (Area { from: (0, 0), to: (0, 0) }, Vec::new());
        picture((WIDTH, HEIGHT), |root| {
            let chart = self.chart(root)?;
            let (across, up) = chart.plotting_area().get_pixel_range();
            let within = Area { from: (across.start, up.start), to: (across.end, up.end) };
            let pixel = |point: &ComparisonPoint<'_>| chart.backend_coord(&point.position);
            found = (within, self.points.iter().map(pixel).collect());
            Ok(())
        });
        found
    }

    fn chart<'c>(&self, root: &Canvas<'c>) -> Result<Chart<'c>, DrawFailure<'c>> {
        let mut chart = ChartBuilder::on(&root.clone().shrink((0, 0), (WIDTH, HEIGHT)))
            .margin(16)
            .margin_top(TOP)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("share of the tokens read, per KV head")
            .y_desc("mean |out - exact| / |exact|")
            .label_style(("sans-serif", FONT))
            .draw()?;
        Ok(chart)
    }

    fn draw<'c>(
        &self,
        root: &Canvas<'c>,
        places: &[Pixel],
        names: &Names,
    ) -> Result<(), DrawFailure<'c>> {
        let chart = self.chart(root)?;
        root.draw(&Text::new(self.title.as_str(), (24, 12), ("sans-serif", 15)))?;
        Self::legend(root)?;
        if let Some(limit) = self.limit {
            let ends = self.y.ends().map(|place| chart.backend_coord(&(limit, place)));
            root.draw(&PathElement::new(ends, BLACK.mix(0.6)))?;
            write(root, "limit", (ends[1].0 + 5, ends[1].1 + 8), BLACK)?;
        }
        root.draw(&PathElement::new(front_path(&self.points, places), front_style()))?;
        // Points on the front are drawn last, so that they cover the others.
        for front in [false, true] {
            let points = self.points.iter().zip(places).filter(|(point, _)| point.front == front);
            for (point, &place) in points {
                point.style.draw_point(root, place, POINT)?;
            }
        }
        for (i, text, label) in &names.beside {
            label.write(root, text, self.points[*i].style.colour)?;
        }
        self.list(root, &names.listed)
    }

    fn legend<'c>(root: &Canvas<'c>) -> Result<(), DrawFailure<'c>> {
        let kinds = Evidence::ALL.map(Some).into_iter().chain([None]);
        let mut x = 30;
        for evidence in kinds {
            let style = Style::of_evidence(evidence);
            let text = match evidence {
                None => "no promise, no bars".into(),
                Some(Evidence::WithinDelta) => "within delta".into(),
                Some(Evidence::AboveDelta) => "above delta, perhaps by chance".into(),
                Some(Evidence::Contradicted) => format!("contradicted (p < {LEVEL:e})"),
            };
            style.draw_point(root, (x, 47), POINT)?;
            write(root, &text, (x + 11, 47), BLACK)?;
            x += 36 + text_width(&text);
        }
        root.draw(&PathElement::new([(x, 47), (x + 24, 47)], front_style()))?;
        write(root, "Pareto front", (x + 30, 47), BLACK)
    }

    /// Draws the list of the pipelines with numbers.
    fn list<'c>(&self, root: &Canvas<'c>, listed: &[usize]) -> Result<(), DrawFailure<'c>> {
        let left = WIDTH as i32;
        for (line, &i) in listed.iter().enumerate() {
            let (point, y) = (&self.points[i], TOP + LINE * line as i32);
            let number = format!("{}", line + 1);
            write_from(root, &number, (left + 26, y), HPos::Right, point.style.colour)?;
            point.style.draw_point(root, (left + 38, y), POINT)?;
            let text = format!("{}{}", point.name, point.note);
            let room = LIST as i32 - 60;
            let text = shorten(&text, room);
            write(root, &text, (left + 50, y), point.style.colour)?;
        }
        Ok(())
    }
}

type Chart<'c> = ChartContext<'c, SVGBackend<'c>, Cartesian2d<TickedAxis, TickedAxis>>;

/// Names of the pipelines, beside their points or in the list.
struct Names {
    /// Pipelines with a text beside their points: the name, or the number in the list.
    beside: Vec<(usize, String, Label)>,
    /// Pipelines in the list; the first one has the number 1.
    listed: Vec<usize>,
}

impl Names {
    fn new(points: &[ComparisonPoint<'_>], within: Area, places: &[Pixel]) -> Self {
        let few = points.len() <= FEW;
        let mut labels = PlotLabels::new(within, places, &front_path(points, places));
        let (mut beside, mut listed) = (Vec::new(), Vec::new());
        for (i, point) in points.iter().enumerate() {
            let name = || format!("{}{}", point.name, point.note);
            let named = (few || point.front).then(name);
            let label = named.and_then(|text| Some((labels.place(&text, places[i])?, text)));
            match label {
                Some((label, text)) => beside.push((i, text, label)),
                None => listed.push(i),
            }
        }
        for (number, &i) in (1..).zip(&listed) {
            let text = number.to_string();
            let label = labels.place(&text, places[i]);
            beside.extend(label.map(|label| (i, text, label)));
        }
        Self { beside, listed }
    }
}

/// Returns the path through the points on the front, from left to right.
fn front_path(points: &[ComparisonPoint<'_>], places: &[Pixel]) -> Vec<Pixel> {
    let on_front = points.iter().zip(places).filter(|(point, _)| point.front);
    let mut front: Vec<Pixel> = on_front.map(|(_, &place)| place).collect();
    front.sort_unstable();
    front
}

fn front_style() -> ShapeStyle {
    BLACK.mix(0.25).stroke_width(2)
}

/// Shortens a text if it is wider than `room` pixels.
fn shorten(text: &str, room: i32) -> String {
    if text_width(text) <= room {
        return text.into();
    }
    let fits =
        |count: &usize| text_width(&text.chars().take(*count).collect::<String>()) <= room - FONT;
    let count = (0..text.chars().count()).rev().find(fits).unwrap_or(0);
    format!("{}…", text.chars().take(count).collect::<String>())
}

#[cfg(test)]
mod tests {
    use vattention_core::{Kind, Promise, Target, promise::ReferenceRows};

    use super::*;
    use vattention_experiments::{Bars, ErrorSummary, Guarantee, ListCounts, Violations};

    /// Returns the results of a pipeline with a density, an error, and the number of 256 rows that
    /// violated its promise.
    fn pipeline(name: &str, share: f64, error: f64, violated: Option<usize>) -> PipelineResult {
        let error = ErrorSummary { mean: error, p50: error, p95: error, max: error };
        let tenth = 0.1.try_into().expect("a fraction");
        let promise = Promise::new(Target::Sdpa, tenth, tenth);
        let guarantee = violated.map(|violated_rows| {
            let violations = Violations { rows: 256, violated_rows, ..Violations::default() };
            let lists = ListCounts::new(violations.rows, 1);
            let evidence = violations.evidence(&promise, lists);
            let violations = violations.count(promise.scope);
            Guarantee { promise, kind: Kind::Asymptotic, violations, lists, evidence }
        });
        PipelineResult {
            set: None,
            pipeline: name.into(),
            file: "f".into(),
            density: share,
            largest_density: share,
            density_per_query_head: share,
            recall: 1.0,
            index_bytes_per_token: 0.0,
            reference: ReferenceRows::default(),
            output_error: error,
            denominator_error: error,
            numerator_error: error,
            budget: None,
            rounding: None,
            guarantee,
            bars: Bars::default().summary(None),
            live: None,
            unobserved: 0,
            seconds: 0.0,
        }
    }

    fn plot(pipelines: Vec<PipelineResult>) -> String {
        comparison(&Comparison { trace: "t".into(), backend: "cpu".into(), pipelines })
    }

    /// Counts the lines of the SVG that are equal to a text.
    fn times(svg: &str, text: &str) -> usize {
        svg.lines().filter(|line| *line == text).count()
    }

    /// 36 and 49 violations in 256 rows are more than delta allows, but their p-values are above
    /// 1e-6.
    #[test]
    fn styles_show_the_evidence() {
        let style = |violated| {
            let comparison = Comparison {
                trace: String::new(),
                backend: String::new(),
                pipelines: vec![pipeline("a", 0.2, 0.1, Some(violated))],
            };
            Scatter::new(&comparison, None).points[0].style
        };
        let expected = |evidence| Style::of_evidence(Some(evidence));
        assert_eq!(style(25), expected(Evidence::WithinDelta));
        assert_eq!([style(36), style(49)], [expected(Evidence::AboveDelta); 2]);
        assert_eq!(style(60), expected(Evidence::Contradicted));
    }

    #[test]
    fn axes_fit_the_points() {
        let svg = plot(vec![pipeline("a", 0.08, 0.4, None), pipeline("b", 1.0, 0.06, Some(3))]);
        assert_eq!(times(&svg, "100 %"), 1);
        assert_eq!((times(&svg, "0.1"), times(&svg, "0.01"), times(&svg, "&lt; 1e-5")), (1, 0, 0));
        let svg = plot(vec![pipeline("a", 0.08, 0.4, None), pipeline("dense", 1.0, 1e-7, None)]);
        assert_eq!(times(&svg, "&lt; 1e-5"), 1);
        let svg = plot(vec![pipeline("lost", 0.08, f64::INFINITY, None)]);
        assert_eq!(times(&svg, "lost (infinite error)"), 1);
    }

    #[test]
    fn the_front_has_names_and_other_pipelines_are_listed() {
        let few = plot((0..FEW).map(|i| pipeline(&format!("p{i}"), 0.1, 0.3, None)).collect());
        assert!((0..FEW).all(|i| times(&few, &format!("p{i}")) == 1) && times(&few, "1") == 0);
        let place = |i: u32| (0.1 + 0.05 * f64::from(i), 0.5 - 0.03 * f64::from(i));
        let worse = |i| pipeline(&format!("worse {i}"), place(i).0 + 0.01, place(i).1 + 0.01, None);
        let best = |i| pipeline(&format!("best {i}"), place(i).0, place(i).1, None);
        let many = plot((0..8).map(worse).chain((0..8).map(best)).collect());
        for i in 0..8 {
            assert_eq!(times(&many, &format!("best {i}")), 1);
            assert_eq!(times(&many, &format!("worse {i}")), 1);
            assert_eq!(times(&many, &(i + 1).to_string()), 2, "at its point and in the list");
        }
        assert_eq!(times(&many, "9"), 0);
    }
}
