//! Drafts of the next tokens of a text, looked up in the text itself.

/// Smallest number of tokens whose earlier occurrence is looked up.
const SHORTEST: usize = 3;

/// Largest number of tokens that are compared, to choose between several earlier occurrences.
const LONGEST: usize = 16;

/// Drafts of the tokens that follow a text: those after an earlier occurrence of its newest tokens.
///
/// Every token is predicted, which costs little, and compared with the token that follows. A draft
/// has half as many tokens as the last predictions in a row were right. So a text that repeats
/// itself soon has long drafts, and a text that does not has few wrong ones.
#[derive(Clone, Debug)]
pub(crate) struct DraftLookup {
    /// Largest number of tokens of a draft.
    most: usize,
    tokens: Vec<u32>,
    /// Position of the predicted token, if there is a prediction.
    predicted: Option<usize>,
    /// Number of right predictions since the last wrong one.
    right: usize,
}

impl DraftLookup {
    /// Starts after a text.
    pub(crate) fn new(most: usize, text: &[u32]) -> Self {
        Self { most, tokens: text.to_vec(), predicted: None, right: 0 }
    }

    /// Adds the next token.
    pub(crate) fn push(&mut self, token: u32) {
        if self.most == 0 {
            return;
        }
        if let Some(predicted) = self.predicted {
            self.right = if self.tokens[predicted] == token { self.right + 1 } else { 0 };
        }
        self.tokens.push(token);
        self.predicted = self.find_continuation();
    }

    /// Draft of the tokens after the last one; empty if nothing is predicted, or one of the last
    /// two predictions was wrong.
    pub(crate) fn draft(&self) -> &[u32] {
        let Some(begin) = self.predicted else { return &[] };
        let end = begin + (self.right / 2).min(self.most);
        &self.tokens[begin..end.min(self.tokens.len())]
    }

    /// Position after the longest earlier occurrence of the newest tokens; after the last one of
    /// several. O(tokens).
    fn find_continuation(&self) -> Option<usize> {
        let (mut found, mut longest) = (None, SHORTEST - 1);
        for end in (SHORTEST..self.tokens.len()).rev() {
            let common = self.count_common(end);
            if common > longest {
                (found, longest) = (Some(end), common);
            }
            if longest == LONGEST {
                break;
            }
        }
        found
    }

    /// Number of tokens before `end` that equal the newest ones, at most [`LONGEST`].
    fn count_common(&self, end: usize) -> usize {
        let before = self.tokens[..end].iter().rev();
        let newest = self.tokens.iter().rev();
        before.zip(newest).take(LONGEST).take_while(|(a, b)| a == b).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts after each token of a text.
    fn drafts(most: usize, text: &[u32]) -> Vec<Vec<u32>> {
        let mut lookup = DraftLookup::new(most, &[]);
        text.iter()
            .map(|&token| {
                lookup.push(token);
                lookup.draft().to_vec()
            })
            .collect()
    }

    #[test]
    fn drafts_grow_with_right_predictions_and_end_with_a_wrong_one() {
        let text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3];
        let found = drafts(8, &text);
        assert!(found[..13].iter().all(Vec::is_empty));
        // After 4 and 5, which were predicted; then after 6 and 7.
        assert_eq!(found[13..16], [vec![6], vec![7], vec![8, 9]]);
        // 8 was predicted, not 9; then the predictions are not proved yet.
        assert!(found[16..].iter().all(Vec::is_empty));
        assert_eq!(drafts(1, &text)[15], [8]);
        assert!(drafts(0, &text).iter().all(Vec::is_empty));
    }

    #[test]
    fn the_longest_occurrence_counts_and_the_last_of_several() {
        let text = [7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3];
        let mut lookup = DraftLookup::new(8, &text[..13]);
        lookup.push(text[13]);
        assert_eq!(lookup.predicted, Some(4));
        let text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2];
        let mut lookup = DraftLookup::new(8, &text);
        lookup.push(3);
        assert_eq!(lookup.predicted, Some(7));
    }
}
