//! Plots of the results of [experiments](vattention_experiments), as SVG.

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
pub use figure::{CurvePanel, Figure, LinePanel, NamedLine};
pub use tuning::tuning;
pub use verification::verification;
