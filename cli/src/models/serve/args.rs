//! Options of `vattention serve`.

use std::path::PathBuf;

use vattention::Storage;

use super::size::{ByteSize, size};
use crate::backends::BackendArg;
use crate::numbers::storage;
use crate::pipelines::Changes;

const HELP: &str = "\
The API is OpenAI's: /v1/models, /v1/completions and /v1/chat/completions; /tokenize, /detokenize \
and /tokenizer_info are vLLM's. /metrics is for Prometheus, and / is a page with a chat that shows \
what each layer reads.

Each pipeline is a model of the API: NAME@PIPELINE, for instance smollm2@priority. NAME@dense is \
dense attention. NAME alone is the first --pipeline, or dense attention without one.

Dense attention reads prompts, and the pipeline computes the answers. If a request asks for the \
log-probabilities of its prompt, --dense-prefix N limits dense attention to the first N tokens, \
and the pipeline reads the rest; vattention.dense_prefix in a request does so for any prompt.

The server listens on this machine alone unless --host is given. With --api-key-file, clients must \
send a key. The header Host of a request must name this machine, --host or --allow-host, so that \
other people's web pages cannot reach the server by a name of their own (DNS rebinding).

Ctrl-C and SIGTERM end the server when the running texts are complete, but at the latest after \
--shutdown-seconds; a second signal ends it immediately.

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
    /// Pipeline to serve: a file or the name of a built-in pipeline, after NAME= if its name in the
    /// API should differ from that of the file. The option can be repeated.
    #[arg(long = "pipeline", value_name = "[NAME=]FILE")]
    pub(super) pipelines: Vec<String>,
    #[command(flatten)]
    pub(super) changes: Changes,
    /// File of a chat template in Jinja, instead of the model's own.
    #[arg(long, value_name = "FILE")]
    pub(super) template: Option<PathBuf>,
    #[command(flatten)]
    pub(super) machine: BackendArg,
    /// Number format of keys and values.
    #[arg(long, default_value_t = Storage::F32, value_parser = storage())]
    pub(super) dtype: Storage,
    /// Number of threads; by default, one for each hardware thread.
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
    /// Host name besides this machine's under which clients may call the server. The option can be
    /// repeated.
    #[arg(long, value_name = "NAME")]
    pub(super) allow_host: Vec<String>,
    /// Origin of web pages that may use the server, such as `https://example.org`. The option can
    /// be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub(super) allow_origin: Vec<String>,
}

/// Options that limit memory, numbers and times.
#[derive(Debug, clap::Args)]
pub(super) struct LimitArgs {
    /// Maximum number of texts that are read or generated together.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub(super) max_sequences: usize,
    /// Maximum number of texts that wait, and of texts that one request may ask for.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(super) max_queue: usize,
    /// Memory for keys and values of running texts; by default, enough for --max-sequences whole
    /// contexts, but at most three quarters of the available memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) sequence_bytes: Option<ByteSize>,
    /// Memory of the prefix cache, which stores keys and values of prompts; 0 turns the cache off.
    /// The default is 4GiB, but at most a quarter of the available memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) cache_bytes: Option<ByteSize>,
    /// Folder with a copy of the prefix cache, which survives a restart.
    #[arg(long, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Number of tokens that dense attention reads of a prompt whose log-probabilities are
    /// requested; the pipeline reads the rest. By default, dense attention reads the whole prompt.
    #[arg(long, value_name = "N")]
    pub(super) dense_prefix: Option<usize>,
    /// Maximum size of the body of a request.
    #[arg(long, default_value = "8MiB", value_name = "SIZE", value_parser = size)]
    pub(super) body_bytes: ByteSize,
    /// Seconds after which Ctrl-C or SIGTERM ends texts that are still running.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(super) shutdown_seconds: u64,
}
