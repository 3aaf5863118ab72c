//! Merging of files of results.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::header::{Header, MISSING_HEADER};
use super::lines::{LineFile, number_lines};
use crate::{Error, Result};

/// Merged lines of several files of results.
#[derive(Clone, Debug)]
pub struct MergedResults {
    /// Header: the inputs that all results depend on.
    pub header: Header,
    /// Text of the merged file.
    pub text: String,
}

/// Merges files of results of the same work, each result once, in the order of the files.
///
/// # Errors
/// If a file cannot be read or is not a file of results, the results of files depend on different
/// inputs, or two lines have different results of one unit, apart from `seconds`.
pub fn merge_results(paths: &[PathBuf]) -> Result<MergedResults> {
    let mut joined: Option<(Header, &Path)> = None;
    let mut merged: HashMap<String, (String, Value)> = HashMap::new();
    let mut lines = Vec::new();
    for path in paths {
        let text = LineFile::read(path)?;
        let refuse = |line, reason| Error::Results { path: path.clone(), line, reason };
        let header = Header::parse(path, &text)?.ok_or_else(|| refuse(1, MISSING_HEADER.into()))?;
        if let Some((first, there)) = &mut joined {
            first.join(&header).map_err(|difference| {
                let there = there.display();
                refuse(1, format!("{difference}, in {there} and here; expected the same"))
            })?;
        } else {
            joined = Some((Header { shard: None, ..header }, path));
        }
        for (number, line) in number_lines(&text).skip(1) {
            let (key, value) = parse_result(line).map_err(|reason| refuse(number, reason))?;
            let here = format!("{}, line {number}", path.display());
            match merged.get(&key) {
                None => {
                    lines.push(line.to_owned());
                    merged.insert(key, (here, value));
                }
                Some((_, other)) if *other == value => {}
                Some((there, _)) => {
                    let reason = format!("{key} has another result than in {there}");
                    return Err(refuse(
                        number,
                        format!("{reason}; expected the same from the same work"),
                    ));
                }
            }
        }
    }
    let nothing = || Error::Setting { field: "files", reason: "expected at least one".into() };
    let (header, _) = joined.ok_or_else(nothing)?;
    let all = std::iter::once(header.to_line()).chain(lines).map(|line| line + "\n");
    Ok(MergedResults { text: all.collect(), header })
}

impl Header {
    /// Joins the header of another file of the same work, or describes the difference.
    fn join(&mut self, other: &Self) -> Result<(), String> {
        if let Some(difference) = self.difference_of_shards(other) {
            return Err(difference);
        }
        self.shards = self.shards.or(other.shards);
        Ok(())
    }

    /// Describes the first difference between the headers of two shards; `None` if they belong to
    /// the same work.
    pub fn difference_of_shards(&self, other: &Self) -> Option<String> {
        self.difference(other).or_else(|| match (self.shards, other.shards) {
            (Some(own), Some(other)) if own != other => {
                Some(format!("the number of shards is {own} and {other}"))
            }
            _ => None,
        })
    }
}

/// Parses a line: the key of its result, and the line as JSON, without the time that the result
/// took.
fn parse_result(line: &str) -> Result<(String, Value), String> {
    const EXPECTED: &str = "expected a result that `vattention` wrote";
    let mut value: Value =
        serde_json::from_str(line).map_err(|error| format!("{error}; {EXPECTED}"))?;
    let key = ["unit", "digest"]
        .into_iter()
        .find_map(|key| Some(format!("{key} `{}`", value.get(key)?.as_str()?)));
    let key = key.ok_or(EXPECTED)?;
    if let Some(Value::Object(result)) = value.get_mut("value") {
        result.remove("seconds");
    }
    Ok((key, value))
}
