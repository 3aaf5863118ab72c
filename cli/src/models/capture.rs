//! `vattention capture`: a trace of a language model on a text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vattention::experiments::{Header, Shard, digest_of_file};
use vattention::ndarray::{Array3, Axis, concatenate, s};
use vattention::trace::{TraceInfo, TraceLayer, write_trace};
use vattention::{Shape, Storage, TokenClass};
use vattention_evaluate::fingerprint;
use vattention_llm::{Config, LayerPrompt, LayerWindow, Model, PrefillOptions};

use crate::fail::{Failure, say};
use crate::layers::{LayerRange, layer_numbers};
use crate::merge::LAYERS;
use crate::models::checkpoint::{ModelFiles, read_text, row_bytes};
use crate::numbers::trace_storage;
use crate::outputs::check_outputs;
use crate::progress;
use crate::sharing::Call;

const HELP: &str = "\
The text is tokenized with the tokenizer's usual prefix, such as <bos>, and read by dense \
attention. The trace contains the keys and values of all tokens, and the queries of the last \
--queries tokens; each query sees the tokens up to its own, as in decoding. The tokens before them \
are the prompt. Pipelines receive the prompt's last --prompt-queries queries before the first \
query. The trace also marks special tokens and punctuation.

With --chunk, the text is read in chunks of this number of tokens. Each chunk is read separately, \
from position 0, and the keys and values of all chunks are concatenated, which gives a longer \
context than the model supports. The queries come from the last chunk, and were computed without \
the previous chunks.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct CaptureArgs {
    /// Model folder (config.json, tokenizer.json and safetensors), or GGUF file.
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// Text file to read.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Layers of the model, separated by commas, or ranges such as 9-23; by default, all but those
    /// that slide.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    layers: Option<Vec<LayerRange>>,
    /// Number of tokens of the text, counted from the first; by default, all.
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Tokens per chunk, each of which is read separately; by default, the text is one chunk.
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// Number of queries, from the last tokens.
    #[arg(long, default_value_t = 32, value_name = "N")]
    queries: usize,
    /// Number of prompt queries, from the tokens before the queries.
    #[arg(long, default_value_t = 64, value_name = "N")]
    prompt_queries: usize,
    /// Capture shard i of n of the layers to a separate trace; `vattention merge` joins the shards.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Number format of the trace.
    #[arg(long, default_value_t = Storage::F16, value_parser = trace_storage())]
    dtype: Storage,
    /// Trace file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(args: &CaptureArgs, call: &Call) -> Result<(), Failure> {
    let checkpoint = ModelFiles::open(&args.model)?;
    let config = &checkpoint.config;
    let all = args.layers(config)?;
    let layers = match args.shard {
        Some(shard) => &all[shard.units(all.len())],
        None => &all[..],
    };
    let tokens = args.read(&checkpoint)?;
    let model_files = checkpoint.files();
    let inputs: Vec<&Path> = model_files.iter().chain([&args.text]).map(PathBuf::as_path).collect();
    check_outputs(&[("--output", Some(&args.output))], &inputs)?;
    // Rows are in memory in f32, and twice in the file's format, while the file is assembled.
    let bytes = |storage| row_bytes(&config.shape, storage, layers.len(), tokens.len());
    let rows = bytes(Storage::F32).saturating_add(bytes(args.dtype).saturating_mul(2));
    checkpoint.expect_room(tokens.len(), rows)?;
    let share = args.shard.map(|shard| args.shard_header(shard, &all, call)).transpose()?;
    let layers = if layers.is_empty() {
        BTreeMap::new()
    } else {
        let classes = checkpoint.tokenizer.classes()?.classify(&tokens);
        args.capture(&checkpoint.load()?, &tokens, &classes, layers)?
    };
    let (model, source) = (Some(describe(config)), Some(args.source()));
    let info = TraceInfo { scale: config.block.scale, model, source, share };
    write_trace(&args.output, &info, &layers, args.dtype)?;
    let output = args.output.display();
    match args.shard {
        None => say(&format!("wrote {output}")),
        Some(shard) => say(&format!(
            "wrote shard {shard} to {output}\n`vattention merge FILES... --results ALL` joins the \
             files of all {} shards",
            shard.count()
        )),
    }
}

impl CaptureArgs {
    /// Returns the layers to capture.
    ///
    /// # Errors
    /// If the model does not have one of the layers, one is named twice, or one slides: traces are
    /// of attention over all tokens.
    fn layers(&self, config: &Config) -> Result<Vec<usize>, Failure> {
        let refuse = |reason: String| Err(Failure::input(format!("--layers: {reason}")));
        let (model, count) = (self.model.display(), config.layers);
        let Some(layers) = layer_numbers(self.layers.as_ref()) else {
            let full: Vec<usize> =
                (0..count).filter(|layer| config.window(*layer).is_none()).collect();
            if full.is_empty() {
                let reason = format!("all layers of {model} slide; expected one that does not");
                return Err(Failure::input(reason));
            }
            return Ok(full);
        };
        for (i, layer) in layers.iter().enumerate() {
            if *layer >= count {
                return refuse(format!("{model} has no layer {layer}; it has 0 to {}", count - 1));
            }
            if let Some(LayerWindow { size, aligned }) = config.window(*layer) {
                let sees = if aligned {
                    format!("attends within chunks of {size} tokens")
                } else {
                    format!("slides over {size} tokens")
                };
                return refuse(format!(
                    "layer {layer} of {model} {sees}; expected layers that attend to all tokens"
                ));
            }
            if layers[..i].contains(layer) {
                return refuse(format!("names layer {layer} twice; expected different layers"));
            }
        }
        Ok(layers)
    }

    /// Returns the header of a shard of `all` layers, as JSON: everything that the shards depend
    /// on.
    fn shard_header(&self, shard: Shard, all: &[usize], call: &Call) -> Result<String, Failure> {
        let layers: Vec<String> = all.iter().map(ToString::to_string).collect();
        let inputs = [
            (LAYERS.to_owned(), layers.join(",")),
            ("the model".to_owned(), fingerprint(&self.model)?),
            ("the text".to_owned(), digest_of_file(&self.text)?),
        ];
        let (shards, number) = (Some(shard.count()), Some(shard.number()));
        let header = call.header(inputs.into());
        let header = Header { shards, shard: number, ..header };
        serde_json::to_string(&header).map_err(Failure::input)
    }

    /// Returns the tokens of the text.
    ///
    /// # Errors
    /// If there are fewer tokens than the options need, or more than the model supports.
    fn read(&self, checkpoint: &ModelFiles<'_>) -> Result<Vec<u32>, Failure> {
        let Self { text, tokens: most, queries, prompt_queries: prompt, .. } = self;
        let mut tokens = checkpoint.tokenizer.first(&read_text("--text", text)?)?;
        let (found, most) = (tokens.len(), most.unwrap_or(tokens.len()));
        if most > found {
            let text = text.display();
            let reason = format!("--tokens: {most}; expected at most the {found} of {text}");
            return Err(Failure::input(reason));
        }
        tokens.truncate(most);
        if *queries == 0 {
            return Err(Failure::input("--queries: 0; expected at least 1"));
        }
        if self.chunk == Some(0) {
            return Err(Failure::input("--chunk: 0; expected at least 1"));
        }
        let lengths: Vec<usize> = self.chunks(&tokens).map(<[u32]>::len).collect();
        let [first, last] = [lengths.first(), lengths.last()].map(|len| len.copied().unwrap_or(0));
        if queries.saturating_add(*prompt) > last {
            let what = if self.chunk.is_some() { "of the last chunk" } else { "that are captured" };
            return Err(Failure::input(format!(
                "--queries: {queries}, and --prompt-queries: {prompt}; expected together at most \
                 the {last} tokens {what}"
            )));
        }
        checkpoint.check_length(first).map_err(|error| {
            Failure::input(format!(
                "{error}; --tokens N takes the first N of the text, --chunk N reads N at a time"
            ))
        })?;
        Ok(tokens)
    }

    /// Returns the chunks that are read separately.
    fn chunks<'t>(&self, tokens: &'t [u32]) -> std::slice::Chunks<'t, u32> {
        tokens.chunks(self.chunk.unwrap_or(tokens.len()).max(1))
    }

    /// Returns the text's file name, and the size of its chunks.
    fn source(&self) -> String {
        let name = self.text.file_name().unwrap_or_default().to_string_lossy();
        match self.chunk {
            Some(chunk) => format!("{name}, chunks of {chunk} tokens side by side"),
            None => name.into_owned(),
        }
    }

    /// Reads the text, and returns keys, values and queries of the chosen layers.
    fn capture(
        &self,
        model: &Model,
        tokens: &[u32],
        classes: &[TokenClass],
        chosen: &[usize],
    ) -> Result<BTreeMap<usize, TraceLayer>, Failure> {
        let mut parts: BTreeMap<usize, Vec<LayerPrompt>> = BTreeMap::new();
        let (all, count) = (model.config().layers, self.chunks(tokens).len());
        let bar = progress::bar("layers");
        for (i, chunk) in self.chunks(tokens).enumerate() {
            let observed = if i + 1 < count { 0 } else { self.queries + self.prompt_queries };
            model.read(
                chunk,
                PrefillOptions { observed, ..PrefillOptions::default() },
                |number, layer| {
                    if chosen.contains(&number) {
                        parts.entry(number).or_default().push(layer);
                    }
                    progress::show(&bar, i * all + number + 1, count * all);
                    Ok(())
                },
            )?;
        }
        bar.finish_and_clear();
        let layer = |(number, parts): (usize, Vec<LayerPrompt>)| {
            let layer = TraceLayer {
                soft_cap: model.config().block.attention_cap,
                sink_logits: model.sink_logits(number).map(<[f32]>::to_vec),
                ..self.layer(parts, classes)
            };
            (number, layer)
        };
        Ok(parts.into_iter().map(layer).collect())
    }

    /// Returns a layer with the keys and values of all chunks, and the queries of the last chunk.
    fn layer(&self, mut chunks: Vec<LayerPrompt>, classes: &[TokenClass]) -> TraceLayer {
        let join = |part: fn(&LayerPrompt) -> &Array3<f32>| {
            let all: Vec<_> = chunks.iter().map(|chunk| part(chunk).view()).collect();
            concatenate(Axis(1), &all).expect("all chunks have the same heads")
        };
        let (keys, values) = (join(|chunk| &chunk.keys), join(|chunk| &chunk.values));
        let queries = chunks.pop().expect("a text has at least one chunk").queries;
        let tokens = keys.dim().1;
        let prompt_tokens = tokens - self.queries;
        let prompt = queries.slice(s![.., ..self.prompt_queries, ..]).to_owned();
        TraceLayer {
            queries: queries.slice(s![.., self.prompt_queries.., ..]).to_owned(),
            keys,
            values,
            visible: Some((prompt_tokens + 1..=tokens).collect()),
            prompt: (self.prompt_queries > 0).then_some(prompt),
            prompt_tokens: (self.prompt_queries > 0).then_some(prompt_tokens),
            classes: Some(classes.to_vec()),
            soft_cap: None,
            sink_logits: None,
        }
    }
}

/// Returns the description of a model that its traces contain.
fn describe(config: &Config) -> String {
    let Config { architecture, layers, hidden_size, shape, vocab_size, .. } = config;
    let Shape { query_heads, kv_heads, head_dim, .. } = shape;
    format!(
        "{architecture}, {layers} layers, hidden size {hidden_size}, {query_heads} query heads, \
         {kv_heads} KV heads, head dim {head_dim}, {vocab_size} tokens"
    )
}
