//! Tests of servers on sockets: slow and disconnecting clients, a full queue, and shutdown.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use vattention_serve::{EngineHandle, EngineOptions, Server, ServerOptions};

use crate::common::{COMPLETIONS, completion, engine_options, serve, template, with};

/// Server on a free port.
struct RunningServer {
    address: SocketAddr,
    engine: EngineHandle,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl RunningServer {
    fn start(engine: EngineOptions, options: ServerOptions) -> Self {
        let served = serve(engine, Some(template()));
        let engine = served.engine.clone();
        let server = Server::bind(ServerOptions { port: 0, ..options }).unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { stopped.await.unwrap() };
        let task = tokio::spawn(server.run_until(served, stopped, std::future::pending()));
        Self { address, engine, stop, task }
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }

    /// Sends the start of a request, and returns the connection.
    async fn send(&self, text: String) -> TcpStream {
        let address = self.address;
        let send = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        };
        spawn_blocking(send).await.unwrap()
    }

    async fn post(&self, body: &Value) -> TcpStream {
        self.send(post_text(body)).await
    }

    /// Waits until the engine's metrics fulfil a condition.
    async fn wait_until(&self, condition: impl Fn(&vattention_serve::EngineMetrics) -> bool) {
        while !condition(&self.engine.metrics()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn post_text(body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Reads until the server closes the connection.
async fn read_all(mut stream: TcpStream) -> String {
    let read = move || {
        let mut text = Vec::new();
        // A reset counts as a closed connection.
        let _ = stream.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    };
    spawn_blocking(read).await.unwrap()
}

/// Reads until the response contains a mark.
async fn read_until(mut stream: TcpStream, mark: &'static str) -> TcpStream {
    let read = move || {
        let (mut text, mut byte) = (String::new(), [0]);
        while !text.contains(mark) {
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "{text}");
            text.push(char::from(byte[0]));
        }
        stream
    };
    spawn_blocking(read).await.unwrap()
}

/// Returns a request for a text that takes a long time.
fn endless() -> Value {
    with(&completion(), json!({"max_tokens": 16000, "ignore_eos": true}))
}

#[tokio::test]
async fn slow_headers_end_the_connection() {
    let options = ServerOptions { header_timeout: Duration::from_millis(50), ..Default::default() };
    let server = RunningServer::start(engine_options(), options);
    for beginning in ["", "GET /health HTTP/1.1\r\nHost: local"] {
        let stream = server.send(beginning.into()).await;
        assert!(!read_all(stream).await.contains("200 OK"));
    }
    server.end().await;
}

#[tokio::test]
async fn slow_bodies_are_408() {
    let options = ServerOptions { body_timeout: Duration::from_millis(50), ..Default::default() };
    let server = RunningServer::start(engine_options(), options);
    let whole = post_text(&completion());
    let stream = server.send(whole[..whole.len() - 1].into()).await;
    assert!(read_all(stream).await.starts_with("HTTP/1.1 408"));
    server.end().await;
}

#[tokio::test]
async fn announced_bodies_that_are_too_large_are_413() {
    let server = RunningServer::start(engine_options(), ServerOptions::default());
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: 99999999\r\n\r\n"
    );
    let stream = server.send(head).await;
    assert!(read_all(stream).await.starts_with("HTTP/1.1 413"));
    server.end().await;
}

#[tokio::test]
async fn clients_that_disconnect_cancel_their_texts() {
    let server = RunningServer::start(engine_options(), ServerOptions::default());
    let stream = server.post(&with(&endless(), json!({"stream": true}))).await;
    let stream = read_until(stream, "data: ").await;
    drop(stream);
    server.wait_until(|metrics| metrics.cancelled == 1 && metrics.running == 0).await;
    let stream = server.post(&with(&endless(), json!({"n": 2}))).await;
    server.wait_until(|metrics| metrics.running == 2).await;
    drop(stream);
    server.wait_until(|metrics| metrics.cancelled == 3 && metrics.running == 0).await;
    server.end().await;
}

#[tokio::test]
async fn a_queue_that_fills_refuses_the_next() {
    let engine = EngineOptions { max_sequences: 1, max_queue: 1, ..engine_options() };
    let server = RunningServer::start(engine, ServerOptions::default());
    let first = server.post(&endless()).await;
    server.wait_until(|metrics| metrics.running == 1).await;
    let second = server.post(&endless()).await;
    server.wait_until(|metrics| metrics.queued == 1).await;
    let third = read_until(server.post(&completion()).await, "queue_full").await;
    drop((first, second));
    server.wait_until(|metrics| metrics.running == 0 && metrics.queued == 0).await;
    drop(third);
    let stream = server.post(&completion()).await;
    read_until(stream, "text_completion").await;
    server.end().await;
}

#[tokio::test]
async fn shutdown_cancels_what_does_not_end_in_time() {
    let options = ServerOptions { shutdown_timeout: Duration::ZERO, ..Default::default() };
    let server = RunningServer::start(engine_options(), options);
    let stream = server.post(&with(&endless(), json!({"stream": true}))).await;
    let stream = read_until(stream, "data: ").await;
    let address = server.address;
    server.end().await;
    let rest = read_all(stream).await;
    assert!(!rest.contains("\"finish_reason\":\"length\""), "{rest}");
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test]
async fn shutdown_finishes_what_ends_in_time() {
    let options = ServerOptions { shutdown_timeout: Duration::from_mins(10), ..Default::default() };
    let server = RunningServer::start(engine_options(), options);
    let body = json!({"max_tokens": 300, "ignore_eos": true, "stream": true});
    let stream = server.post(&with(&completion(), body)).await;
    let stream = read_until(stream, "data: ").await;
    let reading = tokio::spawn(read_all(stream));
    server.end().await;
    let rest = reading.await.unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
}

#[tokio::test]
async fn shutdown_refuses_what_waits_before_what_runs_ends() {
    let options = ServerOptions { shutdown_timeout: Duration::from_mins(10), ..Default::default() };
    let engine = EngineOptions { max_sequences: 1, ..engine_options() };
    let server = RunningServer::start(engine, options);
    let running = server.post(&endless()).await;
    server.wait_until(|metrics| metrics.running == 1).await;
    let whole = server.post(&completion()).await;
    let streamed = server.post(&with(&completion(), json!({"stream": true}))).await;
    server.wait_until(|metrics| metrics.queued == 2).await;
    let RunningServer { engine, stop, task, .. } = server;
    stop.send(()).unwrap();
    for waiting in [whole, streamed] {
        let answer = read_all(waiting).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("retry-after: 10") && answer.contains("shutting_down"), "{answer}");
    }
    assert_eq!(engine.metrics().running, 1);
    drop(running);
    task.await.unwrap().unwrap();
}
