//! Files of a model that llama.cpp's `gguf-split` has split: `NAME-00001-of-00003.gguf` and so on.
//!
//! The first part has all metadata. The others have the keys `split.*`, and tensors.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::gguf_file::Value;

use super::part::GgufPart;
use super::value::{typed, whole_number};
use crate::{Error, Result};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

const EXTENSION: &str = ".gguf";

/// Position of a part among all parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SplitKeys {
    /// Number of the part, from 0.
    number: u64,
    /// Number of parts, at least 2.
    count: u64,
    /// Number of tensors of all parts together.
    tensors: u64,
}

/// Opens a file and, if it is the first part of a split model, all other parts.
///
/// # Errors
/// The errors of [`GgufPart::open`], and [`Error::Checkpoint`] with the file and what is wrong: a
/// part is missing or is another one than its name says, or the parts are not those of one model.
pub(super) fn open_parts(path: &Path) -> Result<Vec<GgufPart>> {
    let first = GgufPart::open(path)?;
    let keys = SplitKeys::read(&first.header.metadata);
    let Some(keys) = keys.map_err(|reason| Error::checkpoint(path, reason))? else {
        return Ok(vec![first]);
    };
    let name = keys.split_name(path).map_err(|reason| Error::checkpoint(path, reason))?;
    if keys.number != 0 {
        let (part, count) = (keys.number + 1, keys.count);
        let first = path.with_file_name(keys.join_name(name, 0));
        let reason = format!("part {part} of {count}; give part 1, {}", first.display());
        return Err(Error::checkpoint(path, reason));
    }
    let mut parts = vec![first];
    for number in 1..keys.count {
        let other = path.with_file_name(keys.join_name(name, number));
        parts.push(keys.open_part(path, &other, number)?);
    }
    let tensors: usize = parts.iter().map(|part| part.header.tensors.len()).sum();
    if tensors as u64 != keys.tensors {
        let (count, expected) = (keys.count, keys.tensors);
        let reason = format!("its {count} parts have {tensors} tensors; `{TENSORS}` is {expected}");
        return Err(Error::checkpoint(path, reason));
    }
    Ok(parts)
}

impl SplitKeys {
    /// Reads the keys; `None` if the model is not split.
    fn read(metadata: &HashMap<String, Value>) -> Result<Option<Self>, String> {
        if !metadata.contains_key(COUNT) || read_key(metadata, COUNT)? < 2 {
            return Ok(None);
        }
        let keys = Self {
            number: read_key(metadata, NUMBER)?,
            count: read_key(metadata, COUNT)?,
            tensors: read_key(metadata, TENSORS)?,
        };
        if keys.number >= keys.count {
            let Self { number, count, .. } = keys;
            return Err(format!("`{NUMBER}` is {number}; expected less than `{COUNT}` = {count}"));
        }
        Ok(Some(keys))
    }

    /// Returns the name of a part without number, count and extension.
    fn split_name(self, path: &Path) -> Result<&str, String> {
        let end = self.join_name("", self.number);
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_suffix(end.as_str())).ok_or_else(|| {
            let Self { number, count, .. } = self;
            format!(
                "`{NUMBER}` is {number} and `{COUNT}` is {count}; expected a file whose name ends \
                 in {end}"
            )
        })
    }

    /// Name of the part with a number, from 0.
    fn join_name(self, name: &str, number: u64) -> String {
        format!("{name}-{:05}-of-{:05}{EXTENSION}", number + 1, self.count)
    }

    /// Opens a part other than `first`, and checks that it belongs to it.
    fn open_part(self, first: &Path, path: &Path, number: u64) -> Result<GgufPart> {
        let (place, count, first) = (number + 1, self.count, first.display());
        if !path.exists() {
            let reason = format!("no such file; expected part {place} of {count} of {first}");
            return Err(Error::checkpoint(path, reason));
        }
        let part = GgufPart::open(path)?;
        let expected = Self { number, ..self };
        let found = expected.compare(&part.header.metadata);
        found.map_err(|reason| {
            let reason = format!("{reason}, as part {place} of {count} of {first}");
            Error::checkpoint(path, reason)
        })?;
        Ok(part)
    }

    /// Compares with the keys of another part.
    fn compare(self, metadata: &HashMap<String, Value>) -> Result<(), String> {
        let keys = [(NUMBER, self.number), (COUNT, self.count), (TENSORS, self.tensors)];
        for (key, expected) in keys {
            let found = read_key(metadata, key)?;
            if found != expected {
                return Err(format!("`{key}` is {found}; expected {expected}"));
            }
        }
        Ok(())
    }
}

fn read_key(metadata: &HashMap<String, Value>, key: &str) -> Result<u64, String> {
    let value = metadata.get(key).ok_or_else(|| format!("no `{key}`; expected a whole number"))?;
    let number = whole_number(value).and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| format!("`{key}` is {}; expected a whole number", typed(value)))
}
