//! Sizes in bytes with units.

/// Number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteSize(pub(super) u64);

/// Units by their names in lower case.
const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
];

/// Parses a size such as `4GiB`.
pub(super) fn size(text: &str) -> Result<ByteSize, String> {
    let expected = "expected a number of bytes, or a number with a unit, such as 512MiB or 4GiB";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, factor)| factor);
    let number = number.parse::<u64>().ok();
    let bytes = factor.zip(number).and_then(|(factor, number)| number.checked_mul(factor));
    bytes.map(ByteSize).ok_or_else(|| expected.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let found = ["4GiB", "512 mib", "0", "7b", "2GB"].map(|text| size(text).map(|size| size.0));
        let expected = [4 << 30, 512 << 20, 0, 7, 2_000_000_000];
        assert_eq!(found, expected.map(Ok));
        for wrong in ["", "GiB", "4 apples", "-1", "1.5GiB", "99999999999TiB", "4GiB4"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
