//! Products of matrices in f32, by the `gemm` crate, on all threads.

use gemm::Parallelism;

/// Rows of numbers; each begins `stride` numbers after the one before.
#[derive(Clone, Copy)]
pub(crate) struct RowView<'a> {
    pub(crate) numbers: &'a [f32],
    pub(crate) count: usize,
    pub(crate) stride: usize,
}

/// Treatment of the previous content of the result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// The product overwrites the content.
    Overwrite,
    /// The product is added to the content.
    Add,
}

/// Threads of a product.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    /// The calling thread.
    One,
    /// All threads of rayon's pool.
    All,
}

impl<'a> RowView<'a> {
    /// Returns `count` rows without gaps.
    pub(crate) fn dense(numbers: &'a [f32], count: usize) -> Self {
        Self { numbers, count, stride: numbers.len() / count.max(1) }
    }

    fn check(&self, width: usize) {
        assert!(width <= self.stride || self.count <= 1, "rows overlap");
        let end = self.count.checked_sub(1).map_or(0, |last| last * self.stride + width);
        assert!(end <= self.numbers.len(), "rows end beyond their numbers");
    }
}

/// Computes `x Wᵀ`: `x` is `[n, inner]`, `w` `[m, inner]`, `y` `[n, m]` without gaps.
pub(crate) fn times_transposed(
    x: RowView<'_>,
    w: RowView<'_>,
    inner: usize,
    y: &mut [f32],
    mode: WriteMode,
    threads: Threads,
) {
    x.check(inner);
    w.check(inner);
    let strides = (1, w.stride);
    multiply(x, (w.numbers, strides), [x.count, inner, w.count], y, mode, threads);
}

/// Computes `x W`: `x` is `[n, inner]`, `w` `[inner, m]`, `y` `[n, m]` without gaps.
pub(crate) fn times(
    x: RowView<'_>,
    w: RowView<'_>,
    m: usize,
    y: &mut [f32],
    mode: WriteMode,
    threads: Threads,
) {
    x.check(w.count);
    w.check(m);
    multiply(x, (w.numbers, (w.stride, 1)), [x.count, w.count, m], y, mode, threads);
}

/// Multiplies `x` by `w`, which is `[inner, m]` with these strides. Both must lie within their
/// slices.
fn multiply(
    x: RowView<'_>,
    (w, (w_row, w_column)): (&[f32], (usize, usize)),
    [n, inner, m]: [usize; 3],
    y: &mut [f32],
    mode: WriteMode,
    threads: Threads,
) {
    assert_eq!(y.len(), n * m, "a result of {n} rows of {m} elements");
    let parallelism = match threads {
        Threads::One => Parallelism::None,
        Threads::All => Parallelism::Rayon(0),
    };
    let added = mode == WriteMode::Add;
    // SAFETY: `x` and `w` were checked to hold rows and columns that the strides reach, `y` to hold
    // `n * m` numbers; `y` is borrowed exclusively, so it overlaps neither.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            n,
            m,
            inner,
            y.as_mut_ptr(),
            1,
            m as isize,
            added,
            x.numbers.as_ptr(),
            1,
            x.stride as isize,
            w.as_ptr(),
            w_column as isize,
            w_row as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| ((i as f32 + seed) * 1.7).sin()).collect()
    }

    /// Product of `[n, inner]` and `[inner, m]` with these strides, in f64.
    fn expected(
        x: RowView<'_>,
        w: &[f32],
        (row, column): (usize, usize),
        [n, inner, m]: [usize; 3],
    ) -> Vec<f64> {
        let dot = |i: usize, j: usize| -> f64 {
            let term = |k: usize| {
                f64::from(x.numbers[i * x.stride + k]) * f64::from(w[k * row + j * column])
            };
            (0..inner).map(term).sum()
        };
        (0..n).flat_map(|i| (0..m).map(move |j| (i, j))).map(|(i, j)| dot(i, j)).collect()
    }

    #[test]
    fn products_match_their_definition_with_gaps_and_without() {
        for (n, inner, m) in [(1, 1, 1), (3, 7, 5), (64, 64, 130), (33, 576, 100)] {
            for gap in [0, 3] {
                for (mode, threads) in
                    [(WriteMode::Overwrite, Threads::One), (WriteMode::Add, Threads::All)]
                {
                    let (x, stride) = (numbers(n * (inner + gap), 0.1), inner + gap);
                    let x = RowView { numbers: &x, count: n, stride };
                    let before = numbers(n * m, 0.7);
                    let old =
                        |i: usize| if mode == WriteMode::Add { f64::from(before[i]) } else { 0.0 };
                    // The product is a sum of `inner` rounded terms of at most 1.
                    let limit = 2e-6 * inner as f64;
                    let close = |found: &[f32], expected: &[f64]| {
                        found
                            .iter()
                            .enumerate()
                            .all(|(i, &y)| (f64::from(y) - old(i) - expected[i]).abs() < limit)
                    };
                    let w = numbers(m * (inner + gap), 0.3);
                    let rows = RowView { numbers: &w, count: m, stride };
                    let mut y = before.clone();
                    times_transposed(x, rows, inner, &mut y, mode, threads);
                    assert!(close(&y, &expected(x, &w, (1, stride), [n, inner, m])));
                    let w = numbers(inner * (m + gap), 0.3);
                    let rows = RowView { numbers: &w, count: inner, stride: m + gap };
                    let mut y = before.clone();
                    times(x, rows, m, &mut y, mode, threads);
                    assert!(close(&y, &expected(x, &w, (m + gap, 1), [n, inner, m])));
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows end beyond their numbers")]
    fn rows_beyond_their_numbers_are_refused() {
        let numbers = [0.0; 11];
        let rows = RowView { numbers: &numbers, count: 3, stride: 4 };
        times_transposed(rows, rows, 4, &mut [0.0; 9], WriteMode::Overwrite, Threads::One);
    }
}
