//! Numbers as the command shows and reads them.

use vattention::Fraction;

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Four decimals, or two digits if that is too few.
pub(crate) fn short(x: f64) -> String {
    if x >= 0.001 { format!("{x:.4}") } else { format!("{x:.1e}") }
}

/// A number of an option that must lie strictly between 0 and 1.
pub(crate) fn fraction(text: &str) -> Result<Fraction, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number strictly between 0 and 1")?;
    Fraction::try_from(number)
}
