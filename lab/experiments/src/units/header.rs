//! What results depend on: the first line of their file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::lines::{BEGINNINGS, LineFile};
use super::shard::Part;
use crate::{Error, Result};

/// What all results of a file depend on, and whose share they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of the program.
    pub vattention: String,
    /// The command and its arguments, but for those that change no result.
    pub command: Vec<String>,
    /// Digests of what was read, by what it is.
    pub inputs: BTreeMap<String, String>,
    /// How many shards there are, if the work is shared.
    pub shards: Option<usize>,
    /// The number of the shard, if the results are of one.
    pub shard: Option<usize>,
}

impl Header {
    /// The first difference in what results depend on, if any: what it is here, and there.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let both = |what: &str, own: Option<&String>, other: Option<&String>| {
            let text = |it: Option<&String>| it.map_or("nothing".into(), |it| format!("`{it}`"));
            (own != other).then(|| format!("{what} is {} and {}", text(own), text(other)))
        };
        let arguments = || {
            let most = self.command.len().max(other.command.len());
            let argument = |i: usize| {
                let name = format!("argument {}", i + 1);
                both(&name, self.command.get(i), other.command.get(i))
            };
            (0..most).find_map(argument)
        };
        let inputs = || {
            let names = self.inputs.keys().chain(other.inputs.keys());
            let input = |name: &String| {
                let (own, other) = (self.inputs.get(name), other.inputs.get(name));
                both(&format!("the digest of {name}"), own, other)
            };
            names.map(input).find_map(|difference| difference)
        };
        both("the version", Some(&self.vattention), Some(&other.vattention))
            .or_else(arguments)
            .or_else(inputs)
    }

    /// The header of the lines of a file of results, if it has one.
    ///
    /// # Errors
    /// A first line that is a header, but no whole one.
    pub fn of_lines(path: &Path, text: &str) -> Result<Option<Self>> {
        let Some(first) = text.lines().next().filter(|line| line.starts_with(BEGINNINGS[0])) else {
            return Ok(None);
        };
        let header = serde_json::from_str(first).map_err(|error| {
            let reason = format!("{error}; expected what results depend on");
            Error::Results { path: path.into(), line: 1, reason }
        })?;
        Ok(Some(header))
    }

    /// It, as a line.
    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers can be written")
    }

    /// Opens the file of results that depend on this, or begins one; its lines, the header first.
    ///
    /// # Errors
    /// A file that cannot be read or written, that is none of results, or whose results depend on something
    /// else or are of another shard.
    pub fn open(&self, path: &Path, part: Part) -> Result<(LineFile, String)> {
        let (mut file, text) = LineFile::open(path)?;
        let own = self.of_part(part);
        if text.is_empty() {
            file.push(&own.line())?;
            return Ok((file, own.line() + "\n"));
        }
        let refuse = |reason| Err(Error::Results { path: path.into(), line: 1, reason });
        let Some(kept) = Self::of_lines(path, &text)? else {
            return refuse(
                "expected what results depend on, as `--results` and `--shard` write it".into(),
            );
        };
        if let Some(difference) = kept.difference(self) {
            return refuse(format!("{difference}, there and now; expected results of the same"));
        }
        let Part::Shard(shard) = part else { return Ok((file, text)) };
        let as_now = (kept.shards, kept.shard) == (own.shards, own.shard);
        if let (Some(shards), Some(number), false) = (kept.shards, kept.shard, as_now) {
            return refuse(format!(
                "results of shard {number}/{shards}; expected those of {shard}"
            ));
        }
        if !as_now {
            // Results of all shards, which this one goes on from.
            file.replace_first(&text, &own.line())?;
        }
        Ok((file, text))
    }

    /// The same for a part of the work.
    fn of_part(&self, part: Part) -> Self {
        let shard = match part {
            Part::Shard(shard) => Some(shard.number()),
            Part::All | Part::Nothing { .. } => None,
        };
        Self { shards: part.shards(), shard, ..self.clone() }
    }
}
