//! Budgets and radii: their formulas, their modes, and numbers from elsewhere.

#![allow(clippy::unwrap_used)]

mod modes;
mod searched_budgets;
mod terms;
