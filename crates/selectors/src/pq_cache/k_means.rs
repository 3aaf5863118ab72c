//! Lloyd's algorithm, the same on every machine.

use std::collections::HashSet;

use vattention_core::Order;
use vattention_core::ndarray::{Array2, ArrayView2};

use super::codebook::Codebook;

/// At most `most` centroids of `points` `[points, dim]`: the first different points of `order`,
/// then at most `iterations` times the means of the points that are nearest to each, until no
/// point changes its centroid. Points that are equally near belong to the first of the centroids,
/// and a centroid without points stays where it is.
///
/// O(iterations · points · most · dim).
pub(super) fn k_means(
    points: ArrayView2<'_, f32>,
    most: usize,
    iterations: u16,
    order: Order,
) -> Array2<f32> {
    let mut centroids = different(points, most, order);
    let mut codes = Vec::new();
    for _ in 0..iterations {
        let nearest = assign(points, &Codebook::new(centroids.view(), None));
        if nearest == codes {
            break;
        }
        codes = nearest;
        move_to_means(&mut centroids, points, &codes);
    }
    centroids
}

/// The first `most` points of `order` that differ from those before them, or all.
fn different(points: ArrayView2<'_, f32>, most: usize, order: Order) -> Array2<f32> {
    let mut seen = HashSet::new();
    // −0 + 0 is 0, which has the same bits as 0.
    let bits = |i| points.row(i).iter().map(|x| (x + 0.0).to_bits()).collect::<Vec<_>>();
    let first: Vec<usize> = order.tokens().filter(|&i| seen.insert(bits(i))).take(most).collect();
    points.select(vattention_core::ndarray::Axis(0), &first)
}

fn assign(points: ArrayView2<'_, f32>, codebook: &Codebook) -> Vec<u8> {
    let points = points.as_standard_layout();
    points
        .rows()
        .into_iter()
        .map(|p| codebook.encode(p.as_slice().expect("rows lie one after the other")))
        .collect()
}

/// Sums in f64, in the order of the points.
fn move_to_means(centroids: &mut Array2<f32>, points: ArrayView2<'_, f32>, codes: &[u8]) {
    let mut sums = Array2::<f64>::zeros(centroids.dim());
    let mut counts = vec![0_u32; centroids.nrows()];
    for (point, &code) in points.rows().into_iter().zip(codes) {
        let code = usize::from(code);
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
