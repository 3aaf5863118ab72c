//! Formatting and parsing of numbers.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use vattention::{FallBack, Fraction, Promise, Scope, Storage};

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats a number with four decimals, or with two significant digits if it is below 0.001.
pub(crate) fn short(x: f64) -> String {
    if x >= 0.001 { format!("{x:.4}") } else { format!("{x:.1e}") }
}

/// Formats a number with at most four significant digits; an epsilon from a search has many more.
pub(crate) fn few_digits(x: f64) -> String {
    format!("{x:.3e}").parse().map_or_else(|_| x.to_string(), |rounded: f64| rounded.to_string())
}

/// Returns a parser of number formats of cached keys and values.
pub(crate) fn storage() -> impl TypedValueParser<Value = Storage> {
    storage_among(Storage::ALL)
}

/// Returns a parser of number formats of traces.
pub(crate) fn trace_storage() -> impl TypedValueParser<Value = Storage> {
    storage_among(Storage::FLOATS)
}

fn storage_among<const N: usize>(storages: [Storage; N]) -> impl TypedValueParser<Value = Storage> {
    let names = PossibleValuesParser::new(storages.map(Storage::name));
    names.try_map(|name| name.parse::<Storage>())
}

/// Returns a parser of conditions for reading all tokens instead of a pipeline's token list.
pub(crate) fn fall_back() -> impl TypedValueParser<Value = FallBack> {
    let names = PossibleValuesParser::new(FallBack::ALL.map(FallBack::name));
    names.try_map(|name| name.parse::<FallBack>())
}

/// Parses a number strictly between 0 and 1.
pub(crate) fn fraction(text: &str) -> Result<Fraction, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number strictly between 0 and 1")?;
    Fraction::try_from(number)
}

/// Formats a promise: `sdpa: 0.1, 0.1, step, unrounded`.
pub(crate) fn promise(promise: &Promise) -> String {
    let Promise { target, epsilon, delta, .. } = promise;
    let scope = match promise.scope {
        Scope::Row => "",
        Scope::Step => ", step",
    };
    let rows = if promise.reference.is_stored() { "" } else { ", unrounded" };
    format!("{target}: {}, {}{scope}{rows}", few_digits(epsilon.get()), delta.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searched_numbers_are_shown_with_few_digits() {
        let shown = [0.063_494_977, 0.1, 0.05, 0.999_96, 1e-9].map(few_digits);
        assert_eq!(shown, ["0.06349", "0.1", "0.05", "1", "0.000000001"]);
    }
}
