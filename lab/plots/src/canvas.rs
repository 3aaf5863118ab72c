//! Pictures to draw on, and texts on them.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type DrawFailure<'a> =
    DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Font size of most texts, in pixels.
pub(crate) const FONT: i32 = 13;

/// Position in pixels.
pub(crate) type Pixel = (i32, i32);

/// Returns a white picture of `size` pixels with the drawing of `draw`, as SVG.
pub(crate) fn picture(
    size: (u32, u32),
    draw: impl for<'a> FnOnce(&Canvas<'a>) -> Result<(), DrawFailure<'a>>,
) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let result = root.fill(&WHITE).and_then(|()| draw(&root));
    drop(root);
    result.expect("drawing into a string cannot fail");
    svg
}

/// Estimates the width of a text in pixels.
pub(crate) fn text_width(text: &str) -> i32 {
    text.chars().count() as i32 * FONT / 2
}

/// Writes a text that begins at a position and is vertically centred there.
pub(crate) fn write<'a>(
    canvas: &Canvas<'a>,
    text: &str,
    position: Pixel,
    colour: RGBColor,
) -> Result<(), DrawFailure<'a>> {
    write_from(canvas, text, position, HPos::Left, colour)
}

/// Writes a text whose left end, right end or middle is at a position, vertically centred there.
pub(crate) fn write_from<'a>(
    canvas: &Canvas<'a>,
    text: &str,
    position: Pixel,
    end: HPos,
    colour: RGBColor,
) -> Result<(), DrawFailure<'a>> {
    let style = ("sans-serif", FONT).into_font().color(&colour);
    canvas.draw(&Text::new(text, position, style.pos(Pos::new(end, VPos::Center))))
}
