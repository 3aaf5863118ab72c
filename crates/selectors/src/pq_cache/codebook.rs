//! The centroids of one part of the keys: which is nearest, and what a query makes of each.

use std::borrow::Cow;

use multiversion::multiversion;
use vattention_core::ndarray::{ArrayView1, ArrayView2};

/// The most centroids that a code of 8 bits can name.
pub(super) const MOST: usize = 256;

/// The product of one part of a query with each centroid; 0 where there is none.
pub type PartTable = [f32; MOST];

/// The centroids of one part of the keys.
#[derive(Clone, Debug)]
pub struct Codebook {
    /// The first numbers of all centroids, the second numbers, and so on, `[numbers, centroids]`.
    columns: Vec<f32>,
    centroids: usize,
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
        Self { columns: centroids.t().iter().copied().collect(), centroids: count, phi }
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
        let expected = self.columns.len() / self.centroids;
        assert_eq!(point.len(), expected, "a part is as long as a centroid");
        let mut distances = [0.0; MOST];
        let distances = &mut distances[..self.centroids];
        squared_distances(&point, &self.columns, distances);
        first_of_least(distances) as u8
    }

    /// The part that a code stands for, into `out` `[part_dim]`.
    ///
    /// # Panics
    /// If there is no such centroid.
    pub fn decode(&self, code: u8, out: &mut [f32]) {
        let columns = self.columns.chunks_exact(self.centroids);
        out.iter_mut().zip(columns).for_each(|(x, column)| *x = column[usize::from(code)]);
    }

    /// The product of each centroid with a part of a query `[part_dim]`.
    pub fn table(&self, query: &[f32]) -> PartTable {
        let mut table = [0.0; MOST];
        for (q, column) in query.iter().zip(self.columns.chunks_exact(self.centroids)) {
            table.iter_mut().zip(column).for_each(|(sum, c)| *sum += q * c);
        }
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

/// Centroids whose distances are summed at a time.
const LANES: usize = 32;

/// The squared distance of each centroid to `point`, into `distances` `[centroids]`, summed number
/// by number: vectors over the centroids, so that the sums are the same on every machine.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn squared_distances(point: &[f32], columns: &[f32], distances: &mut [f32]) {
    let stride = distances.len();
    let (blocks, rest) = distances.as_chunks_mut::<LANES>();
    let done = blocks.len() * LANES;
    for (i, block) in blocks.iter_mut().enumerate() {
        // In a variable of its own, which stays in registers.
        let mut sums = [0.0; LANES];
        for (j, x) in point.iter().enumerate() {
            let column = &columns[j * stride + i * LANES..][..LANES];
            for lane in 0..LANES {
                sums[lane] += (x - column[lane]) * (x - column[lane]);
            }
        }
        *block = sums;
    }
    rest.fill(0.0);
    for (x, column) in point.iter().zip(columns.chunks_exact(stride)) {
        for (distance, c) in rest.iter_mut().zip(&column[done..]) {
            *distance += (x - c) * (x - c);
        }
    }
}

/// The place of the smallest number, the first of several.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn first_of_least(numbers: &[f32]) -> usize {
    let (blocks, rest) = numbers.as_chunks::<LANES>();
    let mut lanes = [f32::INFINITY; LANES];
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = if block[lane] < lanes[lane] { block[lane] } else { lanes[lane] };
        }
    }
    let least = lanes.iter().chain(rest).fold(f32::INFINITY, |a, &b| if b < a { b } else { a });
    numbers.iter().position(|&x| x == least).unwrap_or(0)
}
