//! Panels of series over two axes.

use vattention_experiments::Evidence;

use crate::axis::Axis;

/// Panels in rows, left to right.
#[derive(Clone, Debug)]
pub struct Figure {
    pub(crate) title: String,
    /// Panels in a row.
    pub(crate) columns: usize,
    pub(crate) panels: Vec<Panel>,
}

/// Series over two axes.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Series of one name have one colour in all panels.
    pub(crate) series: Vec<Series>,
    /// Where a line is drawn across.
    pub(crate) level: Option<f64>,
}

/// Points of one name. Those that an axis cannot show are left out.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Whether they are joined.
    pub(crate) line: bool,
    /// Whether each has a dot.
    pub(crate) dots: bool,
    /// The evidence that their style shows, if it is not just another series.
    pub(crate) evidence: Option<Evidence>,
}

/// One panel of [`Figure::lines`].
#[derive(Clone, Debug)]
pub struct LinePanel<'a> {
    /// What y is.
    pub y: &'a str,
    /// Whether y is logarithmic.
    pub log: bool,
    /// Names, and the points that lines join.
    pub lines: Vec<Line>,
    /// Points that are marked by what is said of a promise there.
    pub marks: Vec<(Evidence, (f64, f64))>,
}

/// One panel of [`Figure::curves`].
#[derive(Clone, Debug)]
pub struct CurvePanel<'a> {
    /// What x is.
    pub x: &'a str,
    /// What y is.
    pub y: &'a str,
    /// Whether y is logarithmic.
    pub log: bool,
    /// Names, and the points that curves join.
    pub curves: Vec<Line>,
}

/// A name, and points.
pub type Line = (String, Vec<(f64, f64)>);

impl Figure {
    /// Panels side by side over one logarithmic x, which is a share.
    pub fn lines(title: &str, x: &str, panels: Vec<LinePanel<'_>>) -> Self {
        let panel = |LinePanel { y, log, lines, marks }: LinePanel<'_>| {
            let lines = lines.into_iter().map(|(name, points)| Series::line(&name, points));
            let marked = Series::marked(&marks);
            Panel {
                title: String::new(),
                x: Axis::log(x).in_percent(),
                y: if log { Axis::log(y) } else { Axis::linear(y) },
                series: lines.chain(marked).collect(),
                level: None,
            }
        };
        let panels: Vec<Panel> = panels.into_iter().map(panel).collect();
        Self { title: title.into(), columns: panels.len().max(1), panels }
    }
}

impl Figure {
    /// Panels in rows of `columns`, each over a linear x.
    pub fn curves(title: &str, columns: usize, panels: Vec<CurvePanel<'_>>) -> Self {
        let panel = |CurvePanel { x, y, log, curves }: CurvePanel<'_>| Panel {
            title: String::new(),
            x: Axis::linear(x),
            y: if log { Axis::log(y) } else { Axis::linear(y) },
            series: curves.into_iter().map(|(name, points)| Series::curve(&name, points)).collect(),
            level: None,
        };
        Self { title: title.into(), columns, panels: panels.into_iter().map(panel).collect() }
    }
}

impl Series {
    pub(crate) fn points(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, line: false, dots: true, evidence: None }
    }

    pub(crate) fn line(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, line: true, dots: true, evidence: None }
    }

    /// A series for each evidence of which there are points.
    pub(crate) fn marked(marks: &[(Evidence, (f64, f64))]) -> Vec<Self> {
        let series = |evidence: Evidence| {
            let own = marks.iter().filter(|(said, _)| *said == evidence);
            let points = own.map(|(_, point)| *point).collect();
            Self { evidence: Some(evidence), ..Self::points(&evidence.to_string(), points) }
        };
        Evidence::ALL.map(series).into_iter().filter(|one| !one.points.is_empty()).collect()
    }

    /// Joined, without dots.
    pub(crate) fn curve(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, line: true, dots: false, evidence: None }
    }
}
