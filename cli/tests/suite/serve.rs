//! `vattention serve` with the model of `models/recall`, as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::world::{World, recall};

fn serve_args(more: &str) -> String {
    format!("serve --model {} --port 0 {more}", recall().display())
}

/// Process of a server, which is killed if a test fails.
struct ServerProcess {
    child: Child,
    address: String,
    /// Line that the server printed when it was ready.
    line: String,
}

impl ServerProcess {
    fn start(world: &World, more: &str) -> Self {
        let mut command = world.command(&serve_args(more));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let (_, rest) = line.split_once("http://").unwrap_or_else(|| panic!("{line}"));
        let address = rest.split_once(';').unwrap().0.to_owned();
        Self { child, address, line }
    }

    /// Sends a request, and returns head and body of the answer.
    fn send(&self, head: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Ends the server by SIGTERM, and returns the exit code.
    fn end(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A server that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
#[test]
fn a_server_answers_until_sigterm() {
    let world = World::new();
    let server = ServerProcess::start(&world, "--pipeline small=promised.toml --threads 2");
    assert!(
        server.line.ends_with("; models: recall, recall@small, recall@dense\n"),
        "{}",
        server.line
    );
    let (head, _) = server.send("GET /health", "");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let body = r#"{"model": "recall@small", "prompt": "The grass is green.", "max_tokens": 3,
        "ignore_eos": true, "temperature": 0}"#;
    let (head, answer) = server.send("POST /v1/completions", body);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}: {answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(server.end(), Some(0));
}

#[cfg(unix)]
#[test]
fn keys_come_from_a_file() {
    let world = World::new();
    world.write("keys", "secret\n");
    let server = ServerProcess::start(&world, "--api-key-file keys --name small");
    assert!(server.line.ends_with("; models: small, small@dense\n"), "{}", server.line);
    assert!(server.send("GET /v1/models", "").0.starts_with("HTTP/1.1 401"));
    let key = "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer secret\r\nHost: localhost\r\n\r\n";
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(key.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    assert_eq!(server.end(), Some(0));
}

#[cfg(unix)]
#[test]
fn dense_attention_can_be_the_first_pipeline() {
    let world = World::new();
    let pipelines = "--pipeline dense --pipeline promised.toml --set estimator.epsilon=0.3";
    let server = ServerProcess::start(&world, pipelines);
    assert!(
        server.line.ends_with("; models: recall, recall@dense, recall@promised\n"),
        "{}",
        server.line
    );
    assert!(server.send("GET /health", "").0.starts_with("HTTP/1.1 200"));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn an_address_in_use_is_refused_before_the_model_is_loaded() {
    let world = World::new();
    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = used.local_addr().unwrap().port();
    world.refuse(&format!("serve --model nowhere --port {port}"), &format!("--port {port}: "));
}

#[test]
fn wrong_options_are_refused() {
    let world = World::new();
    world.write("keys", "\n");
    world.write("template.jinja", "{% if %}");
    for (more, expected) in [
        ("--cache-bytes 4apples", "--cache-bytes"),
        ("--body-bytes 0", "--body-bytes: 0; expected at least 1"),
        ("--max-sequences 0", "--max-sequences: 0; expected at least 1"),
        ("--max-queue 0", "--max-queue: 0; expected at least 1"),
        ("--threads 0", "--threads: 0; expected at least 1"),
        ("--dense-prefix 0", "--dense-prefix: 0; expected at least 1"),
        ("--shutdown-seconds=-1", "--shutdown-seconds"),
        ("--pipeline a=promised.toml --pipeline a=dense.toml", "--pipeline: found `a` twice"),
        ("--pipeline dense=promised.toml", "--pipeline promised.toml: the name is `dense`"),
        ("--pipeline promised.toml --set estimator.epsilon=7", "estimator.epsilon"),
        ("--pipeline nowhere.toml", "nowhere"),
        ("--name a@b", "--name: found \"a@b\""),
        ("--api-key-file keys", "--api-key-file keys"),
        ("--api-key-file none", "--api-key-file none"),
        ("--allow-origin example.org", "--allow-origin: found \"example.org\""),
        ("--allow-origin http://a/b", "--allow-origin: found \"http://a/b\""),
        ("--backend none", "--backend: no `none`"),
        ("--template template.jinja", "template.jinja"),
        ("--template none.jinja", "none.jinja"),
        ("--host 256.0.0.1", "--host 256.0.0.1"),
        ("--dtype f8", "--dtype"),
    ] {
        world.refuse(&serve_args(more), expected);
    }
    world.refuse("serve --model nowhere", "--model nowhere");
}
