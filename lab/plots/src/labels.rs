//! Texts beside the points that they name, where there is room.

use std::f64::consts::TAU;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::canvas::{Canvas, DrawFailure, FONT, Pixel, text_width, write_from};

/// How far from its point a text may begin, in pixels.
const DISTANCES: [i32; 10] = [10, 16, 24, 34, 46, 60, 78, 100, 130, 160];

/// Directions in sixteenths of a turn from the right, the best first.
const DIRECTIONS: [i32; 16] = [0, 8, -2, 2, -6, 6, -1, 1, -7, 7, -4, 4, -3, 3, -5, 5];

/// Half of what a point takes, and the least between two texts.
const POINT: i32 = 7;

/// A rectangle, both corners within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) from: Pixel,
    pub(crate) to: Pixel,
}

/// Where a text stands.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    /// One of its ends or its middle, halfway up.
    pub(crate) at: Pixel,
    /// Which of these.
    pub(crate) end: HPos,
    /// A line that leads to it, if it is not beside its point.
    pub(crate) leader: Option<[Pixel; 2]>,
}

impl Label {
    /// Writes the text, with the line that leads to it.
    pub(crate) fn write<'a>(
        &self,
        on: &Canvas<'a>,
        text: &str,
        colour: RGBColor,
    ) -> Result<(), DrawFailure<'a>> {
        if let Some(leader) = self.leader {
            on.draw(&PathElement::new(leader, colour.mix(0.5)))?;
        }
        write_from(on, text, self.at, self.end, colour)
    }
}

/// Places texts one after the other, over no point and no other text.
pub(crate) struct PlotLabels {
    within: Area,
    points: Vec<Area>,
    texts: Vec<Area>,
    /// Lines that are drawn anyway.
    lines: Vec<[Pixel; 2]>,
    leaders: Vec<[Pixel; 2]>,
}

impl PlotLabels {
    /// Texts `within` an area, beside `points`, and not over a path if there is as good a place.
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

    /// Where a text stands that names `point`; `None`: there is no room near enough.
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
            (area, Label { at: (x, y), end, leader })
        };
        let at = |distance| DIRECTIONS.into_iter().map(move |to| (distance, to));
        let all = DISTANCES.into_iter().flat_map(at);
        let free = all.filter(|&(distance, to)| self.is_free(&candidate(distance, to).0));
        let cost = |&(distance, to): &(i32, i32)| {
            let (area, label) = candidate(distance, to);
            distance + self.cost(&area, &label, point)
        };
        let (distance, to) = free.min_by_key(cost)?;
        let (area, label) = candidate(distance, to);
        self.texts.push(area);
        self.leaders.extend(label.leader);
        Some(label)
    }

    /// Whether a text may stand there.
    fn is_free(&self, area: &Area) -> bool {
        self.within.holds(area.from)
            && self.within.holds(area.to)
            && self.points.iter().chain(&self.texts).all(|taken| !taken.overlaps(area))
    }

    /// What covers lines, and is crossed by a leader, as pixels that a text had better be farther away.
    fn cost(&self, area: &Area, label: &Label, point: Pixel) -> i32 {
        let met = |lines: &[[Pixel; 2]]| lines.iter().filter(|line| area.meets(line)).count();
        let under = |areas: &[Area]| {
            let crossed = |it: &&Area| {
                !it.holds(point) && label.leader.is_some_and(|leader| it.meets(&leader))
            };
            areas.iter().filter(crossed).count()
        };
        let crossed = |line: &&[Pixel; 2]| label.leader.is_some_and(|leader| cross(&leader, line));
        let leaders = met(&self.leaders) + self.leaders.iter().filter(crossed).count();
        (12 * met(&self.lines) + 40 * under(&self.points) + 300 * (under(&self.texts) + leaders))
            as i32
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

    /// Whether a line goes through it.
    fn meets(&self, line: &[Pixel; 2]) -> bool {
        let (a, b) = (self.from, self.to);
        let sides = [[a, (b.0, a.1)], [(b.0, a.1), b], [b, (a.0, b.1)], [(a.0, b.1), a]];
        self.holds(line[0]) || sides.iter().any(|side| cross(side, line))
    }
}

/// Whether two lines have a point in common.
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
    fn a_text_alone_stands_beside_its_point() {
        let at = |point| PlotLabels::new(PICTURE, &[point], &[]).place("name", point);
        for (point, at_x, end) in [((100, 100), 110, HPos::Left), ((590, 100), 580, HPos::Right)] {
            let label = at(point).expect("there is room");
            assert_eq!((label.at, label.leader), ((at_x, 100), None));
            assert!(matches!(
                (label.end, end),
                (HPos::Left, HPos::Left) | (HPos::Right, HPos::Right)
            ));
        }
    }

    #[test]
    fn a_text_leaves_a_path_free_if_it_can() {
        let (point, path) = ((300, 200), [(300, 200), (500, 210)]);
        let label = PlotLabels::new(PICTURE, &[point], &path).place("name", point);
        assert!(label.is_some_and(|label| label.at.0 < 300 && label.leader.is_none()));
    }

    /// Of a cluster of points, and of one so dense that some leaders must cross.
    #[test]
    fn texts_cover_nothing_and_leaders_cross_nothing_if_they_can() {
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
    fn what_has_no_room_is_not_placed() {
        let small = Area { from: (0, 0), to: (50, 30) };
        assert!(PlotLabels::new(small, &[(20, 15)], &[]).place("a long name", (20, 15)).is_none());
    }
}
