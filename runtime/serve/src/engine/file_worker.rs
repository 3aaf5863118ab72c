//! Thread that reads and writes the prefix cache's files, so that no stream waits for them.

use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};

use vattention_llm::PromptBlock;

use super::block_files::{BlockDigest, BlockFiles};

/// Maximum number of blocks that have been read and wait for the engine.
const MOST_WAITING: usize = 2;

/// Handle of the thread, which executes tasks in their order. Dropping the handle waits for the
/// tasks.
pub(super) struct FileWorker {
    /// `None` while the handle is dropped.
    tasks: Option<Sender<FileTask>>,
    /// `None` while the handle is dropped.
    thread: Option<JoinHandle<()>>,
}

enum FileTask {
    /// Write a block. The task does not own it, because waiting blocks would need memory beyond the
    /// limit of the cache: if the cache drops the block, it is not written.
    Store { digest: BlockDigest, block: Weak<PromptBlock> },
    /// Read blocks in order, up to the first one without a valid file.
    Load { digests: Vec<BlockDigest>, blocks: SyncSender<LoadedBlock> },
}

/// Block that was read from its file.
pub(super) struct LoadedBlock {
    pub(super) digest: BlockDigest,
    pub(super) block: PromptBlock,
}

impl FileWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error of the operating system if the thread cannot be started.
    pub(super) fn start(mut files: BlockFiles) -> io::Result<Self> {
        let (tasks, waiting) = channel();
        let run = move || waiting.into_iter().for_each(|task| execute(&mut files, task));
        let thread = Builder::new().name("cache files".into()).spawn(run)?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Writes a block later, unless all other references to it are dropped before.
    pub(super) fn store(&self, digest: BlockDigest, block: &Arc<PromptBlock>) {
        self.send(FileTask::Store { digest, block: Arc::downgrade(block) });
    }

    /// Reads blocks, and returns the receiver of those before the first one without a valid file.
    /// Dropping the receiver ends the task.
    pub(super) fn load(&self, digests: Vec<BlockDigest>) -> Receiver<LoadedBlock> {
        let (blocks, receiver) = sync_channel(MOST_WAITING);
        self.send(FileTask::Load { digests, blocks });
        receiver
    }

    fn send(&self, task: FileTask) {
        // Sending fails after a panic of the thread; the server continues without files.
        let _ = self.tasks.as_ref().map(|tasks| tasks.send(task));
    }
}

impl Drop for FileWorker {
    fn drop(&mut self) {
        drop(self.tasks.take());
        // A panic of the thread has been printed, and lost no more than files.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn execute(files: &mut BlockFiles, task: FileTask) {
    match task {
        FileTask::Store { digest, block } => {
            if let Some(block) = block.upgrade() {
                files.store(&digest, &block);
            }
        }
        FileTask::Load { digests, blocks } => {
            for digest in digests {
                let Some(block) = files.load(&digest) else { return };
                if blocks.send(LoadedBlock { digest, block }).is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use sha2::{Digest as _, Sha256};
    use vattention_llm::{BlockShape, Model, PrefillOptions, PromptReader};

    use super::*;

    const BLOCK: usize = 8;

    /// While the thread waits for a named pipe, whose other end nobody has opened, tasks are
    /// accepted; they are executed before the handle is dropped.
    #[test]
    fn tasks_wait_without_their_senders() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall");
        let model = Model::open(&model).expect("the model exists");
        let options = PrefillOptions { block: BLOCK, ..PrefillOptions::default() };
        let mut reader = PromptReader::new(&model, &[5; 2 * BLOCK], options).expect("tokens");
        while !reader.is_finished() {
            reader.read_block();
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = |digest: &BlockDigest| folder.path().join(format!("{digest:x}.block"));
        let [pipe, stored, dropped] = ["pipe", "stored", "dropped"].map(Sha256::digest);
        let made = Command::new("mkfifo").arg(path(&pipe)).status().expect("mkfifo runs");
        assert!(made.success());
        let shape = BlockShape::new(&model, BLOCK);
        let files = BlockFiles::open(folder.path(), shape, 1 << 30).expect("a folder");
        let worker = FileWorker::start(files).expect("a thread");
        let blocks = worker.load(vec![pipe, stored]);
        let kept = Arc::new(reader.block(0));
        worker.store(stored, &kept);
        worker.store(dropped, &Arc::new(reader.block(1)));
        assert!(blocks.try_recv().is_err());
        // The empty pipe counts as a damaged file, and ends the first task.
        fs::write(path(&pipe), []).expect("the thread reads the pipe");
        assert!(blocks.recv().is_err());
        drop(worker);
        assert_eq!(
            [&pipe, &stored, &dropped].map(|digest| path(digest).exists()),
            [false, true, false]
        );
    }
}
