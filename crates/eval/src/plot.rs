//! Pictures, as SVG.

mod axis;
mod bench;
mod figure;
mod heads;
mod labels;
mod look;
mod panels;
mod pipelines;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use labels::Label;

pub use bench::plot_bench;
pub use figure::{CurvePanel, Figure, Line, LinePanel};
pub use heads::plot_errors;
pub use pipelines::plot;

pub(crate) use axis::Axis;
pub(crate) use figure::{Panel, Series};
pub(crate) use pipelines::plot_with;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Of most texts, in pixels.
const FONT: i32 = 13;

/// A place in pixels.
type Pixel = (i32, i32);

/// What `draw` draws on a white picture of `size` pixels.
fn picture(
    size: (u32, u32),
    draw: impl for<'a> FnOnce(&Canvas<'a>) -> Result<(), Failure<'a>>,
) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let drawn = root.fill(&WHITE).and_then(|()| draw(&root));
    drop(root);
    drawn.expect("drawing into a string cannot fail");
    svg
}

/// Pixels that a text takes across, about.
fn text_width(text: &str) -> i32 {
    text.chars().count() as i32 * FONT / 2
}

/// Writes a text that begins at a place, halfway up.
fn write<'a>(on: &Canvas<'a>, text: &str, at: Pixel, colour: RGBColor) -> Result<(), Failure<'a>> {
    write_from(on, text, at, HPos::Left, colour)
}

/// Writes a text of which one end, or the middle, is at a place, halfway up.
fn write_from<'a>(
    on: &Canvas<'a>,
    text: &str,
    at: Pixel,
    end: HPos,
    colour: RGBColor,
) -> Result<(), Failure<'a>> {
    let style = ("sans-serif", FONT).into_font().color(&colour);
    on.draw(&Text::new(text, at, style.pos(Pos::new(end, VPos::Center))))
}

/// Writes what names a point, with the line that leads to it.
fn write_label<'a>(
    on: &Canvas<'a>,
    text: &str,
    label: &Label,
    colour: RGBColor,
) -> Result<(), Failure<'a>> {
    if let Some(leader) = label.leader {
        on.draw(&PathElement::new(leader, colour.mix(0.5)))?;
    }
    write_from(on, text, label.at, label.end, colour)
}
