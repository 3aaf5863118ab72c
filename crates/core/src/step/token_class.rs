//! What a token is in the text.

/// What a token is in the text, beside its key and value. The numbers are those of files and other languages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TokenClass {
    /// Anything but the others.
    #[default]
    Other = 0,
    /// Text of punctuation alone, such as a full stop.
    Punctuation = 1,
    /// No text: the beginning or end of a sequence, or a mark of a chat's template.
    Special = 2,
}

impl TokenClass {
    /// The numbers that there are, for messages.
    pub const NUMBERS: &str = "0 (other), 1 (punctuation) or 2 (special)";

    /// The class of a number; `None` if there is no such.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Other),
            1 => Some(Self::Punctuation),
            2 => Some(Self::Special),
            _ => None,
        }
    }

    /// Its number.
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
