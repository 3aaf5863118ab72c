//! `vattention bench` on small caches.

use crate::world::{World, config, expect_code, keys, list};
use serde_json::Value;

/// Returns arguments for small caches. A layer of 1024 tokens with 128 elements in 2 KV heads takes
/// 512 KiB, so there are four layers.
fn small(tokens: &str, more: &str) -> String {
    let heads = "--query-heads 4 --kv-heads 2 --head-dim 64";
    format!("bench {heads} --seconds 0.05 --cold-bytes 2097152 --tokens {tokens} {more}")
}

/// Runs `bench` on small caches, and returns the table and the JSON.
#[track_caller]
fn measure(tokens: &str, more: &str) -> (String, Value) {
    report(&small(tokens, more))
}

/// Runs `bench` with any arguments, and returns the table and the JSON.
#[track_caller]
fn report(line: &str) -> (String, Value) {
    let world = World::empty();
    let table = world.succeed(&format!("{line} --json bench.json"));
    assert_eq!(world.files(), ["bench.json"], "only the JSON is left");
    (table, world.json("bench.json"))
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

#[test]
fn the_json_has_the_keys_that_other_tools_read() {
    let (_, report) = measure("1024", "--threads 1,2 --density 0.1");
    assert_eq!(keys(&report), "backend bandwidth_gb_s left_out machine rows run trace");
    assert_eq!(keys(&report["machine"]), "arch cores cpu");
    let bandwidth = report["bandwidth_gb_s"].as_array().unwrap();
    assert_eq!(bandwidth.len(), 2);
    for (entry, threads) in bandwidth.iter().zip([1, 2]) {
        assert_eq!((keys(entry), &entry["threads"]), ("gb_s threads".to_owned(), &threads.into()));
        assert!(number(entry, "gb_s") > 0.0);
    }
    let rows = list(&report, "rows");
    assert_eq!(rows.len(), 10, "dense and four built in, on one and on two threads");
    for row in list(&report, "rows") {
        assert_eq!(
            keys(row),
            "append_ns asked_density attend_share density dtype error fell_back gb_s group \
             huge_pages layers ms of_bandwidth pipeline rounds sample_share sampled select_share \
             sequences speedup_over_dense threads tokens violations"
        );
        for key in ["ms", "gb_s", "of_bandwidth", "speedup_over_dense", "density"] {
            assert!(number(row, key) > 0.0, "{key} of {row}");
        }
        assert!(number(row, "density") <= 1.0 && number(row, "rounds") >= 5.0, "{row}");
        assert_eq!((&row["layers"], &row["tokens"]), (&4.into(), &1024.into()));
        assert_eq!(row["dtype"], "bf16");
        for key in ["select_share", "sample_share", "attend_share"] {
            assert!(row[key].is_null() || (0.0..=1.0).contains(&number(row, key)), "{row}");
        }
    }
}

/// Dense attention of a batch of three sequences, with 683, 854 and 1024 tokens, reads 2561 rows
/// per KV head.
#[test]
fn sequences_attend_in_a_batch() {
    let (table, report) = measure("1024", "--threads 2 --sequences 3");
    let heading = "3 sequences in a batch, with about half of the tokens to all of them\n";
    assert!(table.contains(heading), "{table}");
    for row in list(&report, "rows") {
        assert_eq!((&row["sequences"], &row["layers"]), (&3.into(), &6.into()), "{row}");
    }
    let dense = &list(&report, "rows")[0];
    assert_eq!(number(dense, "rounds") % 2.0, 1.0, "medians of one round");
    let bytes = number(dense, "gb_s") * 1e6 * number(dense, "ms");
    assert!((bytes / (2561.0 / 3.0 * 2.0 * 256.0) - 1.0).abs() < 0.1, "{bytes}");
}

#[test]
fn every_group_begins_with_dense_attention() {
    let (table, report) = measure("1024", "--threads 1 --dtype f32,f16");
    assert_eq!(list(&report, "rows").len(), 10);
    for (group, rows) in list(&report, "rows").chunks(5).enumerate() {
        assert_eq!(rows[0]["pipeline"], "dense");
        assert_eq!(
            (number(&rows[0], "density"), number(&rows[0], "speedup_over_dense")),
            (1.0, 1.0)
        );
        assert_eq!((number(&rows[0], "sampled"), number(&rows[0], "fell_back")), (0.0, 0.0));
        assert_eq!(rows[0]["dtype"], ["f32", "f16"][group]);
        assert!(rows.iter().all(|row| row["group"] == group && row["asked_density"].is_null()));
    }
    for word in ["in order", "speed-up", "dense", "ratio", "1.00 x", "100.0 %"] {
        assert!(table.contains(word), "{word} is not in {table}");
    }
}

/// The pipelines' weights were trained for the two layers of the shipped trace. Its tokens are used
/// once, and repeated for a longer cache.
#[test]
fn heads_of_a_trace_are_measured() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/smollm2.safetensors");
    let (hash, priority) = (config("vattention-hash"), config("priority"));
    let options = "--threads 1 --seconds 0 --cold-bytes 18000000";
    let line = format!("bench {hash} {priority} --trace {trace} {options}");
    let (table, once) = report(&line);
    assert!(table.contains("heads of") && once["trace"] == trace, "{table}");
    assert_eq!((list(&once, "rows").len(), &once["left_out"]), (3, &Value::Array(Vec::new())));
    assert!(list(&once, "rows").iter().all(|row| row["tokens"] == 6144 && row["layers"] == 4));
    let (_, again) = report(&format!("{line} --tokens 3000,12288"));
    assert_eq!(list(&again, "rows").len(), 6);
    for row in [&list(&again, "rows")[2], &list(&again, "rows")[5]] {
        assert_eq!(row["pipeline"], list(&once, "rows")[2]["pipeline"]);
        assert!(number(row, "density") < 0.5 && number(row, "error") < 0.1, "{row}");
    }
}

/// A file that is no trace is refused, and so are a trace and a shape together.
#[test]
fn a_trace_that_cannot_be_measured_is_refused() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/smollm2.safetensors");
    for (options, expected) in [
        (&format!("{trace} --query-heads 8")[..], "cannot be used with"),
        (&format!("{trace} --head-dim 64"), "cannot be used with"),
        (concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "Cargo.toml"),
        ("nowhere.safetensors", "nowhere.safetensors"),
    ] {
        World::empty().refuse(&format!("bench --trace {options}"), expected);
    }
}

/// Chunks of 2 MiB are in huge pages if the system has some and `--small-pages` is not given.
#[test]
fn huge_pages_can_be_forbidden() {
    let share = |more: &str| {
        let (_, report) = measure("16384", &format!("--threads 1 {more}"));
        list(&report, "rows")[0]["huge_pages"].as_f64()
    };
    let (Some(with), Some(without)) = (share(""), share("--small-pages")) else { return };
    assert!((0.0..=1.0).contains(&with) && without <= with, "{with}, {without}");
    assert!(with < 0.5 || without < with / 2.0, "{with}, {without}");
}

/// The plot has a line for each pipeline, and panels for each number of threads.
#[test]
fn the_plot_has_every_pipeline() {
    let world = World::empty();
    let more = "--threads 1,2 --density 0.1 --plot growth.svg";
    expect_code(&world.run(&small("512,1024,2048", more)), 0);
    let svg = std::fs::read_to_string(world.path("growth.svg")).unwrap();
    for text in
        ["dense", "tokens", "ms for a step", "share of the tokens read", "bf16, 2 threads", "10 %"]
    {
        assert!(svg.contains(text), "{text} is not in the plot");
    }
}

/// Sink and window take 256 of the 1024 tokens; a density of 10 % adds 102, or 2 · 51.
#[test]
fn the_density_excludes_sink_and_window() {
    let (hybrid, top_k) = (config("hybrid"), config("oracle-top-k"));
    let group = "selectors.2.score=\"group\"";
    let options = format!("--threads 1 --density 0.1,0.2 --set {group} {hybrid} {top_k}");
    let (_, report) = measure("1024", &options);
    let found: Vec<(&str, Option<f64>, f64, f64)> = list(&report, "rows")
        .iter()
        .map(|row| {
            let read = (number(row, "density") * 1024.0).round();
            let name = row["pipeline"].as_str().unwrap();
            (name, row["asked_density"].as_f64(), read, number(row, "sampled"))
        })
        .collect();
    assert_eq!(
        found,
        [
            ("dense", None, 1024.0, 0.0),
            ("hybrid", Some(0.1), 358.0, 51.0),
            ("hybrid", Some(0.2), 460.0, 102.0),
            ("oracle top-k", Some(0.1), 358.0, 0.0),
            ("oracle top-k", Some(0.2), 460.0, 0.0),
        ]
    );
}

/// Selectors that evict receive a prompt and queries before they are measured.
#[test]
fn evicted_tokens_are_not_read() {
    let (h2o, snapkv) = (config("h2o"), config("snapkv"));
    let (_, report) = measure("1024", &format!("--threads 1 {h2o} {snapkv}"));
    let read: Vec<f64> =
        list(&report, "rows").iter().map(|row| number(row, "density") * 1024.0).collect();
    assert_eq!(read.into_iter().map(f64::round).collect::<Vec<_>>(), [1024.0, 204.0, 102.0]);
}

/// For the synthetic heads, a sample suffices to keep the promise.
#[test]
fn a_promise_needs_only_a_sample() {
    let vattention = config("vattention-oracle");
    let options = format!("--threads 1 --density 0.1,0.2 {vattention}");
    let (_, report) = measure("8192", &options);
    assert_eq!(list(&report, "rows").len(), 2, "densities do not apply, so it runs once");
    let (row, sampled) = (&list(&report, "rows")[1], number(&list(&report, "rows")[1], "sampled"));
    assert!(row["asked_density"].is_null());
    assert!((128.0..4000.0).contains(&sampled), "{row}");
}

#[test]
fn pipelines_that_cannot_run_are_left_out() {
    let (hash, sizeless, hybrid) =
        (config("hash-attention"), config("magic-pig"), config("hybrid"));
    let world = World::empty();
    let options = "--threads 1 --density 0.1 --json bench.json";
    let line = small("1024", &format!("{hash} {sizeless} {hybrid} {options}"));
    let said = expect_code(&world.run(&line), 0);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with(&format!("note: left out: {hash}: on layer 0: hash-")), "{said}");
    assert!(lines[1].contains("MagicPIG: has no size to set"), "{said}");
    let report = world.json("bench.json");
    assert_eq!(list(&report, "rows").len(), 2, "dense and hybrid");
    assert_eq!(report["left_out"][1]["file"], sizeless);
}

#[test]
fn bad_input_is_refused() {
    let (sizeless, hybrid) = (config("magic-pig"), config("hybrid"));
    let world = World::empty();
    for (options, expected) in [
        ("--threads 0", "expected a whole number from 1 to 1024"),
        ("--threads 1,x", "expected a whole number from 1 to 1024"),
        ("--sequences 0", "expected a whole number from 1 to 1024"),
        ("--density 1.0", "must lie strictly between 0 and 1, got 1"),
        ("--density 0.1,-1", "must lie strictly between 0 and 1, got -1"),
        ("--density some", "expected a number strictly between 0 and 1"),
        ("--dtype bf16,f64", "possible values: f32, f16, bf16, q8"),
        ("--backend gpu", "--backend: no `gpu`; expected one of reference, cpu, cuda"),
        (&format!("--density 0.1 {sizeless}"), "density: MagicPIG: has no size to set"),
        (&format!("--set estimator.size=0 {hybrid}"), "1 problem in the configuration"),
        ("--set estimator.sise=1", "`sise` in estimator (set on built-in pipeline hash"),
        ("none.toml", "none.toml: cannot be read"),
        ("--json no/such/folder/x.json", "no/such/folder/x.json: No such file"),
        ("--plot nowhere/growth.svg", "nowhere/growth.svg"),
        (&format!("{hybrid} --json {hybrid}"), "expected another file than an input"),
    ] {
        world.refuse(&small("1024", options), expected);
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let world = World::empty();
    for (options, expected) in [
        ("--tokens 0", "expected a whole number from 1 to 2147483647"),
        ("--seconds -1", "expected a number of seconds, at least 0"),
        ("--seconds nan", "expected a number of seconds, at least 0"),
        ("--cold-bytes 0", "expected a whole number from 1 to"),
        ("--query-heads 4 --kv-heads 3", "expected a multiple of kv_heads = 3, got 4"),
        ("--query-heads 0", "query_heads: expected at least 1, got 0"),
        ("--head-dim 0", "head_dim: expected at least 1, got 0"),
    ] {
        world.refuse(&format!("bench --json bench.json {options}"), expected);
    }
    if cfg!(target_os = "linux") {
        let line = "bench --json bench.json --tokens 2000000000";
        world.refuse(line, "--tokens: 2000000000 tokens in 2 layers need");
        world.refuse(line, "60 % of the available memory");
    }
}
