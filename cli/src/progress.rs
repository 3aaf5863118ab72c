//! Progress of long work: a bar on a terminal, otherwise lines.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Minimum time between two lines of progress.
const PAUSE: Duration = Duration::from_secs(30);

/// Returns a progress bar on standard error, hidden if standard error is no terminal.
pub(crate) fn bar(unit: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = format!("{{bar:40}} {{pos}}/{{len}} {unit}{{left}}");
    let bar = ProgressBar::with_draw_target(Some(0), target).with_message(unit.to_owned());
    // The template is fixed and valid; without it, the bar would have the default style.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style.with_key("left", |state: &ProgressState, out: &mut dyn fmt::Write| {
            // A failure to print is ignored: the terminal cannot show the bar either.
            let _ = out.write_str(&time_left(state.pos(), state.eta()));
        }));
    }
    bar
}

/// Returns the remaining time in words; empty until the first unit of work is done.
fn time_left(done: u64, left: Duration) -> String {
    if done == 0 { String::new() } else { format!(", {:#} left", HumanDuration(left)) }
}

/// Moves a bar forward; smaller numbers are ignored, because threads report in any order. Without a
/// terminal, prints a line from time to time.
pub(crate) fn show(bar: &ProgressBar, done: usize, total: usize) {
    bar.set_length(total as u64);
    if done as u64 > bar.position() {
        bar.set_position(done as u64);
        if bar.is_hidden() {
            print_line(bar, done, total);
        }
    }
}

/// Writes a line to standard error, unless the last one is younger than [`PAUSE`].
fn print_line(bar: &ProgressBar, done: usize, total: usize) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if bar.elapsed() < PAUSE || last.is_some_and(|last| last.elapsed() < PAUSE) {
        return;
    }
    *last = Some(Instant::now());
    // A failure to write is ignored: it could not be reported.
    let left = time_left(done as u64, bar.eta());
    let _ = writeln!(std::io::stderr(), "progress: {done}/{total} {}{left}", bar.message());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_unknown_until_something_is_done() {
        assert_eq!(time_left(0, Duration::ZERO), "");
        assert_eq!(time_left(3, Duration::from_secs(90)), ", 2m left");
    }
}
