//! Error about missing results.

use std::collections::BTreeSet;
use std::fmt;

/// Units without results that this run may not compute. The units of this run's own shard are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incomplete {
    /// Units without results.
    pub missing: Vec<MissingUnit>,
    /// Number of all units of this stage of the work.
    pub total: usize,
}

/// A unit without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingUnit {
    /// Key of the unit.
    pub unit: String,
    /// Number of the shard that computes the unit, if the work is divided.
    pub shard: Option<usize>,
}

/// Number of missing units that the message names.
const NAMED: usize = 5;

impl Incomplete {
    /// Creates the error for missing units of a stage of `total` units.
    pub fn new(missing: Vec<MissingUnit>, total: usize) -> Self {
        Self { missing, total }
    }

    /// Returns the numbers of the shards that compute the missing units, ascending.
    pub fn shards(&self) -> Vec<usize> {
        let shards: BTreeSet<usize> = self.missing.iter().filter_map(|unit| unit.shard).collect();
        shards.into_iter().collect()
    }
}

impl fmt::Display for Incomplete {
    /// Writes the number of missing units, their shards, and the keys of the first few.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { missing, total } = self;
        write!(f, "{} of {total} results are missing", missing.len())?;
        let shards = self.shards();
        if !shards.is_empty() {
            let plural = if shards.len() == 1 { "" } else { "s" };
            write!(f, ", of shard{plural} {}", ranges(&shards))?;
        }
        for one in missing.iter().take(NAMED) {
            write!(f, "\n  {}", one.unit)?;
        }
        let more = missing.len().saturating_sub(NAMED);
        if more > 0 { write!(f, "\n  and {more} more") } else { Ok(()) }
    }
}

/// Formats ascending numbers as `1, 3-5`.
fn ranges(numbers: &[usize]) -> String {
    let together = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = together.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    text.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_named_and_shards_are_in_ranges() {
        let missing = |i: usize| MissingUnit { unit: format!("unit {i}"), shard: Some(i) };
        let few = Incomplete::new([1, 3, 4, 5].map(missing).into(), 9).to_string();
        let units = "\n  unit 1\n  unit 3\n  unit 4\n  unit 5";
        assert_eq!(few, format!("4 of 9 results are missing, of shards 1, 3-5{units}"));
        let many = Incomplete::new((1..=7).map(missing).collect(), 7).to_string();
        assert!(many.ends_with("unit 5\n  and 2 more"), "{many}");
        let own =
            Incomplete::new(vec![MissingUnit { unit: "a".into(), shard: None }], 1).to_string();
        assert_eq!(own, "1 of 1 results are missing\n  a");
    }
}
