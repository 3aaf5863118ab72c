//! The uniform sample of the residual, drawn until the estimator is content.

use crate::stats::norm;
use crate::{
    Budget, BudgetEstimator, Kind, Order, Picks, Row, Sample, SampleStats, Size, Softmax, Stream,
};

/// With fewer tokens than this left over, the rest is read too: the central limit theorem is poor
/// for what would be missing.
const NEAR_CENSUS: usize = 32;

/// A finished sample.
pub(crate) struct Drawn {
    /// Tokens, in draw order.
    pub(crate) tokens: Vec<u32>,
    /// Tokens asked for at the last look.
    pub(crate) budget: usize,
    pub(crate) kind: Kind,
    pub(crate) held: bool,
}

/// A growing sample of the tokens that one list has not taken, and what it says to each row that
/// reads the list.
pub(crate) struct Sampler<'a> {
    rows: &'a [Row<'a>],
    certain: Vec<Certain>,
    bounds: &'a [Option<f32>],
    max_norm_v: f64,
    order: Box<dyn Iterator<Item = usize> + 'a>,
    n_s: usize,
    tokens: Vec<u32>,
    /// Of the drawn tokens, per row `[rows][b]`.
    logits: Vec<Vec<f64>>,
    /// Of the drawn tokens, `[b · value_dim]`.
    values: Vec<f32>,
}

/// Sums over the certain tokens of one row.
#[derive(Clone)]
struct Certain {
    /// `Σ e` and `Σ e v`.
    sums: Softmax,
    /// `Σ e` and `Σ e |v|`.
    norms: Softmax,
}

impl<'a> Sampler<'a> {
    /// Nothing drawn yet. `rows` read one list, whose certain part is `picks`; `bounds` are what
    /// their selectors promised of the tokens not taken. `stream` keys the order of the draw.
    pub(crate) fn new(
        rows: &'a [Row<'a>],
        picks: &'a Picks,
        bounds: &'a [Option<f32>],
        max_norm_v: f64,
        stream: &Stream,
    ) -> Self {
        let order = Order::new(picks.visible(), stream);
        Self {
            rows,
            certain: certain_sums(rows, picks),
            bounds,
            max_norm_v,
            order: Box::new(order.tokens().filter(|&token| !picks.contains(token))),
            n_s: picks.visible() - picks.len(),
            tokens: Vec::new(),
            logits: vec![Vec::new(); rows.len()],
            values: Vec::new(),
        }
    }

    /// Draws what `estimator` asks for, looking first at `base` tokens.
    pub(crate) fn run(mut self, estimator: &dyn BudgetEstimator, base: Size) -> Drawn {
        if estimator.rounds() == 0 {
            return self.draw_once(estimator);
        }
        let mut b = base.of(self.rows[0].visible());
        let mut round = 1;
        loop {
            self.extend_or_finish(b);
            let budget = self.required(estimator);
            if self.complete() || budget.tokens <= self.tokens.len() {
                return self.finish(budget, true);
            }
            b = self.tokens.len();
            if round >= estimator.rounds() {
                self.extend_or_finish(budget.tokens);
                return self.finish(budget, false);
            }
            b = budget.tokens.max(b + b / 8);
            round += 1;
        }
    }

    /// Draws a budget that needs no sample to know.
    fn draw_once(mut self, estimator: &dyn BudgetEstimator) -> Drawn {
        let budget = self.required(estimator);
        if estimator.promise().is_some() {
            self.extend_or_finish(budget.tokens);
        } else {
            self.extend(budget.tokens);
        }
        self.finish(budget, budget.kind != Kind::None)
    }

    fn finish(self, budget: Budget, held: bool) -> Drawn {
        let complete = self.complete();
        Drawn {
            budget: budget.tokens,
            kind: if complete { Kind::Exact } else { budget.kind },
            held: held || complete,
            tokens: self.tokens,
        }
    }

    /// Whether the sample is the whole residual.
    fn complete(&self) -> bool {
        self.tokens.len() == self.n_s
    }

    /// Draws on until there are `b` tokens, or all if that would leave only a few.
    fn extend_or_finish(&mut self, b: usize) {
        self.extend(if self.n_s.saturating_sub(b) < NEAR_CENSUS { self.n_s } else { b });
    }

    /// Draws on until there are `b` tokens, or all.
    fn extend(&mut self, b: usize) {
        let more = b.min(self.n_s).saturating_sub(self.tokens.len());
        let mut value = vec![0.0; self.rows[0].values().dim()];
        for token in self.order.by_ref().take(more) {
            self.tokens.push(token as u32);
            for (row, logits) in self.rows.iter().zip(&mut self.logits) {
                logits.push(f64::from(row.logit(token)));
            }
            self.rows[0].values().copy_row(token, &mut value);
            self.values.extend_from_slice(&value);
        }
    }

    /// The largest budget of any row, with the weakest kind.
    fn required(&self, estimator: &dyn BudgetEstimator) -> Budget {
        let budgets = (0..self.rows.len()).map(|row| estimator.budget(&self.stats(row)));
        let most = budgets
            .reduce(|a, b| Budget { tokens: a.tokens.max(b.tokens), kind: a.kind.min(b.kind) });
        let most = most.expect("a group has at least one member");
        Budget { tokens: most.tokens.max(self.least()).min(self.n_s), ..most }
    }

    /// A list must hold something.
    fn least(&self) -> usize {
        usize::from(self.n_s == self.rows[0].visible())
    }

    /// What the sample says to one row.
    fn stats(&self, row: usize) -> SampleStats {
        let Certain { mut sums, mut norms } = self.certain[row].clone();
        let logits = &self.logits[row];
        let shift = logits.iter().copied().fold(sums.shift(), f64::max);
        sums.rebase(shift);
        norms.rebase(shift);
        let e: Vec<f64> = logits.iter().map(|logit| (logit - shift).exp()).collect();
        SampleStats::new(&Sample {
            e: &e,
            values: &self.values,
            certain: &sums,
            certain_norms: norms.numerator()[0],
            n_s: self.n_s,
            visible: self.rows[row].visible(),
            max_norm_v: self.max_norm_v,
            bound: self.bounds[row].map(|logit| (f64::from(logit) - shift).exp()),
        })
    }
}

fn certain_sums(rows: &[Row<'_>], picks: &Picks) -> Vec<Certain> {
    let dim = rows[0].values().dim();
    let empty = Certain { sums: Softmax::new(dim), norms: Softmax::new(1) };
    let mut certain = vec![empty; rows.len()];
    let mut value = vec![0.0; dim];
    for (token, _) in picks.iter() {
        rows[0].values().copy_row(token, &mut value);
        let norm = norm(&value) as f32;
        for (row, certain) in rows.iter().zip(&mut certain) {
            let logit = f64::from(row.logit(token));
            certain.sums.add(logit, 1.0, &value);
            certain.norms.add(logit, 1.0, &[norm]);
        }
    }
    certain
}
