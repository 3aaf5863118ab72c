//! Built-in pipelines: files compiled into the program, which are found by name without the
//! repository.
//!
//! An existing file is always preferred to a name. In messages, and for paths after `extends`, the
//! built-in files have a folder of their own.

use std::path::{Path, PathBuf};

use vattention_core::inventory;

use crate::names::near_names;
use crate::words::list;

/// A pipeline file that is compiled into the program.
#[derive(Clone, Copy, Debug)]
pub struct NamedPipeline {
    /// The file's name, without `.toml`.
    pub name: &'static str,
    /// The file's text. It may extend other built-in pipelines, and names no other files.
    pub text: &'static str,
}

inventory::collect!(NamedPipeline);

/// Folder of the built-in files in messages.
const FOLDER: &str = "<built-in>";

/// Names of the built-in pipelines, sorted.
pub fn pipeline_names() -> Vec<&'static str> {
    let mut names: Vec<_> =
        inventory::iter::<NamedPipeline>.into_iter().map(|pipeline| pipeline.name).collect();
    names.sort_unstable();
    names
}

/// Resolves a path to a file, or else to the built-in pipeline of this name.
pub(crate) fn locate(folder: &Path, written: &Path) -> PathBuf {
    let file = folder.join(written);
    match parse_name(written) {
        Some(name) if !file.is_file() && find(name).is_some() => library_path(name),
        _ => file,
    }
}

/// Returns the text of a built-in pipeline, by a path in the folder that [`locate`] uses for them.
pub(crate) fn text(path: &Path) -> Option<&'static str> {
    let stem = path.file_stem()?.to_str()?;
    find(stem).filter(|_| path == library_path(stem)).map(|pipeline| pipeline.text)
}

/// Advice for a path that is not a file: built-in pipelines with a similar name, or all of them.
pub(crate) fn explain(path: &Path) -> Option<String> {
    if let Some(name) = parse_name(path) {
        let names = pipeline_names();
        let near = near_names(name, &names);
        let (subject, names) = if near.is_empty() {
            ("the built-in pipelines are", names)
        } else {
            ("similar names are", near)
        };
        let names = if names.is_empty() { "none".into() } else { list(&names) };
        return Some(format!(
            "expected a pipeline file or the name of a built-in pipeline; {subject} {names}"
        ));
    }
    let stem = path.file_stem()?.to_str()?;
    let known =
        path.extension().is_some_and(|extension| extension == "toml") && find(stem).is_some();
    known.then(|| format!("the built-in pipeline of this name is called `{stem}`"))
}

/// Returns the path as a name, if it has neither a folder nor an extension.
pub(crate) fn parse_name(path: &Path) -> Option<&str> {
    let name = path.to_str()?;
    let plain = name.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    (plain && !name.is_empty()).then_some(name)
}

fn find(name: &str) -> Option<&'static NamedPipeline> {
    inventory::iter::<NamedPipeline>.into_iter().find(|pipeline| pipeline.name == name)
}

fn library_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.toml"))
}
