//! Pipelines that a program carries, so that a name is enough where the repository is not there.
//!
//! A file that exists is always preferred to a name. In messages, and as the place that `extends`
//! is relative to, these texts stand in a folder of their own.

use std::path::{Path, PathBuf};

use vattention_core::inventory;

use crate::names::near_names;
use crate::words::list;

/// A pipeline file that is compiled into the program.
#[derive(Clone, Copy, Debug)]
pub struct NamedPipeline {
    /// The file's name, without `.toml`.
    pub name: &'static str,
    /// The file's text. Files that it extends are named pipelines, too; it names no other files.
    pub text: &'static str,
}

inventory::collect!(NamedPipeline);

/// The folder that the texts stand in, according to messages.
const FOLDER: &str = "<built-in>";

/// Names of the pipelines that this program carries, sorted.
pub fn pipeline_names() -> Vec<&'static str> {
    let mut names: Vec<_> =
        inventory::iter::<NamedPipeline>.into_iter().map(|pipeline| pipeline.name).collect();
    names.sort_unstable();
    names
}

/// Resolves what was written: a file, or else the name of a pipeline that the program carries.
pub(crate) fn locate(folder: &Path, written: &Path) -> PathBuf {
    let file = folder.join(written);
    match parse_name(written) {
        Some(name) if !file.is_file() && find(name).is_some() => library_path(name),
        _ => file,
    }
}

/// Returns the text of a path that [`locate`] made of a name, or of one that stands beside it.
pub(crate) fn text(path: &Path) -> Option<&'static str> {
    let stem = path.file_stem()?.to_str()?;
    find(stem).filter(|_| path == library_path(stem)).map(|pipeline| pipeline.text)
}

/// Explains which pipelines there are to somebody who wrote a path that is no file.
pub(crate) fn explain(path: &Path) -> Option<String> {
    if let Some(name) = parse_name(path) {
        let names = pipeline_names();
        let near = near_names(name, &names);
        let (what, names) =
            if near.is_empty() { ("are", names) } else { ("that are near are", near) };
        let names = if names.is_empty() { "none".into() } else { list(&names) };
        return Some(format!(
            "a pipeline file, or the name of a built-in pipeline; those {what} {names}"
        ));
    }
    let stem = path.file_stem()?.to_str()?;
    let known =
        path.extension().is_some_and(|extension| extension == "toml") && find(stem).is_some();
    known.then(|| format!("the built-in pipeline of this name is called `{stem}`"))
}

/// Returns what was written as a name, if it has neither a folder nor an extension.
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
