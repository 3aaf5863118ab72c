//! Clusters of keys by their directions.

use vattention_core::Site;
use vattention_core::ndarray::{Array2, ArrayView1, ArrayView2};

use vattention_index::clusters::{Centroids, assign, k_means, order};

/// Computes the cluster of each of `points` `[points, dim]` by direction, with at most `most`
/// clusters. `which` distinguishes several clusterings of one KV head.
pub(crate) fn label_by_direction(
    points: ArrayView2<'_, f32>,
    most: usize,
    iterations: u16,
    site: &Site,
    which: usize,
) -> Vec<usize> {
    let directions = normalise(points);
    let order = order(points.nrows(), site, which);
    let centroids = k_means(directions.view(), most, iterations, order);
    assign(directions.view(), &Centroids::new(centroids.view()))
}

/// Normalises points `[points, dim]` to norm 1. Zero vectors stay.
fn normalise(points: ArrayView2<'_, f32>) -> Array2<f32> {
    let mut points = points.to_owned();
    for mut point in points.rows_mut() {
        let norm = norm(point.view());
        if norm > 0.0 {
            point.mapv_inplace(|x| (f64::from(x) / norm) as f32);
        }
    }
    points
}

fn norm(point: ArrayView1<'_, f32>) -> f64 {
    point.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}
