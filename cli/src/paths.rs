//! Paths in options: checks of names, and comparison of files.

use std::path::{Path, PathBuf};

use crate::fail::Failure;

/// Value of `--json` that means standard output.
const STANDARD_OUTPUT: &str = "-";

/// Returns true if the JSON goes to standard output; then nothing else may be printed there.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path == Path::new(STANDARD_OUTPUT)
}

/// Refuses `-` as the name of a file: only `--json` writes to standard output.
pub(crate) fn refuse_dash(option: &str, path: &Path) -> Result<(), Failure> {
    if !is_standard_output(path) {
        return Ok(());
    }
    let expected = "only --json writes to standard output; expected the name of a file";
    Err(Failure::input(format!("{option} -: {expected}")))
}

/// Refuses a plot whose name does not end in `.svg`.
pub(crate) fn check_plot_name(path: &Path) -> Result<(), Failure> {
    let is_svg = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    if is_svg {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::input(format!("--plot {path}: plots are SVG; expected a name that ends in .svg")))
}

/// Returns a canonical path, so that two names of one file compare equal. For a file that does not
/// exist, only its folder is resolved.
pub(crate) fn same_file(path: &Path) -> PathBuf {
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some(folder.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_path_buf())
}
