//! The sizes at which a sample may be looked at, if the looks are to be counted.

/// The first size after the first look.
const FIRST: f64 = 256.0;

/// What a size is of the one before.
const RATIO: f64 = 1.5;

/// Sizes of a sample of `n_s` tokens that are known before anything is drawn: `⌊256 · 1.5^i⌋`, all below
/// `n_s`.
pub fn look_sizes(n_s: usize) -> impl Iterator<Item = usize> {
    let sizes = std::iter::successors(Some(FIRST), |size| Some(size * RATIO));
    sizes.map(|size| size as usize).take_while(move |&size| size < n_s)
}
