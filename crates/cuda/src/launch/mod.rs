//! Safe launch functions, one for each kernel, which check their arguments.
//!
//! | kernel                           | purpose                                                   |
//! |----------------------------------|-----------------------------------------------------------|
//! | [`AttendLists`], [`CombineSums`] | weighted attention over token lists                       |
//! | [`Take`]                         | ranges of tokens, and drawn tokens                        |
//! | [`Encode`]                       | hash codes of keys and of queries                         |
//! | [`ScoreCodes`]                   | number of bits that hash codes have in common             |
//! | [`ScorePages`]                   | bounds of pages of keys, and upper bounds on their logits |
//! | [`ScoreLogits`]                  | logits of all tokens                                      |
//! | [`Select`]                       | untaken tokens with the largest scores                    |
//! | [`ListTaken`]                    | lists of the taken tokens                                 |
//! | [`Draw`]                         | uniform sample of the untaken tokens                      |
//! | [`OpenSamples`]                  | size of the first part of each sample                     |
//! | [`ComputeMoments`]               | moments of each sample                                    |
//! | [`BudgetCheck`]                  | number of tokens to draw next, from moments or bounds     |
//!
//! The functions are safe because the types of their arguments have the facts that kernels rely on:
//! an [`Array`] has its length, [`Pages`] own the memory that their table points to, and [`Lists`]
//! have the number of rows that they need. No other code starts kernels.

mod array;
mod attend;
mod bounds;
mod budget_check;
mod codes;
mod combine;
mod encode;
mod list_taken;
mod lists;
mod logits;
mod moments;
mod network;
mod open_samples;
mod page_bounds;
mod progress;
mod rounds;
mod rows;
mod sample;
mod score;
mod score_pages;
mod scores;
mod select;
mod step_numbers;
mod take;
mod taken;
mod work;

pub use array::Array;
pub use attend::{AttendLists, Logits, Records};
pub use bounds::{Bounds, Proofs};
pub use budget_check::BudgetCheck;
pub use codes::DeviceCodes;
pub(crate) use combine::softmax;
pub use combine::{CombineSums, Sums};
pub use encode::Encode;
pub(crate) use encode::Encoding;
pub use list_taken::ListTaken;
pub use lists::Lists;
pub use logits::ScoreLogits;
pub use moments::{ComputeMoments, MomentInputs, SampleMoments};
pub use network::{DeviceNetwork, NetworkShape};
pub use open_samples::OpenSamples;
pub use page_bounds::PageBounds;
pub(crate) use progress::read_sample_states;
pub use progress::{Progress, SampleState};
pub use rounds::{Rounds, UnsampledList};
pub use rows::{Pages, RowLayout};
pub use sample::{Draw, DrawInputs};
pub use score::ScoreCodes;
pub(crate) use score_pages::PageArrays;
pub use score_pages::ScorePages;
pub use scores::{DeviceScores, ScoreType};
pub use select::{Select, SelectBuffers};
pub use step_numbers::StepNumbers;
pub use take::Take;
pub use taken::Taken;
pub use work::{RecordedWork, Work};

use work::LaunchArgument;

use vattention_core::{Error, Result};

/// Most blocks along x that extend one head's index. For a long prompt each block loops over
/// several tiles of tokens.
const MOST_BLOCKS: usize = 64;

/// Most blocks along y.
const MOST_ALONG_Y: usize = 65_535;

/// Converts a number of blocks along y, and fails if it is too large.
fn along_y(what: &str, count: usize) -> Result<u32> {
    if count <= MOST_ALONG_Y {
        Ok(count as u32)
    } else {
        Err(Error::shape(what, format_args!("at most {MOST_ALONG_Y}"), count))
    }
}

/// Fails unless `got` equals `expected`.
fn expect(what: &str, expected: usize, got: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::shape(what, expected, got)) }
}
