//! Styles of points and lines, which differ by more than their colours.

use std::f64::consts::TAU;

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use vattention_experiments::Evidence;

use crate::canvas::{Canvas, DrawFailure, Pixel};

/// Colours that most people can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

const MARKERS: [Marker; 6] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::Cross,
    Marker::Ring,
];

/// Lengths of dashes and of gaps, in pixels.
const DASHES: [Option<(u32, u32)>; 4] = [None, Some((8, 5)), Some((2, 4)), Some((14, 4))];

/// Shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Ring,
}

/// Style of points and of the line through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) colour: RGBColor,
    pub(crate) marker: Marker,
    dash: Option<(u32, u32)>,
}

impl Style {
    /// Returns the style of the series with this number. The first 42 differ in colour or marker,
    /// and the first 28 in colour or dashes.
    pub(crate) fn of_series(number: usize) -> Self {
        Self {
            colour: COLOURS[number % COLOURS.len()],
            marker: MARKERS[number % MARKERS.len()],
            dash: DASHES[number / COLOURS.len() % DASHES.len()],
        }
    }

    /// Returns the style of evidence on a promise; `None` means that there is no promise.
    pub(crate) fn of_evidence(evidence: Option<Evidence>) -> Self {
        let (colour, marker) = match evidence {
            None => (RGBColor(110, 110, 110), Marker::Ring),
            Some(Evidence::WithinDelta) => (COLOURS[0], Marker::Circle),
            Some(Evidence::AboveDelta) => (RGBColor(196, 120, 0), Marker::Triangle),
            Some(Evidence::Contradicted) => (RGBColor(190, 30, 20), Marker::Cross),
        };
        Self { colour, marker, dash: None }
    }

    /// Draws a point of about `radius` pixels to each side.
    pub(crate) fn draw_point<'a>(
        self,
        canvas: &Canvas<'a>,
        (x, y): Pixel,
        radius: i32,
    ) -> Result<(), DrawFailure<'a>> {
        let fill = self.colour.mix(0.85).filled();
        let corners = |count: u32, turn: f64, radius: f64| -> Vec<Pixel> {
            let corner = |i: u32| {
                let angle = TAU * (f64::from(i) / f64::from(count) + turn);
                let shift = |centre: i32, part: f64| centre + (radius * part).round() as i32;
                (shift(x, angle.sin()), shift(y, -angle.cos()))
            };
            (0..count).map(corner).collect()
        };
        let far = 1.3 * f64::from(radius);
        match self.marker {
            Marker::Circle => canvas.draw(&Circle::new((x, y), radius, fill)),
            Marker::Ring => {
                canvas.draw(&Circle::new((x, y), radius, WHITE.filled()))?;
                canvas.draw(&Circle::new((x, y), radius, self.colour.stroke_width(2)))
            }
            Marker::Square => canvas.draw(&Polygon::new(corners(4, 0.125, far), fill)),
            Marker::Triangle => canvas.draw(&Polygon::new(corners(3, 0.0, far), fill)),
            Marker::Diamond => canvas.draw(&Polygon::new(corners(4, 0.0, far), fill)),
            Marker::Cross => {
                let ends = corners(4, 0.125, far);
                for (from, to) in [(0, 2), (1, 3)] {
                    let line = [ends[from], ends[to]];
                    canvas.draw(&PathElement::new(line, self.colour.stroke_width(3)))?;
                }
                Ok(())
            }
        }
    }

    /// Draws a line through positions.
    pub(crate) fn draw_line<'a>(
        self,
        canvas: &Canvas<'a>,
        places: Vec<Pixel>,
    ) -> Result<(), DrawFailure<'a>> {
        let style = self.colour.stroke_width(2);
        match self.dash {
            None => canvas.draw(&PathElement::new(places, style)),
            Some((dash, gap)) => canvas.draw(&DashedPathElement::new(places, dash, gap, style)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_differ() {
        let styles: Vec<Style> = (0..42).map(Style::of_series).collect();
        for (i, a) in styles.iter().enumerate() {
            for (j, b) in styles.iter().enumerate().take(i) {
                assert!((a.colour, a.marker) != (b.colour, b.marker), "{i} and {j}");
                assert!(i >= 28 || (a.colour, a.dash) != (b.colour, b.dash), "{i} and {j}");
            }
        }
        let kinds = [None].into_iter().chain(Evidence::ALL.map(Some));
        let kinds: Vec<Style> = kinds.map(Style::of_evidence).collect();
        for (i, a) in kinds.iter().enumerate() {
            assert!(kinds[..i].iter().all(|b| a.colour != b.colour && a.marker != b.marker));
        }
    }
}
