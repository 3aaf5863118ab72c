//! Effect of rounding keys and values on attention (docs/guarantees.md, theorem 9).

use crate::{
    NewTokens, RowsView, Target,
    sample::stats::norm,
    step::{PrefixMax, Row, Tokens},
};

use ndarray::Ix2;

/// Factor that covers the rounding of norms in f64.
const ROUNDED_UP: f64 = 1.0 + 1e-12;

/// Rounding errors of the keys and values of one KV head.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundingErrors {
    /// Norms of the differences of stored keys from the given ones.
    keys: PrefixMax,
    /// Norms of the differences of stored values from the given ones.
    values: PrefixMax,
    /// Norms of the stored values.
    norms_v: PrefixMax,
}

impl RoundingErrors {
    /// Measures new tokens: keys and values as they were given, `[new, dim]`, and as stored.
    pub(crate) fn measure(
        &mut self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        stored: &NewTokens<'_>,
    ) {
        push_differences(&mut self.keys, keys, stored.keys);
        push_differences(&mut self.values, values, stored.values);
        let mut value = vec![0.0; stored.values.dim()];
        for token in 0..stored.values.len() {
            stored.values.copy_row(token, &mut value);
            self.norms_v.push(norm(&value) * ROUNDED_UP);
        }
    }

    /// Removes all but the first `tokens` tokens.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        for maxima in [&mut self.keys, &mut self.values, &mut self.norms_v] {
            maxima.truncate(tokens);
        }
    }

    /// Returns true if a stored row differs from the given one.
    pub(crate) fn any(&self) -> bool {
        [&self.keys, &self.values].iter().any(|errors| errors.max_of_first(errors.len()) > 0.0)
    }

    /// Bounds for one row of attention. Nothing is known if a visible token was not measured.
    pub(crate) fn bound(&self, row: &Row<'_>) -> RowRounding {
        let visible = row.visible();
        if self.keys.len() < visible {
            return RowRounding::UNKNOWN;
        }
        let logit = norm(row.query()) * self.keys.max_of_first(visible) * ROUNDED_UP;
        let moved = 2.0 * (logit / 2.0).tanh() * self.norms_v.max_of_first(visible);
        RowRounding { logit, output: (moved + self.values.max_of_first(visible)) * ROUNDED_UP }
    }
}

/// Appends the norms of the differences of stored rows from given ones.
fn push_differences(norms: &mut PrefixMax, given: RowsView<'_, Ix2>, stored: Tokens<'_>) {
    let given = given.to_f32();
    let mut row = vec![0.0; stored.dim()];
    for (token, given) in given.rows().into_iter().enumerate() {
        stored.copy_row(token, &mut row);
        let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
        norms.push(given.iter().zip(&row).map(square).sum::<f64>().sqrt() * ROUNDED_UP);
    }
}

/// Upper bounds on the changes of one row of attention if its keys and values are rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowRounding {
    /// Upper bound on the change of a logit.
    pub logit: f64,
    /// Upper bound on the length of the change of the output.
    pub output: f64,
}

impl RowRounding {
    /// Bounds for rows that are not rounded.
    pub(crate) const NONE: Self = Self { logit: 0.0, output: 0.0 };
    /// Bounds for rows whose rounding errors are not known.
    const UNKNOWN: Self = Self { logit: f64::INFINITY, output: f64::INFINITY };

    /// Upper bound on the change of a target: of the output relative to `output_norm`, or of the
    /// denominator relative to the denominator over unrounded rows. Infinite for the numerator.
    pub fn relative(&self, target: Target, output_norm: f64) -> f64 {
        match target {
            _ if *self == Self::NONE => 0.0,
            Target::Sdpa if self.output == 0.0 => 0.0,
            Target::Sdpa => self.output / output_norm,
            Target::Denominator => self.logit.exp_m1(),
            Target::Numerator => f64::INFINITY,
        }
    }

    /// Error bar relative to attention over unrounded rows, from the error bar `radius` relative
    /// to attention over the stored rows. `output_norm` is the norm of the estimated output.
    pub fn widen(&self, target: Target, radius: f64, output_norm: f64) -> f64 {
        let relative = self.relative(target, output_norm);
        if relative == 0.0 {
            return radius;
        }
        if target == Target::Denominator {
            return radius + (1.0 + radius) * relative;
        }
        // The estimate is at most `1 + radius` times as long as the output over stored rows.
        let change = relative * (1.0 + radius);
        if change < 1.0 { (radius + change) / (1.0 - change) } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, ArrayView2};
    use proptest::prelude::*;

    use super::*;
    use crate::step::{Shape, Site, Softmax, SoftmaxForm, Step, round_row};

    const DIM: usize = 4;
    const SITE: Site = Site {
        seed: 0,
        sequence: 0,
        layer: 0,
        kv_head: 0,
        shape: Shape { query_heads: 1, kv_heads: 1, head_dim: DIM, value_dim: DIM },
    };

    /// Keys and values, `[tokens, DIM]`.
    struct Rows {
        keys: Array2<f32>,
        values: Array2<f32>,
    }

    impl Rows {
        fn round(&self, storage: impl Fn(&mut [f32])) -> Self {
            let round = |rows: &Array2<f32>| {
                let mut rounded = rows.clone();
                for mut row in rounded.rows_mut() {
                    storage(row.as_slice_mut().unwrap());
                }
                rounded
            };
            Self { keys: round(&self.keys), values: round(&self.values) }
        }

        fn tokens(rows: &Array2<f32>) -> Tokens<'_> {
            Tokens::new(rows.as_slice().unwrap(), rows.nrows(), DIM)
        }

        fn step<'a>(&'a self, query: &'a [f32], form: SoftmaxForm<'a>) -> Step<'a> {
            let (keys, values) = (Self::tokens(&self.keys), Self::tokens(&self.values));
            Step { form, ..Step::new(&SITE, query, keys, values) }
        }

        fn measure(&self, stored: &Self) -> RoundingErrors {
            let (keys, values) = (Self::tokens(&stored.keys), Self::tokens(&stored.values));
            let new = NewTokens { first: 0, keys, values, classes: None };
            let mut errors = RoundingErrors::default();
            errors.measure(self.keys.view().into(), self.values.view().into(), &new);
            errors
        }

        /// Sums with logits in f64.
        fn attend(&self, query: &[f32], form: SoftmaxForm<'_>) -> Softmax {
            let mut sums = self.step(query, form).row(0).empty_sums();
            for (key, value) in self.keys.rows().into_iter().zip(self.values.rows()) {
                let products = key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q));
                let logit: f64 = products.sum();
                let cap = form.soft_cap.map(f64::from);
                let logit = cap.map_or(logit, |cap| cap * (logit / cap).tanh());
                sums.add(logit, 1.0, value.as_slice().unwrap());
            }
            sums
        }
    }

    #[test]
    fn rows_that_are_not_rounded_change_no_target() {
        for target in [Target::Sdpa, Target::Numerator, Target::Denominator] {
            assert_eq!(RowRounding::NONE.relative(target, 0.0), 0.0);
            assert_eq!(RowRounding::NONE.widen(target, 0.3, 1.0), 0.3);
        }
    }

    fn distance(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    }

    fn length(a: &[f64]) -> f64 {
        distance(a, &vec![0.0; a.len()])
    }

    fn round_to_q8(row: &mut [f32]) {
        let mut integers = [0; DIM];
        let scale = round_row(row, &mut integers);
        row.iter_mut().zip(integers).for_each(|(x, i)| *x = f32::from(i) * scale);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Outputs and denominators over rounded rows are within the bounds, with outlier channels,
        /// soft caps and sinks, for integers with scales and for coarse steps.
        #[test]
        fn rounding_changes_attention_by_at_most_the_bounds(
            numbers in prop::collection::vec(-2.0_f32..2.0, 2 * DIM..12 * DIM),
            query in prop::array::uniform4(-3.0_f32..3.0),
            outlier in prop::sample::select(vec![1.0_f32, 30.0]),
            soft_cap in prop::option::of(1.0_f32..20.0),
            sink in prop::option::of(-2.0_f32..4.0),
            step in prop::option::of(0.1_f32..2.0),
        ) {
            let tokens = numbers.len() / (2 * DIM);
            let rows = |first: usize| {
                ArrayView2::from_shape((tokens, DIM), &numbers[first..][..tokens * DIM]).unwrap()
            };
            let values = rows(tokens * DIM).to_owned();
            let mut given = Rows { keys: rows(0).to_owned(), values };
            given.keys.column_mut(1).mapv_inplace(|x| x * outlier);
            let stored = given.round(|row| match step {
                None => round_to_q8(row),
                Some(step) => row.iter_mut().for_each(|x| *x = (*x / step).round() * step),
            });
            let sinks = sink.map(|sink| [sink]);
            let sink_logits = sinks.as_ref().map(|sinks| &sinks[..]);
            let form = SoftmaxForm { soft_cap, sink_logits };
            let [exact, rounded] = [&given, &stored].map(|rows| rows.attend(&query, form));
            let bound = given.measure(&stored).bound(&stored.step(&query, form).row(0));
            let change = distance(&exact.output(), &rounded.output());
            prop_assert!(change <= bound.output * (1.0 + 1e-9) + 1e-12, "{change} {bound:?}");
            let ratio = rounded.log_denominator() - exact.log_denominator();
            prop_assert!(ratio.abs() <= bound.logit * (1.0 + 1e-9) + 1e-12, "{ratio} {bound:?}");
        }

        /// An estimate within the error bar of the stored rows is within the widened bar.
        #[test]
        fn widened_bars_cover_both_errors(
            stored in prop::array::uniform3(-1.0_f64..1.0),
            [toward, away] in prop::array::uniform2(prop::array::uniform3(-1.0_f64..1.0)),
            (radius, change) in (0.0..1.2_f64, 0.0..0.6_f64),
        ) {
            let shifted = |by: [f64; 3], distance: f64| -> Vec<f64> {
                let scale = distance / length(&by).max(1e-9);
                stored.iter().zip(by).map(|(x, b)| x + b * scale).collect()
            };
            let estimate = shifted(toward, radius * length(&stored));
            let exact = shifted(away, change);
            let bound = RowRounding { logit: 0.0, output: change };
            let bar = bound.widen(Target::Sdpa, radius, length(&estimate));
            let error = distance(&estimate, &exact) / length(&exact);
            prop_assert!(error <= bar * (1.0 + 1e-9) + 1e-9, "{error} {bar}");
        }
    }

    /// Two opposite values, and errors of the keys along the query: the bounds are attained.
    #[test]
    fn the_bounds_are_attained() {
        let (error, query) = (0.25_f32, [2.0, 0.0, 0.0, 0.0]);
        let row = |x: f32| [x, 0.0, 0.0, 0.0];
        let rows = |keys: [f32; 2], values: [f32; 2]| Rows {
            keys: keys.map(row).to_vec().into(),
            values: values.map(row).to_vec().into(),
        };
        // The logits change from −λ/2 and λ/2 to λ/2 and −λ/2.
        let given = rows([-error, error].map(|x| x / 2.0), [3.0, -3.0]);
        let stored = rows([error, -error].map(|x| x / 2.0), [3.0, -3.0]);
        let form = SoftmaxForm::default();
        let bound = given.measure(&stored).bound(&stored.step(&query, form).row(0));
        assert!((bound.logit - 0.5).abs() < 1e-9);
        let [exact, rounded] = [&given, &stored].map(|rows| rows.attend(&query, form));
        let change = distance(&exact.output(), &rounded.output());
        assert!((change / bound.output - 1.0).abs() < 1e-9, "{change} {bound:?}");
        // All logits and values change in one direction.
        let stored = rows([error / 2.0, error * 1.5], [3.5, -2.5]);
        let bound = given.measure(&stored).bound(&stored.step(&query, form).row(0));
        let rounded = stored.attend(&query, form);
        let ratio = rounded.log_denominator() - exact.log_denominator();
        assert!((ratio - bound.logit).abs() < 1e-9);
        let moved = 2.0 * (bound.logit / 2.0).tanh() * 3.5;
        assert!((bound.output - moved - 0.5).abs() < 1e-9);
        let change = distance(&exact.output(), &rounded.output());
        assert!((change - 0.5).abs() < 1e-9, "{change}");
        let bar = bound.widen(Target::Denominator, 0.1, 1.0);
        assert!((bar - (1.1 * 0.5_f64.exp() - 1.0)).abs() < 1e-9);
    }

    #[test]
    fn only_visible_tokens_count_and_all_of_them_must_be_measured() {
        let keys = Array2::from_shape_fn((3, DIM), |(i, _)| i as f32);
        let given = Rows { keys: keys.clone(), values: keys };
        let stored = given.round(|row| row.iter_mut().for_each(|x| *x *= 1.5));
        let mut errors = given.measure(&stored);
        let bound = |errors: &RoundingErrors, visible: usize| {
            let step = stored.step(&[1.0; DIM], SoftmaxForm::default());
            errors.bound(&Step { visible, ..step }.row(0))
        };
        assert!(errors.any());
        let logits = [1, 2, 3].map(|visible| bound(&errors, visible).logit);
        assert!((logits[0], logits[1]) == (0.0, logits[2] / 2.0) && logits[1] > 0.0);
        errors.truncate(2);
        assert_eq!(bound(&errors, 2).logit, logits[1]);
        let unknown = bound(&errors, 3);
        assert_eq!(unknown.widen(Target::Sdpa, 0.0, 1.0), f64::INFINITY);
        assert_eq!(unknown.widen(Target::Denominator, 0.0, 1.0), f64::INFINITY);
        errors.truncate(1);
        assert!(!errors.any());
        assert_eq!(bound(&errors, 1).widen(Target::Sdpa, 0.25, 1.0), 0.25);
    }
}
