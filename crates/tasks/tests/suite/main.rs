//! Tasks: what is asked, what is the answer, and how long a context is.

#![allow(clippy::unwrap_used)]

mod common;
mod lengths;
mod qa;
mod ruler;
mod vocabulary;
