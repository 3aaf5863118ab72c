//! A picture to draw on, and texts on it.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type DrawFailure<'a> =
    DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Of most texts, in pixels.
pub(crate) const FONT: i32 = 13;

/// A place in pixels.
pub(crate) type Pixel = (i32, i32);

/// What `draw` draws on a white picture of `size` pixels.
pub(crate) fn picture(
    size: (u32, u32),
    draw: impl for<'a> FnOnce(&Canvas<'a>) -> Result<(), DrawFailure<'a>>,
) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let drawn = root.fill(&WHITE).and_then(|()| draw(&root));
    drop(root);
    drawn.expect("drawing into a string cannot fail");
    svg
}

/// Pixels that a text takes across, about.
pub(crate) fn text_width(text: &str) -> i32 {
    text.chars().count() as i32 * FONT / 2
}

/// Writes a text that begins at a place, halfway up.
pub(crate) fn write<'a>(
    on: &Canvas<'a>,
    text: &str,
    at: Pixel,
    colour: RGBColor,
) -> Result<(), DrawFailure<'a>> {
    write_from(on, text, at, HPos::Left, colour)
}

/// Writes a text of which one end, or the middle, is at a place, halfway up.
pub(crate) fn write_from<'a>(
    on: &Canvas<'a>,
    text: &str,
    at: Pixel,
    end: HPos,
    colour: RGBColor,
) -> Result<(), DrawFailure<'a>> {
    let style = ("sans-serif", FONT).into_font().color(&colour);
    on.draw(&Text::new(text, at, style.pos(Pos::new(end, VPos::Center))))
}
