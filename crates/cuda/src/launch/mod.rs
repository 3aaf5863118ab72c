//! One function for each kernel: it checks what it is given, and starts it.
//!
//! | kernel                    | what                                                      |
//! |---------------------------|-----------------------------------------------------------|
//! | [`Attend`], [`CombineSums`] | weighted attention over lists of rows                     |
//! | [`Take`]                  | ranges of tokens, and what was drawn                      |
//! | [`Encode`]                | hash codes of keys and of queries                         |
//! | [`ScoreCodes`]            | bits that hash codes have in common                       |
//! | [`ScorePages`]            | bounds of pages of keys, and what queries make of them    |
//! | [`ScoreLogits`]           | logits of all tokens                                      |
//! | [`Select`], [`ListTaken`] | the best scores among tokens not taken, and lists of them |
//! | [`Draw`]                  | a uniform sample of the others                            |
//! | [`Open`]                  | how many of them to draw first                            |
//! | [`Look`], [`BudgetCheck`]       | what the sample says, and how many more to draw; or how   |
//! |                           | many, if that is proved                                   |
//!
//! What these functions take says by its type that it is sound: an [`Array`] knows its length,
//! [`Pages`] hold what their table points to, [`Lists`] know which rows they need. So they are
//! safe, and the only ones that start kernels.

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
mod look;
mod network;
mod now;
mod open;
mod page_bounds;
mod progress;
mod rounds;
mod rows;
mod sample;
mod score;
mod score_pages;
mod scores;
mod select;
mod take;
mod taken;
mod work;

pub use array::Array;
pub use attend::{Attend, Logits, Records};
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
pub use look::{Look, Looked, SampleMoments};
pub use network::{DeviceNetwork, NetworkShape};
pub use now::Now;
pub use open::Open;
pub use page_bounds::PageBounds;
pub(crate) use progress::progressed;
pub use progress::{Progress, Progressed};
pub use rounds::{Opened, Rounds};
pub use rows::{Pages, RowLayout};
pub use sample::{Draw, Drawing};
pub use score::ScoreCodes;
pub(crate) use score_pages::Bounding;
pub use score_pages::ScorePages;
pub use scores::{Ranked, Scores};
pub use select::{Select, Selecting};
pub use take::Take;
pub use taken::Taken;
pub use work::{Recorded, Work};

use work::Given;

use vattention_core::{Error, Result};

/// The most blocks that bring what is kept of one head up to date: the tokens of a long prompt take
/// turns.
const MOST_BLOCKS: usize = 64;

/// The most blocks along y.
const MOST_ALONG_Y: usize = 65_535;

/// A number of blocks along y.
fn along_y(what: &str, count: usize) -> Result<u32> {
    if count <= MOST_ALONG_Y {
        Ok(count as u32)
    } else {
        Err(Error::shape(what, format_args!("at most {MOST_ALONG_Y}"), count))
    }
}

/// Fails unless there are as many as expected.
fn expect(what: &str, expected: usize, got: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::shape(what, expected, got)) }
}
