//! Centroids of clusters: the nearest one to a point, and products with a query.

use multiversion::multiversion;
use vattention_core::ndarray::ArrayView2;

/// Centroids of clusters of points.
#[derive(Clone, Debug)]
pub struct Centroids {
    /// Elements of all centroids, `[dim, centroids]`.
    columns: Vec<f32>,
    count: usize,
}

/// Number of centroids whose distances are stored at a time.
const BLOCK: usize = 256;

impl Centroids {
    /// Creates centroids from `rows` `[centroids, dim]`, at least one.
    pub fn new(rows: ArrayView2<'_, f32>) -> Self {
        Self { columns: rows.t().iter().copied().collect(), count: rows.nrows() }
    }

    /// Index of the centroid nearest to a point `[dim]`, the first one in case of ties.
    /// O(centroids · dim).
    ///
    /// # Panics
    /// If the point and the centroids differ in length.
    pub fn nearest(&self, point: &[f32]) -> usize {
        let expected = self.columns.len() / self.count;
        assert_eq!(point.len(), expected, "the length of a point");
        let mut distances = [0.0; BLOCK];
        let (mut nearest, mut least) = (0, f32::INFINITY);
        for first in (0..self.count).step_by(BLOCK) {
            let distances = &mut distances[..BLOCK.min(self.count - first)];
            squared_distances(point, &self.columns[first..], self.count, distances);
            let place = first_of_least(distances);
            if distances[place] < least {
                (nearest, least) = (first + place, distances[place]);
            }
        }
        nearest
    }

    /// Copies the first elements of a centroid to `out`, whose length is at most `dim`.
    pub fn copy_to(&self, centroid: usize, out: &mut [f32]) {
        let columns = self.columns.chunks_exact(self.count);
        out.iter_mut().zip(columns).for_each(|(x, column)| *x = column[centroid]);
    }

    /// Adds the product of each centroid with a query `[dim]` to `sums` `[centroids]`. A shorter
    /// query counts as padded with 0, and further elements of `sums` are left unchanged.
    pub fn add_products(&self, query: &[f32], sums: &mut [f32]) {
        for (q, column) in query.iter().zip(self.columns.chunks_exact(self.count)) {
            sums.iter_mut().zip(column).for_each(|(sum, c)| *sum += q * c);
        }
    }

    /// Bytes of the centroids.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.columns[..])
    }
}

/// Number of centroids whose distances are computed together.
const LANES: usize = 32;

/// Writes the squared distance of each centroid to `point` to `distances` `[centroids]`.
///
/// Vector lanes hold different centroids, so that the order of each sum, and its result, is the
/// same on every machine. Successive columns begin `stride` numbers apart.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn squared_distances(point: &[f32], columns: &[f32], stride: usize, distances: &mut [f32]) {
    let (blocks, rest) = distances.as_chunks_mut::<LANES>();
    let done = blocks.len() * LANES;
    for (i, block) in blocks.iter_mut().enumerate() {
        // A local array stays in registers.
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
    for (x, column) in point.iter().zip(columns.chunks(stride)) {
        for (distance, c) in rest.iter_mut().zip(&column[done..]) {
            *distance += (x - c) * (x - c);
        }
    }
}

/// Position of the smallest number, the first one in case of ties.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 32,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// There are more centroids than in a block, and distances of whole numbers are exact and
        /// tie often.
        #[test]
        fn the_nearest_of_many_is_the_first_at_the_least_distance(
            numbers in prop::collection::vec(-3_i8..=3, 2..2000),
            point in prop::collection::vec(-3_i8..=3, 2),
        ) {
            let numbers: Vec<f32> = numbers.into_iter().map(f32::from).collect();
            let point: Vec<f32> = point.into_iter().map(f32::from).collect();
            let count = numbers.len() / 2;
            let rows = ArrayView2::from_shape((count, 2), &numbers[..2 * count]).unwrap();
            let distance = |row: &[f32]| (row[0] - point[0]).powi(2) + (row[1] - point[1]).powi(2);
            let distances: Vec<f32> = numbers.chunks_exact(2).map(distance).collect();
            let least = distances.iter().copied().fold(f32::INFINITY, f32::min);
            let first = distances.iter().position(|&distance| distance == least).unwrap();
            prop_assert_eq!(Centroids::new(rows).nearest(&point), first);
        }
    }
}
