//! `vattention plot-steps`: errors, densities and error bars over the steps of a long answer.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use vattention::plots::{CurvePanel, Figure, NamedLine};
use vattention::trace::write_beside;

use crate::fail::{Failure, say};
use crate::models::generate::{OutsideCount, StepRow, StepsDocument};
use crate::numbers::{percent, short};
use crate::outputs::check_outputs;
use crate::table::{self, Column, or_dash};

const HELP: &str = "\
Columns are means over steps and layers; worst is the layer with the largest mean error; outside \
is the number of rows whose error was larger than their bar, out of the rows with a bar. The upper \
row of the plot shows means over layers, at about 200 points over the steps. The lower row shows \
means over steps, for each layer.";

/// Maximum number of points of a curve over steps.
const PARTS: usize = 200;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct PlotStepsArgs {
    /// Files of `generate --steps`.
    #[arg(required = true, value_name = "FILES")]
    files: Vec<PathBuf>,
    /// Number of steps in the table, counted from the last; the plot shows all steps.
    #[arg(long, value_name = "STEPS")]
    last: Option<NonZeroUsize>,
    /// Plot the steps as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Function that returns a number of one layer at a step, if it was measured.
type LayerMeasure = fn(&StepRow, usize) -> Option<f64>;

/// Titles, logarithmic scales and functions of the plotted numbers.
const MEASURES: [(&str, bool, LayerMeasure); 3] = [
    ("relative error", true, error),
    ("share of the tokens read, per KV head", true, density),
    ("error bar", true, bar),
];

pub(crate) fn run(args: &PlotStepsArgs) -> Result<(), Failure> {
    let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    check_outputs(&[("--plot", args.plot.as_ref())], &inputs)?;
    let all = inputs.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    say(&table(&all, args.last))?;
    if let Some(path) = &args.plot {
        write_beside(path, figure(&all).svg().as_bytes())?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<StepsDocument, Failure> {
    const EXPECTED: &str = "expected a file of `vattention generate --steps`";
    let failed = |reason: &dyn std::fmt::Display| {
        Failure::input(format!("{}: {reason}; {EXPECTED}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let written: StepsDocument = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    let layers = written.layers();
    let fits = |step: &StepRow| {
        let StepRow { error, density, bar, barred, outside, .. } = step;
        [error.len(), density.len(), bar.len(), barred.len(), outside.len()] == [layers; 5]
    };
    if layers == 0 {
        return Err(failed(&"there are no steps with a pipeline"));
    }
    match written.steps.iter().position(|step| !fits(step)) {
        Some(step) => Err(failed(&format!(
            "step {step} does not have a number for each of the {layers} layers under every key"
        ))),
        None => Ok(written),
    }
}

impl StepsDocument {
    fn layers(&self) -> usize {
        self.steps.first().map_or(0, |step| step.error.len())
    }

    /// Returns the mean of the measured numbers over steps and layers; `None` if there are none.
    fn mean(
        steps: &[StepRow],
        layers: std::ops::Range<usize>,
        measure: LayerMeasure,
    ) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0);
        for step in steps {
            for x in layers.clone().filter_map(|layer| measure(step, layer)) {
                sum += x;
                count += 1;
            }
        }
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Returns the layer with the largest mean error over steps, and this error.
    fn worst(&self, steps: &[StepRow]) -> Option<(usize, f64)> {
        let mean_error = |layer| Some((layer, Self::mean(steps, layer..layer + 1, error)?));
        let layers = (0..self.layers()).filter_map(mean_error);
        layers.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

fn error(step: &StepRow, layer: usize) -> Option<f64> {
    step.error[layer].map(f64::from)
}

#[allow(clippy::unnecessary_wraps, reason = "the signature is LayerMeasure's")]
fn density(step: &StepRow, layer: usize) -> Option<f64> {
    Some(f64::from(step.density[layer]))
}

fn bar(step: &StepRow, layer: usize) -> Option<f64> {
    step.bar[layer].map(f64::from)
}

fn table(all: &[StepsDocument], last: Option<NonZeroUsize>) -> String {
    let steps = |written: &StepsDocument| {
        let shown = last.map_or(written.steps.len(), |last| last.get().min(written.steps.len()));
        written.steps.len() - shown..written.steps.len()
    };
    let mean = |measure: LayerMeasure, text: fn(f64) -> String| {
        move |it: &StepsDocument| {
            or_dash(StepsDocument::mean(&it.steps[steps(it)], 0..it.layers(), measure).map(text))
        }
    };
    let columns = [
        Column::<StepsDocument>::text("pipeline", "", |it| it.pipeline.clone()),
        Column::<StepsDocument>::new("steps", "", |it| steps(it).len().to_string()),
        Column::<StepsDocument>::new("density", "", mean(density, percent)),
        Column::<StepsDocument>::new("error", "", mean(error, short)),
        Column::<StepsDocument>::new("worst", "", |it| {
            let worst = it.worst(&it.steps[steps(it)]);
            or_dash(worst.map(|(layer, error)| format!("{} (layer {layer})", short(error))))
        }),
        Column::<StepsDocument>::new("bar", "", mean(bar, short)),
        Column::<StepsDocument>::new("outside", "", |it| {
            OutsideCount::count(&it.steps[steps(it)]).to_string()
        }),
        Column::<StepsDocument>::text("against dense attention", "", |it| {
            or_dash(it.beside.map(|beside| beside.to_string()))
        }),
    ];
    table::rows(&columns, all)
}

/// Function that returns the points of a curve.
type CurvePoints = fn(&StepsDocument, LayerMeasure) -> Vec<(f64, f64)>;

fn figure(all: &[StepsDocument]) -> Figure {
    let curves = |points: CurvePoints, measure: LayerMeasure| -> Vec<NamedLine> {
        all.iter().map(|written| (written.pipeline.clone(), points(written, measure))).collect()
    };
    let panels = |x, points: CurvePoints| {
        MEASURES.map(|(y, log, measure)| CurvePanel { x, y, log, curves: curves(points, measure) })
    };
    let panels = panels("steps", over_steps).into_iter().chain(panels("layer", over_layers));
    let model = Path::new(&all[0].model).file_name().unwrap_or_default().to_string_lossy();
    let title = format!("Steps with pipelines: {model}");
    Figure::curves(&title, MEASURES.len(), panels.collect())
}

fn over_steps(written: &StepsDocument, measure: LayerMeasure) -> Vec<(f64, f64)> {
    let part = written.steps.len().div_ceil(PARTS);
    let parts = written.steps.chunks(part).enumerate();
    let mean = |(number, steps): (usize, &[StepRow])| {
        let middle = (number * part) as f64 + steps.len() as f64 / 2.0;
        Some((middle, StepsDocument::mean(steps, 0..written.layers(), measure)?))
    };
    parts.filter_map(mean).collect()
}

fn over_layers(written: &StepsDocument, measure: LayerMeasure) -> Vec<(f64, f64)> {
    let point = |layer: usize| {
        Some((layer as f64, StepsDocument::mean(&written.steps, layer..layer + 1, measure)?))
    };
    (0..written.layers()).filter_map(point).collect()
}
