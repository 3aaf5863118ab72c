//! Header of a file of results: the first line, which names the inputs that the results depend on.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::lines::{BEGINNINGS, LineFile};
use super::shard::Part;
use crate::{Error, Result};

/// Inputs that all results of a file depend on, and the shard that computed the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of the program.
    pub vattention: String,
    /// Command and its arguments, except those that change no result. They are compared as text:
    /// two spellings of a command differ, but no difference is overlooked.
    pub command: Vec<String>,
    /// Digests of the inputs, by the name of the input.
    pub inputs: BTreeMap<String, String>,
    /// Number of shards, if the work is divided.
    pub shards: Option<usize>,
    /// Number of the shard, if the results are those of one shard.
    pub shard: Option<usize>,
}

/// Refusal of a file without a header.
pub(super) const MISSING_HEADER: &str =
    "expected a header that names the inputs of the results, as `vattention` writes";

impl Header {
    /// Describes the first difference between the inputs of two files, in `self` and in `other`;
    /// `None` if the inputs are equal.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let describe = |what: &str, own: Option<&String>, other: Option<&String>| {
            let text = |value: Option<&String>| {
                value.map_or("nothing".into(), |value| format!("`{value}`"))
            };
            (own != other).then(|| format!("{what} is {} and {}", text(own), text(other)))
        };
        let arguments = || {
            let most = self.command.len().max(other.command.len());
            let argument = |i: usize| {
                let name = format!("argument {}", i + 1);
                describe(&name, self.command.get(i), other.command.get(i))
            };
            (0..most).find_map(argument)
        };
        let inputs = || {
            let names = self.inputs.keys().chain(other.inputs.keys());
            let input = |name: &String| {
                let (own, other) = (self.inputs.get(name), other.inputs.get(name));
                describe(&format!("the digest of {name}"), own, other)
            };
            names.map(input).find_map(|difference| difference)
        };
        describe("the version", Some(&self.vattention), Some(&other.vattention))
            .or_else(arguments)
            .or_else(inputs)
    }

    /// Parses the header from the text of a file of results; `None` if the file does not begin with
    /// one.
    ///
    /// # Errors
    /// If the first line begins like a header, but is malformed.
    pub fn parse(path: &Path, text: &str) -> Result<Option<Self>> {
        let Some(first) = text.lines().next().filter(|line| line.starts_with(BEGINNINGS[0])) else {
            return Ok(None);
        };
        let header = serde_json::from_str(first).map_err(|error| {
            let reason = format!("{error}; expected a header that names the inputs of the results");
            Error::Results { path: path.into(), line: 1, reason }
        })?;
        Ok(Some(header))
    }

    /// Formats the header as a line, without the line's end.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers can be serialized")
    }

    /// Opens the file of results with this header, or creates it; returns its text, the header
    /// first.
    ///
    /// # Errors
    /// If the file cannot be read or written, another run has it open, it is not a file of results,
    /// or its results depend on other inputs or are those of another shard.
    pub fn open(&self, path: &Path, part: Part) -> Result<(LineFile, String)> {
        let (mut file, text) = LineFile::open(path)?;
        let expected = self.with_part(part);
        if text.is_empty() {
            file.push(&expected.to_line())?;
            return Ok((file, expected.to_line() + "\n"));
        }
        let refuse = |reason| Err(Error::Results { path: path.into(), line: 1, reason });
        let Some(found) = Self::parse(path, &text)? else {
            return refuse(MISSING_HEADER.into());
        };
        if let Some(difference) = found.difference(self) {
            return refuse(format!("{difference}, in the file and in this run; expected the same"));
        }
        let Part::Shard(shard) = part else { return Ok((file, text)) };
        let same_shard = (found.shards, found.shard) == (expected.shards, expected.shard);
        if let (Some(shards), Some(number), false) = (found.shards, found.shard, same_shard) {
            return refuse(format!(
                "results of shard {number}/{shards}; expected those of {shard}"
            ));
        }
        if !same_shard {
            // The file has merged results of all shards, from which this shard continues.
            file.replace_first(&text, &expected.to_line())?;
        }
        Ok((file, text))
    }

    /// Returns the header of a part of the work.
    fn with_part(&self, part: Part) -> Self {
        let shard = match part {
            Part::Shard(shard) => Some(shard.number()),
            Part::All | Part::Nothing { .. } => None,
        };
        Self { shards: part.shards(), shard, ..self.clone() }
    }
}
