//! Drawing of a figure as SVG.

use plotters::prelude::*;

use crate::axis::TickedAxis;
use crate::canvas::{Canvas, DrawFailure, FONT, Pixel, picture, text_width, write};
use crate::figure::{Figure, Panel, Series};
use crate::style::Style;

/// Width of a panel, in pixels like all lengths here.
const WIDTH: u32 = 460;
/// Minimum width of a figure, for its legend.
const LEAST_WIDTH: u32 = 820;
/// Height of a panel.
const HEIGHT: u32 = 380;
/// Height of the title, with some room below the legend.
const TITLE: i32 = 40;
/// Height of a line of the legend.
const LINE: i32 = 22;
/// Margin left of the legend.
const EDGE: i32 = 16;
/// Width of the line of a series in the legend.
const SAMPLE: i32 = 28;
/// Half the size of a point.
const POINT: i32 = 4;

impl Figure {
    /// Returns the figure as SVG.
    pub fn svg(&self) -> String {
        let rows = self.panels.len().div_ceil(self.columns);
        let width = LEAST_WIDTH.max(WIDTH * self.columns as u32);
        let kinds = self.kinds();
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
        let places = legend(&names, width as i32);
        let lines = places.last().map_or(0, |place| place.1 / LINE + 1);
        let top = (TITLE + LINE * lines) as u32;
        picture((width, top + HEIGHT * rows as u32), |root| {
            root.draw(&Text::new(self.title.as_str(), (EDGE, 10), ("sans-serif", 15)))?;
            for (number, (kind, (x, y))) in kinds.iter().zip(places).enumerate() {
                let (style, y) = (style(kind, number), TITLE + y);
                if kind.line {
                    style.draw_line(root, vec![(x, y), (x + SAMPLE, y)])?;
                }
                if kind.dots {
                    style.draw_point(root, (x + SAMPLE / 2, y), POINT)?;
                }
                write(root, &kind.name, (x + SAMPLE + 6, y), BLACK)?;
            }
            let (_, below) = root.split_vertically(top);
            for (panel, area) in self.panels.iter().zip(below.split_evenly((rows, self.columns))) {
                panel.draw(root, &area, &names)?;
            }
            Ok(())
        })
    }

    /// Returns the first series of each name. Series of evidence on a promise come last.
    fn kinds(&self) -> Vec<&Series> {
        let mut kinds: Vec<&Series> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if kinds.iter().all(|kind| kind.name != series.name) {
                kinds.push(series);
            }
        }
        kinds.sort_by_key(|kind| kind.evidence.is_some());
        kinds
    }
}

/// Returns the style of a series with this number in the legend.
fn style(series: &Series, number: usize) -> Style {
    match series.evidence {
        None => Style::of_series(number),
        evidence => Style::of_evidence(evidence),
    }
}

/// Returns the positions of a legend's names, broken into lines.
fn legend(names: &[&str], width: i32) -> Vec<Pixel> {
    let (mut x, mut y) = (EDGE, 0);
    let place = |name: &&str| {
        let needs = SAMPLE + 28 + text_width(name);
        if x > EDGE && x + needs > width {
            (x, y) = (EDGE, y + LINE);
        }
        let place = (x, y);
        x += needs;
        place
    };
    names.iter().map(place).collect()
}

impl Panel {
    fn draw<'a>(
        &self,
        root: &Canvas<'a>,
        area: &Canvas<'a>,
        names: &[&str],
    ) -> Result<(), DrawFailure<'a>> {
        let all: Vec<(f64, f64)> =
            self.series.iter().flat_map(|series| self.places(series)).collect();
        let level = self.level.and_then(|level| self.y.place(level));
        let x = TickedAxis::new(&self.x, all.iter().map(|point| point.0));
        let y = TickedAxis::new(&self.y, all.iter().map(|point| point.1).chain(level));
        let across = x.ends();
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
            .label_style(("sans-serif", FONT))
            .draw()?;
        if let Some(level) = level {
            let line = across.map(|end| (end, level));
            chart.draw_series([PathElement::new(line, BLACK.mix(0.6))])?;
        }
        for series in &self.series {
            let number = names.iter().position(|name| *name == series.name).unwrap_or(0);
            let style = style(series, number);
            let places = self.places(series);
            let places: Vec<Pixel> =
                places.iter().map(|place| chart.backend_coord(place)).collect();
            if series.dots {
                places.iter().try_for_each(|&place| style.draw_point(root, place, POINT))?;
            }
            if series.line {
                style.draw_line(root, places)?;
            }
        }
        Ok(())
    }

    /// Returns the positions of a series' points that both axes can show.
    fn places(&self, series: &Series) -> Vec<(f64, f64)> {
        let place = |&(x, y): &(f64, f64)| Some((self.x.place(x)?, self.y.place(y)?));
        series.points.iter().filter_map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_is_broken_into_lines() {
        let names = ["a", "a name that is rather long", "b", "another that is rather long"];
        let places = legend(&names, 400);
        assert_eq!(places[0], (EDGE, 0));
        assert_eq!((places[2].1, places[3].1), (0, LINE), "{places:?}");
        assert_eq!(places[3].0, EDGE);
    }
}
