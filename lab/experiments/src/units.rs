//! Work in units, so that it can be interrupted, go on, and be shared by several machines.
//!
//! A command's work is a list of units, each with a key that says what it is. What a unit came to is a
//! [line of a file](LineFile) as soon as it is known. A [`Shard`] computes its share of the units; the
//! lines of all shards together are those of one run.
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
pub use incomplete::{Incomplete, Missing};
pub use lines::LineFile;
pub use merge::{Merged, merge_results};
pub use shard::{Part, Shard};

/// What units came to, and the file that it is kept in, if there is one. By default there is none, and everything is
/// computed.
#[derive(Debug, Default)]
pub struct Results {
    part: Part,
    store: Option<Mutex<Store>>,
}

#[derive(Debug)]
struct Store {
    file: LineFile,
    kept: HashMap<String, Box<RawValue>>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unit {
    unit: String,
    value: Box<RawValue>,
}

/// Takes what some units came to, from any thread. Each is in the file when this returns.
#[allow(missing_debug_implementations)]
pub struct Keep<'a, T> {
    results: &'a Results,
    keys: &'a [String],
    made: Mutex<Vec<Option<T>>>,
}

impl Results {
    /// Opens a file of results, or begins one. A last line that was cut by an interruption is taken away.
    ///
    /// # Errors
    /// A file that cannot be read or written, that another run is writing, that is none of results, or whose
    /// [`Header`] differs from `header`.
    pub fn open(path: &Path, header: &Header, part: Part) -> Result<Self> {
        let (file, text) = header.open(path, part)?;
        let mut kept = HashMap::new();
        for (number, line) in lines::numbered(&text).skip(1) {
            let Unit { unit, value } = serde_json::from_str(line).map_err(|error| {
                let reason = format!("{error}; expected a result that `vattention` kept");
                Error::Results { path: path.into(), line: number, reason }
            })?;
            kept.insert(unit, value);
        }
        Ok(Self { part, store: Some(Mutex::new(Store { file, kept })) })
    }

    /// Which units may be computed.
    pub fn part(&self) -> Part {
        self.part
    }

    /// What each unit came to, in the order of `keys`: kept, or made by `compute` of its number. Keys must be
    /// different, here and in other calls.
    ///
    /// # Errors
    /// [`Error::Incomplete`] if units are missing that other shards compute; what `compute` says; a result that
    /// cannot be kept, or is of another kind.
    pub fn run<T, E>(
        &self,
        keys: &[String],
        mut compute: impl FnMut(usize) -> Result<T, E>,
    ) -> Result<Vec<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        self.run_together(keys, |numbers, keep| {
            numbers.iter().try_for_each(|&number| Ok(keep.put(number, compute(number)?)?))
        })
    }

    /// As [`run`](Self::run), for units that are computed together: `compute` is given the numbers of those
    /// to compute, ascending, and hands each over as it comes.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If `compute` returns without an error before it has handed over all.
    pub fn run_together<T, E>(
        &self,
        keys: &[String],
        compute: impl FnOnce(&[usize], &Keep<'_, T>) -> Result<(), E>,
    ) -> Result<Vec<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        let known = keys.iter().map(|key| self.find(key)).collect::<Result<Vec<_>>>()?;
        let own = self.part.units(keys.len());
        let missing = |number: &usize| known[*number].is_none();
        let numbers: Vec<usize> = own.clone().filter(missing).collect();
        let others: Vec<usize> =
            (0..keys.len()).filter(|number| !own.contains(number)).filter(missing).collect();
        let keep = Keep { results: self, keys, made: Mutex::new(known) };
        if !numbers.is_empty() {
            compute(&numbers, &keep)?;
        }
        if !others.is_empty() {
            let missing = others.into_iter().map(|number| Missing {
                unit: keys[number].clone(),
                shard: self.part.shard_of(number, keys.len()),
            });
            return Err(Error::Incomplete(Incomplete::new(missing.collect(), keys.len())).into());
        }
        let made = keep.made.into_inner().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<T> = made.into_iter().flatten().collect();
        assert_eq!(all.len(), keys.len(), "what was to be computed was handed over");
        Ok(all)
    }

    /// Of a shard, that its share is done, which is no reason to tell results: those are of all shards.
    ///
    /// # Errors
    /// [`Error::Incomplete`], of which nothing is missing.
    pub fn expect_whole(&self) -> Result<()> {
        match self.part {
            Part::Shard(_) => Err(Error::Incomplete(Incomplete::default())),
            Part::All | Part::Nothing { .. } => Ok(()),
        }
    }

    fn find<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let Some(store) = self.store() else { return Ok(None) };
        let Some(text) = store.kept.get(key) else { return Ok(None) };
        let value = value::from_text(text.get()).map_err(|error| {
            store
                .file
                .refuse(format!("the result of `{key}`: {error}; expected one of another kind"))
        })?;
        Ok(Some(value))
    }

    fn keep<T: Serialize>(&self, key: &str, made: &T) -> Result<()> {
        let Some(mut store) = self.store() else { return Ok(()) };
        let failed = |error| Error::Setting { field: "results", reason: format!("{key}: {error}") };
        let value = value::to_text(made).map_err(failed)?;
        let line = serde_json::to_string(&Unit { unit: key.into(), value });
        store.file.push(&line.map_err(|error| failed(error.to_string()))?)
    }

    fn store(&self) -> Option<MutexGuard<'_, Store>> {
        self.store.as_ref().map(|store| store.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Serialize> Keep<'_, T> {
    /// Keeps what a unit came to.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&self, number: usize, made: T) -> Result<()> {
        self.results.keep(&self.keys[number], &made)?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(made);
        Ok(())
    }
}

/// What two stages come to that do not need each other: the second is run although some of the first is missing.
///
/// # Errors
/// What they say, missing units of both together.
pub(crate) fn both<A, B>(first: Result<A>, second: impl FnOnce() -> Result<B>) -> Result<(A, B)> {
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
