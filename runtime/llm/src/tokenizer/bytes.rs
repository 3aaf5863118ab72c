//! Bytes of single tokens, which may be parts of characters.

use super::Tokenizer;
use crate::Result;

impl Tokenizer {
    /// Returns the text of a single token inside a text, such as `" the"`, for reports. Bytes that
    /// are only a part of a character become U+FFFD. The text of a special token is its name.
    ///
    /// # Errors
    /// The errors of [`decode`](Self::decode).
    pub fn token_text(&self, token: u32) -> Result<String> {
        let bytes = self.token_bytes(token)?;
        if bytes.is_empty() {
            return Ok(self.inner.id_to_token(token).unwrap_or_default());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the bytes of a token inside a text; none for a special token, or a number that the
    /// tokenizer does not know.
    ///
    /// # Errors
    /// The errors of [`decode`](Self::decode).
    pub fn token_bytes(&self, token: u32) -> Result<Vec<u8>> {
        let Some(name) = self.inner.id_to_token(token) else { return Ok(Vec::new()) };
        let alone = self.decode(&[token])?;
        if let Some(bytes) = bytes_of_name(&name, &alone) {
            return Ok(bytes);
        }
        let Some(before) = self.ordinary_token() else { return Ok(alone.into_bytes()) };
        let both = self.decode(&[before, token])?;
        let text = both.strip_prefix(&self.decode(&[before])?).unwrap_or(&alone);
        Ok(text.as_bytes().to_vec())
    }

    /// Returns the bytes of a token at the beginning of a text, where some tokenizers omit a space.
    pub(super) fn bytes_at_beginning(&self, token: u32) -> Result<Vec<u8>> {
        let alone = self.decode(&[token])?;
        if alone.contains(char::REPLACEMENT_CHARACTER)
            && let Some(name) = self.inner.id_to_token(token)
            && let Some(bytes) = bytes_of_name(&name, &alone)
        {
            return Ok(bytes);
        }
        Ok(alone.into_bytes())
    }

    /// Returns a token whose text consists of ASCII letters and digits. If another token is decoded
    /// after this token, the result shows the other token's text inside a text.
    fn ordinary_token(&self) -> Option<u32> {
        let is_ordinary = |token: &u32| {
            let text = self.decode(&[*token]).unwrap_or_default();
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        *self.ordinary.get_or_init(|| (0..self.vocab_size as u32).find(is_ordinary))
    }
}

/// Returns the bytes that a token's name encodes, if its text alone does not show them: `<0xE2>` of
/// SentencePiece is one byte, and a name of byte-level BPE has one character per byte.
fn bytes_of_name(name: &str, text: &str) -> Option<Vec<u8>> {
    if name != text
        && let Some(digits) = name.strip_prefix("<0x").and_then(|name| name.strip_suffix('>'))
        && let (2, Ok(byte)) = (digits.len(), u8::from_str_radix(digits, 16))
    {
        return Some(vec![byte]);
    }
    if !text.contains(char::REPLACEMENT_CHARACTER) {
        return None;
    }
    name.chars().map(byte_of_char).collect()
}

/// Returns the byte that a character stands for in byte-level BPE. Printable characters of Latin-1
/// stand for themselves; the other bytes are numbered from U+0100.
fn byte_of_char(character: char) -> Option<u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => Some(byte).filter(|&byte| is_printable(byte)),
        Err(_) => {
            (0..=u8::MAX).filter(|&byte| !is_printable(byte)).nth(code.checked_sub(256)? as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_one_character() {
        let characters = (0..0x200).filter_map(char::from_u32);
        let mut bytes: Vec<u8> = characters.filter_map(byte_of_char).collect();
        assert_eq!(bytes.len(), 256);
        bytes.sort_unstable();
        assert!(bytes.into_iter().eq(0..=u8::MAX));
        let space = ['Ġ', 'Ċ', 'a'].map(byte_of_char);
        assert_eq!(space, [Some(b' '), Some(b'\n'), Some(b'a')]);
    }

    #[test]
    fn names_encode_bytes() {
        assert_eq!(bytes_of_name("<0xE2>", "\u{FFFD}"), Some(vec![0xE2]));
        assert_eq!(bytes_of_name("<0x41>", "A"), Some(vec![0x41]));
        assert_eq!(bytes_of_name("<0x41>", "<0x41>"), None, "an ordinary text");
        assert_eq!(bytes_of_name("ðŁ", "\u{FFFD}"), Some(vec![0xF0, 0x9F]));
        assert_eq!(bytes_of_name("\u{FFFD}", "\u{FFFD}"), None, "no name of byte-level BPE");
    }
}
