//! RULER's tasks as texts: needles in haystacks, variables to follow, words to count, questions
//! about documents. A text is made to a length and a seed ([`Texts::case`]), and an answer is
//! scored as RULER scores it ([`Task::score`]). Nothing here knows a model.
//!
//! RULER: Hsieh et al., <https://arxiv.org/abs/2404.06654>. Sentences, counts and tokens to
//! generate are RULER's. What differs:
//!
//! - Words come from short lists of this crate's own. RULER hides needles in essays that are not
//!   ours to ship: by default the haystack is sentences of random words, or a file of prose
//!   ([`Texts::with_haystack`]).
//! - Keys and values differ from each other, and no answer of `cwe` is part of another.
//! - Needles lie anywhere with the same probability, not at one of 40 depths.
//! - `vt` has a worked example first, as in RULER, of 500 tokens, but of no more than a quarter of
//!   the text. (That of `cwe` is RULER's.)
//! - A question of `qa_1` or `qa_2` is drawn at random instead of in the file's order.
//! - Templates end without a blank, and so do the lines of `vt`.
//!
//! Datasets of published benchmarks come from their files ([`Benchmark`]), with their prompts and
//! metrics: `docs/evaluation.md`.
//!
//! Texts for a small model come from a vocabulary file instead ([`Texts::open`]), of its words
//! alone.

mod benchmarks;
mod case;
mod cwe;
mod draw;
mod error;
mod fit;
mod fwe;
mod metrics;
mod niah;
mod prose;
mod python;
mod qa;
mod qa_files;
mod source;
mod task;
mod templates;
mod texts;
mod vocabulary;
mod vt;
mod words;

pub use benchmarks::{Benchmark, Dataset};
pub use case::Case;
pub use error::{Error, Result};
pub use metrics::AnswerMetric;
pub use task::{Task, tasks};
pub use texts::Texts;
