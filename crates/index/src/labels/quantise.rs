//! Quantisation of a vector to a base, a step and codes.
//!
//! Codes divide the vector's range evenly: `base` is its least element, and
//! `step = range / (2^bits − 1)`. An element is stored as `base + step · code`, with product and
//! sum rounded to f32.

/// Rounding of elements to codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest code, and to the even one at equal distances.
    Nearest,
    /// To the lower code: the stored element never exceeds the original.
    Down,
}

/// Base and step of one vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LabelGrid {
    pub(super) base: f32,
    pub(super) step: f32,
    last: u8,
}

impl LabelGrid {
    /// Computes the grid of a vector of finite elements, at least one.
    pub(super) fn new(vector: &[f32], bits: u8) -> Self {
        let [least, most] = [f32::min, f32::max].map(|f| vector.iter().copied().reduce(f));
        let (base, most) = (least.unwrap_or_default(), most.unwrap_or_default());
        let last = u8::MAX >> (8 - bits);
        Self { base, step: (most - base) / f32::from(last), last }
    }

    /// Element that a code represents.
    #[inline(always)]
    pub(super) fn value(base: f32, step: f32, code: f32) -> f32 {
        base + step * code
    }

    /// Code of an element of the vector.
    pub(super) fn code(&self, x: f32, rounding: Rounding) -> u8 {
        if self.step == 0.0 {
            return 0;
        }
        let position = (f64::from(x) - f64::from(self.base)) / f64::from(self.step);
        let nearest = (position.round_ties_even() as u8).min(self.last);
        match rounding {
            Rounding::Nearest => nearest,
            Rounding::Down => {
                (0..=nearest).rev().find(|&code| self.decode(code) <= x).unwrap_or_default()
            }
        }
    }

    fn decode(&self, code: u8) -> f32 {
        Self::value(self.base, self.step, code.into())
    }
}
