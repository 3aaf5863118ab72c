//! Texts of RULER's tasks: needles in haystacks, variables to follow, words to count, questions
//! about documents. A text is generated for a length and a seed ([`Texts::case`]), and an answer is
//! scored as in RULER ([`Task::score`]). This crate does not depend on a model.
//!
//! RULER: Hsieh et al., <https://arxiv.org/abs/2404.06654>. Sentences, counts and answer lengths
//! are RULER's, with these differences:
//!
//! - Words come from short lists of this crate. RULER hides needles in essays that this crate may
//!   not distribute: by default the haystack is sentences of random words, or a file of prose
//!   ([`Texts::with_haystack`]).
//! - All keys of a text differ, as do all values, and no answer of `cwe` is part of another.
//! - Needles lie at any position with the same probability, not at one of 40 depths.
//! - `vt` begins with a worked example, as in RULER, of up to 500 tokens, but at most a quarter of
//!   the text. (The example of `cwe` is RULER's.)
//! - A question of `qa_1` or `qa_2` is drawn at random instead of in the file's order.
//! - Templates and the lines of `vt` end without a blank.
//!
//! Datasets of published benchmarks are read from their files ([`Benchmark`]), with the published
//! prompts and metrics: `docs/evaluation.md`.
//!
//! Texts for a small model are generated from a vocabulary file ([`Texts::open`]), and contain only
//! its words.

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
