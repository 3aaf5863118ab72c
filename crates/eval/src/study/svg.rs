//! A figure as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

use super::figure::{Axis, Figure, Panel, Series};

/// Of one panel.
const WIDTH: u32 = 460;
/// Of a figure, which has a legend.
const LEAST_WIDTH: u32 = 820;
const HEIGHT: u32 = 380;
/// Title and legend.
const TOP: u32 = 56;
/// Pixels that a character takes, about.
const CHARACTER: i32 = 7;
/// Left of the legend.
const EDGE: i32 = 16;

/// Pixels of a name in the legend.
fn entry_width(name: &str) -> i32 {
    48 + CHARACTER * name.chars().count() as i32
}

const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

impl Figure {
    /// The figure as SVG.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        let rows = self.panels.len().div_ceil(self.columns) as u32;
        let legend: i32 = self.names().into_iter().map(entry_width).sum();
        let width = LEAST_WIDTH.max(WIDTH * self.columns as u32).max((EDGE + legend) as u32);
        let root =
            SVGBackend::with_string(&mut svg, (width, TOP + HEIGHT * rows)).into_drawing_area();
        let drawn = self.draw(&root, rows as usize);
        drop(root);
        drawn.expect("drawing into a string cannot fail");
        svg
    }

    fn draw<'a>(&self, root: &Canvas<'a>, rows: usize) -> Result<(), Failure<'a>> {
        root.fill(&WHITE)?;
        root.draw(&Text::new(self.title.as_str(), (16, 10), ("sans-serif", 15)))?;
        let names = self.names();
        let mut x = EDGE;
        for (name, colour) in names.iter().zip(COLOURS.iter().cycle()) {
            let line = vec![(x, 41), (x + 18, 41)];
            root.draw(&PathElement::new(line, colour.stroke_width(3)))?;
            root.draw(&Text::new(*name, (x + 24, 33), ("sans-serif", 14)))?;
            x += entry_width(name);
        }
        let (_, below) = root.split_vertically(TOP);
        for (panel, area) in self.panels.iter().zip(below.split_evenly((rows, self.columns))) {
            panel.draw(&area, &names)?;
        }
        Ok(())
    }

    /// The series' names, each once.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }
}

impl Panel {
    fn draw<'a>(&self, area: &Canvas<'a>, names: &[&str]) -> Result<(), Failure<'a>> {
        let all: Vec<(f64, f64)> = self.series.iter().flat_map(|one| self.places(one)).collect();
        let level = self.level.and_then(|level| self.y.place(level));
        let x = Ticked::new(&self.x, all.iter().map(|point| point.0));
        let y = Ticked::new(&self.y, all.iter().map(|point| point.1).chain(level));
        let across = [x.range.start, x.range.end];
        let mut chart = ChartBuilder::on(area)
            .margin(14)
            .caption(&self.title, ("sans-serif", 14))
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.x.name)
            .y_desc(&self.y.name)
            .label_style(("sans-serif", 13))
            .draw()?;
        if let Some(level) = level {
            let line = across.map(|end| (end, level));
            chart.draw_series([PathElement::new(line, BLACK.mix(0.6))])?;
        }
        for series in &self.series {
            let place = names.iter().position(|name| *name == series.name).unwrap_or(0);
            let colour = COLOURS[place % COLOURS.len()];
            let points = self.places(series);
            if series.line {
                let line = PathElement::new(points.clone(), colour.stroke_width(2));
                chart.draw_series([line])?;
            }
            if series.dots {
                let dot = |&point| Circle::new(point, 4, colour.mix(0.75).filled());
                chart.draw_series(points.iter().map(dot))?;
            }
        }
        Ok(())
    }

    /// Where a series' points lie, those that lie somewhere.
    fn places(&self, series: &Series) -> Vec<(f64, f64)> {
        let place = |&(x, y): &(f64, f64)| Some((self.x.place(x)?, self.y.place(y)?));
        series.points.iter().filter_map(place).collect()
    }
}

/// What an axis shows, and where its ticks are.
#[derive(Clone)]
struct Ticked {
    axis: Axis,
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Ticked {
    fn new(axis: &Axis, places: impl Iterator<Item = f64>) -> Self {
        let range = range(places);
        let ticks = axis.ticks(range.start, range.end);
        let ticks = ticks.into_iter().filter_map(|tick| axis.place(tick)).collect();
        Self { axis: axis.clone(), range, ticks }
    }
}

impl Ranged for Ticked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (place - self.range.start) / (self.range.end - self.range.start);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Ticked {
    /// At most four digits.
    fn format_ext(&self, place: &f64) -> String {
        let number = if self.axis.log { 10_f64.powf(*place) } else { *place };
        let digits = if number == 0.0 { 0 } else { 3 - number.abs().log10().floor() as i32 };
        let scale = 10_f64.powi(digits);
        format!("{}", (number * scale).round() / scale)
    }
}

/// What holds all places, with a little room; something where there are none, or one.
fn range(places: impl Iterator<Item = f64>) -> Range<f64> {
    let ends = |(low, high): (f64, f64), place: f64| (low.min(place), high.max(place));
    let (low, high) = places.fold((f64::INFINITY, f64::NEG_INFINITY), ends);
    if low > high {
        return 0.0..1.0;
    }
    let room = if high > low { 0.05 * (high - low) } else { 0.5_f64.max(0.1 * low.abs()) };
    low - room..high + room
}
