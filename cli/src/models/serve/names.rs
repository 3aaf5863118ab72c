//! Names of models and pipelines in the API.

use std::path::{Path, PathBuf};

use crate::fail::Failure;

/// Pipeline of an option: name in the API, and file or name of a built-in pipeline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PipelineOption {
    pub(super) name: String,
    pub(super) file: PathBuf,
}

/// Returns the name of a model in the API.
pub(super) fn name_model(given: Option<&str>, path: &Path) -> Result<String, Failure> {
    match given {
        Some(name) if is_name(name) => Ok(name.to_owned()),
        Some(name) => Err(refuse_name("--name", name)),
        None => {
            // Only the absolute form of a path such as `.` contains the folder's name.
            let absolute = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            let name = if absolute.is_dir() { absolute.file_name() } else { absolute.file_stem() };
            let name = name.unwrap_or_default().to_string_lossy().to_lowercase();
            let name = without_part(&name);
            let letter = |c| if is_name_letter(c) { c } else { '-' };
            let name: String = name.chars().map(letter).collect();
            Ok(if name.is_empty() { "model".into() } else { name })
        }
    }
}

/// Returns the pipelines of the options `[NAME=]FILE`.
pub(super) fn name_pipelines(given: &[String]) -> Result<Vec<PipelineOption>, Failure> {
    let mut named: Vec<PipelineOption> = Vec::new();
    for text in given {
        let (name, file) = match text.split_once('=') {
            Some((name, file)) => (name.to_owned(), file),
            None => (stem(text), text.as_str()),
        };
        if !is_name(&name) {
            return Err(refuse_name("--pipeline", &name));
        }
        if named.iter().any(|other| other.name == name) {
            let reason = format!("found `{name}` twice; expected each name once");
            return Err(Failure::input(format!("--pipeline: {reason}")));
        }
        named.push(PipelineOption { name, file: file.into() });
    }
    Ok(named)
}

/// Removes `-00001-of-00003`, the end of the name of a part of a split GGUF file.
fn without_part(name: &str) -> &str {
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    let parts = name.rsplit_once("-of-").and_then(|(before, count)| {
        let (name, number) = before.rsplit_once('-')?;
        (is_number(number) && is_number(count)).then_some(name)
    });
    parts.unwrap_or(name)
}

fn stem(file: &str) -> String {
    Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns true for a name that can be a part of an address, and a label of metrics.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(is_name_letter)
}

fn is_name_letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

fn refuse_name(option: &str, name: &str) -> Failure {
    let expected = "expected a name of ASCII letters, digits, `-`, `_` and `.`";
    Failure::input(format!("{option}: found {name:?}; {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(given: &[&str]) -> Option<Vec<(String, PathBuf)>> {
        let given: Vec<String> = given.iter().map(|&text| text.into()).collect();
        let named = name_pipelines(&given).ok()?.into_iter();
        Some(named.map(|pipeline| (pipeline.name, pipeline.file)).collect())
    }

    #[test]
    fn pipelines_have_names() {
        let found = names(&["p=configs/priority.toml", "b/quest.toml", "oracle"]);
        let expected =
            [("p", "configs/priority.toml"), ("quest", "b/quest.toml"), ("oracle", "oracle")];
        assert_eq!(found, Some(expected.map(|(name, file)| (name.into(), file.into())).to_vec()));
        for wrong in [["a=x", "a=y"], ["a b=x", "b"], ["=x", "b"]] {
            assert_eq!(names(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn models_are_named_by_their_files() {
        let name = |path: &str| name_model(None, Path::new(path)).ok();
        assert_eq!(name("no/SmolLM2 135M.Q4_1.gguf").as_deref(), Some("smollm2-135m.q4_1"));
        assert_eq!(name("no/Big-Q4_1-00001-of-00003.gguf").as_deref(), Some("big-q4_1"));
        assert_eq!(name("no/one-of-00003.gguf").as_deref(), Some("one-of-00003"));
        assert!(name_model(Some("a@b"), Path::new("x")).is_err());
    }
}
