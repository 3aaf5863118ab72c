//! Server on a socket: connections, signals and shutdown.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::options::ServerOptions;
use crate::router::build_router;
use crate::served::ServedModel;

/// Maximum size of a request's header, in bytes.
const LONGEST_HEADER: usize = 64 * 1024;

/// Time without work after which a thread for blocking work ends. It holds memory that it has freed
/// until then, and should end before the engine is idle, which releases unused memory.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_millis(500);

/// Number of threads for blocking work, such as tokenization, which keeps a processor busy. Each
/// thread has its own freed memory, so that more threads would only hold more of it.
fn blocking_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).max(4)
}

/// Server that listens on its address. Clients can connect, and wait for their answers until the
/// model is loaded and the server [runs](Self::run).
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    options: ServerOptions,
}

impl Server {
    /// Listens on the address of the options.
    ///
    /// # Errors
    /// Returns an error if the address does not exist, or another program listens on it.
    pub fn bind(options: ServerOptions) -> std::io::Result<Self> {
        let listener = TcpListener::bind((options.bare_host(), options.port))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, options })
    }

    /// Returns the address, with the actual port if the options leave its choice to the system.
    ///
    /// # Errors
    /// Returns an error of the operating system.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests until Ctrl-C or SIGTERM. Then new requests are refused, and running ones
    /// are finished, or cancelled after the shutdown timeout or at a second signal.
    ///
    /// # Errors
    /// Returns an error if the threads cannot be started, or signals cannot be received.
    pub fn run(self, served: ServedModel) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(blocking_threads())
            .thread_keep_alive(BLOCKING_KEEP_ALIVE)
            .build()?;
        let result = runtime.block_on(async {
            // The receiver of the second signal is created after the first signal, which it would
            // otherwise receive as well.
            let second = async {
                match Signals::new() {
                    Ok(signals) => signals.wait().await,
                    Err(_) => std::future::pending().await,
                }
            };
            self.run_until(served, Signals::new()?.wait(), second).await
        });
        // Work on the blocking threads, such as a long tokenization, cannot be cancelled, and a
        // normal shutdown would wait for it.
        runtime.shutdown_background();
        result
    }

    /// Answers requests until `stop` completes. Then running requests are finished, until `abort`
    /// completes or the shutdown timeout is over.
    ///
    /// # Errors
    /// Returns an error of the operating system about the socket.
    pub async fn run_until(
        self,
        served: ServedModel,
        stop: impl Future<Output = ()>,
        abort: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        let Self { listener, options } = self;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (engine, shutdown_timeout) = (served.engine.clone(), options.shutdown_timeout);
        let graceful = GracefulShutdown::new();
        let connections = Connections {
            permits: Arc::new(Semaphore::new(options.max_connections)),
            header_timeout: options.header_timeout,
            router: build_router(served, options),
        };
        tokio::pin!(stop);
        loop {
            tokio::select! {
                (stream, permit) = connections.accept(&listener) => {
                    connections.serve(stream, permit, graceful.watcher());
                }
                () = &mut stop => break,
            }
        }
        drop((listener, connections));
        let finish = async {
            tokio::join!(engine.shut_down(shutdown_timeout), graceful.shutdown());
        };
        // Connections that do not close by themselves get another second after the engine's end.
        let limit = shutdown_timeout.saturating_add(Duration::from_secs(1));
        tokio::select! {
            _ = tokio::time::timeout(limit, finish) => {}
            () = abort => {}
        }
        Ok(())
    }
}

/// Connections of a running server.
struct Connections {
    /// One permit for each connection that may be open.
    permits: Arc<Semaphore>,
    header_timeout: Duration,
    router: axum::Router,
}

impl Connections {
    /// Waits until fewer connections than the maximum are open, then for a new one.
    async fn accept(
        &self,
        listener: &tokio::net::TcpListener,
    ) -> (TcpStream, OwnedSemaphorePermit) {
        loop {
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match listener.accept().await {
                Ok((stream, _)) => return (stream, permit),
                // There may be too many open files; other connections may close soon.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Answers the requests of a connection, in a task of its own.
    fn serve(&self, stream: TcpStream, permit: OwnedSemaphorePermit, watcher: Watcher) {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.header_timeout);
        builder.max_buf_size(LONGEST_HEADER);
        // Small chunks of a stream are sent immediately.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(self.router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = watcher.watch(connection);
        tokio::spawn(async move {
            // A client that disconnects is not an error of the server.
            let _ = connection.await;
            drop(permit);
        });
    }
}

/// Signals that end a program.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    #[cfg(unix)]
    async fn wait(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn wait(self) {
        // If no handler can be installed, the default handler of the system ends the program.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
