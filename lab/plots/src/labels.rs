//! Placement of texts beside the points that they name.

use std::f64::consts::TAU;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::canvas::{Canvas, DrawFailure, FONT, Pixel, text_width, write_from};

/// Possible distances of a text from its point, in pixels.
const DISTANCES: [i32; 10] = [10, 16, 24, 34, 46, 60, 78, 100, 130, 160];

/// Possible directions of a text, in sixteenths of a turn from the right, the best first.
const DIRECTIONS: [i32; 16] = [0, 8, -2, 2, -6, 6, -1, 1, -7, 7, -4, 4, -3, 3, -5, 5];

/// Half the size of the square that a point occupies.
const POINT: i32 = 7;

/// Rectangle that includes both corners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) from: Pixel,
    pub(crate) to: Pixel,
}

/// Position of a text.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    /// Pixel of one end of the text, or of its middle; the text is vertically centred there.
    pub(crate) anchor: Pixel,
    /// Part of the text that is at the anchor.
    pub(crate) end: HPos,
    /// Line from the point to the text, if the text is far from its point.
    pub(crate) leader: Option<[Pixel; 2]>,
}

impl Label {
    /// Writes the text and its leader.
    pub(crate) fn write<'a>(
        &self,
        canvas: &Canvas<'a>,
        text: &str,
        colour: RGBColor,
    ) -> Result<(), DrawFailure<'a>> {
        if let Some(leader) = self.leader {
            canvas.draw(&PathElement::new(leader, colour.mix(0.5)))?;
        }
        write_from(canvas, text, self.anchor, self.end, colour)
    }
}

/// Labels of a plot, placed one after the other so that they cover no point and no other label.
pub(crate) struct PlotLabels {
    within: Area,
    points: Vec<Area>,
    texts: Vec<Area>,
    /// Lines of the plot.
    lines: Vec<[Pixel; 2]>,
    leaders: Vec<[Pixel; 2]>,
}

impl PlotLabels {
    /// Prepares labels `within` an area, beside `points`. Labels avoid the path if they can.
    pub(crate) fn new(within: Area, points: &[Pixel], path: &[Pixel]) -> Self {
        let area =
            |&(x, y): &Pixel| Area { from: (x - POINT, y - POINT), to: (x + POINT, y + POINT) };
        Self {
            within,
            points: points.iter().map(area).collect(),
            texts: Vec::new(),
            lines: path.windows(2).map(|ends| [ends[0], ends[1]]).collect(),
            leaders: Vec::new(),
        }
    }

    /// Places a text that names `point`; `None` if there is no room near the point.
    pub(crate) fn place(&mut self, text: &str, point: Pixel) -> Option<Label> {
        let (width, half) = (text_width(text), FONT * 5 / 8);
        let candidate = |distance: i32, direction: i32| {
            let (down, right) = (TAU * f64::from(direction) / 16.0).sin_cos();
            let x = point.0 + (f64::from(distance) * right) as i32;
            let y = point.1 + (f64::from(distance + half / 2) * down) as i32;
            let (end, left) = match right {
                _ if right.abs() < 0.1 => (HPos::Center, x - width / 2),
                _ if right > 0.0 => (HPos::Left, x),
                _ => (HPos::Right, x - width),
            };
            let area = Area { from: (left, y - half), to: (left + width, y + half) };
            let leader = (distance > DISTANCES[1]).then_some([point, (x, y)]);
            (area, Label { anchor: (x, y), end, leader })
        };
        let all = DISTANCES.into_iter().flat_map(|distance| {
            DIRECTIONS.into_iter().map(move |direction| (distance, direction))
        });
        let free =
            all.filter(|&(distance, direction)| self.is_free(&candidate(distance, direction).0));
        let cost = |&(distance, direction): &(i32, i32)| {
            let (area, label) = candidate(distance, direction);
            distance + self.cost(&area, &label, point)
        };
        let (distance, direction) = free.min_by_key(cost)?;
        let (area, label) = candidate(distance, direction);
        self.texts.push(area);
        self.leaders.extend(label.leader);
        Some(label)
    }

    /// Returns true if a text may be placed in an area.
    fn is_free(&self, area: &Area) -> bool {
        self.within.holds(area.from)
            && self.within.holds(area.to)
            && self.points.iter().chain(&self.texts).all(|taken| !taken.overlaps(area))
    }

    /// Returns the penalty, in pixels of distance, for lines under the text, and for points, texts
    /// and leaders that its leader crosses.
    fn cost(&self, area: &Area, label: &Label, point: Pixel) -> i32 {
        let covered = |lines: &[[Pixel; 2]]| lines.iter().filter(|line| area.meets(line)).count();
        let under_leader = |areas: &[Area]| {
            let crossed = |it: &&Area| {
                !it.holds(point) && label.leader.is_some_and(|leader| it.meets(&leader))
            };
            areas.iter().filter(crossed).count()
        };
        let crossed = |line: &&[Pixel; 2]| label.leader.is_some_and(|leader| cross(&leader, line));
        let leaders = covered(&self.leaders) + self.leaders.iter().filter(crossed).count();
        let (points, texts) = (under_leader(&self.points), under_leader(&self.texts));
        (12 * covered(&self.lines) + 40 * points + 300 * (texts + leaders)) as i32
    }
}

impl Area {
    fn holds(&self, (x, y): Pixel) -> bool {
        (self.from.0..=self.to.0).contains(&x) && (self.from.1..=self.to.1).contains(&y)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.from.0 <= other.to.0
            && other.from.0 <= self.to.0
            && self.from.1 <= other.to.1
            && other.from.1 <= self.to.1
    }

    /// Returns true if a line crosses the area.
    fn meets(&self, line: &[Pixel; 2]) -> bool {
        let (a, b) = (self.from, self.to);
        let sides = [[a, (b.0, a.1)], [(b.0, a.1), b], [b, (a.0, b.1)], [(a.0, b.1), a]];
        self.holds(line[0]) || sides.iter().any(|side| cross(side, line))
    }
}

/// Returns true if two lines have a common point.
fn cross(a: &[Pixel; 2], b: &[Pixel; 2]) -> bool {
    let side = |line: &[Pixel; 2], p: Pixel| {
        let along = (i64::from(line[1].0 - line[0].0), i64::from(line[1].1 - line[0].1));
        let to = (i64::from(p.0 - line[0].0), i64::from(p.1 - line[0].1));
        (along.0 * to.1 - along.1 * to.0).signum()
    };
    side(a, b[0]) * side(a, b[1]) <= 0 && side(b, a[0]) * side(b, a[1]) <= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURE: Area = Area { from: (0, 0), to: (600, 400) };

    #[test]
    fn a_single_text_is_beside_its_point() {
        let place = |point| PlotLabels::new(PICTURE, &[point], &[]).place("name", point);
        for (point, x, end) in [((100, 100), 110, HPos::Left), ((590, 100), 580, HPos::Right)] {
            let label = place(point).expect("there is room");
            assert_eq!((label.anchor, label.leader), ((x, 100), None));
            assert!(matches!(
                (label.end, end),
                (HPos::Left, HPos::Left) | (HPos::Right, HPos::Right)
            ));
        }
    }

    #[test]
    fn a_text_avoids_the_path() {
        let (point, path) = ((300, 200), [(300, 200), (500, 210)]);
        let label = PlotLabels::new(PICTURE, &[point], &path).place("name", point);
        assert!(label.is_some_and(|label| label.anchor.0 < 300 && label.leader.is_none()));
    }

    /// The second cluster of points is so dense that some leaders must cross.
    #[test]
    fn texts_overlap_nothing_and_leaders_avoid_each_other() {
        for (count, spread) in [(12, 120), (24, 40)] {
            let point = |i: i32| (280 + i * 37 % spread, 180 + i * 53 % spread);
            let points: Vec<Pixel> = (0..count).map(point).collect();
            let mut labels = PlotLabels::new(PICTURE, &points, &[]);
            assert!(points.iter().all(|&point| labels.place("17", point).is_some()));
            for (i, area) in labels.texts.iter().enumerate() {
                let mut before = labels.points.iter().chain(&labels.texts[..i]);
                assert!(before.all(|other| !area.overlaps(other)));
                assert!(PICTURE.holds(area.from) && PICTURE.holds(area.to));
            }
            for (i, leader) in labels.leaders.iter().enumerate() {
                let crossed = labels.leaders[..i].iter().any(|other| cross(leader, other));
                assert!(!crossed || count == 24);
            }
        }
    }

    #[test]
    fn a_text_without_room_is_not_placed() {
        let small = Area { from: (0, 0), to: (50, 30) };
        assert!(PlotLabels::new(small, &[(20, 15)], &[]).place("a long name", (20, 15)).is_none());
    }
}
