//! `vattention serve`: an HTTP server for a model with pipelines.

mod args;
mod memory;
mod names;
mod size;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use vattention::experiments::available_memory;
use vattention::{PipelineConfig, Storage};
use vattention_llm::{ChatTemplate, PrefillOptions, model_digest};
use vattention_serve::{
    ApiKeys, DENSE, EngineOptions, ServedModel, Server, ServerOptions, list_ids, start_engine,
};

use crate::fail::{Failure, complain};
use crate::models::checkpoint::{ModelFiles, read_text, row_bytes};
use crate::pipelines::{Changes, fits_model};

pub(crate) use args::ServeArgs;
use args::{LimitArgs, NetworkArgs};
use memory::release_memory;
use names::{PipelineOption, name_model, name_pipelines};

/// Maximum of the default memory of the prefix cache, in bytes.
const MOST_CACHE: u64 = 4 << 30;

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    check_counts(args)?;
    // The first parallel work, such as that of the backend, starts the threads.
    set_threads(args.threads)?;
    let backend = args.machine.find()?;
    let name = name_model(args.name.as_deref(), &args.model)?;
    let named = name_pipelines(&args.pipelines)?;
    let server = bind(server_options(&args.network, &args.limits)?)?;
    let address = server.address().map_err(Failure::input)?;
    let checkpoint = ModelFiles::open(&args.model)?;
    let (names, pipelines) = load_pipelines(named, &args.changes, &checkpoint, &*backend)?;
    let template = match &args.template {
        Some(file) => Some(ChatTemplate::open_file(file, &args.model)?),
        None => checkpoint.chat_template()?,
    };
    let engine_options = engine_options(args, &checkpoint, pipelines)?;
    checkpoint.expect_room(0, engine_options.sequence_bytes)?;
    let model = Arc::new(checkpoint.load()?);
    let ModelFiles { config, tokenizer, .. } = checkpoint;
    let tokenizer = Arc::new(tokenizer);
    let engine = start_engine(model, Arc::clone(&tokenizer), Arc::from(backend), engine_options);
    let engine = engine.map_err(Failure::input)?;
    let ids: Vec<String> = list_ids(&name, &names).into_iter().map(|id| id.id).collect();
    let served = ServedModel { name, pipelines: names, config, tokenizer, template, engine };
    complain(&format!("listening on http://{address}; models: {}\n", ids.join(", ")));
    server.run(served).map_err(Failure::input)
}

/// Listens on the address, so that an address in use is an error before the model is loaded.
fn bind(options: ServerOptions) -> Result<Server, Failure> {
    let (host, port) = (options.host.clone(), options.port);
    let refuse = |error| Failure::input(format!("--host {host}, --port {port}: {error}"));
    Server::bind(options).map_err(refuse)
}

fn check_counts(args: &ServeArgs) -> Result<(), Failure> {
    let counts = [
        ("--threads", args.threads),
        ("--max-sequences", Some(args.limits.max_sequences)),
        ("--max-queue", Some(args.limits.max_queue)),
        ("--dense-prefix", args.limits.dense_prefix),
        ("--body-bytes", Some(args.limits.body_bytes.0 as usize)),
    ];
    match counts.into_iter().find(|(_, count)| *count == Some(0)) {
        Some((option, _)) => Err(Failure::input(format!("{option}: 0; expected at least 1"))),
        None => Ok(()),
    }
}

/// Returns the options of the network, with the keys from their file.
fn server_options(network: &NetworkArgs, limits: &LimitArgs) -> Result<ServerOptions, Failure> {
    let keys = network.api_key_file.as_deref().map(read_keys).transpose()?;
    if let Some(origin) = network.allow_origin.iter().find(|origin| !is_origin(origin)) {
        let expected = "expected a scheme and a name without a path, such as https://example.org";
        return Err(Failure::input(format!("--allow-origin: found {origin:?}; {expected}")));
    }
    Ok(ServerOptions {
        host: network.host.clone(),
        port: network.port,
        allow_hosts: network.allow_host.clone(),
        allow_origins: network.allow_origin.clone(),
        keys,
        body_bytes: limits.body_bytes.0 as usize,
        shutdown_timeout: Duration::from_secs(limits.shutdown_seconds),
        max_queue: limits.max_queue,
        dense_prefix: limits.dense_prefix,
        ..ServerOptions::default()
    })
}

fn read_keys(path: &Path) -> Result<ApiKeys, Failure> {
    let text = read_text("--api-key-file", path)?;
    let refuse = |error| Failure::input(format!("--api-key-file {}: {error}", path.display()));
    ApiKeys::parse(&text).map_err(refuse)
}

/// Returns true for an origin as browsers send it.
fn is_origin(text: &str) -> bool {
    let name = text.split_once("://").map_or("", |(_, name)| name);
    !name.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) && !name.contains('/')
}

/// Returns the names of pipelines, and the pipelines. Dense attention is the last one, unless it is
/// among the named ones.
fn load_pipelines(
    named: Vec<PipelineOption>,
    changes: &Changes,
    checkpoint: &ModelFiles<'_>,
    backend: &dyn vattention::Backend,
) -> Result<(Vec<String>, Vec<Arc<PipelineConfig>>), Failure> {
    // Dense attention has no settings.
    let unchanged = Changes { set: Vec::new() };
    let (mut names, mut pipelines) = (Vec::new(), Vec::new());
    for PipelineOption { name, file } in named {
        let changes = if name == DENSE { &unchanged } else { changes };
        let (entry, _) = changes.load_one(&file)?;
        let refuse =
            |reason: String| Failure::input(format!("--pipeline {}: {reason}", entry.file));
        fits_model(&entry, &checkpoint.layers(), backend).map_err(refuse)?;
        if name == DENSE && !entry.pipeline.is_dense() {
            let reason = "expected dense attention, or another name, such as NAME=FILE";
            return Err(refuse(format!("the name is `{DENSE}`; {reason}")));
        }
        names.push(name);
        pipelines.push(entry.pipeline);
    }
    if !names.iter().any(|name| name == DENSE) {
        names.push(DENSE.to_owned());
        pipelines.push(Arc::new(PipelineConfig::default()));
    }
    Ok((names, pipelines))
}

/// Returns the options of the engine. Limits of memory that are not given are shares of the
/// available memory.
fn engine_options(
    args: &ServeArgs,
    checkpoint: &ModelFiles<'_>,
    pipelines: Vec<Arc<PipelineConfig>>,
) -> Result<EngineOptions, Failure> {
    let limits = &args.limits;
    let free = available_memory().unwrap_or(u64::MAX).saturating_sub(checkpoint.weight_bytes);
    let config = &checkpoint.config;
    let bytes = |storage| row_bytes(&config.shape, storage, config.layers, config.context);
    // One prompt at a time is read in f32 besides.
    let stored = bytes(args.dtype).saturating_mul(limits.max_sequences as u64);
    let whole = stored.saturating_add(bytes(Storage::F32));
    let sequence_bytes = limits.sequence_bytes.map_or(whole.min(free / 4 * 3), |size| size.0);
    let cache_bytes = limits.cache_bytes.map_or(MOST_CACHE.min(free / 4), |size| size.0);
    let cache_key = limits.cache_dir.as_ref().map(|_| model_digest(checkpoint.path()));
    Ok(EngineOptions {
        pipelines,
        max_sequences: limits.max_sequences,
        max_queue: limits.max_queue,
        sequence_bytes,
        cache_bytes,
        cache_dir: limits.cache_dir.clone(),
        cache_key: cache_key.transpose()?.unwrap_or_default(),
        storage: args.dtype,
        block: PrefillOptions::default().block,
        when_idle: release_memory,
    })
}

/// Limits the threads of all later work.
fn set_threads(threads: Option<usize>) -> Result<(), Failure> {
    let Some(threads) = threads else { return Ok(()) };
    let pool = ThreadPoolBuilder::new().num_threads(threads).build_global();
    pool.map_err(|error| Failure::input(format!("--threads {threads}: {error}")))
}
