//! Reading of checkpoint files, which may have a byte order mark, NaN in JSON, or a Git LFS pointer
//! in place of the data.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// First bytes of a Git LFS pointer.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Numbers that Python's `json` writes, but JSON does not allow.
const NOT_JSON: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Refuses a Git LFS pointer, which replaces a large file in a clone without `git lfs`.
///
/// # Errors
/// [`Error::File`], or [`Error::Checkpoint`] for a pointer.
pub(crate) fn refuse_pointer(path: &Path) -> Result<()> {
    let mut start = Vec::new();
    File::open(path)
        .and_then(|file| file.take(POINTER.len() as u64).read_to_end(&mut start))
        .map_err(|source| Error::file(path, source))?;
    if start != POINTER {
        return Ok(());
    }
    let reason = "a pointer of Git LFS in the place of the file; expected the file, which \
                  `git lfs pull` fetches in the repository's folder";
    Err(Error::checkpoint(path, reason))
}

/// Reads a text, without the byte order mark that some editors write before it.
///
/// # Errors
/// [`Error::File`], or [`Error::Checkpoint`] for a pointer of Git LFS.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    refuse_pointer(path)?;
    let text = fs::read_to_string(path).map_err(|source| Error::file(path, source))?;
    Ok(text.strip_prefix('\u{FEFF}').map(str::to_owned).unwrap_or(text))
}

/// Reads a JSON file.
///
/// # Errors
/// The errors of [`read_text`], and [`Error::Checkpoint`] with the position of a syntax error.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read_text(path)?;
    serde_json::from_str(&text).map_err(|error| {
        let reason = find_not_json(&text, error.line(), error.column());
        Error::checkpoint(path, reason.unwrap_or_else(|| error.to_string()))
    })
}

/// Returns the advice to give the path of a GGUF file, if the folder has one. The parts of a split
/// file count as one file, the first part.
pub(crate) fn find_gguf(dir: &Path) -> Option<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(std::result::Result::ok);
    let is_gguf =
        |path: &PathBuf| path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_gguf).collect();
    files.sort();
    if !files.iter().all(|path| is_later_part(path)) {
        files.retain(|path| !is_later_part(path));
    }
    let first = files.first()?.display();
    Some(match files.len() {
        1 => format!("name the folder's GGUF file itself: {first}"),
        count => format!("name one of the folder's {count} GGUF files, such as {first}"),
    })
}

/// Returns whether a file is named like a part of a split model other than the first.
fn is_later_part(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let digits = name.and_then(|name| {
        let (before, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        Some([before.rsplit_once('-')?.1, count])
    });
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    digits.is_some_and(|digits| digits.into_iter().all(is_number) && digits[0] != "00001")
}

/// Describes the number at a line and column, if JSON does not allow it.
fn find_not_json(text: &str, line: usize, column: usize) -> Option<String> {
    let content = text.lines().nth(line.checked_sub(1)?)?;
    let found = NOT_JSON.into_iter().find(|name| {
        let mut places = content.match_indices(name).map(|(place, _)| place + 1);
        places.any(|first| (first..=first + name.len()).contains(&column))
    })?;
    let key = content.split_once(':').map(|(key, _)| key.trim().trim_matches('"'));
    let key = key.map(|key| format!("`{key}` is ")).unwrap_or_default();
    Some(format!("line {line}: {key}{found}, which is not JSON; expected a finite number or null"))
}

/// Returns whether a checkpoint is a GGUF file rather than a directory.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_does_not_allow_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for name in NOT_JSON {
            let text = format!("{{\n  \"a\": 1,\n  \"rms_norm_eps\": {name}\n}}");
            fs::write(&path, text).unwrap();
            let message = read_json::<serde_json::Value>(&path).unwrap_err().to_string();
            let expected = format!(
                "{}: line 3: `rms_norm_eps` is {name}, which is not JSON; expected a finite \
                 number or null",
                path.display()
            );
            assert_eq!(message, expected);
        }
        fs::write(&path, "{\n  \"NaN\": 1,\n  \"a\": }").unwrap();
        let message = read_json::<serde_json::Value>(&path).unwrap_err().to_string();
        assert!(message.ends_with("expected value at line 3 column 8"), "{message}");
    }

    #[test]
    fn byte_order_marks_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, "\u{FEFF}{\"a\": 1}").unwrap();
        let json: serde_json::Value = read_json(&path).unwrap();
        assert_eq!(json["a"], 1);
    }

    #[test]
    fn later_parts_are_known_by_their_names() {
        let is_later = |name: &str| is_later_part(Path::new(name));
        for name in ["a-00002-of-00003.gguf", "x/a-b-99999-of-123456.gguf", "-00002-of-00002.gguf"]
        {
            assert!(is_later(name), "{name}");
        }
        for name in [
            "a-00001-of-00003.gguf",
            "a-0002-of-00003.gguf",
            "a-00002-of-00003.bin",
            "a00002-of-00003.gguf",
            "a-00002-of-abcde.gguf",
            "a.gguf",
            "..",
        ] {
            assert!(!is_later(name), "{name}");
        }
    }

    #[test]
    fn folders_of_gguf_files_are_not_models() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let add = |name: &str| fs::write(path(name), "").unwrap();
        assert_eq!(find_gguf(folder.path()), None);
        add("a-00003-of-00003.gguf");
        add("a-00002-of-00003.gguf");
        let shown = path("a-00002-of-00003.gguf").display().to_string();
        let expected = format!("name one of the folder's 2 GGUF files, such as {shown}");
        assert_eq!(find_gguf(folder.path()), Some(expected));
        add("a-00001-of-00003.gguf");
        let shown = path("a-00001-of-00003.gguf").display().to_string();
        let expected = format!("name the folder's GGUF file itself: {shown}");
        assert_eq!(find_gguf(folder.path()), Some(expected));
        add("b.gguf");
        let expected = format!("name one of the folder's 2 GGUF files, such as {shown}");
        assert_eq!(find_gguf(folder.path()), Some(expected));
    }

    #[test]
    fn pointers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
        fs::write(&path, pointer).unwrap();
        let message = refuse_pointer(&path).unwrap_err().to_string();
        assert!(
            message.contains("a pointer of Git LFS") && message.contains("git lfs pull"),
            "{message}"
        );
        fs::write(&path, "version").unwrap();
        refuse_pointer(&path).unwrap();
    }
}
