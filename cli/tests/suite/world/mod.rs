//! Runs of the command in temporary folders, and the model of `models/recall`.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::process::Child;
use std::process::{Command, Output};

use serde_json::Value;

const NOISE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";

/// Question about [`World`]'s text, and the beginning of the answer.
pub(crate) const QUESTION: &str = "What is the special magic number for amber_anchor mentioned in \
    the provided text? The special magic number for amber_anchor mentioned in the provided text is";

/// Returns standard error, without the progress lines of long commands.
pub(crate) fn read_stderr(output: &Output) -> String {
    without_progress(&String::from_utf8_lossy(&output.stderr))
}

fn without_progress(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with("progress: ")).collect()
}

#[test]
fn progress_is_removed_from_standard_error() {
    let text = "note: left out\nprogress: 3/9 samples\nnote: more\nprogress: 5/9 samples\n";
    assert_eq!(without_progress(text), "note: left out\nnote: more\n");
}

/// Arguments of the command: a list, or a text in which blanks separate them.
pub(crate) trait Arguments {
    fn list(&self) -> Vec<String>;
}

impl Arguments for str {
    /// Splits at blanks, except for blanks in the path of the checkout.
    fn list(&self) -> Vec<String> {
        let checkout = env!("CARGO_MANIFEST_DIR");
        let text = self.replace(checkout, "\0");
        text.split_whitespace().map(|word| word.replace('\0', checkout)).collect()
    }
}

impl Arguments for String {
    fn list(&self) -> Vec<String> {
        self.as_str().list()
    }
}

impl<T: AsRef<str>> Arguments for [T] {
    fn list(&self) -> Vec<String> {
        self.iter().map(|word| word.as_ref().into()).collect()
    }
}

impl<T: AsRef<str>, const N: usize> Arguments for [T; N] {
    fn list(&self) -> Vec<String> {
        self.as_slice().list()
    }
}

impl<T: AsRef<str>> Arguments for Vec<T> {
    fn list(&self) -> Vec<String> {
        self.as_slice().list()
    }
}

/// Runs the command.
pub(crate) fn vattention(args: &(impl Arguments + ?Sized)) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vattention")).args(args.list()).output().unwrap()
}

/// Runs the command, and returns standard output. The exit code must be 0, and standard error
/// empty.
#[track_caller]
pub(crate) fn succeed(args: &(impl Arguments + ?Sized)) -> String {
    let output = vattention(args);
    assert_eq!(expect_code(&output, 0), "", "{:?}", args.list());
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, and returns standard error. The exit code must be 2, and standard output
/// empty.
#[track_caller]
pub(crate) fn refuse(args: &(impl Arguments + ?Sized)) -> String {
    let output = vattention(args);
    assert!(output.stdout.is_empty(), "{:?}", args.list());
    expect_code(&output, 2)
}

/// Returns standard error of a command, which must have ended with this exit code.
#[track_caller]
pub(crate) fn expect_code(output: &Output, code: i32) -> String {
    let said = read_stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Returns the path of a shipped pipeline.
pub(crate) fn config(name: &str) -> String {
    format!("{}/../configs/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the sorted keys of an object, separated by spaces.
pub(crate) fn keys(value: &Value) -> String {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys.join(" ")
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap()
}

#[track_caller]
pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Waits until a command can be interrupted, that is, until it catches SIGTERM.
#[cfg(target_os = "linux")]
pub(crate) fn wait_until_interruptible(child: &mut Child) {
    const SIGTERM: u64 = 15;
    let status = format!("/proc/{}/status", child.id());
    let catches = || -> Option<u64> {
        let text = fs::read_to_string(&status).ok()?;
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        u64::from_str_radix(caught.trim(), 16).ok()
    };
    while catches().is_none_or(|caught| caught & (1 << (SIGTERM - 1)) == 0) {
        assert_eq!(child.try_wait().unwrap(), None, "the command ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Pipeline with sink, window, an exact top-k, and a sample that is as large as the promise needs.
pub(crate) const PROMISED: &str = r#"
    name = "promised"

    [[selectors]]
    type = "sink"
    size = 16

    [[selectors]]
    type = "window"
    size = 64

    [[selectors]]
    type = "oracle-top-k"
    size = 0.02

    [estimator]
    type = "ratio"
    epsilon = 0.2
    delta = 0.2
"#;

pub(crate) struct World {
    folder: tempfile::TempDir,
}

impl World {
    /// Returns an empty folder.
    pub(crate) fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Returns a folder with `trace`, a synthetic trace of 2 layers, 4 query heads and 2 KV heads.
    pub(crate) fn with_trace(kind: &str) -> Self {
        let world = Self::empty();
        let size = "--tokens 1024 --query-heads 4 --kv-heads 2 --head-dim 16 --value-dim 12";
        let more = "--queries 5 --layers 2 --seed 3 -o trace";
        world.succeed(&format!("synth --kind {kind} {size} {more}"));
        world
    }

    /// Returns a folder with `dense.toml`, `promised.toml`, and a `context.txt` of about 2000
    /// tokens that contains a number.
    pub(crate) fn new() -> Self {
        let world = Self::empty();
        world.write("dense.toml", "name = \"dense\"\n");
        world.write("promised.toml", PROMISED);
        let text = format!(
            "A special magic number is hidden within the following text. Make sure to memorize it. \
             I will quiz you about the number afterwards. {}One of the special magic numbers for \
             amber_anchor is: 2998500. {}",
            NOISE.repeat(25),
            NOISE.repeat(50)
        );
        world.write("context.txt", &text);
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
    }

    /// Copies the files of a model, and changes keys of its configuration.
    pub(crate) fn copy_model(&self, from: &Path, name: &str, changes: Value) {
        let folder = self.path(name);
        fs::create_dir(&folder).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
            }
        }
        let _ = fs::remove_file(folder.join("generation_config.json"));
        let config = format!("{name}/config.json");
        let mut json = self.json(&config);
        for (key, value) in changes.as_object().unwrap() {
            json[key] = value.clone();
        }
        self.write(&config, json.to_string());
    }

    /// Returns the command with these arguments, in the folder.
    pub(crate) fn command(&self, args: &(impl Arguments + ?Sized)) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vattention"));
        command.args(args.list()).current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, args: &(impl Arguments + ?Sized)) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs the command, and returns standard output. The exit code must be 0, and standard error
    /// empty except for progress. The report of `generate` on standard error is returned, too.
    #[track_caller]
    pub(crate) fn succeed(&self, args: &(impl Arguments + ?Sized)) -> String {
        let output = self.run(args);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = expect_code(&output, 0);
        if args.list()[0] == "generate" {
            return format!("{stdout}{said}\n");
        }
        assert_eq!(said, "", "{:?}", args.list());
        stdout
    }

    /// Runs a command that must be refused: with exit code 2, `expected` in the message, an empty
    /// standard output, and unchanged names of files in the folder.
    #[track_caller]
    pub(crate) fn refuse(&self, args: &(impl Arguments + ?Sized), expected: &str) {
        let before = self.files();
        let output = self.run(args);
        let (args, said) = (args.list(), read_stderr(&output));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(said.contains(expected), "{args:?}: {said:?} does not say {expected:?}");
        assert_eq!(self.files(), before, "{args:?}");
    }

    /// Returns the sorted names of the files.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Returns the path of a model that answers [`QUESTION`].
pub(crate) fn recall() -> PathBuf {
    root("models/recall")
}

/// Returns the path of a model without a tokenizer.
pub(crate) fn llama3() -> PathBuf {
    root("runtime/llm/tests/golden/llama3")
}

pub(crate) fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
