//! Options of `vattention serve`.

use std::path::PathBuf;

use vattention::Storage;

use super::size::{ByteSize, size};
use crate::backends::BackendArg;
use crate::numbers::storage;

const HELP: &str = "\
The API is OpenAI's: /v1/models, /v1/completions and /v1/chat/completions; /tokenize, /detokenize \
and /tokenizer_info are vLLM's. /metrics is for Prometheus, and / is a page with a chat that shows \
what each layer reads.

Each pipeline is a model of the API: NAME@PIPELINE, for instance smollm2@priority. NAME@dense is \
dense attention. NAME alone is the first --pipeline, or dense attention without one. Prompts are \
read by dense attention, and answers by the pipeline; with vattention.dense_prefix in a request, \
or --dense-prefix, the pipeline reads the rest of a prompt whose log-probabilities are requested.

The server listens on this machine alone unless --host is given. With --api-key-file, clients must \
send a key. Requests must name this machine, --host or --allow-host in their header Host, so that \
web pages cannot use the server by a name of their own.

Ctrl-C and SIGTERM end the server after the running texts, at most --shutdown-seconds later.

SIZE is a number of bytes, or a number with a unit, such as 512MiB or 4GiB.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct ServeArgs {
    /// Model folder in Hugging Face's format (config.json, tokenizer.json, safetensors), or GGUF
    /// file.
    #[arg(long, value_name = "PATH")]
    pub(super) model: PathBuf,
    /// Name of the model in the API; by default, the name of its file or folder in lower case.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Pipeline to offer: a file or a built-in pipeline, after its name in the API; by default, the
    /// name is that of the file. May be given several times.
    #[arg(long = "pipeline", value_name = "[NAME=]FILE")]
    pub(super) pipelines: Vec<String>,
    /// File with a chat template, instead of the model's.
    #[arg(long, value_name = "FILE")]
    pub(super) template: Option<PathBuf>,
    #[command(flatten)]
    pub(super) machine: BackendArg,
    /// Number format of keys and values.
    #[arg(long, default_value_t = Storage::F32, value_parser = storage())]
    pub(super) dtype: Storage,
    /// Number of threads; by default, that of the hardware.
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    #[command(flatten)]
    pub(super) network: NetworkArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
}

/// Options of the network and its protection.
#[derive(Debug, clap::Args)]
pub(super) struct NetworkArgs {
    /// Address to listen on; 0.0.0.0 means all addresses of the machine.
    #[arg(long, default_value = "127.0.0.1")]
    pub(super) host: String,
    /// Port to listen on; 0 chooses a free one.
    #[arg(long, default_value_t = 8080)]
    pub(super) port: u16,
    /// File with the keys of clients, one per line.
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Further name under which clients may call the server. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(super) allow_host: Vec<String>,
    /// Origin of web pages that may use the server, such as <https://example.org>. May be given
    /// several times.
    #[arg(long, value_name = "ORIGIN")]
    pub(super) allow_origin: Vec<String>,
}

/// Options that limit memory, numbers and times.
#[derive(Debug, clap::Args)]
pub(super) struct LimitArgs {
    /// Largest number of texts that are read or generated together.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub(super) max_sequences: usize,
    /// Largest number of texts that wait, and of texts that one request may ask for.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(super) max_queue: usize,
    /// Memory for keys and values of running texts; by default, that of --max-sequences whole
    /// contexts, and at most three quarters of the available memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) sequence_bytes: Option<ByteSize>,
    /// Memory of the prefix cache, which keeps keys and values of prompts; 0 turns it off. By
    /// default 4GiB, and at most a quarter of the available memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) cache_bytes: Option<ByteSize>,
    /// Folder in which the prefix cache survives a restart.
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Number of tokens that dense attention reads of prompts whose log-probabilities are
    /// requested; the pipeline reads the rest. By default, dense attention reads all.
    #[arg(long, value_name = "N")]
    pub(super) dense_prefix: Option<usize>,
    /// Largest size of a request.
    #[arg(long, default_value = "8MiB", value_name = "SIZE", value_parser = size)]
    pub(super) body_bytes: ByteSize,
    /// Time for running texts after the signal to end, in seconds.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(super) shutdown_seconds: u64,
}
