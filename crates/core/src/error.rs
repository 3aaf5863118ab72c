//! What can go wrong: reading, building for a shape, or being handed bad numbers.

/// Everything that can fail in this crate and in the traits it defines.
///
/// Selecting, sampling and budgeting cannot fail; building and input can.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array, or a set of dimensions, is not of the shape it must have.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// The array or dimension at fault.
        what: String,
        /// What was expected, in words or brackets.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A number that cannot be stored or multiplied safely; see [`MAX_MAGNITUDE`](crate::step::MAX_MAGNITUDE).
    #[error(
        "{tensor}{index:?} is {value:e}: expected a finite number of magnitude at most {limit:e}"
    )]
    Number {
        /// The array's name.
        tensor: &'static str,
        /// Where in the array.
        index: Vec<usize>,
        /// The number found.
        value: f32,
        /// The largest magnitude allowed there.
        limit: f32,
    },
    /// A component cannot be built for this shape or from these files.
    #[error("{component}: {reason}")]
    Build {
        /// The component's name.
        component: String,
        /// Why, and what was expected.
        reason: String,
    },
    /// Parts of a pipeline that do not go together; see [`Conflict`].
    #[error("{}: {}", .0.at, .0.message)]
    Conflict(Conflict),
    /// A backend cannot run here.
    #[error("backend {backend}: {reason}")]
    Backend {
        /// The backend's name.
        backend: String,
        /// Why not.
        reason: String,
    },
    /// A selector needs to know what class each token is of ([`TokenClass`](crate::step::TokenClass)), and tokens came without.
    #[error(
        "`{selector}` needs the class of each token (special, punctuation or other), and these tokens have none"
    )]
    Classes {
        /// Its name.
        selector: String,
    },
    /// A selector learns from the last queries of a prompt and has been shown none, so it would
    /// pick everything.
    #[error(
        "`{selector}` learns from the last queries of a prompt and has been shown none, so it \
         would read everything: call `observe` with them once the prompt's tokens are appended, \
         also after tokens of the prompt were taken back (a prompt has at least one token)"
    )]
    Unobserved {
        /// Its name.
        selector: String,
    },
    /// A selector learns from each step, and the previous step had no feedback.
    #[error(
        "`{selector}` learns from the attention weights of each step and was given none of step \
         {step}: call `feedback` for each query head after each step"
    )]
    NoFeedback {
        /// Its name.
        selector: String,
        /// The step without feedback.
        step: u32,
    },
    /// A selector panicked while it was shown tokens or a prompt, so it does not know all of them.
    #[error("a selector has panicked while it was shown new tokens: the sequence cannot go on")]
    Lost,
    /// A selector learns from every step: what it learned of tokens that are taken back cannot be told from the rest.
    #[error(
        "a selector learns from steps, and tokens cannot be taken back from it: expected a fork from before they came"
    )]
    Learns,
    /// Evicted tokens have been freed: [`Options::free_evicted`](crate::engine::Options::free_evicted).
    #[error(
        "evicted tokens have been freed, so none can be taken back: expected a fork from before they came, or no `free_evicted`"
    )]
    Freed,
    /// There is no memory for what was asked.
    #[error("out of memory: {bytes} bytes more cannot be had")]
    Memory {
        /// The bytes asked for in one piece.
        bytes: usize,
    },
}

/// Parts of a pipeline that do not go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The part at fault: a key of the file, with an index where it is a list (`selectors[1]`).
    pub at: String,
    /// What is wrong.
    pub message: String,
    /// How to mend it.
    pub help: String,
}

impl From<Conflict> for Error {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A [`Error::Shape`] from anything printable.
    pub fn shape(
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Debug,
    ) -> Self {
        Self::Shape { what: what.into(), expected: expected.to_string(), got: format!("{got:?}") }
    }
}
