//! The elements of one vector as a base, a step and codes.
//!
//! The codes divide the vector's range evenly: `base` is its least number, `step = range / (2^bits
//! − 1)`, and a number is kept as `base + step · code`, product and sum rounded to f32.

/// To which code a number between two of them goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// The nearest, the even one of two as near.
    Nearest,
    /// The lower: what is kept never exceeds the number.
    Down,
}

/// The base and the step of one vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LabelGrid {
    pub(super) base: f32,
    pub(super) step: f32,
    last: u8,
}

impl LabelGrid {
    /// The grid of a vector of finite numbers, at least one.
    pub(super) fn of(vector: &[f32], bits: u8) -> Self {
        let [least, most] = [f32::min, f32::max].map(|f| vector.iter().copied().reduce(f));
        let (base, most) = (least.unwrap_or_default(), most.unwrap_or_default());
        let last = u8::MAX >> (8 - bits);
        Self { base, step: (most - base) / f32::from(last), last }
    }

    /// What a code stands for.
    #[inline(always)]
    pub(super) fn value(base: f32, step: f32, code: f32) -> f32 {
        base + step * code
    }

    /// The code of a number of the vector.
    pub(super) fn code(&self, x: f32, rounding: Rounding) -> u8 {
        if self.step == 0.0 {
            return 0;
        }
        let place = (f64::from(x) - f64::from(self.base)) / f64::from(self.step);
        let nearest = (place.round_ties_even() as u8).min(self.last);
        match rounding {
            Rounding::Nearest => nearest,
            Rounding::Down => {
                (0..=nearest).rev().find(|&code| self.at(code) <= x).unwrap_or_default()
            }
        }
    }

    fn at(&self, code: u8) -> f32 {
        Self::value(self.base, self.step, code.into())
    }
}
