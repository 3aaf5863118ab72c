//! Axes, with their ranges and ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

/// Axis of a quantity.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) name: String,
    log: bool,
    /// True if numbers are shares, whose labels are in percent.
    percent: bool,
}

impl Axis {
    pub(crate) fn linear(name: &str) -> Self {
        Self { name: name.into(), log: false, percent: false }
    }

    pub(crate) fn log(name: &str) -> Self {
        Self { log: true, ..Self::linear(name) }
    }

    /// Returns the axis with labels in percent, for numbers that are shares.
    pub(crate) fn in_percent(self) -> Self {
        Self { percent: true, ..self }
    }

    /// Returns the position of a number on the axis, which is its logarithm on a logarithmic axis;
    /// `None` if the axis cannot show the number.
    pub(crate) fn place(&self, x: f64) -> Option<f64> {
        let place = if self.log { x.log10() } else { x };
        place.is_finite().then_some(place)
    }

    /// Returns about five round, ascending numbers between two positions.
    fn ticks(&self, from: f64, to: f64) -> Vec<f64> {
        if self.log && to - from > 0.6 {
            return log_ticks(from, to);
        }
        let ends = if self.log { (10_f64.powf(from), 10_f64.powf(to)) } else { (from, to) };
        linear_ticks(ends.0, ends.1)
    }

    /// Formats a number with at most four significant digits; from 10,000 on, in thousands or
    /// millions.
    fn label(&self, number: f64) -> String {
        let (number, unit) = match number.abs() {
            _ if self.percent => (100.0 * number, " %"),
            1e6.. => (number / 1e6, "M"),
            1e4.. => (number / 1e3, "k"),
            _ => (number, ""),
        };
        let digits = if number == 0.0 { 0 } else { 3 - number.abs().log10().floor() as i32 };
        let scale = 10_f64.powi(digits);
        format!("{}{unit}", (number * scale).round() / scale)
    }
}

/// Returns the multiples of a step between two numbers. The step is 1, 2 or 5 times a power of ten.
fn linear_ticks(from: f64, to: f64) -> Vec<f64> {
    let rough = (to - from) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = step.into_iter().find(|&step| step >= 0.999 * rough).unwrap_or(10.0 * power);
    let (first, last) = ((from / step - 1e-9).ceil() as i64, (to / step + 1e-9).floor() as i64);
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Returns the powers of ten between two logarithms, and also their multiples by 2 and 5 if the
/// range is at most three decades. Returns linear ticks if there would be fewer than two.
fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let digits: &[f64] = if to - from > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = from.floor() as i32..=to.ceil() as i32;
    let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
    let ticks: Vec<f64> =
        all.filter(|tick| (from - 1e-9..=to + 1e-9).contains(&tick.log10())).collect();
    if ticks.len() < 2 { linear_ticks(10_f64.powf(from), 10_f64.powf(to)) } else { ticks }
}

/// Range of an axis, and its ticks with their labels.
#[derive(Clone)]
pub(crate) struct TickedAxis {
    range: Range<f64>,
    ticks: Vec<(f64, String)>,
}

impl TickedAxis {
    /// Returns a range around all positions, with round numbers as ticks.
    pub(crate) fn new(axis: &Axis, places: impl Iterator<Item = f64>) -> Self {
        let range = range(places);
        Self { range: range.clone(), ticks: Vec::new() }
            .with_ticks(axis, &axis.ticks(range.start, range.end))
    }

    /// Returns a range around `numbers`, at least one, which are its ticks.
    pub(crate) fn with_numbers(axis: &Axis, numbers: &[f64]) -> Self {
        let places = || numbers.iter().filter_map(|&number| axis.place(number));
        let room = (places().fold(f64::MIN, f64::max) - places().fold(f64::MAX, f64::min)) / 8.0;
        let range = range(places());
        let range = range.start - room..range.end + room;
        Self { range, ticks: Vec::new() }.with_ticks(axis, numbers)
    }

    fn with_ticks(self, axis: &Axis, numbers: &[f64]) -> Self {
        let tick = |&number: &f64| Some((axis.place(number)?, axis.label(number)));
        Self { ticks: numbers.iter().filter_map(tick).collect(), ..self }
    }

    /// Extends the range by a tick below all positions. Returns the axis and the tick's position.
    pub(crate) fn with_below(mut self, label: &str) -> (Self, f64) {
        let length = self.range.end - self.range.start;
        let place = self.range.start - 0.07 * length;
        self.range.start -= 0.12 * length;
        self.ticks.insert(0, (place, label.into()));
        (self, place)
    }

    /// Returns the nearest position in the range.
    pub(crate) fn clamp(&self, place: f64) -> f64 {
        place.clamp(self.range.start, self.range.end)
    }

    /// Returns the ends of the range.
    pub(crate) fn ends(&self) -> [f64; 2] {
        [self.range.start, self.range.end]
    }
}

impl Ranged for TickedAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (place - self.range.start) / (self.range.end - self.range.start);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for TickedAxis {
    fn format_ext(&self, place: &f64) -> String {
        let label = self.ticks.iter().find(|(tick, _)| tick == place);
        label.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Returns a range that contains all positions, with a margin; `0..1` if there are no positions.
fn range(places: impl Iterator<Item = f64>) -> Range<f64> {
    let ends = |(low, high): (f64, f64), place: f64| (low.min(place), high.max(place));
    let (low, high) = places.fold((f64::INFINITY, f64::NEG_INFINITY), ends);
    if low > high {
        return 0.0..1.0;
    }
    let room = if high > low { 0.05 * (high - low) } else { 0.5_f64.max(0.1 * low.abs()) };
    low - room..high + room
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(Axis::linear("x").ticks(-0.5, 4.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(Axis::log("x").ticks(1.9, 3.1), [100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(Axis::log("x").ticks(-2.0, 2.0), [0.01, 0.1, 1.0, 10.0, 100.0]);
    }

    #[test]
    fn ticks_have_different_labels() {
        let labels = |ticked: &TickedAxis| -> Vec<String> {
            ticked.ticks.iter().map(|(place, _)| ticked.format_ext(place)).collect()
        };
        let shares = Axis::log("share").in_percent();
        let ticked = TickedAxis::new(&shares, [0.07_f64, 1.0].into_iter().map(f64::log10));
        assert_eq!(labels(&ticked), ["10 %", "20 %", "50 %", "100 %"]);
        let (ticked, below) = ticked.with_below("exact");
        assert_eq!(labels(&ticked)[0], "exact");
        assert!(ticked.ends()[0] < below && below < 0.07_f64.log10());
        let ticked = TickedAxis::with_numbers(&Axis::log("tokens"), &[5000.0, 10_000.0, 5e5, 2e6]);
        assert_eq!(labels(&ticked), ["5000", "10k", "500k", "2M"]);
        let ticked = TickedAxis::with_numbers(&Axis::log("epsilon"), &[0.05, 0.1, 0.2]);
        assert_eq!(labels(&ticked), ["0.05", "0.1", "0.2"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn an_axis_has_some_ticks_within_its_range(
            log: bool,
            from in -5.0..5.0_f64,
            length in 0.05..5.0_f64,
        ) {
            let axis = if log { Axis::log("x") } else { Axis::linear("x") };
            let ticks = axis.ticks(from, from + length);
            prop_assert!((2..=12).contains(&ticks.len()), "{:?}", ticks);
            for tick in ticks {
                let place = axis.place(tick).unwrap();
                prop_assert!((from - 1e-6..=from + length + 1e-6).contains(&place));
            }
        }
    }
}
