//! Points that others are near to: which is nearest, and their products with a query.

use multiversion::multiversion;
use vattention_core::ndarray::ArrayView2;

/// The centers of clusters of points.
#[derive(Clone, Debug)]
pub struct Centroids {
    /// The first elements of all centroids, the second elements, and so on, `[elements, centroids]`.
    columns: Vec<f32>,
    count: usize,
}

/// Centroids whose distances are kept at a time.
const BLOCK: usize = 256;

impl Centroids {
    /// Those of `rows` `[centroids, dim]`, at least one.
    pub fn new(rows: ArrayView2<'_, f32>) -> Self {
        Self { columns: rows.t().iter().copied().collect(), count: rows.nrows() }
    }

    /// The centroid nearest to a point `[dim]`, the first of several. O(centroids · dim).
    ///
    /// # Panics
    /// If the point is not as long as a centroid.
    pub fn nearest(&self, point: &[f32]) -> usize {
        let expected = self.columns.len() / self.count;
        assert_eq!(point.len(), expected, "a point is as long as a centroid");
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

    /// A centroid, into `out` `[dim]`, or as much of it as there is room for.
    pub fn copy_to(&self, centroid: usize, out: &mut [f32]) {
        let columns = self.columns.chunks_exact(self.count);
        out.iter_mut().zip(columns).for_each(|(x, column)| *x = column[centroid]);
    }

    /// Adds to `sums` `[centroids]`, which may be longer, the product of each with a query `[dim]`; one
    /// that is shorter has 0 at the end.
    pub fn add_products(&self, query: &[f32], sums: &mut [f32]) {
        for (q, column) in query.iter().zip(self.columns.chunks_exact(self.count)) {
            sums.iter_mut().zip(column).for_each(|(sum, c)| *sum += q * c);
        }
    }

    /// What they take.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.columns[..])
    }
}

/// Centroids whose distances are summed at a time.
const LANES: usize = 32;

/// The squared distance of each centroid to `point`, into `distances` `[centroids]`, summed number
/// by number: vectors over the centroids, so that the sums are the same on every machine. The numbers
/// of `columns` are `stride` apart.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn squared_distances(point: &[f32], columns: &[f32], stride: usize, distances: &mut [f32]) {
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
    for (x, column) in point.iter().zip(columns.chunks(stride)) {
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
        /// More centroids than are looked at a time, of whole numbers, whose distances are exact and tie often.
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
