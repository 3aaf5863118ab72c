//! What a command writes, checked before the work whose results it holds.

use std::path::{Path, PathBuf};

use serde::Serialize;
use vattention::eval::{check_writable, partial_path, write_beside};

use crate::Failure;

/// Refuses outputs that cannot be written, or that would overwrite an input or each other.
pub(crate) fn check_outputs(
    outputs: &[(&'static str, Option<&PathBuf>)],
    inputs: &[&Path],
) -> Result<(), Failure> {
    let mut taken: Vec<(&str, PathBuf)> =
        inputs.iter().map(|path| ("an input", same_file(path))).collect();
    for (option, path) in outputs {
        let Some(path) = path else { continue };
        let file = same_file(path);
        if let Some((what, _)) = taken.iter().find(|(_, other)| *other == file) {
            let message = format!("{option} {}: expected another file than {what}", path.display());
            return Err(Failure::input(message));
        }
        check_writable(path)?;
        taken.push((option, file));
    }
    let partial = outputs.iter().filter_map(|(_, path)| path.map(|path| partial_path(path)));
    leave_nothing_half_written(partial.collect())
}

/// Writes results as JSON.
pub(crate) fn write_json(path: &Path, results: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(results).map_err(Failure::input)?;
    Ok(write_beside(path, format!("{text}\n").as_bytes())?)
}

/// When the command is interrupted, removes what it was filling and exits with 130.
fn leave_nothing_half_written(partial: Vec<PathBuf>) -> Result<(), Failure> {
    let clean_up = move || {
        for path in &partial {
            // Most are not there: each exists only while its output is being written.
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(130);
    };
    ctrlc::set_handler(clean_up).map_err(Failure::input)
}

/// A path that compares equal however it is written: of a file that exists, or else of its folder.
pub(crate) fn same_file(path: &Path) -> PathBuf {
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some(folder.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_path_buf())
}
