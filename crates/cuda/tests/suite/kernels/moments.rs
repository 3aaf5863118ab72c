//! Moments of samples: `look.cu`, against core's statistics in f64.

use proptest::prelude::*;
use vattention_core::{
    Estimator, Fraction, SampleStats, Storage,
    pipeline::required_size,
    sample::{LAGS, Sample, scale_up},
    step::Softmax,
};
use vattention_cuda::Device;
use vattention_cuda::formula::ClosedForm;
use vattention_cuda::launch::{Rounds, UnsampledList};
use vattention_cuda_emulator::ThreadSchedule;
use vattention_estimators::Ratio;

use super::world::{Head, KINDS, Kind, List, Numbers, emulator};

/// Sample sizes around those of pairs, warps and items.
pub(crate) const DRAWN: [usize; 11] = [2, 3, 31, 32, 33, 63, 65, 255, 256, 257, 700];

/// Amounts by which always-read logits exceed the others; `None` for no always-read tokens.
const HEAVIER: [Option<f64>; 5] = [None, Some(0.0), Some(8.0), Some(60.0), Some(-300.0)];

/// A promise for which a moderate sample suffices.
pub(crate) fn ratio(epsilon: f64) -> Ratio {
    Ratio::new(fraction(epsilon), fraction(0.1))
}

pub(crate) fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

/// Closed form of an estimator's budget.
pub(crate) fn form(estimator: &dyn Estimator, kind: Kind) -> ClosedForm {
    ClosedForm::from_estimator(estimator, kind.group, kind.value_dim).unwrap()
}

/// One list: its always-read tokens, and all others in draw order.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    head: Head,
    queries: Vec<f32>,
    certain: Vec<Softmax>,
    order: Vec<u32>,
    longest: f64,
    /// Upper bounds on the untaken logits of each query head; infinite by default.
    pub(crate) bounds: Vec<f32>,
}

impl Case {
    /// The first `certain` of `visible` tokens are always read, with logits larger by `heavier`.
    fn usual(
        kind: Kind,
        (certain, visible): (usize, usize),
        heavier: f64,
        numbers: &mut Numbers,
    ) -> Self {
        let mut order: Vec<u32> = (certain as u32..visible as u32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, numbers.below(i + 1));
        }
        let head = Head::usual(kind, visible, numbers);
        let mut case = Self::new(head, (0..certain as u32).collect(), order);
        for sums in &mut case.certain {
            let (shift, d) = (sums.shift() + heavier, sums.denominator());
            *sums = Softmax::from_sums(shift, d, sums.numerator().to_vec());
        }
        case
    }

    pub(crate) fn new(head: Head, certain: Vec<u32>, order: Vec<u32>) -> Self {
        let norm = |v: &Vec<f32>| v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let longest = head.values.iter().map(norm).fold(0.0, f64::max);
        let certain = head.softmax(&List { tokens: certain, probabilities: None });
        let (queries, bounds) = (head.queries.concat(), vec![f32::INFINITY; head.queries.len()]);
        Self { head, queries, certain, order, longest, bounds }
    }

    /// Multiplies values by a factor.
    fn scale_values(mut self, factor: f32) -> Self {
        self.head.values.iter_mut().flatten().for_each(|v| *v *= factor);
        let scaled = |sums: &Softmax| {
            let n = sums.numerator().iter().map(|n| n * f64::from(factor)).collect();
            Softmax::from_sums(sums.shift(), sums.denominator(), n)
        };
        self.certain = self.certain.iter().map(scaled).collect();
        self.longest *= f64::from(factor);
        self
    }

    /// The inputs of the device.
    pub(crate) fn list(&self) -> UnsampledList<'_> {
        let Self { queries, certain, order, longest, bounds, .. } = self;
        UnsampledList { queries, certain, order, longest: *longest, bounds }
    }

    /// All untaken tokens, in draw order.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// The e and values of the first `b` drawn tokens of a query head, and the always-read sums,
    /// all relative to one shift.
    fn sample(&self, reader: usize, b: usize) -> (Vec<f64>, Vec<f32>, Softmax) {
        let drawn = &self.order[..b];
        let logits: Vec<f64> = drawn.iter().map(|&t| self.head.logit(reader, t)).collect();
        let mut certain = self.certain[reader].clone();
        certain.rebase(logits.iter().copied().fold(certain.shift(), f64::max));
        let e = logits.iter().map(|logit| (logit - certain.shift()).exp()).collect();
        let values = drawn.iter().flat_map(|&t| &self.head.values[t as usize]).copied().collect();
        (e, values, certain)
    }

    fn stats(&self, reader: usize, b: usize) -> SampleStats {
        let (e, values, certain) = self.sample(reader, b);
        SampleStats::new(&Sample {
            e: &e,
            values: &values,
            certain: &certain,
            n_s: self.order.len(),
            visible: self.head.keys.len(),
            query_heads: self.certain.len(),
            max_norm_v: 0.0,
            bound: None,
        })
    }

    /// Squared products of differences of w, summed over lags, and a bound on their rounding error.
    fn lagged(&self, reader: usize, b: usize) -> (f64, f64) {
        let (e, values, certain) = self.sample(reader, b);
        let (dim, weight) = (certain.numerator().len(), scale_up(b, self.order.len()));
        let d = certain.denominator() + weight * e.iter().sum::<f64>();
        let ev = |i: usize, x: usize| e[i] * f64::from(values[i * dim + x]);
        let n = |x: usize| certain.numerator()[x] + weight * (0..b).map(|i| ev(i, x)).sum::<f64>();
        let out: Vec<f64> = (0..dim).map(|x| n(x) / d).collect();
        let w = |i: usize, x: usize| ev(i, x) - e[i] * out[x];
        let difference =
            |pair: usize| (0..dim).map(|x| w(2 * pair, x) - w(2 * pair + 1, x)).collect::<Vec<_>>();
        let differences: Vec<Vec<f64>> = (0..b / 2).map(difference).collect();
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let (mut sum, mut most) = (0.0, 0.0);
        for lag in 1..=LAGS.min(differences.len()) {
            for (x, y) in differences.iter().zip(&differences[lag..]) {
                sum += dot(x, y).powi(2);
                most += dot(x, x) * dot(y, y);
            }
        }
        (sum, most)
    }
}

/// Checks samples of `b` tokens or more of each case: the moments equal those in f64, and the
/// budget equals core's.
fn check<D: Device>(device: &D, kind: Kind, cases: &[Case], visible: usize, b: usize) {
    let ratio = ratio(0.3);
    let heads = cases.iter().map(|case| case.head.pages(device, kind)).collect();
    let form = form(&ratio, kind);
    let rounds = Rounds::new(device, kind.layout(), kind.group, heads, visible, (&form, 1));
    let (rounds, moments) = rounds.unwrap();
    let lists: Vec<_> = cases.iter().map(Case::list).collect();
    let found = rounds.run(visible, b, &lists).unwrap();
    let moments = moments.read().unwrap();
    for (i, (case, found)) in cases.iter().zip(&found).enumerate() {
        let n_s = case.order.len();
        let b = if n_s - b.min(n_s) < 32 { n_s } else { b };
        let mut budget = 0;
        for reader in 0..kind.group {
            check_moments(case, reader, b, &moments[i * kind.group + reader]);
            budget = budget.max(required_size(&ratio, &case.stats(reader, b)).tokens);
        }
        let budget = budget.max(usize::from(n_s == visible)).min(n_s);
        let apart = found.budget.abs_diff(budget);
        assert!(apart as f64 <= (1e-4 * budget as f64).max(1.0), "{found:?} for {budget} of {n_s}");
        assert!(found.drawn >= b && (found.drawn >= found.budget.min(n_s) || found.held));
    }
}

fn check_moments(case: &Case, reader: usize, b: usize, items: &[[f64; 8]]) {
    let mut found = [0.0; 8];
    for item in &items[..b.div_ceil(256)] {
        found.iter_mut().zip(item).for_each(|(sum, x)| *sum += x);
    }
    let stats = case.stats(reader, b);
    let degrees = b as f64 - 1.0;
    let (lagged, most) = case.lagged(reader, b);
    let ev_squares = stats.trace_ev * degrees;
    let fourths = |kurtosis: f64, variance: f64| kurtosis * (variance * degrees).powi(2) / b as f64;
    let e_fourths = fourths(stats.kurtosis_e, stats.var_e);
    let w_fourths = fourths(stats.kurtosis_w, stats.trace_w);
    let expected = [
        ("D", stats.d, stats.d),
        ("N", stats.norm_n.powi(2), stats.norm_n.powi(2)),
        ("e", stats.var_e * degrees, stats.var_e * degrees),
        ("ev", ev_squares, ev_squares),
        // Where values are alike, f32 loses the difference between w and e v.
        ("w", stats.trace_w * degrees, stats.trace_w * degrees + 1e-2 * ev_squares),
        ("lagged", lagged, lagged + 1e-2 * most),
        ("e fourths", e_fourths, e_fourths),
        ("w fourths", w_fourths, w_fourths + 1e-2 * ev_squares.powi(2)),
    ];
    for ((name, expected, scale), found) in expected.into_iter().zip(found) {
        let apart = (found - expected).abs();
        assert!(apart <= 1e-4 * scale, "{name} of {b}: {found:e} for {expected:e}");
    }
}

/// Checks two lists with different always-read parts, at one sample size.
pub(crate) fn check_sample_moments<D: Device>(device: &D, kind: Kind, b: usize, seed: u64) {
    let mut numbers = Numbers::new(seed);
    let visible = b + 1 + numbers.below(400);
    let cases: Vec<Case> = (0..2)
        .map(|_| {
            let heavier = HEAVIER[numbers.below(HEAVIER.len())];
            let certain = heavier.map_or(0, |_| 1 + numbers.below((visible - b).min(40)));
            let case = Case::usual(kind, (certain, visible), heavier.unwrap_or(0.0), &mut numbers);
            let factors =
                if kind.storage == Storage::F32 { &[1.0, 1e12, 1e-12][..] } else { &[1.0] };
            case.scale_values(factors[numbers.below(factors.len())])
        })
        .collect();
    check(device, kind, &cases, visible, b);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn moments_and_budgets_are_those_in_f64(
        kind in prop::sample::select(&KINDS[..]),
        b in prop::sample::select(&DRAWN[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_sample_moments(&device.with_order(schedule), kind, b, seed);
    }
}
