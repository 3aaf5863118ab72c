//! Files of results, joined.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::header::Header;
use super::lines::{LineFile, numbered};
use crate::{Error, Result};

/// The lines of several files of results.
#[derive(Clone, Debug)]
pub struct Merged {
    /// What all results depend on.
    pub header: Header,
    /// The file to write.
    pub text: String,
}

/// Joins files of results of the same work, each result once, in the order of the files.
///
/// # Errors
/// A file that cannot be read or is none of results, files whose results depend on different things, or a
/// result that differs between two lines but for its `seconds`.
pub fn merge_results(paths: &[PathBuf]) -> Result<Merged> {
    let mut joined: Option<(Header, &Path)> = None;
    let mut known: HashMap<String, (String, Value)> = HashMap::new();
    let mut lines = Vec::new();
    for path in paths {
        let text = LineFile::read(path)?;
        let refuse = |line, reason| Error::Results { path: path.clone(), line, reason };
        let header = Header::of_lines(path, &text)?.ok_or_else(|| {
            refuse(
                1,
                "expected what results depend on, as `--results` and `--shard` write it".into(),
            )
        })?;
        if let Some((first, there)) = &mut joined {
            first.join(&header).map_err(|difference| {
                let there = there.display();
                refuse(1, format!("{difference}, in {there} and here; expected the same"))
            })?;
        } else {
            joined = Some((Header { shard: None, ..header }, path));
        }
        for (number, line) in numbered(&text).skip(1) {
            let (key, value) = parse(line).map_err(|reason| refuse(number, reason))?;
            let here = format!("{}, line {number}", path.display());
            match known.get(&key) {
                None => {
                    lines.push(line.to_owned());
                    known.insert(key, (here, value));
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
    let all = std::iter::once(header.line()).chain(lines).map(|line| line + "\n");
    Ok(Merged { text: all.collect(), header })
}

impl Header {
    /// Takes another file's results for those of the same work, or says what differs.
    fn join(&mut self, other: &Self) -> Result<(), String> {
        if let Some(difference) = self.difference_of_shards(other) {
            return Err(difference);
        }
        self.shards = self.shards.or(other.shards);
        Ok(())
    }

    /// The first difference between shares that do not belong together.
    pub fn difference_of_shards(&self, other: &Self) -> Option<String> {
        self.difference(other).or_else(|| match (self.shards, other.shards) {
            (Some(own), Some(other)) if own != other => {
                Some(format!("the number of shards is {own} and {other}"))
            }
            _ => None,
        })
    }
}

/// What a line is about, and what it says of it, but for the time that it took.
fn parse(line: &str) -> Result<(String, Value), String> {
    const EXPECTED: &str = "expected a result that `vattention` kept";
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
