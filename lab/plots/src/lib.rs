//! Results of [experiments](vattention_experiments) as pictures, in SVG.

mod axis;
mod bench;
mod canvas;
mod comparison;
mod figure;
mod labels;
mod panels;
pub mod study;
mod style;
mod tuning;
mod verification;

pub use bench::bench;
pub use comparison::comparison;
pub use figure::{CurvePanel, Figure, Line, LinePanel};
pub use tuning::tuning;
pub use verification::verification;
