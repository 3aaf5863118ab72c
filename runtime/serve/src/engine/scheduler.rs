//! Continuous batching: each iteration prefills at most one prompt block, and runs one batched
//! decode step of all sequences whose prompts are complete.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use vattention_core::{Backend, Storage};
use vattention_llm::{BlockShape, Model, Session, Tokenizer};

use super::block_files::{BlockDigest, BlockFiles};
use super::file_worker::FileWorker;
use super::handle::{EngineHandle, Shared, SubmitLimits};
use super::prefix_cache::PrefixCache;
use super::sequence::{ModelContext, Sequence};
use super::{EngineMetrics, EngineOptions, Event, Job, JobError, PipelineMetrics};

/// Maximum time for each file of a prompt's cached blocks that other sequences wait. The time
/// suffices to learn that a file does not exist.
const BUSY_PATIENCE: Duration = Duration::from_millis(1);

/// Maximum time for each file if no other sequence decodes. New jobs and shutdowns wait for it.
const IDLE_PATIENCE: Duration = Duration::from_millis(20);

/// Time without a job after which, again and again, the engine reports that it is idle.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Starts the engine's thread, which runs until [`EngineHandle::shut_down`].
///
/// # Errors
/// Returns an error of the operating system if the thread cannot be started, or if the folder of
/// the prefix cache cannot be created or listed. Errors of the model have the kind
/// [`io::ErrorKind::InvalidData`].
pub fn start_engine(
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    backend: Arc<dyn Backend>,
    options: EngineOptions,
) -> io::Result<EngineHandle> {
    let cache = open_cache(&model, &options)?;
    let shared = Arc::new(Shared::default());
    let pipelines = vec![PipelineMetrics::default(); options.pipelines.len()];
    shared.update_metrics(|metrics| metrics.pipelines = pipelines);
    let limits = submit_limits(&model, &options);
    let (ended, stopped) = watch::channel(false);
    let handle = EngineHandle::new(Arc::clone(&shared), stopped, limits);
    std::thread::Builder::new().name("engine".into()).spawn(move || {
        let _guard = EndGuard { ended, shared: Arc::clone(&shared) };
        let (model, tokenizer, backend) = (&*model, &*tokenizer, &*backend);
        let context = ModelContext { model, tokenizer, backend, options: &options };
        Scheduler { context, cache, sequences: Vec::new(), shared, limits }.run();
    })?;
    Ok(handle)
}

/// Guard of the engine's thread, which reports the end of the thread even after a panic.
struct EndGuard {
    ended: watch::Sender<bool>,
    shared: Arc<Shared>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        // Sending fails if all handles have been dropped; then nobody waits for the end.
        let _ = self.ended.send(true);
        // Dropped jobs close their channels, by which their clients know.
        drop(self.shared.take_all());
    }
}

fn open_cache(model: &Model, options: &EngineOptions) -> io::Result<PrefixCache> {
    let limit = options.cache_bytes;
    let Some(folder) = options.cache_dir.as_ref().filter(|_| limit > 0) else {
        return Ok(PrefixCache::new(limit, options.block, BlockDigest::default(), None));
    };
    let fingerprint = model
        .fingerprint()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let seed = Sha256::new_with_prefix(fingerprint).chain_update(&options.cache_key);
    let files = BlockFiles::open(folder, BlockShape::new(model, options.block), limit)?;
    let files = FileWorker::start(files)?;
    Ok(PrefixCache::new(limit, options.block, seed.finalize(), Some(files)))
}

fn submit_limits(model: &Model, options: &EngineOptions) -> SubmitLimits {
    let (shape, layers) = (model.config().shape, model.config().layers as u64);
    let heads = shape.kv_heads as u64 * layers;
    let bytes = |storage: Storage| {
        (storage.row_bytes(shape.head_dim) + storage.row_bytes(shape.value_dim)) as u64 * heads
    };
    SubmitLimits {
        max_queue: options.max_queue,
        sequence_bytes: options.sequence_bytes,
        token_bytes: bytes(options.storage),
        reading_bytes: bytes(Storage::F32),
    }
}

struct Scheduler<'m> {
    context: ModelContext<'m>,
    cache: PrefixCache,
    /// Running sequences, in the order in which they started.
    sequences: Vec<Sequence<'m>>,
    shared: Arc<Shared>,
    limits: SubmitLimits,
}

impl Scheduler<'_> {
    fn run(mut self) {
        loop {
            while self.sequences.is_empty() && !self.shared.wait(IDLE_TIME) {
                (self.context.options.when_idle)();
            }
            self.remove_cancelled();
            if self.must_stop() {
                return;
            }
            self.admit_jobs();
            self.read_block();
            self.decode();
            self.publish();
            self.end_jobs();
        }
    }

    /// Removes sequences whose client has disconnected.
    fn remove_cancelled(&mut self) {
        let before = self.sequences.len();
        self.sequences.retain(|sequence| !sequence.is_cancelled());
        let cancelled = before - self.sequences.len() + self.shared.remove_cancelled();
        self.shared.update_metrics(|metrics| metrics.cancelled += cancelled as u64);
    }

    /// Fails the queued jobs during a shutdown, and the running ones after its deadline. Returns
    /// true if the engine shuts down and no sequence is left.
    fn must_stop(&mut self) -> bool {
        let Some(shutdown) = self.shared.shutdown() else { return false };
        for job in self.shared.take_all() {
            let _ = job.events.send(Event::Failed(JobError::ShuttingDown));
        }
        if shutdown.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.sequences.iter_mut().for_each(|it| it.fail(JobError::ShuttingDown));
            self.publish();
            self.end_jobs();
        }
        self.sequences.is_empty()
    }

    /// Starts queued jobs, in order, while there is room for their sequences.
    fn admit_jobs(&mut self) {
        while self.sequences.len() < self.context.options.max_sequences {
            let reserved: u64 = self.sequences.iter().map(|sequence| sequence.reserved).sum();
            let free = self.limits.sequence_bytes - reserved;
            let fits = |job: &Job| self.limits.reading_bytes(job) <= free;
            let Some(job) = self.shared.take_job(fits) else { return };
            let reserved = self.limits.reading_bytes(&job);
            let begin = || Sequence::new(self.context, job, reserved);
            match catch_unwind(AssertUnwindSafe(begin)) {
                Ok(Ok(sequence)) => self.sequences.push(sequence),
                Ok(Err(refused)) => refused.report(),
                // The job was dropped, so its client sees that the channel is closed.
                Err(_) => {}
            }
        }
    }

    /// Prefills one block of the earliest sequence whose prompt is incomplete. Before its first
    /// block, the sequence copies what the cache has of its prompt: a request's choices after the
    /// first copy the prompt of the first. Files are read while the other sequences decode.
    fn read_block(&mut self) {
        let is_idle = !self.sequences.iter().any(Sequence::is_decoding);
        let patience = if is_idle { IDLE_PATIENCE } else { BUSY_PATIENCE };
        let Some(sequence) = self.sequences.iter_mut().find(|it| it.is_reading()) else {
            return;
        };
        let (cache, shared, limits) = (&mut self.cache, &self.shared, &self.limits);
        protect(sequence, |sequence| {
            if !copy_known(sequence, cache, shared, patience) {
                return Ok(());
            }
            let tokens = sequence.read_block()?;
            shared.update_metrics(|metrics| metrics.prompt_tokens += tokens as u64);
            let Some(reader) = sequence.reader().filter(|reader| reader.is_finished()) else {
                return Ok(());
            };
            let digests = cache.digests(reader);
            cache.store_blocks(&digests, reader);
            let Some(prompt) = sequence.finish_prompt()? else { return Ok(()) };
            cache.store_tail(&digests, &prompt);
            sequence.start_decoding(&prompt, limits)
        });
    }

    /// Runs one decode step of all sequences whose prompts are complete.
    fn decode(&mut self) {
        let mut batch: Vec<_> = self.sequences.iter_mut().filter_map(Sequence::next_step).collect();
        if batch.is_empty() {
            return;
        }
        let results = catch_unwind(AssertUnwindSafe(|| Session::step_batch(&mut batch)));
        let decoding = self.sequences.iter_mut().filter(|it| it.is_decoding());
        let Ok(results) = results else {
            decoding.for_each(|it| it.fail(panicked()));
            return;
        };
        for (sequence, result) in decoding.zip(results) {
            let shared = &self.shared;
            protect(sequence, |sequence| {
                let sums = sequence.finish_step(&result?)?;
                let pipeline = sequence.pipeline();
                shared.update_metrics(|metrics| metrics.pipelines[pipeline].add(&sums));
                Ok(())
            });
        }
    }

    /// Updates the metrics, before the last events are sent: a client that has received the last
    /// event of a job finds the whole job in the metrics.
    fn publish(&mut self) {
        let generated: usize = self.sequences.iter_mut().map(Sequence::count_new_tokens).sum();
        let running = self.sequences.iter().filter(|sequence| !sequence.has_ended());
        let reserved = running.clone().map(|sequence| sequence.reserved).sum();
        self.shared.update_metrics(|metrics: &mut EngineMetrics| {
            metrics.generated_tokens += generated as u64;
            metrics.running = running.count();
            metrics.cache_bytes = self.cache.bytes();
            metrics.cache_blocks = self.cache.len();
            metrics.reserved_bytes = reserved;
        });
    }

    /// Removes the sequences that have ended, and sends their last events.
    fn end_jobs(&mut self) {
        let ended = self.sequences.extract_if(.., |sequence| sequence.has_ended());
        ended.for_each(Sequence::send_last_event);
    }
}

/// Copies the cached part of a prompt of which no token has been read. Returns false if files are
/// still being read.
fn copy_known(
    sequence: &mut Sequence<'_>,
    cache: &mut PrefixCache,
    shared: &Shared,
    patience: Duration,
) -> bool {
    if !sequence.may_copy() {
        return true;
    }
    let Some(reader) = sequence.reader().filter(|reader| reader.tokens_read() == 0) else {
        return true;
    };
    if !cache.copy_known(reader, patience) {
        return false;
    }
    let copied = reader.tokens_read();
    sequence.note_copied(copied);
    shared.update_metrics(|metrics| metrics.cached_tokens += copied as u64);
    true
}

/// Runs work of one sequence. An error or a panic ends only the job of this sequence.
fn protect<'m>(
    sequence: &mut Sequence<'m>,
    work: impl FnOnce(&mut Sequence<'m>) -> Result<(), JobError>,
) {
    let outcome = catch_unwind(AssertUnwindSafe(|| work(sequence)));
    if let Err(error) = outcome.unwrap_or_else(|_| Err(panicked())) {
        sequence.fail(error);
    }
}

fn panicked() -> JobError {
    JobError::Internal("the engine panicked; its standard error has the message".into())
}
