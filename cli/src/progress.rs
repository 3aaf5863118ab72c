//! Progress on long work, when someone is watching.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// How often progress is told where nobody watches.
const PAUSE: Duration = Duration::from_secs(30);

/// A bar on standard error, hidden unless that is a terminal.
pub(crate) fn bar(unit: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = format!("{{bar:40}} {{pos}}/{{len}} {unit}{{left}}");
    let bar = ProgressBar::with_draw_target(Some(0), target).with_message(unit.to_owned());
    // The template is fixed and valid; without it the bar is merely plainer.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style.with_key("left", |state: &ProgressState, out: &mut dyn fmt::Write| {
            // A failure to print is ignored: the terminal cannot show the bar either.
            let _ = out.write_str(&time_left(state.pos(), state.eta()));
        }));
    }
    bar
}

/// Remaining time, in words; unknown until the first unit of work is done.
fn time_left(done: u64, left: Duration) -> String {
    if done == 0 { String::new() } else { format!(", {:#} left", HumanDuration(left)) }
}

/// Moves a bar, onward only: threads report in any order. Where nobody watches a terminal, a line now and then says
/// how far it is.
pub(crate) fn show(bar: &ProgressBar, done: usize, total: usize) {
    bar.set_length(total as u64);
    if done as u64 > bar.position() {
        bar.set_position(done as u64);
        if bar.is_hidden() {
            tell(bar, done, total);
        }
    }
}

/// Writes a line to standard error, unless the last one is younger than [`PAUSE`].
fn tell(bar: &ProgressBar, done: usize, total: usize) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if bar.elapsed() < PAUSE || last.is_some_and(|last| last.elapsed() < PAUSE) {
        return;
    }
    *last = Some(Instant::now());
    // When nobody can read it, there is nobody to tell.
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
