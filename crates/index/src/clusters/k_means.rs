//! Lloyd's algorithm for k-means, with the same results on every machine.

use std::collections::HashSet;

use vattention_core::ndarray::{Array2, ArrayView2, Axis};
use vattention_core::{Site, sample::Order, step::Stream};

use super::centroids::Centroids;

/// Purpose of the streams that order the points; no other stream has this purpose.
const PURPOSE: u16 = u16::MAX - 3;

/// Random order of points, the first of which are the initial centroids of [`k_means`].
///
/// The order depends on the seed, the layer and the KV head, but not on the sequence. `which`
/// distinguishes several clusterings of one KV head.
pub fn order(points: usize, site: &Site, which: usize) -> Order {
    let place = Site { sequence: 0, ..*site };
    Order::new(points, &Stream::new(&place, PURPOSE, which as u32, 0))
}

/// Computes at most `most` centroids of `points` `[points, dim]`.
///
/// The initial centroids are the first distinct points of `order`. Each iteration replaces a
/// centroid by the mean of the points that are nearest to it, until no point changes its centroid,
/// at most `iterations` times. A point at equal distances belongs to the first of these centroids.
/// A centroid without points is left unchanged.
///
/// O(iterations · points · most · dim).
pub fn k_means(
    points: ArrayView2<'_, f32>,
    most: usize,
    iterations: u16,
    order: Order,
) -> Array2<f32> {
    lloyd(points, select_distinct(points, most, order), iterations)
}

/// Iterates from initial `centroids` `[centroids, dim]`.
fn lloyd(points: ArrayView2<'_, f32>, mut centroids: Array2<f32>, iterations: u16) -> Array2<f32> {
    let mut codes = Vec::new();
    for _ in 0..iterations {
        let nearest = assign(points, &Centroids::new(centroids.view()));
        if nearest == codes {
            break;
        }
        codes = nearest;
        move_to_means(&mut centroids, points, &codes);
    }
    centroids
}

/// Selects the first `most` distinct points in `order`, or all if there are fewer.
fn select_distinct(points: ArrayView2<'_, f32>, most: usize, order: Order) -> Array2<f32> {
    let mut before = HashSet::new();
    // Adding 0 makes the bits of −0 and 0 equal.
    let bits = |i| points.row(i).iter().map(|x| (x + 0.0).to_bits()).collect::<Vec<_>>();
    let first: Vec<usize> = order.tokens().filter(|&i| before.insert(bits(i))).take(most).collect();
    points.select(Axis(0), &first)
}

/// Index of the centroid nearest to each of `points` `[points, dim]`, the first one in case of
/// ties.
pub fn assign(points: ArrayView2<'_, f32>, centroids: &Centroids) -> Vec<usize> {
    let points = points.as_standard_layout();
    points
        .rows()
        .into_iter()
        .map(|p| centroids.nearest(p.as_slice().expect("rows lie one after the other")))
        .collect()
}

/// Replaces each centroid by the mean of its points, summed in f64 in the order of the points.
fn move_to_means(centroids: &mut Array2<f32>, points: ArrayView2<'_, f32>, codes: &[usize]) {
    let mut sums = Array2::<f64>::zeros(centroids.dim());
    let mut counts = vec![0_u32; centroids.nrows()];
    for (point, &code) in points.rows().into_iter().zip(codes) {
        counts[code] += 1;
        sums.row_mut(code).zip_mut_with(&point, |sum, &x| *sum += f64::from(x));
    }
    for ((mut centroid, sum), &count) in
        centroids.rows_mut().into_iter().zip(sums.rows()).zip(&counts)
    {
        if count > 0 {
            centroid.zip_mut_with(&sum, |x, &sum| *x = (sum / f64::from(count)) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vattention_core::Shape;

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
    }

    fn points(numbers: &[f32], dim: usize) -> ArrayView2<'_, f32> {
        ArrayView2::from_shape((numbers.len() / dim, dim), &numbers[..numbers.len() / dim * dim])
            .unwrap()
    }

    fn order(points: usize, seed: u64) -> Order {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        super::order(points, &Site { seed, sequence: 0, layer: 0, kv_head: 0, shape }, 0)
    }

    /// Sum of the squared distances to the nearest centroids.
    fn distortion(points: ArrayView2<'_, f32>, centroids: ArrayView2<'_, f32>) -> f64 {
        let nearest = |point: &[f32]| {
            let distances = centroids.rows().into_iter().map(|c| distance(point, &c.to_vec()));
            distances.fold(f64::INFINITY, f64::min)
        };
        points.rows().into_iter().map(|point| nearest(&point.to_vec())).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn no_iteration_makes_the_distortion_larger(
            numbers in prop::collection::vec(-9.0_f32..9.0, 3..300),
            most in 1_usize..20,
            seed: u64,
        ) {
            let points = points(&numbers, 3);
            let after = |iterations| {
                let centroids = k_means(points, most, iterations, order(points.nrows(), seed));
                distortion(points, centroids.view())
            };
            let all: Vec<f64> = (0..12).map(after).collect();
            for pair in all.windows(2) {
                prop_assert!(pair[1] <= pair[0] * (1.0 + 1e-6), "{:?}", all);
            }
        }

        /// After convergence each centroid is the mean of the points that are nearest to it.
        #[test]
        fn the_result_is_a_fixed_point(
            numbers in prop::collection::vec(-9.0_f32..9.0, 3..200),
            most in 1_usize..20,
            seed: u64,
        ) {
            let points = points(&numbers, 3);
            let centroids = k_means(points, most, 1000, order(points.nrows(), seed));
            prop_assert_eq!(centroids.nrows(), most.min(points.nrows()));
            let mut members = vec![Vec::new(); centroids.nrows()];
            let nearest = assign(points, &Centroids::new(centroids.view()));
            for (point, nearest) in points.rows().into_iter().zip(nearest) {
                members[nearest].push(point);
            }
            for (centroid, members) in centroids.rows().into_iter().zip(&members) {
                for (j, &x) in centroid.iter().enumerate() {
                    let sum: f64 = members.iter().map(|point| f64::from(point[j])).sum();
                    let mean = sum / members.len() as f64;
                    prop_assert!(members.is_empty() || (f64::from(x) - mean).abs() < 1e-5);
                }
            }
        }
    }

    /// The first and third centroid move so close that each takes one of the second one's points.
    #[test]
    fn a_centroid_without_points_does_not_move() {
        let left = [-1.6_f32; 6].into_iter().chain([-4.0]);
        let numbers: Vec<f32> = left.chain([-1.0, 1.0, 2.0]).chain([1.6; 6]).collect();
        let start = Array2::from_shape_vec((3, 1), vec![-4.0, 1.0, 2.0]).unwrap();
        let after = |iterations| {
            let end = lloyd(points(&numbers, 1), start.clone(), iterations);
            end.into_raw_vec_and_offset().0
        };
        assert_eq!(after(1)[1], 0.0, "the mean of −1 and 1");
        let end = after(10);
        assert_eq!(end[1], 0.0);
        assert!(
            (end[0] + 14.6 / 8.0).abs() < 1e-6 && (end[2] - 12.6 / 8.0).abs() < 1e-6,
            "{end:?}"
        );
    }

    #[test]
    fn equal_points_make_one_centroid() {
        let numbers: Vec<f32> = [[1.0, -0.0], [1.0, 0.0], [2.0, 2.0]].repeat(9).concat();
        let centroids = k_means(points(&numbers, 2), 8, 10, order(27, 3));
        let mut rows: Vec<_> = centroids.rows().into_iter().map(|row| row.to_vec()).collect();
        rows.sort_by(|a, b| a[0].total_cmp(&b[0]));
        assert_eq!(rows, [[1.0, 0.0], [2.0, 2.0]]);
    }
}
