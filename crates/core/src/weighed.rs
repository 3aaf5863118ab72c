//! A sample whose tokens weigh `1 / π`, as one reader sees it, by products of values.

use crate::stats::{drift, norm};
use crate::{Residual, Sample, Softmax, Tally};

/// What a sample of tokens that were drawn independently comes to, and of each of its tokens what moments of it follow
/// from. `b` tokens, in draw order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weighed {
    /// What exponentials are relative to.
    pub shift: f64,
    /// Elements of a value.
    pub value_dim: usize,
    /// `D^`.
    pub d: f64,
    /// The certain tokens' part of it.
    pub d_certain: f64,
    /// `|o^|²`, of `o^ = N^/D^`.
    pub out_squared: f64,
    /// `|o^ − c|`, `c` being the certain tokens' own output.
    pub drift: f64,
    /// Estimate of `Σ e |v|` over all visible tokens.
    pub sum_e_norm_v: f64,
    /// `e` of each token, `[b]`.
    pub e: Vec<f64>,
    /// `|v|`, `[b]`.
    pub norms: Vec<f64>,
    /// `v · o^`, `[b]`.
    pub by_out: Vec<f64>,
    /// `v · v'` of the [`PAIRS`](Self::PAIRS) of tokens `4 i .. 4 i + 4`, `[b / 4]`.
    pub fours: Vec<[f64; 6]>,
}

impl Weighed {
    /// Tokens whose values are multiplied with each other.
    pub const FOUR: usize = 4;

    /// The pairs of a four, in the order of their products.
    pub const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

    /// The definition, in f64: of a sample that was drawn with probabilities `p` `[b]`, with exponentials relative to
    /// `shift`. O(b · value_dim).
    pub fn new(sample: &Sample<'_>, p: &[f64], shift: f64) -> Self {
        let dim = sample.certain.numerator().len();
        let values: Vec<&[f32]> = sample.values.chunks_exact(dim).collect();
        let norms: Vec<f64> = values.iter().map(|value| norm(value)).collect();
        let (mut d, mut e_norms) = (sample.certain.denominator(), sample.certain_norms);
        let mut n = sample.certain.numerator().to_vec();
        for (((e, p), value), norm) in sample.e.iter().zip(p).zip(&values).zip(&norms) {
            let weight = e / p;
            d += weight;
            e_norms += weight * norm;
            n.iter_mut().zip(*value).for_each(|(n, &v)| *n += weight * f64::from(v));
        }
        let total = Softmax::from_sums(0.0, d, n);
        let out = total.output();
        let by_out =
            |value: &&[f32]| value.iter().zip(&out).map(|(&v, o)| f64::from(v) * o).sum::<f64>();
        let product = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
        };
        let four = |four: &[&[f32]]| Self::PAIRS.map(|(i, j)| product(four[i], four[j]));
        Self {
            by_out: values.iter().map(by_out).collect(),
            fours: values.chunks_exact(Self::FOUR).map(four).collect(),
            ..Self::of_sums(shift, sample.certain, &total, e_norms, sample.e.to_vec(), norms)
        }
    }

    /// The definition, of the sample that a tally shows.
    pub fn by_definition<T: Tally + ?Sized>(
        tally: &mut T,
        reader: usize,
        residual: &Residual,
        p: &[f64],
    ) -> Self {
        let mut weighed = Self::default();
        tally.sample(reader, residual, &mut |sample, shift| weighed = Self::new(sample, p, shift));
        weighed
    }

    /// With what the sums over the certain tokens and over all come to, which are relative to the same shift; the
    /// products are missing.
    pub fn of_sums(
        shift: f64,
        certain: &Softmax,
        all: &Softmax,
        sum_e_norm_v: f64,
        e: Vec<f64>,
        norms: Vec<f64>,
    ) -> Self {
        let out = all.output();
        Self {
            shift,
            value_dim: out.len(),
            d: all.denominator(),
            d_certain: certain.denominator(),
            out_squared: out.iter().map(|o| o * o).sum(),
            drift: drift(&out, certain),
            sum_e_norm_v,
            e,
            norms,
            by_out: Vec::new(),
            fours: Vec::new(),
        }
    }
}
