//! Tokens read one at a time, and sums over them, in f64.

use vattention_core::{Picks, Row};

/// Sums over tokens.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    /// `Σ e`.
    pub(crate) d: f64,
    /// `Σ e v`.
    pub(crate) n: Vec<f64>,
    /// `Σ e |v|`.
    pub(crate) norms: f64,
}

impl Sums {
    pub(crate) fn new(dim: usize) -> Self {
        Self { d: 0.0, n: vec![0.0; dim], norms: 0.0 }
    }

    pub(crate) fn add(&mut self, e: f64, value: &[f64]) {
        self.d += e;
        self.n.iter_mut().zip(value).for_each(|(n, v)| *n += e * v);
        self.norms += e * square(value).sqrt();
    }

    /// `N / D`, or 0 if nothing was added.
    pub(crate) fn output(&self) -> Vec<f64> {
        self.n.iter().map(|n| if self.d > 0.0 { n / self.d } else { 0.0 }).collect()
    }
}

/// Reads tokens of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    row: &'a Row<'a>,
    /// The logit that stands for `e = 1`.
    shift: f64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(row: &'a Row<'a>, shift: f64) -> Self {
        Self { row, shift }
    }

    /// Numbers in a value.
    pub(crate) fn dim(&self) -> usize {
        self.row.values().dim()
    }

    /// Appends the value of a token, and tells its weight.
    pub(crate) fn read(&self, token: usize, values: &mut Vec<f64>) -> f64 {
        let mut value = vec![0.0; self.dim()];
        self.row.values().copy_row(token, &mut value);
        values.extend(value.into_iter().map(f64::from));
        libm::exp(f64::from(self.row.logit(token)) - self.shift)
    }

    /// Over all that is picked, each token with weight 1.
    pub(crate) fn certain(&self, picks: &Picks) -> Sums {
        let mut sums = Sums::new(self.dim());
        let mut value = Vec::with_capacity(self.dim());
        for token in picks.indices() {
            value.clear();
            let e = self.read(token as usize, &mut value);
            sums.add(e, &value);
        }
        sums
    }
}

/// `|x|²`.
pub(crate) fn square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}
