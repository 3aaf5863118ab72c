//! Units that are not there.

use std::collections::BTreeSet;
use std::fmt;

/// Units that this run may not compute and nobody has computed yet. The own share is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incomplete {
    /// What is missing.
    pub missing: Vec<Missing>,
    /// Units of this stage of the work.
    pub total: usize,
}

/// A unit that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its key.
    pub unit: String,
    /// The number of the shard that it belongs to, if the work is done by shards.
    pub shard: Option<usize>,
}

/// How many missing units are named.
const NAMED: usize = 5;

impl Incomplete {
    /// Of `total` units.
    pub fn new(missing: Vec<Missing>, total: usize) -> Self {
        Self { missing, total }
    }

    /// The shards that the missing units belong to, ascending.
    pub fn shards(&self) -> Vec<usize> {
        let shards: BTreeSet<usize> = self.missing.iter().filter_map(|it| it.shard).collect();
        shards.into_iter().collect()
    }
}

impl fmt::Display for Incomplete {
    /// How many are missing, the first few of them, and their shards.
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

/// Ascending numbers, as `1, 3-5`.
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
        let missing = |i: usize| Missing { unit: format!("unit {i}"), shard: Some(i) };
        let few = Incomplete::new([1, 3, 4, 5].map(missing).into(), 9).to_string();
        let units = "\n  unit 1\n  unit 3\n  unit 4\n  unit 5";
        assert_eq!(few, format!("4 of 9 results are missing, of shards 1, 3-5{units}"));
        let many = Incomplete::new((1..=7).map(missing).collect(), 7).to_string();
        assert!(many.ends_with("unit 5\n  and 2 more"), "{many}");
        let own = Incomplete::new(vec![Missing { unit: "a".into(), shard: None }], 1).to_string();
        assert_eq!(own, "1 of 1 results are missing\n  a");
    }
}
