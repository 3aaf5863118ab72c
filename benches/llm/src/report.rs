//! Medians, tables and JSON.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::thread;
use std::time::Instant;

use serde::Serialize;
use vattention_llm::{Config, weight_bytes};

use crate::BenchResult;
use crate::memory::bandwidth;

/// One decoded token.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) seconds: f64,
    /// Share of the tokens that attention read.
    pub(crate) read: Option<f64>,
    pub(crate) parts: Option<Parts>,
}

/// Times of one token's parts, in seconds, over all layers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Parts {
    /// Embedding, norms, and queries, keys and values with their rotation.
    inputs: f64,
    /// Calls of the backend's `append` and `attend`.
    attention: f64,
    /// Output projection, norms, and the feed-forward network.
    feed_forward: f64,
    /// Last norm and logits.
    head: f64,
}

impl Parts {
    /// Computes the times from begin and end of each layer's `append` and `attend`. The time before
    /// the first call is taken as the time of every layer's inputs; the rest between two layers
    /// belongs to the end of the earlier one.
    pub(crate) fn from_calls(
        start: Instant,
        calls: &[(Instant, Instant)],
        end: Instant,
    ) -> Option<Self> {
        let layers = calls.len() / 2;
        let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
        let (first, last) = (calls.first()?, calls.last()?);
        let input = seconds(start, first.0);
        let attention = calls.chunks(2).map(|calls| seconds(calls[0].0, calls[calls.len() - 1].1));
        let between = calls[1..].chunks(2).filter(|calls| calls.len() == 2);
        let between: f64 = between.map(|calls| seconds(calls[0].1, calls[1].0)).sum();
        let feed_forward = between / (layers - 1).max(1) as f64 - input;
        Some(Self {
            inputs: input * layers as f64,
            attention: attention.sum(),
            feed_forward: feed_forward * layers as f64,
            head: seconds(last.1, end) - feed_forward,
        })
    }

    fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("inputs", self.inputs),
            ("attention", self.attention),
            ("feed-forward", self.feed_forward),
            ("head", self.head),
        ]
    }
}

/// An entry of the report, and its steps.
#[derive(Debug)]
pub(crate) struct BenchEntry {
    name: String,
    pub(crate) steps: Vec<Step>,
}

impl BenchEntry {
    pub(crate) fn new(name: String) -> Self {
        Self { name, steps: Vec::new() }
    }

    pub(crate) fn summarise(&mut self) -> Summary {
        let median_of =
            |number: &dyn Fn(&Step) -> Option<f64>| median(self.steps.iter().filter_map(number));
        let part = |number: fn(&Parts) -> f64| median_of(&|step| step.parts.as_ref().map(number));
        let parts = (|| {
            Some(Parts {
                inputs: part(|p| p.inputs)?,
                attention: part(|p| p.attention)?,
                feed_forward: part(|p| p.feed_forward)?,
                head: part(|p| p.head)?,
            })
        })();
        Summary {
            name: self.name.clone(),
            seconds: median_of(&|step| Some(step.seconds)).unwrap_or_default(),
            read: median_of(&|step| step.read),
            parts,
            samples: self.steps.iter().map(|step| step.seconds).collect(),
        }
    }
}

/// Medians of an entry.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    name: String,
    /// Seconds per token.
    seconds: f64,
    read: Option<f64>,
    parts: Option<Parts>,
    samples: Vec<f64>,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct BenchReport {
    model: String,
    storage: String,
    threads: usize,
    /// Bytes per second that memory delivers.
    memory: f64,
    /// Bytes of weights in our model's memory that each token reads: inputs, feed-forward, head.
    weights: [f64; 3],
    contexts: Vec<(usize, Vec<Summary>)>,
}

impl BenchReport {
    /// Creates an empty report, and measures memory.
    ///
    /// # Errors
    /// The errors of [`weight_bytes`].
    pub(crate) fn new(dir: &Path, config: &Config, storage: &str) -> BenchResult<Self> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shape = config.shape;
        let inputs = config.hidden_size * (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim;
        let output = config.hidden_size * shape.query_heads * shape.value_dim;
        let feed_forward = 3 * config.hidden_size * config.intermediate_size;
        let head = config.hidden_size * config.vocab_size;
        let matrices = if config.tied { head } else { 2 * head }
            + config.layers * (inputs + output + feed_forward);
        // Norms and biases are too few to matter.
        let width = weight_bytes(dir)? as f64 / matrices as f64;
        let bytes = |numbers: usize| width * numbers as f64;
        Ok(Self {
            model: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            storage: storage.into(),
            threads,
            memory: bandwidth(threads),
            weights: [
                bytes(config.layers * inputs),
                bytes(config.layers * (output + feed_forward)),
                bytes(head),
            ],
            contexts: Vec::new(),
        })
    }

    /// Adds a context, and measures memory again, because other programs may slow a measurement
    /// down.
    pub(crate) fn add(&mut self, context: usize, entries: Vec<Summary>) {
        self.memory = self.memory.max(bandwidth(self.threads));
        self.contexts.push((context, entries));
    }

    /// Bytes of weights that a part reads.
    fn weights_of(&self, part: &str) -> Option<f64> {
        match part {
            "inputs" => Some(self.weights[0]),
            "feed-forward" => Some(self.weights[1]),
            "head" => Some(self.weights[2]),
            _ => None,
        }
    }
}

impl Display for BenchReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let giga = 1e9;
        writeln!(
            f,
            "{}, {} threads, keys and values in {}",
            self.model, self.threads, self.storage
        )?;
        writeln!(f, "memory: {:.1} GB/s\n", self.memory / giga)?;
        writeln!(f, "| context | | read | ms per token | tokens/s | of dense |")?;
        writeln!(f, "|--:|---|--:|--:|--:|--:|")?;
        for (context, entries) in &self.contexts {
            let dense = entries.first().map_or(f64::NAN, |entry| entry.seconds);
            for Summary { name, seconds, read, .. } in entries {
                let read = read.map_or(String::new(), |read| format!("{:.1} %", 100.0 * read));
                let (ms, speed, ratio) = (seconds * 1e3, seconds.recip(), dense / seconds);
                writeln!(
                    f,
                    "| {context} | {name} | {read} | {ms:.2} | {speed:.2} | {ratio:.2}× |"
                )?;
            }
        }
        writeln!(f, "\n| context | | part | ms | share | GB/s of weights | of memory |")?;
        writeln!(f, "|--:|---|---|--:|--:|--:|--:|")?;
        for (context, entries) in &self.contexts {
            for Summary { name, seconds, parts, .. } in entries {
                for (part, time) in parts.iter().flat_map(Parts::named) {
                    let speed = self.weights_of(part).map(|bytes| bytes / time);
                    let (ms, share) = (time * 1e3, 100.0 * time / seconds);
                    write!(f, "| {context} | {name} | {part} | {ms:.2} | {share:.0} % |")?;
                    match speed {
                        Some(speed) => {
                            let of_memory = 100.0 * speed / self.memory;
                            writeln!(f, " {:.1} | {of_memory:.0} % |", speed / giga)?;
                        }
                        None => writeln!(f, " | |")?,
                    }
                }
            }
        }
        Ok(())
    }
}

fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}
