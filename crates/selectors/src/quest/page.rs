//! Bounds of the keys of one page, and the score bound of a query.

use std::ops::Range;

use vattention_core::{Row, Tokens, step::Score};

use vattention_index::{Labels, Term};

/// Smallest and largest number of each channel over the keys of a page. The largest is stored as
/// the smallest of the negated numbers, so that both are lower bounds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Page {
    pub(crate) tokens: usize,
    /// Smallest numbers of the keys and of the negated keys, `[head_dim]` each.
    pub(crate) least: [Vec<f32>; 2],
}

impl Page {
    /// Creates a page without tokens.
    pub(crate) fn new(dim: usize) -> Self {
        Self { tokens: 0, least: [(); 2].map(|()| vec![f32::INFINITY; dim]) }
    }

    /// Creates the page of some tokens.
    pub(crate) fn from_tokens(keys: Tokens<'_>, tokens: Range<usize>) -> Self {
        let mut page = Self::new(keys.dim());
        let mut key = vec![0.0; keys.dim()];
        for token in tokens {
            keys.copy_row(token, &mut key);
            page.add(&key);
        }
        page
    }

    pub(crate) fn add(&mut self, key: &[f32]) {
        let [smallest, smallest_negated] = &mut self.least;
        smallest.iter_mut().zip(key).for_each(|(least, &x)| *least = least.min(x));
        smallest_negated.iter_mut().zip(key).for_each(|(least, &x)| *least = least.min(-x));
        self.tokens += 1;
    }

    /// Largest magnitude in a channel.
    pub(crate) fn magnitude(&self, channel: usize) -> f32 {
        -self.least[0][channel].min(self.least[1][channel])
    }

    /// Computes the bound of the keys' products, summed in the same order as those of labels.
    pub(crate) fn bound(&self, terms: &[Vec<Term>; 2]) -> f32 {
        let mut bound = 0.0;
        for (least, terms) in self.least.iter().zip(terms) {
            bound += terms.iter().fold(0.0, |sum, &(c, weight)| sum + weight * least[c]);
        }
        bound
    }
}

/// Computes the scores of the pages that a row sees: the bounds of full pages, whose `least` are
/// labels, and of `cut`, a page after them of which only a part is visible.
pub(crate) fn scores(
    row: &Row<'_>,
    score: Score,
    full: usize,
    least: &[Labels; 2],
    cut: Option<&Page>,
) -> Vec<f32> {
    let terms = match score {
        Score::Head => terms(std::iter::once(row.query())),
        Score::Group => terms(row.members().map(|member| member.query())),
    };
    let mut scores = vec![0.0; full];
    for (labels, terms) in least.iter().zip(&terms) {
        labels.add_products(terms, &mut scores);
    }
    scores.extend(cut.map(|page| page.bound(&terms)));
    scores
}

/// Returns the factors of a page's two lower bounds, summed over `queries`: where a query is
/// negative, its product is largest with the smallest key, where it is positive, with the largest.
fn terms<'a>(queries: impl Iterator<Item = &'a [f32]>) -> [Vec<Term>; 2] {
    let mut weights: [Vec<f32>; 2] = [Vec::new(), Vec::new()];
    for query in queries {
        for (side, weights) in weights.iter_mut().enumerate() {
            weights.resize(query.len(), 0.0);
            for (weight, &x) in weights.iter_mut().zip(query) {
                *weight -= if side == 0 { -x } else { x }.max(0.0);
            }
        }
    }
    weights.map(|weights| weights.into_iter().enumerate().filter(|&(_, w)| w != 0.0).collect())
}
