//! `vattention bench`, run as a user runs it, on caches that are small.

use std::process::Command;

#[cfg(target_os = "linux")]
use crate::world::wait_until_interruptible;
use crate::world::{config, keys, list, read_json, said, vattention};
use serde_json::Value;

/// A layer of 1024 tokens of 128 elements in two KV heads takes 512 KiB, so there are four.
fn small<'a>(tokens: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let text =
        "bench --query-heads 4 --kv-heads 2 --head-dim 64 --seconds 0.05 --cold-bytes 2097152";
    text.split(' ').chain(["--tokens", tokens]).chain(more.iter().copied()).collect()
}

/// What is printed, and the JSON.
#[track_caller]
fn measure(tokens: &str, more: &[&str]) -> (String, Value) {
    report(&small(tokens, more))
}

/// The same of any arguments.
#[track_caller]
fn report(args: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("bench.json");
    let output = vattention(&[args, &["--json", json.to_str().unwrap()]].concat());
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.is_empty(), "nothing on standard error without a terminal: {said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the JSON is left");
    let report = read_json(json);
    (String::from_utf8(output.stdout).unwrap(), report)
}

#[track_caller]
fn refuse(more: &[&str]) -> String {
    let output = vattention(&small("1024", more));
    assert_eq!(output.status.code(), Some(2), "{more:?}");
    assert!(output.stdout.is_empty(), "{more:?}");
    said(&output)
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

#[test]
fn the_json_has_the_keys_that_other_tools_read() {
    let (_, report) = measure("1024", &["--threads", "1,2", "--density", "0.1"]);
    assert_eq!(keys(&report), "backend bandwidth_gb_s left_out machine rows run trace");
    assert_eq!(keys(&report["machine"]), "arch cores cpu");
    let bandwidth = report["bandwidth_gb_s"].as_array().unwrap();
    assert_eq!(bandwidth.len(), 2);
    for (one, threads) in bandwidth.iter().zip([1, 2]) {
        assert_eq!((keys(one), &one["threads"]), ("gb_s threads".to_owned(), &threads.into()));
        assert!(number(one, "gb_s") > 0.0);
    }
    assert_eq!(
        list(&report, "rows").len(),
        10,
        "dense and four built in, on one and on two threads"
    );
    for row in list(&report, "rows") {
        assert_eq!(
            keys(row),
            "append_ns asked_density attend_share density dtype error fell_back gb_s group huge_pages layers ms of_bandwidth pipeline rounds sample_share sampled select_share sequences speedup_over_dense threads tokens violations"
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

/// Of half of the tokens to all: dense attention of three sequences, of 683, 854 and 1024 tokens, reads 2561 rows of
/// 2 KV heads in a batch.
#[test]
fn sequences_attend_at_once() {
    let (table, report) = measure("1024", &["--threads", "2", "--sequences", "3"]);
    assert!(table.contains("3 sequences at once, of about half of the tokens to all\n"), "{table}");
    for row in list(&report, "rows") {
        assert_eq!((&row["sequences"], &row["layers"]), (&3.into(), &6.into()), "{row}");
    }
    let dense = &list(&report, "rows")[0];
    let bytes = number(dense, "gb_s") * 1e6 * number(dense, "ms");
    assert!((bytes / (2561.0 / 3.0 * 2.0 * 256.0) - 1.0).abs() < 0.1, "{bytes}");
    assert!(refuse(&["--sequences", "0"]).contains("expected a whole number from 1 to 1024"));
}

#[test]
fn every_group_begins_with_dense_attention() {
    let (table, report) = measure("1024", &["--threads", "1", "--dtype", "f32,f16"]);
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

/// The shipped trace's two layers, with files that were learned for them, and its tokens once and over again.
#[test]
fn heads_of_a_trace_are_measured_by_files_that_know_its_layers() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/smollm2.safetensors");
    let (hash, priority) = (config("vattention-hash"), config("priority"));
    let args = ["bench", &hash, &priority, "--trace", trace, "--threads", "1", "--seconds", "0"];
    let args = [&args[..], &["--cold-bytes", "18000000"]].concat();
    let (table, once) = report(&args);
    assert!(table.contains("heads of") && once["trace"] == trace, "{table}");
    assert_eq!((list(&once, "rows").len(), &once["left_out"]), (3, &Value::Array(Vec::new())));
    assert!(list(&once, "rows").iter().all(|row| row["tokens"] == 6144 && row["layers"] == 4));
    let (_, again) = report(&[&args[..], &["--tokens", "3000,12288"]].concat());
    assert_eq!(list(&again, "rows").len(), 6);
    for row in [&list(&again, "rows")[2], &list(&again, "rows")[5]] {
        assert_eq!(row["pipeline"], list(&once, "rows")[2]["pipeline"]);
        assert!(number(row, "density") < 0.5 && number(row, "error") < 0.1, "{row}");
    }
}

/// Nothing is measured of a file that is no trace, or of heads that are said twice.
#[test]
fn a_trace_that_cannot_be_measured_is_refused() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/smollm2.safetensors");
    for (args, expected) in [
        (vec!["bench", "--trace", trace, "--query-heads", "8"], "cannot be used with"),
        (vec!["bench", "--trace", trace, "--head-dim", "64"], "cannot be used with"),
        (
            vec!["bench", "--trace", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
            "Cargo.toml",
        ),
        (vec!["bench", "--trace", "nowhere.safetensors"], "nowhere.safetensors"),
    ] {
        let output = vattention(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let error = said(&output);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

/// Chunks of 2 MiB are in huge pages, if the system has any to give, and never where they are forbidden.
#[test]
fn huge_pages_can_be_forbidden() {
    let share = |more: &[&str]| {
        let (_, report) = measure("16384", &[&["--threads", "1"], more].concat());
        list(&report, "rows")[0]["huge_pages"].as_f64()
    };
    let (Some(with), Some(without)) = (share(&[]), share(&["--small-pages"])) else { return };
    assert!((0.0..=1.0).contains(&with) && without <= with, "{with}, {without}");
    assert!(with < 0.5 || without < with / 2.0, "{with}, {without}");
}

/// A line for each pipeline, in panels for each number of threads.
#[test]
fn the_plot_has_every_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("growth.svg");
    let more = ["--threads", "1,2", "--density", "0.1", "--plot", plot.to_str().unwrap()];
    assert!(vattention(&small("512,1024,2048", &more)).status.success());
    let svg = std::fs::read_to_string(&plot).unwrap();
    for said in
        ["dense", "tokens", "ms for a step", "share of the tokens read", "bf16, 2 threads", "10 %"]
    {
        assert!(svg.contains(said), "{said} is not in the plot");
    }
    assert!(refuse(&["--plot", "nowhere/growth.svg"]).contains("nowhere/growth.svg"));
}

/// Sink and window take 256 of the 1024 tokens; ten percent more are 102 or 2 · 51.
#[test]
fn the_density_is_what_is_read_beside_sink_and_window() {
    let (hybrid, top_k) = (config("hybrid"), config("oracle-top-k"));
    let group = "selectors.2.score=\"group\"";
    let args = ["--threads", "1", "--density", "0.1,0.2", "--set", group, &hybrid, &top_k];
    let (_, report) = measure("1024", &args);
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

/// Selectors that evict have seen a prompt and queries before they are measured.
#[test]
fn what_is_evicted_is_not_read() {
    let (h2o, snapkv) = (config("h2o"), config("snapkv"));
    let (_, report) = measure("1024", &["--threads", "1", &h2o, &snapkv]);
    let read: Vec<f64> =
        list(&report, "rows").iter().map(|row| number(row, "density") * 1024.0).collect();
    assert_eq!(read.into_iter().map(f64::round).collect::<Vec<_>>(), [1024.0, 204.0, 102.0]);
}

/// The data is such that a promise asks for a sample, and not for everything.
#[test]
fn a_promise_is_met_by_a_sample() {
    let vattention = config("vattention-oracle");
    let args = ["--threads", "1", "--density", "0.1,0.2", &vattention];
    let (_, report) = measure("8192", &args);
    assert_eq!(list(&report, "rows").len(), 2, "its estimator decides, so it runs once");
    let (row, sampled) = (&list(&report, "rows")[1], number(&list(&report, "rows")[1], "sampled"));
    assert!(row["asked_density"].is_null());
    assert!((128.0..4000.0).contains(&sampled), "{row}");
}

#[test]
fn what_cannot_run_is_left_out() {
    let (hash, sizeless, hybrid) =
        (config("hash-attention"), config("magic-pig"), config("hybrid"));
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("bench.json");
    let more = ["--threads", "1", "--density", "0.1", "--json", json.to_str().unwrap()];
    let output =
        vattention(&small("1024", &[&[&hash[..], &sizeless, &hybrid][..], &more].concat()));
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with(&format!("note: left out: {hash}: on layer 0: hash-")), "{said}");
    assert!(lines[1].contains("MagicPIG: has no size to set"), "{said}");
    let report: Value = read_json(json);
    assert_eq!(list(&report, "rows").len(), 2, "dense and hybrid");
    assert_eq!(report["left_out"][1]["file"], sizeless);
}

#[test]
fn bad_input_is_refused_in_words() {
    let (sizeless, hybrid) = (config("magic-pig"), config("hybrid"));
    for (more, expected) in [
        (&["--threads", "0"][..], "expected a whole number from 1 to 1024"),
        (&["--threads", "1,x"], "expected a whole number from 1 to 1024"),
        (&["--density", "1.0"], "must lie strictly between 0 and 1, got 1"),
        (&["--density", "0.1,-1"], "must lie strictly between 0 and 1, got -1"),
        (&["--density", "some"], "expected a number strictly between 0 and 1"),
        (&["--dtype", "bf16,f64"], "possible values: f32, f16, bf16"),
        (&["--backend", "gpu"], "--backend: no `gpu`; expected one of reference, cpu, cuda"),
        (&["--density", "0.1", &sizeless], "density: MagicPIG: has no size to set"),
        (&["--set", "estimator.size=0", &hybrid], "1 problem in the configuration"),
        (&["--set", "estimator.sise=1"], "`sise` in estimator (set on built-in pipeline hash"),
        (&["none.toml"], "none.toml: cannot be read"),
        (&["--json", "no/such/folder/x.json"], "no/such/folder/x.json: No such file"),
        (&[&hybrid, "--json", &hybrid], "expected another file than an input"),
    ] {
        let said = refuse(more);
        assert!(said.contains(expected), "{more:?}: {said}");
    }
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let with = |args: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("bench.json");
        let args = [&["bench", "--json", json.to_str().unwrap()], args].concat();
        let output = vattention(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
        said(&output)
    };
    for (args, expected) in [
        (&["--tokens", "0"][..], "expected a whole number from 1 to 2147483647"),
        (&["--seconds", "-1"], "expected a number of seconds, at least 0"),
        (&["--seconds", "nan"], "expected a number of seconds, at least 0"),
        (&["--cold-bytes", "0"], "expected a whole number from 1 to"),
        (&["--query-heads", "4", "--kv-heads", "3"], "expected a multiple of kv_heads = 3, got 4"),
        (&["--query-heads", "0"], "query_heads: expected at least 1, got 0"),
        (&["--head-dim", "0"], "head_dim: expected at least 1, got 0"),
    ] {
        let said = with(args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    if cfg!(target_os = "linux") {
        let said = with(&["--tokens", "2000000000"]);
        assert!(said.contains("--tokens: 2000000000 tokens in 2 layers need"), "{said}");
        assert!(said.contains("60 % of what is available"), "{said}");
    }
}

/// An interruption ends the command at once, and removes the file that it was filling.
#[cfg(target_os = "linux")]
#[test]
fn an_interruption_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("bench.json");
    let args = small("1024", &["--json", json.to_str().unwrap()]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_vattention"))
        .args(args.iter().map(|one| if *one == "0.05" { "600" } else { one }))
        .spawn()
        .unwrap();
    let partial = folder.path().join(format!(".bench.json.partial-{}", command.id()));
    // The command makes and removes it once, to see whether it can; after that it is ours.
    wait_until_interruptible(&mut command);
    std::fs::write(&partial, "half").unwrap();
    let interrupt = Command::new("kill").args(["-INT", &command.id().to_string()]).status();
    assert!(interrupt.unwrap().success());
    assert_eq!(command.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
