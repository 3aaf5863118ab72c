//! Budgets and radii: their formulas, their modes, and numbers from elsewhere.

#![allow(clippy::unwrap_used)]

mod golden_formulas;
mod modes;
mod searched_budgets;
mod terms;
