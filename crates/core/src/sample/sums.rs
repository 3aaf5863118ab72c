//! Sums in f64, in vector instructions.

/// Number of partial sums. Loops over this number of sums are compiled to vector instructions.
const LANES: usize = 16;

/// Sums of the `N` terms that `compute` returns for the numbers at each place of `M` columns of one
/// length.
#[inline(always)]
pub(crate) fn sum_terms<const M: usize, const N: usize>(
    columns: [&[f64]; M],
    compute: impl Fn([f64; M]) -> [f64; N],
) -> [f64; N] {
    let mut sums = [[0.0; LANES]; N];
    let len = columns[0].len();
    let whole = len / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let columns: [&[f64; LANES]; M] = std::array::from_fn(|column| {
            columns[column][first..].first_chunk().expect("all columns have one length")
        });
        for lane in 0..LANES {
            let terms = compute(columns.map(|column| column[lane]));
            for (sums, term) in sums.iter_mut().zip(terms) {
                sums[lane] += term;
            }
        }
    }
    for place in whole..len {
        let terms = compute(columns.map(|column| column[place]));
        for (sums, term) in sums.iter_mut().zip(terms) {
            sums[place - whole] += term;
        }
    }
    sums.map(|mut sums| {
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
        }
        sums[0]
    })
}

/// Sum of the squares of numbers.
pub(super) fn sum_of_squares(numbers: &[f64]) -> f64 {
    let [sum] = sum_terms([numbers], |[x]| [x * x]);
    sum
}
