//! What a study draws: panels of series over two axes.

/// Panels in rows, left to right.
#[derive(Clone, Debug)]
pub struct Figure {
    pub(super) title: String,
    /// Panels in a row.
    pub(super) columns: usize,
    pub(super) panels: Vec<Panel>,
}

/// Series over two axes.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// Series of one name have one colour in all panels.
    pub(super) series: Vec<Series>,
    /// Where a line is drawn across.
    pub(super) level: Option<f64>,
}

/// A quantity, with its unit.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) name: String,
    pub(super) log: bool,
}

/// Points of one name. Those that an axis cannot show are left out.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether they are joined.
    pub(super) line: bool,
    /// Whether each has a dot.
    pub(super) dots: bool,
}

impl Figure {
    /// Panels side by side, each of lines with dots over one logarithmic x: what its y is, whether
    /// that is logarithmic, and its lines by their names.
    pub fn lines(title: &str, x: &str, panels: Vec<(&str, bool, Vec<Line>)>) -> Self {
        let panel = |(y, log, lines): (&str, bool, Vec<Line>)| Panel {
            title: String::new(),
            x: Axis::log(x),
            y: Axis { name: y.into(), log },
            series: lines.into_iter().map(|(name, points)| Series::line(&name, points)).collect(),
            level: None,
        };
        let panels: Vec<Panel> = panels.into_iter().map(panel).collect();
        Self { title: title.into(), columns: panels.len().max(1), panels }
    }
}

/// A name, and points.
pub type Line = (String, Vec<(f64, f64)>);

impl Axis {
    pub(super) fn linear(name: &str) -> Self {
        Self { name: name.into(), log: false }
    }

    pub(super) fn log(name: &str) -> Self {
        Self { name: name.into(), log: true }
    }

    /// Where a number lies on the axis; `None` if nowhere.
    pub(super) fn place(&self, x: f64) -> Option<f64> {
        let place = if self.log { x.log10() } else { x };
        place.is_finite().then_some(place)
    }

    /// Numbers with a label between two places, ascending: some five.
    pub(super) fn ticks(&self, from: f64, to: f64) -> Vec<f64> {
        if self.log && to - from > 0.6 {
            return log_ticks(from, to);
        }
        let ends = if self.log { (10_f64.powf(from), 10_f64.powf(to)) } else { (from, to) };
        linear_ticks(ends.0, ends.1)
    }
}

/// Multiples of 1, 2 or 5 times a power of ten.
fn linear_ticks(from: f64, to: f64) -> Vec<f64> {
    let rough = (to - from) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = step.into_iter().find(|&step| step >= 0.999 * rough).unwrap_or(10.0 * power);
    let (first, last) = ((from / step - 1e-9).ceil() as i64, (to / step + 1e-9).floor() as i64);
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Powers of ten, with their multiples by 2 and 5 if there are few; round numbers if even these are
/// less than two.
fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let digits: &[f64] = if to - from > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = from.floor() as i32..=to.ceil() as i32;
    let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
    let ticks: Vec<f64> =
        all.filter(|tick| (from - 1e-9..=to + 1e-9).contains(&tick.log10())).collect();
    if ticks.len() < 2 { linear_ticks(10_f64.powf(from), 10_f64.powf(to)) } else { ticks }
}

impl Series {
    pub(super) fn points(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, line: false, dots: true }
    }

    pub(super) fn line(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, line: true, dots: true }
    }

    /// Joined, without dots.
    pub(super) fn curve(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, line: true, dots: false }
    }
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

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn an_axis_has_some_ticks_within_its_range(log: bool, from in -5.0..5.0_f64, length in 0.05..5.0_f64) {
            let axis = Axis { name: String::new(), log };
            let ticks = axis.ticks(from, from + length);
            prop_assert!((2..=12).contains(&ticks.len()), "{:?}", ticks);
            for tick in ticks {
                let place = axis.place(tick).unwrap();
                prop_assert!((from - 1e-6..=from + length + 1e-6).contains(&place));
            }
        }
    }
}
