//! Layer numbers and ranges in options.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// One layer (`3`), an inclusive range (`9-23`) or a range that excludes its end (`9..24`, as in
/// pipeline files).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerRange(RangeInclusive<usize>);

impl LayerRange {
    /// Largest layer number that is accepted.
    const LARGEST: usize = 65_535;
}

impl FromStr for LayerRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number: Option<usize> = text.trim().parse().ok();
            let number = number.filter(|number| *number <= Self::LARGEST);
            number.ok_or("expected layers such as 3, 9-23 or 9..24, separated by commas")
        };
        let (first, last) = if let Some((first, end)) = text.split_once("..") {
            (number(first)?, number(end)?.checked_sub(1))
        } else if let Some((first, last)) = text.split_once('-') {
            (number(first)?, Some(number(last)?))
        } else {
            let only = number(text)?;
            (only, Some(only))
        };
        match last.filter(|last| first <= *last) {
            Some(last) => Ok(Self(first..=last)),
            None => Err(format!("no layer is in {text}; expected the first layer before the last")),
        }
    }
}

/// Returns the numbers of all layers that an option lists, in its order.
pub(crate) fn layer_numbers(ranges: Option<&Vec<LayerRange>>) -> Option<Vec<usize>> {
    ranges.map(|ranges| ranges.iter().flat_map(|range| range.0.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_numbers_and_ranges() {
        let read = |text: &str| {
            let ranges: Result<Vec<LayerRange>, String> = text.split(',').map(str::parse).collect();
            layer_numbers(Some(&ranges?)).ok_or_else(String::new)
        };
        assert_eq!(read("3"), Ok(vec![3]));
        assert_eq!(read("9-12"), Ok(vec![9, 10, 11, 12]));
        assert_eq!(read("9..12"), Ok(vec![9, 10, 11]));
        assert_eq!(read("7-7, 0,2..4"), Ok(vec![7, 0, 2, 3]));
        for wrong in ["", "x", "-1", "3-", "..4", "3..", "1.5", "0-99999999999", "70000"] {
            let error = read(wrong).unwrap_err();
            assert!(error.starts_with("expected layers such as 3, 9-23 or 9..24"), "{wrong}");
        }
        for empty in ["4-3", "4..4", "0..0"] {
            assert!(read(empty).unwrap_err().starts_with("no layer is in "), "{empty}");
        }
        assert_eq!(layer_numbers(None), None);
    }
}
