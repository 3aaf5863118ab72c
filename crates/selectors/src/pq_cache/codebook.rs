//! The centroids of one part of the keys: which is nearest, and what a query makes of each.

use std::borrow::Cow;

use vattention_core::ndarray::{ArrayView1, ArrayView2};

use vattention_index::clusters::Centroids;

/// The most centroids that a code of 8 bits can name.
pub(super) const MOST: usize = 256;

/// The product of one part of a query with each centroid; 0 where there is none.
pub type PartTable = [f32; MOST];

/// The centroids of one part of the keys.
#[derive(Clone, Debug)]
pub struct Codebook {
    centroids: Centroids,
    /// What the norm of a part is filled up to, squared, by one more number.
    phi: Option<f64>,
}

impl Codebook {
    /// A codebook of `[centroids, part_dim]`, the first of them code 0; with `phi` of
    /// `[centroids, part_dim + 1]`, whose last number stands for `√(phi − |part|²)`.
    ///
    /// # Panics
    /// If there is no centroid, or more than 256.
    pub fn new(centroids: ArrayView2<'_, f32>, phi: Option<f64>) -> Self {
        let count = centroids.nrows();
        assert!((1..=MOST).contains(&count), "{count} centroids: expected 1 to {MOST}");
        Self { centroids: Centroids::new(centroids), phi }
    }

    /// The code of the centroid nearest to a part of a key `[part_dim]`, the lowest of several.
    ///
    /// O(centroids · part_dim).
    ///
    /// # Panics
    /// If the part is not as long as a centroid.
    pub fn encode(&self, part: &[f32]) -> u8 {
        let point = match self.phi {
            Some(phi) => Cow::Owned(augmented(part, phi)),
            None => Cow::Borrowed(part),
        };
        self.centroids.nearest(&point) as u8
    }

    /// The part that a code stands for, into `out` `[part_dim]`.
    ///
    /// # Panics
    /// If there is no such centroid.
    pub fn decode(&self, code: u8, out: &mut [f32]) {
        self.centroids.copy_to(usize::from(code), out);
    }

    /// The product of each centroid with a part of a query `[part_dim]`.
    pub fn table(&self, query: &[f32]) -> PartTable {
        let mut table = [0.0; MOST];
        self.centroids.add_products(query, &mut table);
        table
    }
}

/// A part of a key and one more number that fills its norm up to `√phi`, or 0 if it exceeds that.
///
/// Among points of one norm the nearest to a query, which has 0 there, has the largest product.
pub(super) fn augmented(part: &[f32], phi: f64) -> Vec<f32> {
    let rest = (phi - squared_norm(part.into())).max(0.0).sqrt() as f32;
    part.iter().copied().chain([rest]).collect()
}

/// `|x|²`.
pub(super) fn squared_norm(x: ArrayView1<'_, f32>) -> f64 {
    x.iter().map(|&x| f64::from(x).powi(2)).sum()
}
