//! Budgets and radii: golden numbers, modes, terms, and the search for budgets.

#![allow(clippy::unwrap_used)]

mod golden_formulas;
mod modes;
mod searched_budgets;
mod terms;
