//! Tokens of a tag.

/// Token and the byte at which it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    pub(super) text: &'t str,
    pub(super) start: usize,
}

impl Token<'_> {
    pub(super) fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }

    pub(super) fn is_string(&self) -> bool {
        self.text.starts_with(['"', '\''])
    }

    pub(super) fn is_number(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_digit())
    }
}

/// Returns the tokens between a tag's delimiters, without white space.
pub(super) fn tokenize(tag: &str) -> Vec<Token<'_>> {
    let opened = 2 + usize::from(tag[2..].starts_with(['-', '+']));
    let closed = tag.len().saturating_sub(2).max(opened);
    let inner = tag[..closed].strip_suffix(['-', '+']).filter(|inner| inner.len() >= opened);
    let end = inner.map_or(closed, str::len);
    let mut tokens = Vec::new();
    let mut start = opened;
    while start < end {
        let length = read(&tag[start..end]);
        let text = &tag[start..start + length];
        if !text.starts_with(char::is_whitespace) {
            tokens.push(Token { text, start });
        }
        start += length;
    }
    tokens
}

/// Returns the length of the first token of a non-empty text.
pub(super) fn read(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let end =
        |is_inside: &dyn Fn(char) -> bool| text.find(|c: char| !is_inside(c)).unwrap_or(text.len());
    match bytes[0] {
        quote @ (b'"' | b'\'') => read_string(bytes, quote),
        b'0'..=b'9' => read_number(text),
        _ if text.starts_with(char::is_whitespace) => end(&char::is_whitespace),
        _ if text.starts_with(is_word) => end(&is_word),
        _ if ["==", "!=", "<=", ">=", "//", "**"].iter().any(|two| text.starts_with(two)) => 2,
        _ => text.chars().next().map_or(1, char::len_utf8),
    }
}

fn read_string(bytes: &[u8], quote: u8) -> usize {
    let mut place = 1;
    while place < bytes.len() {
        match bytes[place] {
            b'\\' => place += 1,
            byte if byte == quote => return place + 1,
            _ => (),
        }
        place += 1;
    }
    bytes.len()
}

/// Returns the length of a number of any base, with its point and exponent.
fn read_number(text: &str) -> usize {
    let is_digit = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let whole = text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let has_fraction = text[whole..].starts_with('.')
        && text[whole + 1..].starts_with(|c: char| c.is_ascii_digit());
    let end = if has_fraction {
        let behind = &text[whole + 1..];
        whole + 1 + behind.find(|c| !is_digit(c)).unwrap_or(behind.len())
    } else {
        whole
    };
    let number = &text[..end];
    let is_decimal = !number.starts_with("0x") && !number.starts_with("0X");
    let has_sign = is_decimal && number.ends_with(['e', 'E']);
    if has_sign && text[end..].starts_with(['-', '+']) {
        let behind = &text[end + 1..];
        return end + 1 + behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    }
    end
}
