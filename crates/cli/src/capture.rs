//! `vattention capture`: a trace of a language model on a text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vattention::Storage;
use vattention::eval::{Layer, TraceInfo, write_trace};
use vattention::ndarray::s;
use vattention_llm::{Config, LayerPrompt, Model, Reading};

use crate::checkpoint::{Checkpoint, read_text, row_bytes};
use crate::dtype::Dtype;
use crate::outputs::check_outputs;
use crate::{Failure, progress, say};

const HELP: &str = "\
The text is tokenized as it is, with what the tokenizer puts before a text, and read by dense attention.
The trace has the keys and values of all its tokens, and the queries of the last --queries, each of
which sees the tokens up to its own: they stand for tokens that are decoded. What is before them is the
prompt, whose last --prompt-queries queries pipelines are shown before the first query.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The folder of a model (config.json, tokenizer.json and safetensors), or a GGUF file.
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// The file of text.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Layers of the model, between commas; by default, all.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    layers: Option<Vec<usize>>,
    /// How many tokens of the text, the first ones; by default, all.
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Queries, of the last tokens.
    #[arg(long, default_value_t = 32, value_name = "N")]
    queries: usize,
    /// Prompt queries, of the tokens before them.
    #[arg(long, default_value_t = 64, value_name = "N")]
    prompt_queries: usize,
    /// How numbers are stored.
    #[arg(long, value_enum, default_value_t = Dtype::F16)]
    dtype: Dtype,
    /// The trace to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let config = &checkpoint.config;
    let layers = args.layers(config.layers)?;
    let tokens = args.read(&checkpoint)?;
    let model_files = checkpoint.files();
    let inputs: Vec<&Path> = model_files.iter().chain([&args.text]).map(PathBuf::as_path).collect();
    check_outputs(&[("--output", Some(&args.output))], &inputs)?;
    // In f32, and twice as the file holds them, which is put together in memory.
    let kept = |storage| row_bytes(&config.shape, storage, layers.len(), tokens.len());
    let rows = kept(Storage::F32).saturating_add(kept(args.dtype.into()).saturating_mul(2));
    checkpoint.expect_room(tokens.len(), rows)?;
    let model = checkpoint.load()?;
    let layers = args.capture(&model, &tokens, &layers)?;
    let name = args.text.file_name().unwrap_or_default().to_string_lossy();
    let info =
        TraceInfo { scale: None, model: Some(describe(config)), source: Some(name.into_owned()) };
    write_trace(&args.output, &info, &layers, args.dtype.into())?;
    say(&format!("wrote {}", args.output.display()))
}

impl Args {
    /// The layers to keep, which the model must have.
    fn layers(&self, count: usize) -> Result<Vec<usize>, Failure> {
        let refuse = |reason: String| Err(Failure::input(format!("--layers: {reason}")));
        let Some(layers) = &self.layers else { return Ok((0..count).collect()) };
        for (i, layer) in layers.iter().enumerate() {
            if *layer >= count {
                return refuse(format!(
                    "{} has no layer {layer}; it has 0 to {}",
                    self.model.display(),
                    count - 1
                ));
            }
            if layers[..i].contains(layer) {
                return refuse(format!("names layer {layer} twice; expected different layers"));
            }
        }
        Ok(layers.clone())
    }

    /// The tokens of the text, of which there must be enough.
    fn read(&self, checkpoint: &Checkpoint<'_>) -> Result<Vec<u32>, Failure> {
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
        if queries.saturating_add(*prompt) > most {
            return Err(Failure::input(format!(
                "--queries: {queries}, and --prompt-queries: {prompt}; expected together at most the \
                 {most} tokens that are captured"
            )));
        }
        checkpoint.config.check_length(most).map_err(|error| {
            Failure::input(format!("{error}; --tokens N takes the first N of the text"))
        })?;
        Ok(tokens)
    }

    /// What the chosen layers know of the text.
    fn capture(
        &self,
        model: &Model,
        tokens: &[u32],
        chosen: &[usize],
    ) -> Result<BTreeMap<usize, Layer>, Failure> {
        let reading =
            Reading { observed: self.queries + self.prompt_queries, ..Reading::default() };
        let (mut layers, all) = (BTreeMap::new(), model.config().layers);
        let bar = progress::bar("layers");
        model.read(tokens, reading, |number, layer| {
            if chosen.contains(&number) {
                layers.insert(number, self.layer(layer));
            }
            progress::show(&bar, number + 1, all);
            Ok(())
        })?;
        bar.finish_and_clear();
        Ok(layers)
    }

    /// A layer, with the queries it has kept parted.
    fn layer(&self, layer: LayerPrompt) -> Layer {
        let LayerPrompt { keys, values, queries } = layer;
        let tokens = keys.dim().1;
        let prompt_tokens = tokens - self.queries;
        let prompt = queries.slice(s![.., ..self.prompt_queries, ..]).to_owned();
        Layer {
            queries: queries.slice(s![.., self.prompt_queries.., ..]).to_owned(),
            keys,
            values,
            visible: Some((prompt_tokens + 1..=tokens).collect()),
            prompt: (self.prompt_queries > 0).then_some(prompt),
            prompt_tokens: (self.prompt_queries > 0).then_some(prompt_tokens),
        }
    }
}

/// What a trace says of its model.
fn describe(config: &Config) -> String {
    let Config { architecture, layers, hidden_size, shape, vocab_size, .. } = config;
    format!(
        "{architecture:?}, {layers} layers, hidden size {hidden_size}, {} query heads, {} KV heads, \
         head dim {}, {vocab_size} tokens",
        shape.query_heads, shape.kv_heads, shape.head_dim
    )
}
