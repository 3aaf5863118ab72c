//! The command as a whole: `compare`, `check`, `verify`, `list` and `trace`.

use std::process::Command;

#[cfg(target_os = "linux")]
use crate::world::wait_until_interruptible;
use crate::world::{World, config, expect_code, keys, read_stderr, refuse, succeed, vattention};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use vattention::Storage;
use vattention::plugin::ComponentKind;
use vattention::trace::{Trace, TraceInfo, TraceLayer, write_trace};

fn world() -> World {
    World::with_trace("typical")
}

#[test]
fn pipelines_are_found_by_name() {
    let world = world();
    let compared = world.run("compare pyramid-kv dense --trace trace");
    expect_code(&compared, 0);
    let table = String::from_utf8(compared.stdout).unwrap();
    assert!(table.contains("PyramidKV") && table.contains("dense"), "{table}");
    world.refuse("check priorty", "priority");
}

#[test]
fn the_version_has_its_commit_and_features() {
    let text = String::from_utf8(vattention("--version").stdout).unwrap();
    let version = concat!("vattention ", env!("CARGO_PKG_VERSION"), " (");
    assert!(text.starts_with(version) && text.ends_with("with models)\n"), "{text}");
    let git = Command::new("git").args(["rev-parse", "--short=10", "HEAD"]).output();
    if let Some(commit) = git.ok().filter(|git| git.status.success()) {
        assert!(text.contains(String::from_utf8_lossy(&commit.stdout).trim()), "{text}");
    }
}

#[test]
fn compare_prints_a_row_for_each_pipeline_of_the_shipped_trace() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/smollm2.safetensors");
    let configs = [config("dense"), config("vattention-oracle")];
    let table = succeed(&format!("compare {} --trace {trace} --queries 4", configs.join(" ")));
    let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(row("dense").contains("100.0 %"), "{table}");
    assert!(row("vAttention (ratio)").contains("sdpa: 0.1, 0.1"), "{table}");
    assert!(row("vAttention (ratio)").contains("of 72"), "4 queries, 9 heads, 2 layers: {table}");
}

#[test]
fn compare_writes_the_keys_that_other_tools_read() {
    let world = world();
    let configs = ["hybrid", "vattention-paper-denominator-clt", "dense"].map(config);
    world.succeed(&format!("compare {} --trace trace --json out.json", configs.join(" ")));
    let report = world.json("out.json");
    assert_eq!(keys(&report), "backend left_out pipelines run trace");
    assert_eq!(report["left_out"], json!([]));
    assert_eq!(report["backend"], "cpu");
    assert_eq!(report["trace"], "trace");
    let pipelines = report["pipelines"].as_array().unwrap();
    for (pipeline, file) in pipelines.iter().zip(&configs) {
        assert_eq!(pipeline["file"], *file);
        assert_eq!(
            keys(pipeline),
            "bars budget denominator_error density density_per_query_head file guarantee \
             index_bytes_per_token largest_density live numerator_error output_error pipeline \
             recall reference rounding seconds set unobserved"
        );
        let bars = "evidence mean outside rows unbounded widest";
        assert_eq!(keys(&pipeline["bars"]), bars);
        for error in ["output_error", "denominator_error", "numerator_error"] {
            assert_eq!(keys(&pipeline[error]), "max mean p50 p95");
        }
    }
    assert_eq!(keys(&pipelines[0]["budget"]), "max mean");
    assert_eq!(pipelines[0]["budget"]["max"], 51.0, "5 % of 1024");
    assert!(pipelines[0]["guarantee"].is_null());
    assert!(pipelines[2]["budget"].is_null());
    let guarantee = &pipelines[1]["guarantee"];
    assert_eq!(keys(guarantee), "evidence kind lists promise violations");
    assert_eq!(guarantee["lists"], json!({ "count": 40, "heads_per_list": 1 }));
    let promise = &guarantee["promise"];
    assert_eq!(keys(promise), "delta epsilon reference scope target");
    assert_eq!(promise["scope"], "row");
    assert_eq!(promise["target"], "denominator");
    assert_eq!(guarantee["kind"], "asymptotic");
    assert_eq!(guarantee["evidence"], "within-delta");
    let violations = &guarantee["violations"];
    assert_eq!(keys(violations), "checked unit violated");
    assert_eq!(violations["checked"], 40, "2 layers, 5 queries, 4 query heads");
    assert_eq!(violations["unit"], "row");
    assert!(pipelines[2]["output_error"]["max"].as_f64().unwrap() < 1e-5);
}

/// A synthetic trace has no prompt queries.
#[test]
fn a_note_reports_selectors_without_prompt_queries() {
    let world = world();
    let compared = world.run("compare snapkv dense --trace trace --json out.json");
    let said = expect_code(&compared, 0);
    assert!(said.contains("note: snapkv: 40 rows read every token"), "{said}");
    assert_eq!(said.matches("note:").count(), 1, "{said}");
    let report = world.json("out.json");
    assert_eq!(report["pipelines"][0]["unobserved"], 40);
    assert_eq!(report["pipelines"][1]["unobserved"], 0);
}

/// Returns the shape and the numbers of one tensor of a dump.
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
    let world = world();
    let queries = 3;
    for backend in ["cpu", "reference"] {
        let options = format!("--backend {backend} --layers 1 --queries {queries}");
        world.succeed(&format!("compare hybrid dense --trace trace --dump dump {options}"));
        let bytes = std::fs::read(world.path("dump")).unwrap();
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
            // Query heads of a group share a token list, which the dump repeats for each head.
            let row = |row: usize| &indices[indptr[row] as usize..indptr[row + 1] as usize];
            assert_eq!(row(0), row(1));
        }
    }
}

/// `--queries N` measures the last N queries, with the same rows as a run with all queries.
#[test]
fn fewer_queries_are_the_last_of_all() {
    let world = world();
    let dump = |queries: &str| {
        let compare = "compare random --trace trace --dump dump";
        world.succeed(&format!("{compare} --queries {queries}"));
        let bytes = std::fs::read(world.path("dump")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        tensor(&file, "0.layers.0.output").1
    };
    let (all, last) = (dump("5"), dump("2"));
    assert_eq!(all[all.len() - last.len()..], last);
}

/// Files that a pipeline extends are inputs, too.
#[test]
fn an_extended_file_is_not_overwritten() {
    let world = world();
    let base = std::fs::read(config("hybrid")).unwrap();
    world.write("base.toml", &base);
    world.write("child.toml", "extends = \"base.toml\"\n");
    let line = "compare child.toml --trace trace --json base.toml";
    world.refuse(line, "expected another file than an input");
    assert_eq!(std::fs::read(world.path("base.toml")).unwrap(), base);
}

#[test]
fn check_prints_a_pipeline_that_can_be_loaded_again() {
    let world = World::empty();
    let folder_of_configs = config("dense").replace("dense.toml", "");
    let files = std::fs::read_dir(folder_of_configs).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let files: Vec<String> = files.map(|path| path.display().to_string()).collect();
    assert!(files.len() >= 9);
    for file in files {
        let first = world.succeed(&format!("check {file}"));
        world.write("again.toml", &first);
        let again = world.succeed("check again.toml");
        let body = |text: &str| text.split_once('\n').unwrap().1.to_owned();
        assert_eq!(body(&first), body(&again));
    }
}

/// `check` prints the default sampler, and converts shares into tokens.
#[test]
fn check_shows_the_sampler_and_shares_in_tokens() {
    let shown = succeed(&["check", &config("vattention-oracle")]);
    assert!(shown.contains("\n[sampler]\ntype = \"uniform\"\nbase = 128\n"), "{shown}");
    let row = |shown: &str, name: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("#   {name} = "))).unwrap();
        line.split_whitespace().map(ToOwned::to_owned).skip(3).collect::<Vec<_>>()
    };
    assert_eq!(row(&shown, "selectors[2].size"), ["0.05", "204", "1638", "6553"]);
    assert!(!shown.contains("selectors[0].size"), "128 tokens are no share: {shown}");
    let set = ["check", &config("twilight"), "--set", "selectors.2.of.size = 0.0001"];
    assert_eq!(row(&succeed(&set), "selectors[2].of.size"), ["0.0001", "1", "3", "13"]);
    let base = ["check", &config("vattention-oracle"), "--set", "sampler.base = 0.1"];
    assert_eq!(row(&succeed(&base), "sampler.base"), ["0.1", "409", "3276", "13107"]);
    let fixed = succeed(&["check", &config("hybrid")]);
    assert_eq!(row(&fixed, "estimator.size"), ["0.05", "204", "1638", "6553"]);
    assert!(!fixed.contains("[sampler]"), "a fixed sample is not checked: {fixed}");
    assert!(!succeed(&["check", &config("dense")]).contains("tokens"));
}

#[test]
fn check_applies_changes_and_extends() {
    let oracle = config("vattention-oracle");
    let ends = "--set selectors.0.type=\"window\" --set selectors.0.size=5";
    let changes = format!("--set estimator.epsilon=0.2 --set selectors.2.size=64 {ends}");
    let changed = succeed(&format!("check {oracle} {changes}"));
    assert!(changed.contains("epsilon = 0.2"), "{changed}");
    assert!(changed.contains("type = \"oracle-top-k\"\nsize = 64"), "{changed}");
    assert!(changed.contains("type = \"window\"\nsize = 5"), "{changed}");

    let world = World::empty();
    std::fs::create_dir(world.path("sub")).unwrap();
    std::fs::copy(&oracle, world.path("sub/base.toml")).unwrap();
    let text = "extends = \"sub/base.toml\"\nshare = \"head\"\n[estimator]\ndelta = 0.01\n";
    world.write("child.toml", text);
    let merged = world.succeed("check child.toml");
    for part in ["name = \"child\"", "share = \"head\"", "epsilon = 0.1", "delta = 0.01"] {
        assert!(merged.contains(part), "{part} is not in {merged}");
    }
    assert!(merged.contains("oracle-top-k"));

    let other_type = "extends = \"sub/base.toml\"\n[estimator]\ntype = \"clt\"\n\
                      target = \"sdpa\"\ndelta = 0.1\nsize = 9\n";
    world.write("child.toml", other_type);
    let merged = world.succeed("check child.toml");
    assert!(merged.contains("size = 9") && !merged.contains("epsilon"), "{merged}");
}

#[test]
fn trace_shows_the_layers_of_a_trace() {
    let world = world();
    let shown = world.succeed("trace trace");
    assert!(shown.contains("synthetic heads, kind typical"), "{shown}");
    let row = shown.lines().find(|line| line.contains("1024")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells,
        ["0", "4", "2", "16", "12", "1024", "5", "(causal)", "0", "no", "plain", "f16"]
    );
}

/// Every error names the file or the option and the expectation, and no file is written.
#[test]
fn bad_input_is_refused_and_nothing_is_written() {
    let world = world();
    let hybrid = config("hybrid");
    let bytes = std::fs::read(world.path("trace")).unwrap();
    world.write("damaged.safetensors", &bytes[..bytes.len() / 2]);
    for (options, expected) in [
        ("--trace none.safetensors", "none.safetensors: No such"),
        ("--trace damaged.safetensors", "not a whole safetensors file"),
        ("--trace trace --layers 0,7", "--layers: "),
        ("--trace trace --queries 6", "has 5 queries; expected a number from 1 to 5, found 6"),
        ("--trace trace --queries 0", "--queries: "),
        (
            "--trace trace --backend gpu",
            "--backend: no `gpu`; expected one of reference, cpu, cuda",
        ),
        ("--trace trace --json no/such/folder/x.json", "no/such/folder/x.json: No such file"),
        ("--trace trace --dump .", "is a directory"),
        ("", "--trace"),
    ] {
        world.refuse(&format!("compare {hybrid} {options}"), expected);
    }
    for (options, expected) in [
        ("--head-dim 32", "--head-dim: 32; expected at least 36"),
        ("--head-dim 64 --kv-heads 3", "--query-heads"),
        ("--queries 2000", "--queries: 2000; expected 1 to 1024"),
        ("--layers 0", "--layers: 0; expected 1 to 4096"),
    ] {
        world.refuse(&format!("synth --kind osc --tokens 1024 -o out {options}"), expected);
    }
    for (line, expected) in [
        ("compare none.toml --trace trace", "none.toml: cannot be read"),
        ("trace damaged.safetensors", "damaged.safetensors: not a whole safetensors file"),
        (&format!("trace {hybrid}"), "hybrid.toml: not a whole safetensors file"),
        ("compere", "compere"),
        ("synth --kind easy", "expected one of diffuse, typical"),
    ] {
        world.refuse(line, expected);
    }
}

/// The weights belong to layers and heads that the trace does not have.
#[test]
fn pipelines_that_cannot_run_on_a_trace_are_left_out() {
    let world = world();
    let (hash, loki, dense) = (config("hash-attention"), config("loki"), config("dense"));
    let line = format!("compare {hash} {dense} {loki} --trace trace --json out.json");
    let output = world.run(&line);
    let said = expect_code(&output, 0);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains(" dense ") && !table.contains(" HashAttention "), "{table}");
    let lines: Vec<&str> = said.lines().collect();
    for (line, file) in lines.iter().zip([&hash, &loki]) {
        assert!(line.starts_with(&format!("note: left out: {file}: on layer 0: ")), "{said}");
    }
    assert!(
        lines.len() == 2 && lines[0].contains("`layers.0.query.0.weight` is [9, 64, 64]"),
        "{said}"
    );
    let report = world.json("out.json");
    assert_eq!(report["pipelines"].as_array().unwrap().len(), 1);
    let left_out = &report["left_out"][0];
    assert_eq!(
        (&left_out["pipeline"], &left_out["file"]),
        (&"HashAttention".into(), &hash.as_str().into())
    );
    assert!(left_out["reason"].as_str().unwrap().starts_with("on layer 0: hash-attention: "));
    let said = expect_code(&world.run(&format!("compare {hash} {loki} --trace trace")), 2);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.starts_with("error: ")), "{said}");
    let said = expect_code(&world.run(&format!("check {hash} {dense} --trace trace")), 2);
    assert!(said.starts_with("error: ") && said.contains("on layer 0: hash-attention: "), "{said}");
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/smollm2.safetensors");
    succeed(&format!("check {hash} {dense} --trace {trace}"));
    let recall = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/recall");
    let recall_hash = format!("{recall}/pipelines/hash-attention.toml");
    succeed(&format!("check {recall_hash} --model {recall}"));
    let said = refuse(&format!("check {recall_hash} {hash} --model {recall}"));
    assert!(said.lines().count() == 1 && said.contains("on layer 0: hash-attention: "), "{said}");
}

/// The search sets sizes, or the epsilon of pipelines with a promise.
#[test]
fn densities_are_reached_by_size_mass_or_epsilon() {
    let world = world();
    let more = "--trace trace --json out.json";
    let changes = "--set selectors.0.size=8 --set selectors.1.size=8";
    let line = "compare oracle-top-k oracle-top-p vattention-oracle --density 0.3,0.5";
    let table = world.succeed(&format!("{line} {more} {changes}"));
    let report = world.json("out.json");
    let pipelines = report["pipelines"].as_array().unwrap();
    assert_eq!(pipelines.len(), 6);
    for (pipeline, (density, set)) in pipelines.iter().zip([
        (0.3, "size 0."),
        (0.5, "size 0."),
        (0.3, "mass 0."),
        (0.5, "mass 0."),
        (0.3, "epsilon 0."),
        (0.5, "epsilon 0."),
    ]) {
        let (name, set_to) =
            (pipeline["pipeline"].as_str().unwrap(), pipeline["set"].as_str().unwrap());
        assert!(name.ends_with(if density < 0.4 { ", 30 %" } else { ", 50 %" }), "{name}");
        assert!(set_to.starts_with(set) && table.contains(set_to), "{table}");
        let read = pipeline["density"].as_f64().unwrap();
        assert!((read / density).ln().abs() < 0.1, "{name} reads {read}");
    }
    let table = world.succeed("compare dense --density 0.3 --trace trace");
    assert!(table.contains(" dense  ") && !table.contains(" set "), "stays as it is: {table}");
    let verify = "verify vattention-oracle --density 0.5 --trials 100";
    world.succeed(&format!("{verify} {more} {changes}"));
    let verdict = world.json("out.json");
    let epsilon = format!("epsilon {:.3}", verdict["goal"]["epsilon"].as_f64().unwrap());
    assert_eq!(epsilon, pipelines[5]["set"], "as compare finds it");
}

/// The search sets a size, or one threshold for all heads. The trace has prompt queries.
#[test]
fn densities_are_reached_by_a_threshold() {
    let world = World::empty();
    let shape = "--tokens 1024 --query-heads 4 --kv-heads 2 --head-dim 16 --queries 5";
    world.succeed(&format!("synth --kind typical {shape} --prompt-queries 40 --seed 3 -o trace"));
    let line = "compare squeezed-attention squeezed-attention-hierarchical --trace trace";
    let more = "--set selectors.0.size=8 --density 0.3 --json out.json";
    world.succeed(&format!("{line} {more}"));
    let report = world.json("out.json");
    for (pipeline, set) in
        report["pipelines"].as_array().unwrap().iter().zip(["size 0.", "threshold 0."])
    {
        assert!(pipeline["set"].as_str().unwrap().starts_with(set), "{pipeline}");
        let read = pipeline["density"].as_f64().unwrap();
        assert!((read / 0.3).ln().abs() < 0.1, "{pipeline}");
    }
}

/// A pipeline with a promise has a row for each epsilon; a smaller epsilon reads more tokens.
#[test]
fn pipelines_run_with_several_epsilons() {
    let world = world();
    let line = "compare oracle-top-k vattention-oracle --epsilons 0.05,0.5 --trace trace";
    world.succeed(&format!("{line} --json out.json"));
    let report = world.json("out.json");
    let pipelines = report["pipelines"].as_array().unwrap();
    let names: Vec<&str> =
        pipelines.iter().map(|pipeline| pipeline["pipeline"].as_str().unwrap()).collect();
    assert_eq!(names[0], "oracle top-k");
    assert!(names[1].ends_with(", epsilon 0.05") && names[2].ends_with(", epsilon 0.5"));
    let read = |i: usize| pipelines[i]["density"].as_f64().unwrap();
    assert!(names.len() == 3 && read(1) > read(2), "{} and {}", read(1), read(2));
    world.refuse(&format!("{line} --density 0.1"), "cannot be used with");
}

#[test]
fn problems_of_all_files_are_reported_together() {
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

/// Computes the exact output of one query head for one query, in f64.
fn attention(layer: &TraceLayer, head: usize, query: usize) -> Vec<f64> {
    let group = layer.queries.dim().0 / layer.keys.dim().0;
    let (kv_head, dim) = (head / group, layer.queries.dim().2);
    let number = |x: f32| f64::from(x);
    let logit = |token: usize| {
        let product =
            |j| number(layer.queries[[head, query, j]]) * number(layer.keys[[kv_head, token, j]]);
        (0..dim).map(product).sum::<f64>() / (dim as f64).sqrt()
    };
    let visible = layer.visible.as_ref().unwrap()[query];
    let weights: Vec<f64> = (0..visible).map(|token| logit(token).exp()).collect();
    let weighted = |j| {
        let term =
            |(token, weight): (usize, &f64)| weight * number(layer.values[[kv_head, token, j]]);
        weights.iter().enumerate().map(term).sum::<f64>()
    };
    (0..layer.values.dim().2).map(|j| weighted(j) / weights.iter().sum::<f64>()).collect()
}

#[test]
fn a_dump_has_the_output_and_probabilities_of_each_row() {
    let world = world();
    world.succeed("compare hybrid dense --trace trace --dump dump");
    let bytes = std::fs::read(world.path("dump")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let trace = Trace::open(&world.path("trace")).unwrap();
    for number in 0..2 {
        let (_, indptr) = tensor(&file, &format!("0.layers.{number}.indptr"));
        let (_, probabilities) = tensor(&file, &format!("0.layers.{number}.probabilities"));
        for span in indptr.windows(2) {
            let row = &probabilities[span[0] as usize..span[1] as usize];
            assert_eq!(row.iter().filter(|&&p| p < 1.0).count(), 51, "5 % are sampled");
        }
        let layer = trace.layer(number).unwrap().unwrap();
        let (_, output) = tensor(&file, &format!("1.layers.{number}.output"));
        for (row, got) in output.chunks(12).enumerate() {
            let want = attention(&layer, row % 4, row / 4);
            let distance = |(a, b): (&f64, &f64)| (a - b).abs();
            let error = got.iter().zip(&want).map(distance).fold(0.0, f64::max);
            assert!(error < 1e-3, "layer {number}, row {row}: {got:?} for {want:?}");
        }
    }
}

#[test]
fn an_output_may_not_be_an_input_or_another_output() {
    let world = world();
    std::fs::copy(config("vattention-oracle"), world.path("oracle.toml")).unwrap();
    let contents = || ["oracle.toml", "trace"].map(|name| std::fs::read(world.path(name)).unwrap());
    let before = contents();
    for (line, expected) in [
        ("compare oracle.toml --json oracle.toml", "expected another file than an input"),
        ("compare oracle.toml --json trace", "expected another file than an input"),
        ("verify oracle.toml --json oracle.toml", "expected another file than an input"),
        ("verify oracle.toml --json trace", "expected another file than an input"),
        ("compare oracle.toml --dump trace", "expected another file than an input"),
        ("compare oracle.toml --dump new --json ./new", "expected another file than --json"),
        ("compare oracle.toml --layers 1,1", "--layers: names layer 1 twice"),
    ] {
        world.refuse(&format!("{line} --trace trace"), expected);
    }
    assert!(contents() == before, "no input is overwritten");
}

#[cfg(unix)]
#[test]
fn a_link_to_a_result_stays_a_link() {
    let world = world();
    world.write("target.json", "old");
    let link = world.path("link.json");
    std::os::unix::fs::symlink(world.path("target.json"), &link).unwrap();
    world.succeed("compare dense --trace trace --json link.json");
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(world.json("target.json").is_object());
}

/// Runs `verify`, and returns its standard output, JSON and exit code.
fn verify(world: &World, line: &str) -> (String, Value, Option<i32>) {
    let output = world.run(&format!("verify {line} --json verdict.json"));
    assert_eq!(read_stderr(&output), "");
    let verdict = world.json("verdict.json");
    (String::from_utf8(output.stdout).unwrap(), verdict, output.status.code())
}

/// Replaces each number by `#`, and each gap by a blank.
fn masked(text: &str) -> String {
    let mask = |word: &str| {
        let number = word.trim_matches([',', ';', ':', '(', ')']);
        if number.parse::<f64>().is_ok() { word.replace(number, "#") } else { word.to_owned() }
    };
    let line = |line: &str| line.split_whitespace().map(mask).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn verify_reports_every_head() {
    let world = world();
    let (said, verdict, code) = verify(&world, "vattention-oracle --trace trace --trials 50");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("95 % bound") && said.contains("\nheld: "), "{said}");
    assert_eq!(
        keys(&verdict),
        "assumes bars contradicted_by evidence fault goal heads held kind not_held pipeline \
         row_coverage row_test rows rows_together run steps suspected_by test upper verdict \
         violations worst worst_row"
    );
    assert_eq!(keys(&verdict["goal"]), "delta epsilon limit reference scope target");
    assert_eq!((&verdict["held"], &verdict["kind"]), (&true.into(), &"asymptotic".into()));
    assert_eq!((&verdict["verdict"], &verdict["contradicted_by"]), (&"held".into(), &json!([])));
    let coverage = "judged least_samples least_trials unjudged";
    assert_eq!(keys(&verdict["row_coverage"]), coverage);
    let together = "heads limit samples units worst";
    assert_eq!(keys(&verdict["rows_together"]), together);
    assert!(verdict["fault"].is_null() && verdict["steps"].as_array().unwrap().is_empty());
    assert_eq!(verdict["violations"]["checked"], 400, "50 of 8 heads");
    assert_eq!(verdict["bars"]["evidence"], "within-delta");
    let heads = verdict["heads"].as_array().unwrap();
    assert_eq!(heads.len(), 8, "2 layers, 4 query heads");
    assert!(heads.iter().all(|head| head["checked"] == 50));
    assert_eq!(
        keys(&heads[0]),
        "assumes bars checked density error error_at_delta failures held kind kurtosis layer nu \
         p_value query_head rounding sampled violated"
    );
}

#[test]
fn verify_shows_every_head_and_draws_errors_against_epsilon() {
    let world = world();
    let line = "vattention-oracle --trace trace --trials 50 --heads --plot errors.svg";
    let (said, verdict, code) = verify(&world, line);
    assert_eq!(code, Some(0), "{said}");
    insta::assert_snapshot!("verify-heads", masked(&said));
    let head = &verdict["heads"][7];
    assert!(head["nu"].as_f64().unwrap() >= 1.0 && head["kurtosis"].as_f64().unwrap() >= 1.0);
    let svg = std::fs::read_to_string(world.path("errors.svg")).unwrap();
    let points = svg.matches("<circle").count();
    let expected = 1 + 3 * (2 * 8 + 40);
    assert_eq!(points, expected, "one in the legend; 2 per head and 1 per row at 3 epsilons");
    assert!(svg.contains("epsilon promised") && svg.contains("delta 0.1: held"));
    for tick in ["0.05", "0.1", "0.2"] {
        assert!(svg.lines().any(|line| line == tick), "a tick at {tick}");
    }
}

#[test]
fn verify_contradicts_a_broken_promise() {
    let world = World::with_trace("vsharp");
    let pipeline = "[sampler]\nbase = 2\n[estimator]\ntype = \"clt\"\ntarget = \"numerator\"\n\
                    epsilon = 0.05\ndelta = 0.05\nrounds = 1\n";
    world.write("rash.toml", pipeline);
    let (said, verdict, code) = verify(&world, "rash.toml --trace trace --trials 200");
    assert_eq!(code, Some(1), "{said}");
    insta::assert_snapshot!("verify-violated", masked(&said));
    assert_eq!((&verdict["held"], &verdict["verdict"]), (&false.into(), &"contradicted".into()));
    assert_eq!(verdict["contradicted_by"], json!(["pooled", "row", "rows-together"]));
    assert_eq!(keys(&verdict["fault"]), "cause layer query_head share");
    assert!(verdict["worst"]["p_value"].as_f64().unwrap() < 1e-6 / 8.0);
    assert_eq!(verdict["evidence"]["contradicted"], 8);
    let violated = verdict["heads"].as_array().unwrap().iter();
    let violated: u64 = violated.map(|head| head["violated"].as_u64().unwrap()).sum();
    assert_eq!(verdict["violations"]["violated"], violated);
}

/// Forty rows at delta = 0.1: each needs eight samples, and there are five queries.
#[test]
fn verify_is_undecided_where_rows_have_too_few_samples() {
    let world = world();
    let (said, verdict, code) = verify(&world, "vattention-oracle --trace trace --trials 38");
    assert_eq!(code, Some(3), "{said}");
    assert_eq!((&verdict["verdict"], &verdict["held"]), (&"undecided".into(), &false.into()));
    let expected = json!({
        "judged": 24, "unjudged": 16, "least_samples": 8, "least_trials": 40,
    });
    assert_eq!(verdict["row_coverage"], expected);
    let rows = "rows: 24 judged by themselves, 16 not, with fewer than 8 samples; --trials 40 \
                would judge all";
    let answer = "undecided: nothing contradicts delta = 0.1, but 16 rows have too few samples";
    assert!(said.contains(rows) && said.contains(answer) && !said.contains("\nheld: "), "{said}");
    let (said, verdict, code) = verify(&world, "vattention-oracle --trace trace --trials 40");
    assert_eq!((code, &verdict["verdict"]), (Some(0), &"held".into()), "{said}");
    assert!(said.contains("rows: 40 judged by themselves\n"), "{said}");
}

/// The trace has a head with 1,000 queries, 90 of which attend to three tokens that a sample rarely
/// contains.
#[test]
fn verify_names_the_test_that_contradicts_a_promise() {
    let world = World::empty();
    let size = "--tokens 3000 --queries 1000 --layers 1 --head-dim 2";
    world.succeed(&format!("synth --kind typical {size} --query-heads 1 --kv-heads 1 -o plain"));
    let trace = Trace::open(&world.path("plain")).unwrap();
    let mut layer = trace.layer(0).unwrap().unwrap();
    layer.queries.fill(0.0);
    layer.keys.fill(0.0);
    layer.values.fill(1.0);
    for token in [700, 1500, 2300] {
        layer.keys[[0, token, 0]] = 20.0;
        layer.values[[0, token, 0]] = 2.0;
    }
    (0..90).for_each(|i| layer.queries[[0, 11 * i, 0]] = 1.0);
    let layers = std::collections::BTreeMap::from([(0, layer)]);
    write_trace(&world.path("edited"), &TraceInfo::default(), &layers, Storage::F32).unwrap();
    world.write("blind.toml", "[estimator]\ntype = \"ratio\"\nepsilon = 0.1\ndelta = 0.1\n");
    let (said, verdict, code) = verify(&world, "blind.toml --trace edited");
    assert_eq!((code, &verdict["contradicted_by"]), (Some(1), &json!(["rows-together"])), "{said}");
    let worst = &verdict["rows_together"]["worst"];
    let numbers = format!(
        "{} of 1000 rows violated in all of their 2 samples; at most {} expected at 1e-6",
        worst["units"], worst["allowed"]
    );
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(&numbers)).collect();
    let [line, answer] = lines[..] else { panic!("{said}") };
    assert!(line.starts_with("rows together: "), "{said}");
    let expected = "contradicted: delta = 0.1, by rows together, ";
    assert!(answer.starts_with(expected) && said.contains("what fails: tail-seen"), "{said}");
}

#[test]
fn verify_refuses_a_pipeline_that_promises_nothing() {
    let world = world();
    for (line, expected) in [
        ("oracle-top-k", "promises nothing; expected an [estimator]"),
        ("dense", "promises nothing; expected an [estimator]"),
        ("hybrid --heads --plot x.svg", "--plot draws errors against epsilon"),
        (
            "vattention-oracle --trials 6",
            "--trials: 6 cannot contradict delta = 0.1; expected at least 7",
        ),
    ] {
        world.refuse(&format!("verify {line} --trace trace"), expected);
    }
}

#[test]
fn list_and_schema_name_every_component() {
    let list: Value = serde_json::from_str(&succeed("list --json")).unwrap();
    let (shown, schema) = (succeed("list"), succeed("schema"));
    assert!(serde_json::from_str::<Value>(&schema).unwrap()["properties"]["selectors"].is_object());
    for (part, kind) in [
        ("selectors", ComponentKind::Selector),
        ("samplers", ComponentKind::Sampler),
        ("estimators", ComponentKind::Estimator),
    ] {
        let listed = list[part].as_array().unwrap();
        let names: Vec<&str> = listed.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
        let registered: Vec<&str> =
            vattention::plugin::components(kind).iter().map(|component| component.name).collect();
        assert_eq!(names, registered);
        for (entry, name) in listed.iter().zip(names) {
            assert!(!entry["fields"].as_array().unwrap().is_empty(), "{name}");
            assert!(shown.contains(&format!("  {name}: ")), "{name}");
            assert!(schema.contains(&format!("\"const\": \"{name}\"")), "{name}");
        }
    }
}

/// An interruption ends a command immediately, and removes the output that it was writing.
#[cfg(target_os = "linux")]
#[test]
fn an_interruption_leaves_no_partial_output() {
    for (line, note) in [
        (
            "verify vattention-oracle --trace trace --trials 100000000",
            "note: interrupted; nothing was stored. With --results FILE",
        ),
        ("bench --head-dim 64 --tokens 1024 --seconds 600 --cold-bytes 2097152", ""),
    ] {
        let world = world();
        let mut command = world.command(&format!("{line} --json out.json"));
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let partial = format!(".out.json.partial-{}", child.id());
        // The command creates and removes this file once, to check that it can. After that, the
        // test may write it.
        wait_until_interruptible(&mut child);
        world.write(&partial, "half");
        let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(interrupt.unwrap().success());
        let said = expect_code(&child.wait_with_output().unwrap(), 130);
        assert!(said.starts_with(note), "{said}");
        assert_eq!(world.files(), ["trace"], "{line}");
    }
}
