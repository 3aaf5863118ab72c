//! Message that is printed when Ctrl-C ends a command.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// Commands that can store results while they run.
const RESUMABLE: [&str; 6] = ["compare", "verify", "study", "tune", "evaluate", "perplexity"];

static MESSAGE: Mutex<String> = Mutex::new(String::new());

/// Sets the message for an interruption of the command with these arguments.
pub(crate) fn prepare(args: &[String]) {
    *MESSAGE.lock().unwrap_or_else(PoisonError::into_inner) = message(args);
}

/// Prints a note that states whether results were stored and how to continue.
pub(crate) fn report() {
    let message = MESSAGE.lock().unwrap_or_else(PoisonError::into_inner);
    // A progress bar leaves its line unfinished.
    let newline = if std::io::stderr().is_terminal() { "\n" } else { "" };
    // The process ends, so a failure to write cannot be reported.
    let _ = writeln!(std::io::stderr(), "{newline}note: interrupted; {message}");
}

fn message(args: &[String]) -> String {
    let command = args.first().map_or("", String::as_str);
    let results =
        args.iter().enumerate().find_map(|(i, arg)| match arg.strip_prefix("--results") {
            Some("") => args.get(i + 1).map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        });
    match results {
        _ if command == "train-hash" => {
            "--resume continues from the checkpoint beside the output, if there is one".into()
        }
        _ if !RESUMABLE.contains(&command) => "nothing was stored".into(),
        Some(path) => {
            format!("finished parts are stored in {path}; run the same command to continue")
        }
        None => "nothing was stored. With --results FILE, finished parts are stored, and the same \
                 command continues from them"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_reports_what_was_stored() {
        let note = |line: &str| message(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let nothing = note("compare a.toml --trace b");
        assert!(nothing.starts_with("nothing was stored. With --results FILE"), "{nothing}");
        for line in ["evaluate --results r.jsonl --x", "study limit --results=r.jsonl"] {
            let stored = note(line);
            assert!(stored.starts_with("finished parts are stored in r.jsonl"), "{stored}");
        }
        assert_eq!(note("bench --seconds 1"), "nothing was stored");
        assert!(note("train-hash -o x").starts_with("--resume continues"));
    }
}
