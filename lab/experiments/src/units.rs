//! Work in units, which can be interrupted, resumed, and divided among several machines.
//!
//! The work of a command is a list of units, each with a key that identifies it. The result of a
//! unit is written to a [line of a file](LineFile) as soon as it is computed. A [`Shard`] computes
//! its share of the units; the lines of all shards together are those of one run.
//!
//! ```
//! use vattention_experiments::{Error, Results};
//!
//! let keys = ["one", "two"].map(String::from);
//! let lengths: Vec<usize> = Results::default().run(&keys, |i| Ok::<_, Error>(keys[i].len()))?;
//! assert_eq!(lengths, [3, 3]);
//! # Ok::<(), Error>(())
//! ```

mod header;
mod incomplete;
mod lines;
mod merge;
mod shard;
mod value;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Error, Result};

pub use header::Header;
pub use incomplete::{Incomplete, MissingUnit};
pub use lines::LineFile;
pub use merge::{MergedResults, merge_results};
pub use shard::{Part, Shard};

/// Results of units, and the file that stores them, if there is one. By default there is no file,
/// and all units are computed.
#[derive(Debug, Default)]
pub struct Results {
    part: Part,
    store: Option<Mutex<Store>>,
}

#[derive(Debug)]
struct Store {
    file: LineFile,
    /// Stored results, by the keys of their units.
    values: HashMap<String, Box<RawValue>>,
}

/// Line of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unit {
    unit: String,
    value: Box<RawValue>,
}

/// Receiver of the results of units, from any thread.
#[allow(missing_debug_implementations)]
pub struct ResultSink<'a, T> {
    results: &'a Results,
    keys: &'a [String],
    received: Mutex<Vec<Option<T>>>,
}

impl Results {
    /// Opens a file of results, or creates it. An incomplete last line, which an
    /// interruption leaves, is removed.
    ///
    /// # Errors
    /// If the file cannot be read or written, another run has it open, it is not a file of results,
    /// or its [`Header`] differs from `header`.
    pub fn open(path: &Path, header: &Header, part: Part) -> Result<Self> {
        let (file, text) = header.open(path, part)?;
        let mut values = HashMap::new();
        for (number, line) in lines::number_lines(&text).skip(1) {
            let Unit { unit, value } = serde_json::from_str(line).map_err(|error| {
                let reason = format!("{error}; expected a result that `vattention` wrote");
                Error::Results { path: path.into(), line: number, reason }
            })?;
            values.insert(unit, value);
        }
        Ok(Self { part, store: Some(Mutex::new(Store { file, values })) })
    }

    /// Units that may be computed.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Returns the result of each unit, in the order of `keys`: the stored result, or else the
    /// result of `compute`, which is called with the index of the unit. Keys must be different,
    /// here and in other calls.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if units are missing that other shards compute; errors of `compute`;
    /// an error if a result cannot be stored, or the stored result has another type.
    pub fn run<T, E>(
        &self,
        keys: &[String],
        mut compute: impl FnMut(usize) -> Result<T, E>,
    ) -> Result<Vec<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        self.run_together(keys, |numbers, sink| {
            numbers.iter().try_for_each(|&number| Ok(sink.put(number, compute(number)?)?))
        })
    }

    /// Variant of [`run`](Self::run) for units that are computed together: `compute` is called with
    /// the indices of the missing units, ascending, and puts each result as soon as it is known.
    ///
    /// # Errors
    /// Same as [`run`](Self::run).
    ///
    /// # Panics
    /// If `compute` returns without an error before it has put all results.
    pub fn run_together<T, E>(
        &self,
        keys: &[String],
        compute: impl FnOnce(&[usize], &ResultSink<'_, T>) -> Result<(), E>,
    ) -> Result<Vec<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        let stored = keys.iter().map(|key| self.find(key)).collect::<Result<Vec<_>>>()?;
        let allowed = self.part.units(keys.len());
        let missing = |number: &usize| stored[*number].is_none();
        let numbers: Vec<usize> = allowed.clone().filter(missing).collect();
        let others: Vec<usize> =
            (0..keys.len()).filter(|number| !allowed.contains(number)).filter(missing).collect();
        let sink = ResultSink { results: self, keys, received: Mutex::new(stored) };
        if !numbers.is_empty() {
            compute(&numbers, &sink)?;
        }
        if !others.is_empty() {
            let missing = others.into_iter().map(|number| MissingUnit {
                unit: keys[number].clone(),
                shard: self.part.shard_of(number, keys.len()),
            });
            return Err(Error::Incomplete(Incomplete::new(missing.collect(), keys.len())).into());
        }
        let received = sink.received.into_inner().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<T> = received.into_iter().flatten().collect();
        assert_eq!(all.len(), keys.len(), "`compute` must put a result for each unit");
        Ok(all)
    }

    /// Refuses to report the results of a single shard: reports are about the units of all shards.
    ///
    /// # Errors
    /// [`Error::Incomplete`] without missing units.
    pub fn expect_all_shards(&self) -> Result<()> {
        match self.part {
            Part::Shard(_) => Err(Error::Incomplete(Incomplete::default())),
            Part::All | Part::Nothing { .. } => Ok(()),
        }
    }

    fn find<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let Some(store) = self.lock_store() else { return Ok(None) };
        let Some(text) = store.values.get(key) else { return Ok(None) };
        let value = value::from_text(text.get()).map_err(|error| {
            store.file.refuse(format!(
                "the result of `{key}`: {error}; expected a result of another type"
            ))
        })?;
        Ok(Some(value))
    }

    fn store<T: Serialize>(&self, key: &str, result: &T) -> Result<()> {
        let Some(mut store) = self.lock_store() else { return Ok(()) };
        let failed = |error| Error::Setting { field: "results", reason: format!("{key}: {error}") };
        let value = value::to_text(result).map_err(failed)?;
        let line = serde_json::to_string(&Unit { unit: key.into(), value });
        store.file.push(&line.map_err(|error| failed(error.to_string()))?)
    }

    fn lock_store(&self) -> Option<MutexGuard<'_, Store>> {
        self.store.as_ref().map(|store| store.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Serialize> ResultSink<'_, T> {
    /// Stores the result of a unit, which is in the file when this function returns.
    ///
    /// # Errors
    /// If the result cannot be written.
    pub fn put(&self, number: usize, result: T) -> Result<()> {
        self.results.store(&self.keys[number], &result)?;
        self.received.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(result);
        Ok(())
    }
}

/// Joins the results of two independent stages. The second stage runs even if units of the first
/// are missing.
///
/// # Errors
/// Errors of either stage; [`Error::Incomplete`] lists the missing units of both.
pub(crate) fn join_stages<A, B>(
    first: Result<A>,
    second: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    match first {
        Ok(first) => Ok((first, second()?)),
        Err(Error::Incomplete(mut missing)) => Err(match second() {
            Ok(_) => Error::Incomplete(missing),
            Err(Error::Incomplete(more)) => {
                missing.missing.extend(more.missing);
                Error::Incomplete(Incomplete::new(missing.missing, missing.total + more.total))
            }
            Err(other) => other,
        }),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests;
