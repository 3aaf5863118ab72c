//! The tokens read so far, and the sums that they estimate.

use vattention_core::{Picks, Row};

use super::design::Design;
use crate::sums::{Reader, Sums};

/// What has been read of the certain picks and of the tokens drawn.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    reader: Reader<'a>,
    /// Over the picks of the selectors before.
    certain: Sums,
    drawn: Vec<Drawn>,
    /// Values of the tokens drawn, `[drawn · value_dim]`.
    values: Vec<f64>,
}

/// A token that was drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    /// Its place in the design.
    pub(super) place: usize,
    /// Its weight.
    pub(super) e: f64,
}

impl<'a> Sample<'a> {
    /// Reads what is picked already. `shift` is the logit that stands for `e = 1`.
    pub(super) fn new(row: &'a Row<'a>, picks: &Picks, shift: f64) -> Self {
        let reader = Reader::new(row, shift);
        let certain = reader.certain(picks);
        Self { reader, certain, drawn: Vec::new(), values: Vec::new() }
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
        let e = self.reader.read(design.token(place), &mut self.values);
        self.drawn.push(Drawn { place, e });
    }

    /// The tokens drawn, with their values.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (Drawn, &[f64])> {
        self.drawn.iter().copied().zip(self.values.chunks_exact(self.reader.dim()))
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
