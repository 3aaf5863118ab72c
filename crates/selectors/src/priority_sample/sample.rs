//! The tokens read so far, and the sums that they estimate.

use vattention_core::{Picks, Row};

use super::design::Design;

/// What has been read of the certain picks and of the tokens drawn.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    row: &'a Row<'a>,
    /// The logit that stands for `e = 1`.
    shift: f64,
    /// Over the picks of the selectors before.
    certain: Sums,
    drawn: Vec<Drawn>,
    /// Values of the tokens drawn, `[drawn · value_dim]`.
    values: Vec<f64>,
    dim: usize,
}

/// A token that was drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    /// Its place in the design.
    pub(super) place: usize,
    /// Its weight.
    pub(super) e: f64,
}

/// Sums over tokens.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    /// `Σ e`.
    pub(super) d: f64,
    /// `Σ e v`.
    pub(super) n: Vec<f64>,
    /// `Σ e |v|`.
    pub(super) norms: f64,
}

impl Sums {
    fn new(dim: usize) -> Self {
        Self { d: 0.0, n: vec![0.0; dim], norms: 0.0 }
    }

    fn add(&mut self, e: f64, value: &[f64]) {
        self.d += e;
        self.n.iter_mut().zip(value).for_each(|(n, v)| *n += e * v);
        self.norms += e * square(value).sqrt();
    }

    /// `N / D`, or 0 if nothing was added.
    pub(super) fn output(&self) -> Vec<f64> {
        self.n.iter().map(|n| if self.d > 0.0 { n / self.d } else { 0.0 }).collect()
    }
}

impl<'a> Sample<'a> {
    /// Reads what is picked already.
    pub(super) fn new(row: &'a Row<'a>, picks: &Picks, shift: f64) -> Self {
        let dim = row.values().dim();
        let mut certain = Sums::new(dim);
        let mut sample = Self {
            row,
            shift,
            certain: Sums::new(dim),
            drawn: Vec::new(),
            values: Vec::new(),
            dim,
        };
        for token in picks.indices() {
            let e = sample.read(token as usize);
            certain.add(e, &sample.values);
            sample.values.clear();
        }
        sample.certain = certain;
        sample
    }

    /// Reads what is drawn at threshold `to` and was not at `from`.
    pub(super) fn extend(&mut self, design: &Design, from: f64, to: f64) {
        for place in 0..design.len() {
            if design.is_drawn(place, to) && !design.is_drawn(place, from) {
                self.draw(design, place);
            }
        }
    }

    /// Reads the token at a place.
    pub(super) fn draw(&mut self, design: &Design, place: usize) {
        let e = self.read(design.token(place));
        self.drawn.push(Drawn { place, e });
    }

    /// Keeps the value of a token, and tells its weight.
    fn read(&mut self, token: usize) -> f64 {
        let mut value = vec![0.0; self.dim];
        self.row.values().copy_row(token, &mut value);
        self.values.extend(value.into_iter().map(f64::from));
        libm::exp(f64::from(self.row.logit(token)) - self.shift)
    }

    /// The tokens drawn, with their values.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (Drawn, &[f64])> {
        self.drawn.iter().copied().zip(self.values.chunks_exact(self.dim))
    }

    /// The estimates at a threshold: tokens weigh 1 over the probability with which they are drawn.
    pub(super) fn estimate(&self, design: &Design, t: f64) -> Sums {
        let mut sums = self.certain.clone();
        for (drawn, value) in self.tokens() {
            sums.add(drawn.e / f64::from(design.probability(drawn.place, t)), value);
        }
        sums
    }

    /// Over the tokens that are certain at a threshold.
    pub(super) fn certain(&self, design: &Design, t: f64) -> Sums {
        let mut sums = self.certain.clone();
        for (drawn, value) in self.tokens() {
            if design.probability(drawn.place, t) >= 1.0 {
                sums.add(drawn.e, value);
            }
        }
        sums
    }
}

/// `|x|²`.
pub(super) fn square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}
