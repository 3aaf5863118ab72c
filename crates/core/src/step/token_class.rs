//! Classes of tokens by their text.
//!
//! The caller that appends tokens provides their classes, because this crate has no tokenizer.

/// Class of a token by its text. Files and other languages use the numbers of the classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TokenClass {
    /// Any other token.
    #[default]
    Other = 0,
    /// Text that consists of punctuation only, such as a full stop.
    Punctuation = 1,
    /// No text: the beginning or end of a sequence, or a marker of a chat template.
    Special = 2,
}

impl TokenClass {
    /// Description of the numbers, for messages.
    pub const NUMBERS: &str = "0 (other), 1 (punctuation) or 2 (special)";

    /// Returns the class with a number, or `None` if there is none.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Other),
            1 => Some(Self::Punctuation),
            2 => Some(Self::Special),
            _ => None,
        }
    }

    /// Number of the class.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_classes_are_one_to_one() {
        for class in [TokenClass::Other, TokenClass::Punctuation, TokenClass::Special] {
            assert_eq!(TokenClass::from_number(class.number()), Some(class));
        }
        assert!((3..=u8::MAX).all(|number| TokenClass::from_number(number).is_none()));
    }
}
