//! Checksums of the rows from which the indexes of a KV head were computed.

use std::collections::hash_map;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

use foldhash::{SharedSeed, quality::SeedableRandomState};
use vattention_core::step::StoredRows;
use zerocopy::IntoBytes;

use crate::head_rows::HeadRows;

/// Number of tokens of a block, the unit in which indexes are shared.
const BLOCK: usize = 64;

static SHARED_SEED: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(draw_secret()));

/// Hash function with a secret of this process, so that nobody can prepare different rows with
/// equal checksums.
static HASH: LazyLock<SeedableRandomState> =
    LazyLock::new(|| SeedableRandomState::with_seed(draw_secret(), &SHARED_SEED));

/// Returns a random number from the operating system.
fn draw_secret() -> u64 {
    hash_map::RandomState::new().hash_one(0)
}

/// Checksums of the first keys and values of a KV head. A checksum covers all rows up to the end of
/// a block of 64 tokens, so equal checksums mean equal prefixes, except with a probability of about
/// 2^-64. Checksums of different processes cannot be compared.
#[derive(Clone, Debug, Default)]
pub struct RowChecksums {
    /// Checksum of the rows up to the end of each block.
    blocks: Vec<u64>,
    /// Checksums of the rows up to each of the newest tokens, which begin with a block and are less
    /// than two blocks, so that the removal of a few tokens is not the end of the checksums.
    newest: Vec<u64>,
    /// Number of tokens with a checksum.
    tokens: usize,
}

impl RowChecksums {
    /// Computes the checksums of rows. One pass over the rows.
    pub fn new(rows: &HeadRows<'_>) -> Self {
        let mut checksums = Self::default();
        checksums.append(rows, 0);
        checksums
    }

    /// Number of tokens in the longest common prefix of whole blocks.
    pub fn count_common_tokens(&self, other: &Self) -> usize {
        let equal = self.blocks.iter().zip(&other.blocks).take_while(|(a, b)| a == b);
        equal.count() * BLOCK
    }

    /// Number of tokens with a checksum.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Checksums of the longest prefix of `rows`, in whole blocks, that has these checksums.
    pub(crate) fn match_rows(&self, rows: &HeadRows<'_>) -> Self {
        let mut found = Self::default();
        for (block, &expected) in self.blocks.iter().enumerate() {
            let [start, end] = [block * BLOCK, (block + 1) * BLOCK];
            if end > rows.keys.len() {
                break;
            }
            found.append(&rows.first(end), start);
            if found.blocks[block] != expected {
                found.truncate(start);
                break;
            }
        }
        found
    }

    /// Adds the rows from token `first` on. If earlier tokens lack checksums, because tokens were
    /// removed that are not among the newest, later tokens have none either.
    pub(crate) fn append(&mut self, rows: &HeadRows<'_>, first: usize) {
        if first != self.tokens {
            return;
        }
        let HeadRows { keys, values } = rows;
        // The index may depend on the number type: rows of 8-bit integers need no copies.
        let kinds = [keys, values].map(|rows| matches!(rows.stored().0, StoredRows::Q8(..)).into());
        let (mut key, mut value) = (vec![0.0; keys.dim()], vec![0.0; values.dim()]);
        let mut last = self.newest.last().or(self.blocks.last()).copied().unwrap_or_default();
        for token in first..keys.len() {
            keys.copy_row(token, &mut key);
            values.copy_row(token, &mut value);
            let mut hasher = HASH.build_hasher();
            hasher.write_u64(last);
            hasher.write(&kinds);
            hasher.write(key.as_bytes());
            hasher.write(value.as_bytes());
            last = hasher.finish();
            self.push(last);
        }
    }

    fn push(&mut self, checksum: u64) {
        self.newest.push(checksum);
        self.tokens += 1;
        if self.tokens.is_multiple_of(BLOCK) {
            self.blocks.push(checksum);
            self.newest.drain(..self.newest.len() - BLOCK);
        }
    }

    /// Removes the checksums of all but the first `tokens` tokens, and those of further tokens if
    /// the cut is within a block that is not among the newest.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        let removed = self.tokens.saturating_sub(tokens);
        if removed == 0 {
            return;
        }
        self.blocks.truncate(tokens / BLOCK);
        if removed <= self.newest.len() {
            self.newest.truncate(self.newest.len() - removed);
            self.tokens = tokens;
        } else {
            self.newest.clear();
            self.tokens = self.blocks.len() * BLOCK;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vattention_core::Tokens;

    use super::*;

    const DIM: usize = 2;

    fn head_rows(numbers: &[f32]) -> HeadRows<'_> {
        let rows = Tokens::new(numbers, numbers.len() / DIM, DIM);
        HeadRows { keys: rows, values: rows }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::default()
        })]
        /// After the newest tokens were removed and others appended, checksums are those of the
        /// remaining rows; a cut within an older block ends them there.
        #[test]
        fn checksums_follow_appended_and_removed_rows(
            len in 0_usize..400, cut in 0_usize..400, more in 0_usize..200,
        ) {
            let cut = cut.min(len);
            let mut numbers: Vec<f32> = (0..(len + more) * DIM).map(|x| x as f32).collect();
            let mut checksums = RowChecksums::new(&head_rows(&numbers[..len * DIM]));
            checksums.truncate(cut);
            numbers[cut * DIM..].iter_mut().for_each(|x| *x += 0.5);
            let rows = head_rows(&numbers[..(cut + more) * DIM]);
            checksums.append(&rows, cut);
            let expected = RowChecksums::new(&rows);
            let is_complete = cut % BLOCK == 0 || cut / BLOCK * BLOCK + 2 * BLOCK > len;
            let blocks = if is_complete { (cut + more) / BLOCK } else { cut / BLOCK };
            prop_assert_eq!(&checksums.blocks[..], &expected.blocks[..blocks]);
            prop_assert_eq!(checksums.count_common_tokens(&expected), blocks * BLOCK);
        }

        /// One other number in any row ends the common prefix before its block.
        #[test]
        fn rows_that_differ_are_not_matched(
            len in 1_usize..300, place in 0_usize..600, in_keys in any::<bool>(),
        ) {
            let numbers: Vec<f32> = (0..len * DIM).map(|x| x as f32).collect();
            let place = place % numbers.len();
            let mut changed = numbers.clone();
            changed[place] = -1.0;
            let [keys, values] =
                if in_keys { [&changed, &numbers] } else { [&numbers, &changed] };
            let rows = |numbers| Tokens::new(numbers, len, DIM);
            let others = HeadRows { keys: rows(&keys[..]), values: rows(&values[..]) };
            let found = RowChecksums::new(&head_rows(&numbers)).match_rows(&others);
            prop_assert_eq!(found.tokens(), place / DIM / BLOCK * BLOCK);
            let all = RowChecksums::new(&head_rows(&numbers)).match_rows(&head_rows(&numbers));
            prop_assert_eq!(all.tokens(), len / BLOCK * BLOCK);
        }
    }

    /// Rows of floats and of integers can have equal numbers; indexes of them can differ.
    #[test]
    fn rows_of_integers_differ_from_rows_of_floats() {
        let (floats, integers) = ([1.0_f32; 2 * BLOCK], [1_i8; 2 * BLOCK]);
        let scales = [1.0; BLOCK];
        let integers = Tokens::new(&integers, BLOCK, DIM).with_scales(&scales).unwrap();
        let floats = RowChecksums::new(&head_rows(&floats));
        let integers = RowChecksums::new(&HeadRows { keys: integers, values: integers });
        assert_eq!(floats.count_common_tokens(&integers), 0);
    }
}
