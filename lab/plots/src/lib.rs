//! Plots of the results of [experiments](vattention_experiments), as SVG. Results do not know how
//! they are drawn, so that programs that only run experiments compile no plots.

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
