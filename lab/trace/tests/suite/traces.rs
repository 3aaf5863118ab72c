//! Round trips of traces through files, and errors for every kind of damage.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use ndarray::Array3;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use vattention_core::{Shape, Storage, TokenClass};
use vattention_trace::{Trace, TraceInfo, TraceLayer, write_trace};

fn numbers(dim: (usize, usize, usize), salt: usize) -> Array3<f32> {
    Array3::from_shape_fn(dim, |(i, j, k)| ((i * 31 + j * 7 + k + salt) % 17) as f32 / 8.0 - 1.0)
}

fn layer() -> TraceLayer {
    TraceLayer {
        queries: numbers((4, 3, 6), 0),
        keys: numbers((2, 50, 6), 1),
        values: numbers((2, 50, 5), 2),
        visible: Some(vec![50, 1, 20]),
        prompt: Some(numbers((4, 7, 6), 3)),
        prompt_tokens: Some(20),
        classes: Some((0..50).map(|t| TokenClass::from_number(t % 3).unwrap()).collect()),
        soft_cap: Some(30.0),
        sink_logits: Some(vec![1.5, -1e4, 0.1, 7.0]),
    }
}

fn info() -> TraceInfo {
    TraceInfo { scale: Some(0.25), model: Some("m".into()), source: Some("s".into()), share: None }
}

#[test]
fn written_traces_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.safetensors");
    let plain = TraceLayer {
        visible: None,
        prompt: None,
        prompt_tokens: None,
        classes: None,
        soft_cap: None,
        sink_logits: None,
        ..layer()
    };
    let layers = BTreeMap::from([(3, layer()), (11, plain)]);
    for storage in Storage::FLOATS {
        write_trace(&path, &info(), &layers, storage).unwrap();
        let first = std::fs::read(&path).unwrap();
        let trace = Trace::open(&path).unwrap();
        assert_eq!(trace.info(), &info());
        assert_eq!(trace.layers().map(|(number, _)| number).collect::<Vec<_>>(), [3, 11]);
        for (number, layout) in trace.layers() {
            let read = trace.layer(number).unwrap().unwrap();
            assert_eq!(read, layers[&number], "eighths are exact in every type");
            let shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 6, value_dim: 5 };
            assert_eq!((layout.shape, layout.tokens, layout.queries), (shape, 50, 3));
            assert_eq!((layout.causal, layout.prompt == 7), (number == 3, number == 3));
            assert_eq!(layout.classes, number == 3);
            assert_eq!([layout.soft_cap, layout.sinks], [number == 3; 2]);
            assert_eq!(layout.storage, storage);
        }
        assert!(trace.layer(4).is_none());
        drop(trace);
        write_trace(&path, &info(), &layers, storage).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first, "the same bytes each time");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside");
}

#[test]
fn numbers_that_do_not_fit_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.safetensors");
    let mut large = layer();
    large.keys[[1, 2, 3]] = 1e6;
    let layers = BTreeMap::from([(0, large)]);
    let error = write_trace(&path, &info(), &layers, Storage::F16).unwrap_err().to_string();
    assert!(error.contains("tensor `layers.0.keys`: cannot store 1000000"), "{error}");
    let error = write_trace(&path, &info(), &layers, Storage::Q8).unwrap_err().to_string();
    assert!(error.contains("cannot store numbers in q8; expected f32, f16 or bf16"), "{error}");
    assert!(!path.exists());
    let nowhere = folder.path().join("no/such/folder/trace.safetensors");
    let error = write_trace(&nowhere, &info(), &layers, Storage::F32).unwrap_err().to_string();
    assert!(error.contains("no/such/folder"), "{error}");
}

/// A trace file that is built by hand, so that tests can damage it.
#[derive(Clone)]
struct Raw {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    metadata: HashMap<String, String>,
}

impl Raw {
    fn good() -> Self {
        let mut raw = Self {
            tensors: BTreeMap::new(),
            metadata: HashMap::from([("format".into(), "vattention-trace/1".into())]),
        };
        raw.floats("queries", &[4, 3, 6]);
        raw.floats("keys", &[2, 10, 6]);
        raw.floats("values", &[2, 10, 5]);
        raw
    }

    fn floats(&mut self, part: &str, shape: &[usize]) {
        let count = shape.iter().product::<usize>();
        let bytes = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        self.tensor(&format!("layers.0.{part}"), Dtype::F32, shape, bytes);
    }

    fn tensor(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.insert(name.into(), (dtype, shape.to_vec(), bytes));
    }

    fn visible(&mut self, limits: &[i64]) {
        let bytes = limits.iter().flat_map(|limit| limit.to_le_bytes()).collect();
        self.tensor("layers.0.visible", Dtype::I64, &[limits.len()], bytes);
    }

    fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views, Some(self.metadata.clone())).unwrap()
    }
}

/// Reads all of a damaged file, and returns the error.
fn refusal(path: &Path) -> String {
    let read = |trace: Trace| {
        let layers: Vec<usize> = trace.layers().map(|(number, _)| number).collect();
        layers.into_iter().find_map(|number| trace.layer(number).unwrap().err())
    };
    let error = match Trace::open(path) {
        Err(error) => error,
        Ok(trace) => read(trace).expect("the file is damaged"),
    };
    let text = error.to_string();
    assert!(text.starts_with(&path.display().to_string()), "{text} does not name the file");
    text
}

fn write(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("damaged.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Checks that a changed trace is refused with a message.
fn check(change: &dyn Fn(&mut Raw), expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut raw = Raw::good();
    change(&mut raw);
    let message = refusal(&write(folder.path(), &raw.bytes()));
    assert!(message.contains(expected), "{message:?} does not say {expected:?}");
}

#[test]
fn errors_name_the_damage_of_the_softmax() {
    let numbers = |raw: &mut Raw, part: &str, numbers: &[f32]| {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        raw.tensor(&format!("layers.0.{part}"), Dtype::F32, &[numbers.len()], bytes);
    };
    check(
        &|raw| numbers(raw, "sink_logits", &[1.0; 3]),
        "`layers.0.sink_logits` has shape [3]; expected [4]",
    );
    check(
        &|raw| numbers(raw, "sink_logits", &[0.0, 1.0, f32::NEG_INFINITY, 2.0]),
        "tensor `layers.0.sink_logits`: sink_logits[2]: expected a finite number, got -inf",
    );
    check(
        &|raw| numbers(raw, "soft_cap", &[30.0, 30.0]),
        "`layers.0.soft_cap` has shape [2]; expected [1]",
    );
    for cap in [0.0, f32::NAN, f32::INFINITY] {
        check(
            &|raw| numbers(raw, "soft_cap", &[cap]),
            "tensor `layers.0.soft_cap`: soft_cap: expected a number from 1e-16 to 1e16",
        );
    }
    check(
        &|raw| raw.tensor("layers.0.soft_cap", Dtype::F16, &[1], vec![0; 2]),
        "`layers.0.soft_cap` is F16; expected F32",
    );
}

#[test]
fn errors_name_every_kind_of_damage() {
    check(&|raw| raw.metadata.clear(), "no metadata `format`; expected \"vattention-trace/1\"");
    check(&|raw| drop(raw.metadata.insert("format".into(), "x/2".into())), "`format` is \"x/2\"");
    for scale in ["zero", "0", "-1", "nan", "inf"] {
        check(
            &|raw| drop(raw.metadata.insert("scale".into(), scale.into())),
            "metadata `scale` is",
        );
    }
    check(&|raw| raw.tensors.clear(), "no tensors; expected `layers.0.queries`");
    check(&|raw| drop(raw.tensors.remove("layers.0.keys")), "no tensor `layers.0.keys`");
    for name in ["layers.0.kyes", "layer.0.keys", "layers.00.keys", "layers.4096.keys", "x"] {
        check(
            &|raw| raw.tensor(name, Dtype::F32, &[0], Vec::new()),
            &format!("unknown tensor `{name}`; expected `layers.L.PART`"),
        );
    }
    check(
        &|raw| raw.tensor("layers.0.keys", Dtype::I32, &[2, 10, 6], vec![0; 480]),
        "tensor `layers.0.keys` is I32; expected F32, F16 or BF16",
    );
    check(&|raw| raw.floats("keys", &[20, 6]), "shape [20, 6]; expected [heads, rows, dim]");
    check(&|raw| raw.floats("keys", &[2, 10, 0]), "heads and dim not 0");
    check(&|raw| raw.floats("keys", &[2, 10, 7]), "shape [2, 10, 7]; expected [2, 10, 6]");
    check(&|raw| raw.floats("values", &[2, 9, 5]), "shape [2, 9, 5]; expected [2, 10, 5]");
    check(&|raw| raw.floats("values", &[1, 10, 5]), "shape [1, 10, 5]; expected [2, 10, 5]");
    check(
        &|raw| raw.tensor("layers.0.values", Dtype::F16, &[2, 10, 5], vec![0; 200]),
        "tensor `layers.0.values` is F16; expected F32, as keys",
    );
    check(
        &|raw| {
            raw.floats("keys", &[2, 0, 6]);
            raw.floats("values", &[2, 0, 5]);
        },
        "tensor `layers.0.keys` holds no tokens",
    );
    check(
        &|raw| raw.floats("queries", &[5, 3, 6]),
        "layer 0: query_heads: expected a multiple of kv_heads = 2, got 5",
    );
    check(&|raw| raw.visible(&[1, 2]), "`layers.0.visible` has shape [2]; expected [3]");
    check(&|raw| raw.visible(&[1, 0, 2]), "`layers.0.visible`: 0 at [1]; expected 1 to 10");
    check(&|raw| raw.visible(&[1, 2, 11]), "`layers.0.visible`: 11 at [2]; expected 1 to 10");
    check(&|raw| raw.visible(&[-1, 2, 3]), "`layers.0.visible`: -1 at [0]; expected 1 to 10");
    check(
        &|raw| raw.tensor("layers.0.visible", Dtype::I32, &[3], vec![1; 12]),
        "`layers.0.visible` is I32; expected I64",
    );
    let classes = |raw: &mut Raw, dtype, classes: &[u8]| {
        let name = "layers.0.classes";
        raw.tensor(name, dtype, &[classes.len()], classes.to_vec());
    };
    check(
        &|raw| classes(raw, Dtype::U8, &[0; 9]),
        "`layers.0.classes` has shape [9]; expected [10]",
    );
    check(&|raw| classes(raw, Dtype::I8, &[0; 10]), "`layers.0.classes` is I8; expected U8");
    check(
        &|raw| classes(raw, Dtype::U8, &[0, 1, 2, 0, 3, 0, 0, 0, 0, 0]),
        "`layers.0.classes`: 3 at [4]; expected 0 (other), 1 (punctuation) or 2 (special)",
    );
    let prompt = |raw: &mut Raw, dtype, tokens: i64| {
        raw.floats("prompt", &[4, 5, 6]);
        raw.tensor("layers.0.prompt_tokens", dtype, &[1], tokens.to_le_bytes().to_vec());
    };
    for tokens in [4, 11, -1] {
        check(
            &|raw| prompt(raw, Dtype::I64, tokens),
            &format!(
                "`layers.0.prompt_tokens` is {tokens}; expected 5 to 10, the tokens of the prompt"
            ),
        );
    }
    check(&|raw| prompt(raw, Dtype::U64, 5), "`layers.0.prompt_tokens` is U64; expected I64");
    check(&|raw| raw.floats("prompt", &[4, 11, 6]), "shape [4, 11, 6]; expected [4, 10, 6]");
    check(&|raw| raw.floats("prompt", &[2, 5, 6]), "shape [2, 5, 6]; expected [4, 5, 6]");
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        for (part, place) in
            [("queries", "[3, 2, 5]"), ("keys", "[1, 9, 5]"), ("values", "[1, 9, 4]")]
        {
            check(
                &|raw| {
                    let (_, _, bytes) = raw.tensors.get_mut(&format!("layers.0.{part}")).unwrap();
                    let last = bytes.len() - 4;
                    bytes[last..].copy_from_slice(&bad.to_le_bytes());
                },
                &format!("tensor `layers.0.{part}`: {bad} at {place}; expected finite numbers"),
            );
        }
    }
}

#[test]
fn incomplete_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Raw::good().bytes();
    for length in 0..whole.len() {
        let message = refusal(&write(folder.path(), &whole[..length]));
        assert!(message.contains("not a whole safetensors file"), "{length} bytes: {message}");
    }
    let mut longer = whole;
    longer.push(0);
    assert!(refusal(&write(folder.path(), &longer)).contains("not a whole safetensors file"));
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    let message = refusal(&write(folder.path(), pointer));
    assert!(message.contains("a pointer of Git LFS in the place of the trace"), "{message}");
    assert!(refusal(&folder.path().join("none")).contains("No such file"));
    assert!(refusal(folder.path()).contains("expected a file"));
}

/// The shipped trace has the dimensions that its documentation states.
#[test]
fn the_shipped_trace_is_complete() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/smollm2.safetensors");
    let trace = Trace::open(&path).unwrap();
    let layers: Vec<_> = trace.layers().collect();
    assert_eq!(layers.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [9, 23]);
    for (number, layout) in layers {
        let shape = Shape { query_heads: 9, kv_heads: 3, head_dim: 64, value_dim: 64 };
        assert_eq!(layout.shape, shape);
        assert_eq!((layout.tokens, layout.queries, layout.prompt), (6144, 32, 64));
        assert_eq!(layout.storage, Storage::F16);
        trace.layer(number).unwrap().unwrap();
    }
    assert!(std::fs::metadata(&path).unwrap().len() <= 10_000_000);
}
