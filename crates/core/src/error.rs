//! Errors of this crate and of the traits that it defines, and messages of panics.

use std::any::Any;

/// Errors of this crate and of the traits that it defines.
///
/// Building a component and accepting input can fail; selecting and sampling tokens cannot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array or a set of dimensions does not have the expected shape.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// Array or dimension at fault.
        what: String,
        /// Expected shape, in words or brackets.
        expected: String,
        /// Shape found.
        got: String,
    },
    /// A number cannot be stored or multiplied safely; see
    /// [`MAX_MAGNITUDE`](crate::step::MAX_MAGNITUDE).
    #[error(
        "{tensor}{index:?} is {value:e}: expected a finite number of magnitude at most {limit:e}"
    )]
    Number {
        /// Name of the array.
        tensor: &'static str,
        /// Position in the array.
        index: Vec<usize>,
        /// Number found.
        value: f32,
        /// Largest magnitude allowed there.
        limit: f32,
    },
    /// A component cannot be built for this shape or from these files.
    #[error("{component}: {reason}")]
    Build {
        /// Name of the component.
        component: String,
        /// Reason, and the expected shape or content.
        reason: String,
    },
    /// Parts of a pipeline contradict each other; see [`Conflict`].
    #[error("{}: {}", .0.at, .0.message)]
    Conflict(Conflict),
    /// A backend cannot run on this machine.
    #[error("backend {backend}: {reason}")]
    Backend {
        /// Name of the backend.
        backend: String,
        /// Reason.
        reason: String,
    },
    /// A selector needs the [class](crate::step::TokenClass) of each token, and tokens were
    /// appended without classes.
    #[error(
        "`{selector}` needs the class of each token (special, punctuation or other), and these \
         tokens have none"
    )]
    Classes {
        /// Name of the selector.
        selector: String,
    },
    /// A selector learns from the last queries of a prompt and has not received any, so it would
    /// pick every token.
    #[error(
        "`{selector}` learns from the last queries of a prompt and has received none, so it would \
         read every token: call `observe` with them after appending the prompt's tokens, and again \
         after removing tokens of the prompt (a prompt has at least one token)"
    )]
    Unobserved {
        /// Name of the selector.
        selector: String,
    },
    /// A selector learns from each step, and an earlier step was not followed by feedback.
    #[error(
        "`{selector}` learns from the attention weights of each step and received none for step \
         {step}: call `feedback` for each query head after each step"
    )]
    NoFeedback {
        /// Name of the selector.
        selector: String,
        /// Number of the step without feedback.
        step: u32,
    },
    /// A selector panicked while it indexed tokens or a prompt, so its index is incomplete.
    #[error("a selector panicked while it indexed new tokens: the sequence cannot continue")]
    Lost,
    /// A selector learns from every step: its statistics cannot be reduced to those of the
    /// remaining tokens.
    #[error(
        "a selector learns from steps, so no tokens can be removed, and the state after a step \
         cannot be stored: fork or store the sequence before"
    )]
    Learns,
    /// Evicted tokens have been freed, because
    /// [`Options::free_evicted`](crate::engine::Options::free_evicted) is set.
    #[error(
        "evicted tokens have been freed, so no tokens can be removed or read back: fork the \
         sequence before appending tokens that may be removed, or leave out `free_evicted`"
    )]
    Freed,
    /// A promise counts the rounding of keys and values, and only the rounded ones can be read
    /// back.
    #[error(
        "the promise counts the rounding of keys and values, which stored rows do not reveal, so \
         the sequence cannot be stored: fork it, store rows in f32, or leave out `reference`"
    )]
    Rounded,
    /// A selector or a sampler cannot remove its newest tokens in place.
    #[error(
        "`{component}` cannot remove tokens from its index, so the sequence cannot return to an \
         earlier step: decode without drafts, or with another pipeline"
    )]
    NoRewind {
        /// Name of the selector or sampler.
        component: String,
    },
    /// A selector or a sampler has an index that sequences cannot share.
    #[error("`{component}` {reason}, so sequences cannot share its index: append the tokens")]
    NoSharing {
        /// Name of the selector or sampler.
        component: String,
        /// Reason, which continues a sentence that begins with the name.
        reason: &'static str,
    },
    /// An allocation failed.
    #[error("out of memory: cannot allocate another {bytes} bytes")]
    Memory {
        /// Size of the failed allocation in bytes.
        bytes: usize,
    },
}

/// A contradiction between parts of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Part at fault: a key of the file, with an index if it is an entry of a list
    /// (`selectors[1]`).
    pub at: String,
    /// Description of the contradiction.
    pub message: String,
    /// Advice for resolving it.
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
    /// Creates an [`Error::Shape`] from printable values.
    pub fn shape(
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Debug,
    ) -> Self {
        Self::Shape { what: what.into(), expected: expected.to_string(), got: format!("{got:?}") }
    }
}

/// Message of a panic, from the payload that [`catch_unwind`](std::panic::catch_unwind) returns.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}
