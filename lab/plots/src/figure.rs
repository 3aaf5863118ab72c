//! Figures: panels of series over two axes.

use vattention_experiments::Evidence;

use crate::axis::Axis;

/// Figure with panels in rows, from left to right.
#[derive(Clone, Debug)]
pub struct Figure {
    pub(crate) title: String,
    /// Number of panels in a row.
    pub(crate) columns: usize,
    pub(crate) panels: Vec<Panel>,
}

/// Panel with series over two axes.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Series with equal names have equal styles in all panels.
    pub(crate) series: Vec<Series>,
    /// y value of a horizontal line across the panel.
    pub(crate) level: Option<f64>,
}

/// Points with a name. Points that an axis cannot show are left out.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// True if a line joins the points.
    pub(crate) line: bool,
    /// True if each point has a dot.
    pub(crate) dots: bool,
    /// Evidence that the style shows; `None` for an ordinary series.
    pub(crate) evidence: Option<Evidence>,
}

/// One panel of [`Figure::lines`].
#[derive(Clone, Debug)]
pub struct LinePanel<'a> {
    /// Title of the y axis.
    pub y: &'a str,
    /// True if y is logarithmic.
    pub log: bool,
    /// Lines, with a dot at each point.
    pub lines: Vec<NamedLine>,
    /// Points that are marked with evidence on a promise.
    pub marks: Vec<(Evidence, (f64, f64))>,
}

/// One panel of [`Figure::curves`].
#[derive(Clone, Debug)]
pub struct CurvePanel<'a> {
    /// Title of the x axis.
    pub x: &'a str,
    /// Title of the y axis.
    pub y: &'a str,
    /// True if y is logarithmic.
    pub log: bool,
    /// Lines without dots.
    pub curves: Vec<NamedLine>,
}

/// Name and points of a line.
pub type NamedLine = (String, Vec<(f64, f64)>);

impl Figure {
    /// Returns a figure with panels side by side over the same logarithmic x axis of shares.
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
    /// Returns a figure with panels in rows of `columns`, each over a linear x axis.
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

    /// Returns a series for each evidence that has points.
    pub(crate) fn marked(marks: &[(Evidence, (f64, f64))]) -> Vec<Self> {
        let series = |evidence: Evidence| {
            let marks = marks.iter().filter(|(mark, _)| *mark == evidence);
            let points = marks.map(|(_, point)| *point).collect();
            Self { evidence: Some(evidence), ..Self::points(&evidence.to_string(), points) }
        };
        Evidence::ALL.map(series).into_iter().filter(|series| !series.points.is_empty()).collect()
    }

    /// Returns a series with a line and without dots.
    pub(crate) fn curve(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, line: true, dots: false, evidence: None }
    }
}
