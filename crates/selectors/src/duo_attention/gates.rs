//! File of gates, and the classes of heads that follow from it.

use std::path::{Path, PathBuf};

use vattention_core::{Fraction, Site};

/// Gates of all KV heads of a model.
#[derive(Debug)]
pub(super) struct GateFile {
    path: PathBuf,
    /// Gates, `[layers][KV heads]`; `None` where the file has `nan`.
    layers: Vec<Vec<Option<f64>>>,
}

impl GateFile {
    /// Reads a file. Errors name it.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let named = |reason: String| format!("{}: {reason}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        let layers = parse(&text).map_err(named)?;
        Ok(Self { path: path.into(), layers })
    }

    /// Returns true if the KV head at `site` streams. The `share` of all heads with a gate streams:
    /// those with the smallest gates, and among equal gates the later heads.
    pub(super) fn streams(&self, site: &Site, share: Fraction) -> Result<bool, String> {
        let place = (site.layer, site.kv_head);
        let gate =
            self.gate(site).map_err(|reason| format!("{}: {reason}", self.path.display()))?;
        let all_known =
            || self.layers.iter().enumerate().flat_map(|(layer, heads)| known_gates(layer, heads));
        // The number of gates below the quantile of the share, which is interpolated between
        // neighbours.
        let streaming = (share.get() * (all_known().count() - 1) as f64).ceil() as usize;
        let before = |&(other, other_place): &(f64, (usize, usize))| {
            other < gate || other == gate && other_place > place
        };
        Ok(all_known().filter(before).count() < streaming)
    }

    fn gate(&self, site: &Site) -> Result<f64, String> {
        let (layer, heads) = (site.layer, site.shape.kv_heads);
        let gates = self.layers.get(layer).ok_or_else(|| {
            format!(
                "there are lines for {} layers: expected one for layer {layer}",
                self.layers.len()
            )
        })?;
        if gates.len() != heads {
            return Err(format!(
                "there are {} gates in a line: expected {heads}, the KV heads",
                gates.len()
            ));
        }
        gates[site.kv_head]
            .ok_or_else(|| format!("the gates of layer {layer} are `nan`: expected numbers"))
    }
}

/// Yields the known gates of a layer with their places (layer, head).
fn known_gates(
    layer: usize,
    heads: &[Option<f64>],
) -> impl Iterator<Item = (f64, (usize, usize))> + '_ {
    heads.iter().enumerate().filter_map(move |(head, gate)| Some(((*gate)?, (layer, head))))
}

/// Parses the lines of a file as gates, of which at least one must be known.
fn parse(text: &str) -> Result<Vec<Vec<Option<f64>>>, String> {
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let layers: Vec<Vec<_>> =
        lines.map(|(i, line)| parse_line(i + 1, line)).collect::<Result<_, _>>()?;
    if let Some(other) = layers.iter().find(|layer| layer.len() != layers[0].len()) {
        return Err(format!(
            "lines have {} and {} gates: expected the same number in each",
            layers[0].len(),
            other.len()
        ));
    }
    if !layers.iter().flatten().any(Option::is_some) {
        return Err(
            "there is no gate: expected a line for each layer, with numbers between tabs".into()
        );
    }
    Ok(layers)
}

fn parse_line(number: usize, line: &str) -> Result<Vec<Option<f64>>, String> {
    let gate = |text: &str| match text.trim().parse::<f64>() {
        Ok(gate) if gate.is_nan() => Ok(None),
        // The authors clip gates in the same way.
        Ok(gate) => Ok(Some(gate.clamp(0.0, 1.0))),
        Err(_) => {
            Err(format!("line {number} has `{}`: expected numbers between tabs", text.trim()))
        }
    };
    line.split('\t').map(gate).collect()
}
