//! Progress on long work, when someone is watching.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error, hidden unless that is a terminal.
pub(crate) fn bar(unit: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = format!("{{bar:40}} {{pos}}/{{len}} {unit}, {{eta}} left");
    let bar = ProgressBar::with_draw_target(Some(0), target);
    // The template is fixed and valid; without it the bar is merely plainer.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// Moves a bar, onward only: threads report in any order.
pub(crate) fn show(bar: &ProgressBar, done: usize, total: usize) {
    bar.set_length(total as u64);
    if done as u64 > bar.position() {
        bar.set_position(done as u64);
    }
}
