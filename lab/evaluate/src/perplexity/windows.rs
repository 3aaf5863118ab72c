//! Windows of a text.

use crate::{Error, Result};

/// Windows into which a text is cut. All have the same number of tokens; tokens after the last
/// whole window are not read.
#[derive(Clone, Debug, PartialEq)]
pub struct PerplexityWindows {
    /// Number of tokens of a window.
    pub window: usize,
    /// Number of the first tokens of a window, which dense attention reads in one pass; at least 1.
    pub dense_prefix: usize,
    /// Number of tokens between the beginnings of two windows.
    pub stride: usize,
    /// Tokens at the beginning of each window that are not part of the text, such as `<bos>`.
    pub before: Vec<u32>,
}

impl PerplexityWindows {
    /// Creates windows of `window` tokens. By default, `dense_prefix` is half of `window`, and
    /// `stride` is the number of scored tokens, so that each token of the text after the first
    /// prefix is scored once.
    ///
    /// # Errors
    /// [`Error::Setting`] if a window has no token to score, or windows would score a token twice.
    pub fn new(
        window: usize,
        dense_prefix: Option<usize>,
        stride: Option<usize>,
        before: Vec<u32>,
    ) -> Result<Self> {
        let refuse = |field, reason| Err(Error::Setting { field, reason });
        let least = before.len().max(1) + 2;
        if window < least {
            return refuse("window", format!("{window}; expected at least {least}"));
        }
        let dense_prefix = dense_prefix.unwrap_or((window / 2).max(before.len()));
        let (least, most) = (before.len().max(1), window - 2);
        if dense_prefix < least || dense_prefix > most {
            let reason = format!(
                "{dense_prefix}; expected {least} to {most}, because a window of {window} tokens \
                 needs 2 tokens that pipelines read"
            );
            return refuse("dense_prefix", reason);
        }
        let scored = window - dense_prefix - 1;
        let stride = stride.unwrap_or(scored);
        if stride < scored {
            let reason = format!(
                "{stride}; expected at least {scored}, the number of tokens that a window scores, \
                 so that no token is scored twice"
            );
            return refuse("stride", reason);
        }
        Ok(Self { window, dense_prefix, stride, before })
    }

    /// Number of tokens that each window scores. The first token after the dense prefix is not
    /// scored, because dense attention predicts it.
    pub fn scored(&self) -> usize {
        self.window - self.dense_prefix - 1
    }

    /// Number of whole windows in a text of `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::Setting`] if there is none.
    pub fn count(&self, tokens: usize) -> Result<usize> {
        let Some(rest) = tokens.checked_sub(self.text_tokens()) else {
            let reason = format!(
                "{tokens} tokens; expected at least {}, or a smaller window",
                self.text_tokens()
            );
            return Err(Error::Setting { field: "text", reason });
        };
        Ok(rest / self.stride + 1)
    }

    /// Returns the tokens of a window.
    pub(super) fn tokens(&self, text: &[u32], number: usize) -> Vec<u32> {
        let begin = number * self.stride;
        [&self.before[..], &text[begin..begin + self.text_tokens()]].concat()
    }

    /// Number of a window's tokens that are part of the text.
    fn text_tokens(&self) -> usize {
        self.window - self.before.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_after_the_first_prefix_is_scored_once() {
        let text: Vec<u32> = (100..200).collect();
        for before in [vec![], vec![1], vec![1, 2]] {
            for window in [5, 16, 17] {
                let windows = PerplexityWindows::new(window, None, None, before.clone()).unwrap();
                let mut scored = Vec::<u32>::new();
                for number in 0..windows.count(text.len()).unwrap() {
                    let tokens = windows.tokens(&text, number);
                    assert!(tokens.len() == window && tokens.starts_with(&before));
                    scored.extend(&tokens[windows.dense_prefix + 1..]);
                }
                let first = windows.dense_prefix + 1 - before.len();
                assert_eq!(scored, text[first..first + scored.len()]);
                assert!(first + scored.len() + windows.stride > text.len());
            }
        }
    }

    #[test]
    fn windows_without_room_are_refused() {
        let refused = |window, prefix, stride, before: &[u32]| {
            PerplexityWindows::new(window, prefix, stride, before.to_vec()).unwrap_err().to_string()
        };
        assert_eq!(refused(2, None, None, &[]), "window: 2; expected at least 3");
        assert!(refused(8, Some(0), None, &[]).starts_with("dense_prefix: 0; expected 1 to 6"));
        assert!(refused(8, Some(7), None, &[]).starts_with("dense_prefix: 7; expected 1 to 6"));
        assert!(refused(8, Some(1), None, &[5, 6]).contains("expected 2 to 6"));
        assert!(refused(8, Some(4), Some(2), &[]).starts_with("stride: 2; expected at least 3"));
        let windows = PerplexityWindows::new(8, None, None, vec![1]).unwrap();
        let few = windows.count(6).unwrap_err().to_string();
        assert_eq!(few, "text: 6 tokens; expected at least 7, or a smaller window");
        assert_eq!(windows.count(7).unwrap(), 1);
        assert_eq!(windows.count(10).unwrap(), 2);
    }
}
