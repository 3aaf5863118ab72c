//! The command, run as a user runs it.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use serde_json::Value;

fn vattention(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vattention")).args(args).output().unwrap()
}

#[track_caller]
fn succeed(args: &[&str]) -> String {
    let output = vattention(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    assert!(said.is_empty(), "nothing on standard error without a terminal: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// What is said on standard error; the exit code must be 2, and nothing on standard output.
#[track_caller]
fn refuse(args: &[&str]) -> String {
    let output = vattention(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn config(name: &str) -> String {
    format!("{}/../../configs/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

/// A folder with a small synthetic trace of two layers, four query heads and two KV heads.
struct World {
    folder: tempfile::TempDir,
    trace: String,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("synth.safetensors").display().to_string();
        succeed(&[
            "synth",
            "--kind",
            "typical",
            "--tokens",
            "1024",
            "--query-heads",
            "4",
            "--kv-heads",
            "2",
            "--head-dim",
            "16",
            "--value-dim",
            "12",
            "--queries",
            "5",
            "--layers",
            "2",
            "--seed",
            "3",
            "-o",
            &trace,
        ]);
        Self { folder, trace }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// A user's first command, on the shipped trace.
#[test]
fn compare_prints_a_row_for_each_pipeline_of_the_shipped_trace() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/minilm.safetensors");
    let configs = [config("dense"), config("vattention-oracle")];
    let table = succeed(&["compare", &configs[0], &configs[1], "--trace", trace, "--queries", "4"]);
    let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(row("dense").contains("100.0 %"), "{table}");
    assert!(row("vAttention (ratio)").contains("sdpa: 0.1, 0.1"), "{table}");
    assert!(row("vAttention (ratio)").contains("of 32"), "4 queries, 4 heads, 2 layers: {table}");
}

#[test]
fn compare_writes_the_keys_that_other_tools_read() {
    let world = World::new();
    let json = world.path("out.json");
    let configs = [config("hybrid"), config("vattention-paper-denominator-clt"), config("dense")];
    let [hybrid, paper, dense] = &configs;
    succeed(&["compare", hybrid, paper, dense, "--trace", &world.trace, "--json", text(&json)]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(keys(&report), ["backend", "pipelines", "trace"]);
    assert_eq!(report["backend"], "cpu");
    assert_eq!(report["trace"], world.trace);
    let pipelines = report["pipelines"].as_array().unwrap();
    for (pipeline, file) in pipelines.iter().zip(&configs) {
        assert_eq!(pipeline["file"], *file);
        assert_eq!(
            keys(pipeline),
            [
                "budget",
                "denominator_error",
                "density",
                "file",
                "guarantee",
                "name",
                "numerator_error",
                "output_error",
                "seconds",
            ]
        );
        assert_eq!(keys(&pipeline["density"]), ["per_kv_head", "per_query_head"]);
        assert_eq!(keys(&pipeline["density"]["per_kv_head"]), ["max", "mean"]);
        for error in ["output_error", "denominator_error", "numerator_error"] {
            assert_eq!(keys(&pipeline[error]), ["max", "mean", "p50", "p95"]);
        }
    }
    assert_eq!(keys(&pipelines[0]["budget"]), ["max", "mean"]);
    assert_eq!(pipelines[0]["budget"]["max"], 51.0, "5 % of 1024");
    assert!(pipelines[0]["guarantee"].is_null());
    assert!(pipelines[2]["budget"].is_null());
    let guarantee = &pipelines[1]["guarantee"];
    assert_eq!(keys(guarantee), ["delta", "epsilon", "kind", "rows", "target", "violations"]);
    assert_eq!(guarantee["target"], "denominator");
    assert_eq!(guarantee["kind"], "asymptotic");
    assert_eq!(guarantee["rows"], 40, "2 layers, 5 queries, 4 query heads");
    assert!(pipelines[2]["output_error"]["max"].as_f64().unwrap() < 1e-5);
}

/// One tensor of a dump, as numbers.
fn tensor(file: &SafeTensors<'_>, name: &str) -> (Vec<usize>, Vec<f64>) {
    let view = file.tensor(name).unwrap();
    let numbers = match view.dtype() {
        safetensors::Dtype::F32 => {
            view.data().as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect()
        }
        safetensors::Dtype::I64 => {
            view.data().as_chunks().0.iter().map(|&x| i64::from_le_bytes(x) as f64).collect()
        }
        other => panic!("{name} is {other:?}"),
    };
    (view.shape().to_vec(), numbers)
}

#[test]
fn compare_dumps_outputs_and_selections() {
    let world = World::new();
    let dump = world.path("dump.safetensors");
    let (hybrid, dense) = (config("hybrid"), config("dense"));
    for (backend, queries) in [("cpu", 3), ("reference", 3)] {
        succeed(&[
            "compare",
            &hybrid,
            &dense,
            "--trace",
            &world.trace,
            "--dump",
            text(&dump),
            "--backend",
            backend,
            "--layers",
            "1",
            "--queries",
            &queries.to_string(),
        ]);
        let bytes = std::fs::read(&dump).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), 8, "two pipelines, one layer, four tensors");
        for pipeline in 0..2 {
            let get = |part: &str| tensor(&file, &format!("{pipeline}.layers.1.{part}"));
            assert_eq!(get("output").0, [queries, 4, 12]);
            let (shape, indptr) = get("indptr");
            assert_eq!(shape, [queries * 4 + 1]);
            let ((_, indices), (_, probabilities)) = (get("indices"), get("probabilities"));
            assert_eq!(*indptr.last().unwrap() as usize, indices.len());
            assert_eq!(indices.len(), probabilities.len());
            for (row, span) in indptr.windows(2).enumerate() {
                let row_indices = &indices[span[0] as usize..span[1] as usize];
                assert!(row_indices.is_sorted_by(|a, b| a < b));
                // The last queries of a causal trace: the first of three sees all but two tokens.
                let visible = 1024 - queries + row / 4 + 1;
                assert!(*row_indices.last().unwrap() < visible as f64);
                if pipeline == 1 {
                    assert_eq!(row_indices.len(), visible);
                }
            }
            // Members of a group read one list, which stands once for each of them.
            let row = |row: usize| &indices[indptr[row] as usize..indptr[row + 1] as usize];
            assert_eq!(row(0), row(1));
        }
    }
}

/// `--queries N` are the last N, each at its own step: the same rows as of the whole run.
#[test]
fn fewer_queries_are_the_last_ones_of_all() {
    let world = World::new();
    let random = config("random");
    let dump = |queries: &str, name: &str| {
        let path = world.path(name);
        succeed(&[
            "compare",
            &random,
            "--trace",
            &world.trace,
            "--dump",
            text(&path),
            "--queries",
            queries,
        ]);
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        tensor(&file, "0.layers.0.output").1
    };
    let (all, last) = (dump("5", "all"), dump("2", "last"));
    assert_eq!(all[all.len() - last.len()..], last);
}

#[test]
fn check_prints_a_pipeline_that_can_be_loaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("again.toml");
    let files: Vec<PathBuf> = std::fs::read_dir(config("dense").replace("dense.toml", ""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() >= 9);
    for file in files {
        let first = succeed(&["check", text(&file)]);
        std::fs::write(&path, &first).unwrap();
        let again = succeed(&["check", text(&path)]);
        let body = |text: &str| text.split_once('\n').unwrap().1.to_owned();
        assert_eq!(body(&first), body(&again));
    }
}

#[test]
fn check_applies_changes_and_extends() {
    let oracle = config("vattention-oracle");
    let changed = succeed(&[
        "check",
        &oracle,
        "--set",
        "estimator.epsilon=0.2",
        "--set",
        "selectors.2.size = 64",
        "--set",
        "selectors.0.type = \"window\"",
        "--set",
        "selectors.0.size = 5",
    ]);
    assert!(changed.contains("epsilon = 0.2"), "{changed}");
    assert!(changed.contains("type = \"oracle-top-k\"\nsize = 64"), "{changed}");
    assert!(changed.contains("type = \"window\"\nsize = 5"), "{changed}");

    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("child.toml");
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::copy(&oracle, folder.path().join("sub/base.toml")).unwrap();
    let text_of_child =
        "extends = \"sub/base.toml\"\nshare = \"head\"\n[estimator]\ndelta = 0.01\n";
    std::fs::write(&child, text_of_child).unwrap();
    let merged = succeed(&["check", text(&child)]);
    for part in ["name = \"child\"", "share = \"head\"", "epsilon = 0.1", "delta = 0.01"] {
        assert!(merged.contains(part), "{part} is not in {merged}");
    }
    assert!(merged.contains("oracle-top-k"));

    let other_type = "extends = \"sub/base.toml\"\n[estimator]\ntype = \"fixed\"\nsize = 9\n";
    std::fs::write(&child, other_type).unwrap();
    let merged = succeed(&["check", text(&child)]);
    assert!(merged.contains("size = 9") && !merged.contains("epsilon"), "{merged}");
}

#[test]
fn trace_shows_what_is_in_a_trace() {
    let world = World::new();
    let shown = succeed(&["trace", &world.trace]);
    assert!(shown.contains("synthetic heads, kind typical"), "{shown}");
    let row = shown.lines().find(|line| line.contains("1024")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["0", "4", "2", "16", "12", "1024", "5", "(causal)", "0", "f16"]);
}

/// Every refusal names the file or the option and what was expected, and writes nothing.
#[test]
fn bad_input_is_refused_and_nothing_is_written() {
    let world = World::new();
    let (hybrid, trace) = (config("hybrid"), world.trace.as_str());
    let damaged = world.path("damaged.safetensors");
    let bytes = std::fs::read(trace).unwrap();
    std::fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    let before = world.files();
    let out = world.path("out.json");
    let synth = |more: &[&str]| {
        let mut args = vec!["synth", "--kind", "osc", "--tokens", "1024", "-o", text(&out)];
        args.extend(more);
        refuse(&args)
    };
    for (said, expected) in [
        (refuse(&["compare", &hybrid, "--trace", "none.safetensors"]), "none.safetensors: No such"),
        (refuse(&["compare", "none.toml", "--trace", trace]), "none.toml: cannot be read"),
        (refuse(&["compare", &hybrid, "--trace", text(&damaged)]), "not a whole safetensors file"),
        (refuse(&["trace", text(&damaged)]), "damaged.safetensors: not a whole safetensors file"),
        (refuse(&["trace", &hybrid]), "hybrid.toml: not a whole safetensors file"),
        (refuse(&["compare", &hybrid, "--trace", trace, "--layers", "0,7"]), "--layers: "),
        (
            refuse(&["compare", &hybrid, "--trace", trace, "--queries", "6"]),
            "has 5 queries; expected 1 to that, got 6",
        ),
        (refuse(&["compare", &hybrid, "--trace", trace, "--queries", "0"]), "--queries: "),
        (
            refuse(&["compare", &hybrid, "--trace", trace, "--backend", "gpu"]),
            "--backend: no `gpu`; expected one of reference, cpu",
        ),
        (
            refuse(&["compare", &hybrid, "--trace", trace, "--json", "no/such/folder/x.json"]),
            "no/such/folder/x.json: No such file",
        ),
        (
            refuse(&["compare", &hybrid, "--trace", trace, "--dump", text(world.folder.path())]),
            "is a directory",
        ),
        (refuse(&["compare", &hybrid]), "--trace"),
        (refuse(&["compere"]), "compere"),
        (synth(&["--head-dim", "32"]), "--head-dim: 32; expected at least 36"),
        (synth(&["--head-dim", "64", "--kv-heads", "3"]), "--query-heads"),
        (synth(&["--queries", "2000"]), "--queries: 2000; expected 1 to 1024"),
        (synth(&["--layers", "0"]), "--layers: 0; expected 1 to 4096"),
        (refuse(&["synth", "--kind", "easy"]), "expected one of diffuse, typical"),
    ] {
        assert!(said.contains(expected), "{said:?} does not say {expected:?}");
        assert!(!said.contains("panicked"), "{said}");
    }
    assert_eq!(world.files(), before, "nothing was written");
}

#[test]
fn problems_of_all_files_are_told_at_once() {
    let malformed =
        |name: &str| format!("{}/tests/malformed/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let (one, two) = (malformed("size-zero"), malformed("unknown-field"));
    let said = refuse(&["compare", &one, &config("dense"), &two, "--trace", "none"]);
    assert!(
        said.contains("size-zero.toml:3:8") && said.contains("unknown-field.toml:2:1"),
        "{said}"
    );
    assert!(said.ends_with("error: 2 problems in the configuration\n"), "{said}");
}
