//! Centroids of one part of the keys, and products of a query with them.

use std::borrow::Cow;

use vattention_core::ndarray::{ArrayView1, ArrayView2};

use vattention_index::clusters::Centroids;

/// Largest number of centroids, which a code of 8 bits can name.
pub(super) const MOST: usize = 256;

/// Products of one part of a query with each centroid; 0 for codes without a centroid.
pub type PartTable = [f32; MOST];

/// Centroids of one part of the keys.
#[derive(Clone, Debug)]
pub struct Codebook {
    centroids: Centroids,
    /// Squared norm to which parts are extended by one more number; `None` if they are not
    /// extended.
    phi: Option<f64>,
}

impl Codebook {
    /// Creates a codebook of centroids `[centroids, part_dim]`, the first of which has code 0. With
    /// `phi`, the centroids are `[centroids, part_dim + 1]`, in the space of parts that are
    /// extended by `√(phi − |part|²)`.
    ///
    /// # Panics
    /// Panics if there are no centroids, or more than 256.
    pub fn new(centroids: ArrayView2<'_, f32>, phi: Option<f64>) -> Self {
        let count = centroids.nrows();
        assert!((1..=MOST).contains(&count), "{count} centroids: expected 1 to {MOST}");
        Self { centroids: Centroids::new(centroids), phi }
    }

    /// Returns the code of the centroid nearest to a part of a key `[part_dim]`; ties go to the
    /// lowest code.
    ///
    /// O(centroids · part_dim).
    ///
    /// # Panics
    /// Panics if the length of the part differs from that of a centroid.
    pub fn encode(&self, part: &[f32]) -> u8 {
        let point = match self.phi {
            Some(phi) => Cow::Owned(augment(part, phi)),
            None => Cow::Borrowed(part),
        };
        self.centroids.nearest(&point) as u8
    }

    /// Writes the centroid of a code into `out` `[part_dim]`.
    ///
    /// # Panics
    /// Panics if no centroid has this code.
    pub fn decode(&self, code: u8, out: &mut [f32]) {
        self.centroids.copy_to(usize::from(code), out);
    }

    /// Computes the product of each centroid with a part of a query `[part_dim]`.
    pub fn table(&self, query: &[f32]) -> PartTable {
        let mut table = [0.0; MOST];
        self.centroids.add_products(query, &mut table);
        table
    }
}

/// Extends a part of a key by a number that raises its norm to `√phi`, or by 0 if the norm exceeds
/// `√phi`.
///
/// A query is extended by 0. Among points of equal norm, the point nearest to the query has the
/// largest product with it.
pub(super) fn augment(part: &[f32], phi: f64) -> Vec<f32> {
    let rest = (phi - squared_norm(part.into())).max(0.0).sqrt() as f32;
    part.iter().copied().chain([rest]).collect()
}

/// Squared norm `|x|²`.
pub(super) fn squared_norm(x: ArrayView1<'_, f32>) -> f64 {
    x.iter().map(|&x| f64::from(x).powi(2)).sum()
}
