//! What pipeline files say, and what is wrong with those that cannot be read.

#![allow(clippy::unwrap_used)]

mod extends;
mod fuzz;
mod grid;
mod layers;
mod load;
