//! Search for stop strings in a text that arrives in parts.

/// Search for the first stop string of a generated text. The end of the text is withheld while it
/// may be the start of a stop string.
#[derive(Debug)]
pub(super) struct StopStringSearch {
    stops: Vec<StopString>,
    /// Text that has not been returned yet.
    withheld: String,
}

/// Result of the search in a part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SearchedText {
    /// Text that cannot become a part of a stop string.
    pub(super) text: String,
    /// Stop string that follows the text.
    pub(super) stop: Option<String>,
}

impl StopStringSearch {
    /// Starts with an empty text. No stop string may be empty.
    pub(super) fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().map(|stop| StopString::new(stop)).collect(),
            withheld: String::new(),
        }
    }

    /// Appends a part to the text, and returns the text that cannot become a part of a stop string.
    /// The text ends at the first byte that completes a stop string; if the byte completes several,
    /// the longest one counts.
    pub(super) fn push(&mut self, part: &str) -> SearchedText {
        let before = self.withheld.len();
        self.withheld += part;
        for (i, byte) in part.bytes().enumerate() {
            for stop in &mut self.stops {
                stop.advance(byte);
            }
            let complete = self.stops.iter().filter(|stop| stop.is_complete());
            if let Some(stop) = complete.max_by_key(|stop| stop.text.len()) {
                let mut text = std::mem::take(&mut self.withheld);
                text.truncate(before + i + 1 - stop.text.len());
                let found = stop.text.clone();
                self.stops.iter_mut().for_each(|stop| stop.matched = 0);
                return SearchedText { text, stop: Some(found) };
            }
        }
        let matched = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.withheld.split_off(self.withheld.len() - matched);
        SearchedText { text: std::mem::replace(&mut self.withheld, rest), stop: None }
    }

    /// Returns the withheld text, when no more text follows.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.withheld)
    }
}

/// Stop string, and the progress of its search by the algorithm of Knuth, Morris and Pratt.
#[derive(Debug)]
struct StopString {
    text: String,
    /// Prefix function of the stop string: for each of its prefixes, the length of the longest
    /// proper prefix that is also a suffix.
    borders: Vec<usize>,
    /// Length of the longest prefix of the stop string that is a suffix of the text.
    matched: usize,
}

impl StopString {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut borders = vec![0];
        for &byte in &bytes[1..] {
            let last = borders[borders.len() - 1];
            borders.push(extend_match(bytes, &borders, last, byte));
        }
        Self { text: text.to_owned(), borders, matched: 0 }
    }

    fn advance(&mut self, byte: u8) {
        self.matched = extend_match(self.text.as_bytes(), &self.borders, self.matched, byte);
    }

    fn is_complete(&self) -> bool {
        self.matched == self.text.len()
    }
}

/// Returns the length of the longest prefix of `pattern` that is a suffix of the text after another
/// byte. Before the byte, this length was `matched`.
fn extend_match(pattern: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    while matched > 0 && pattern.get(matched) != Some(&byte) {
        matched = borders[matched - 1];
    }
    matched + usize::from(pattern[matched] == byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Searches every prefix of the text, in ascending order, for a stop string at its end.
    fn search(text: &str, stops: &[String]) -> SearchedText {
        for end in 1..=text.len() {
            let ending = |stop: &&String| text.as_bytes()[..end].ends_with(stop.as_bytes());
            if let Some(stop) = stops.iter().filter(ending).max_by_key(|stop| stop.len()) {
                let text = text[..end - stop.len()].to_owned();
                return SearchedText { text, stop: Some(stop.clone()) };
            }
        }
        SearchedText { text: text.to_owned(), stop: None }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn splits_do_not_change_the_result(
            parts in prop::collection::vec("[abé€]{0,5}", 0..20),
            stops in prop::collection::vec("[abé€]{1,5}", 0..4),
        ) {
            let mut found = StopStringSearch::new(&stops);
            let (mut text, mut stop, mut read) = (String::new(), None, String::new());
            for part in &parts {
                read += part;
                let result = found.push(part);
                text += &result.text;
                if result.stop.is_some() {
                    stop = result.stop;
                    break;
                }
                let rest = &read[text.len()..];
                prop_assert_eq!(&read[..text.len()], &text, "the text is a beginning");
                let can_stop = stops.iter().any(|stop| stop.starts_with(rest));
                prop_assert!(rest.is_empty() || can_stop, "{rest:?} is withheld");
            }
            text += &found.finish();
            prop_assert_eq!(SearchedText { text, stop }, search(&parts.concat(), &stops));
        }
    }

    #[test]
    fn the_first_end_counts_and_then_the_longest_stop() {
        let stops = ["abcd", "bc", "xbc"].map(String::from);
        let result = |text: &str| StopStringSearch::new(&stops).push(text);
        let expected =
            |text: &str, stop: &str| SearchedText { text: text.into(), stop: Some(stop.into()) };
        assert_eq!(result("abcd"), expected("a", "bc"));
        assert_eq!(result("axbc"), expected("a", "xbc"));
        assert_eq!(result("ab"), SearchedText { text: String::new(), stop: None });
    }
}
