//! `vattention study`.

use crate::world::{World, config, expect_code, keys, list, number, succeed};
use serde_json::Value;
use vattention::Storage;
use vattention::experiments::binomial;
use vattention::ndarray::s;
use vattention::trace::{Trace, write_trace};

fn world() -> World {
    World::with_trace("typical")
}

impl World {
    /// Writes a trace of the first layer's first 300 tokens.
    fn write_short_trace(&self) {
        let trace = Trace::open(&self.path("trace")).unwrap();
        let mut layer = trace.layer(0).unwrap().unwrap();
        layer.keys = layer.keys.slice(s![.., ..300, ..]).to_owned();
        layer.values = layer.values.slice(s![.., ..300, ..]).to_owned();
        layer.visible = None;
        layer.prompt = None;
        let path = self.path("short");
        write_trace(&path, trace.info(), &[(0, layer)].into(), Storage::F32).unwrap();
    }

    /// Runs a study, and returns its table and its JSON. The plot must have points.
    #[track_caller]
    fn study(&self, line: &str) -> (String, Value) {
        let outputs = "--json out.json --plot out.svg";
        let table = self.succeed(&format!("study {line} --trace trace {outputs}"));
        let svg = std::fs::read_to_string(self.path("out.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("<circle"), "{line}");
        (table, self.json("out.json"))
    }
}

/// Expects that each number is below the previous one.
#[track_caller]
fn expect_falling(numbers: impl Iterator<Item = f64>) {
    let numbers: Vec<f64> = numbers.collect();
    assert!(numbers.len() > 1 && numbers.windows(2).all(|pair| pair[1] < pair[0]), "{numbers:?}");
}

#[test]
fn hoeffding_needs_more_than_the_central_limit_theorem_and_fails_less() {
    let (table, found) = world().study("tightness --epsilon 0.02");
    assert_eq!(keys(&found), "bounds delta epsilon heads run trace trials");
    let column = |floor: bool, key: &str| -> Vec<f64> {
        let bounds = list(&found, "bounds").iter().filter(|bound| bound["floor"] == floor);
        bounds.map(|bound| number(&bound[key])).collect()
    };
    let tokens = column(false, "tokens");
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2], "{tokens:?}");
    let proxy = column(false, "of_clt")[1];
    assert!((proxy - 2.804).abs() < 0.05, "2 ln(2/0.2) / z(0.2)^2, rounded up to tokens: {proxy}");
    let rates = column(false, "rate");
    assert!(rates[0] > 0.05 && rates[1] < 0.1 && rates[2] < rates[1], "{rates:?}");
    for (floored, bare) in column(true, "tokens").iter().zip(&tokens) {
        assert!(*floored >= 51.0 && floored >= bare, "5 % of 1024");
    }
    let heads = list(&found, "heads");
    assert_eq!(heads.len(), 48, "2 layers, 4 heads, 3 bounds, 2 floors");
    for head in heads {
        let [failures, trials] = ["failures", "trials"].map(|key| head[key].as_u64().unwrap());
        assert_eq!(trials, 1000, "5 queries, 200 samples");
        assert!(binomial::p_value(failures as usize, 1000, 0.2) > 1e-6 / 48.0, "{head}");
    }
    assert!(table.contains("sub-gaussian") && table.contains("worst head"), "{table}");
}

/// Returns a method's numbers over all rows.
fn method<'a>(found: &'a Value, name: &str) -> &'a Value {
    list(found, "methods").iter().find(|method| method["method"] == name).unwrap()
}

#[test]
fn top_p_covers_its_mass_and_top_k_its_share() {
    let (table, found) = world().study("coverage --share 0.1 --mass 0.8");
    assert_eq!(keys(&found), "mass methods rows run share trace trials");
    assert_eq!(list(&found, "rows").len(), 4 * 2 * 4 * 5, "methods, layers, heads, queries");
    let get = |name: &str, key: &str| number(&method(&found, name)[key]);
    // Sink and window are a quarter of 1024 tokens, to which a tenth is added.
    for name in ["top-k", "sample", "half each"] {
        let read = (get(name, "density"), get(name, "most"));
        assert!((read.0 - 0.35).abs() < 0.001 && (read.1 - 0.35).abs() < 0.001, "{name} {read:?}");
    }
    assert!(get("top-p", "least") >= 0.8 && get("top-p", "coverage") < 0.9);
    assert!(get("top-p", "most") > get("top-p", "density"), "rows need different shares");
    let covered = ["top-k", "half each", "sample"].map(|name| get(name, "coverage"));
    expect_falling(covered.into_iter());
    let errors = ["half each", "sample"].map(|name| number(&method(&found, name)["error"]["mean"]));
    assert!(errors.iter().all(|&error| error > 0.0 && error < 1.0), "{errors:?}");
    assert!(table.contains("least") && table.contains("half each"), "{table}");
}

#[test]
fn a_sample_deviates_and_top_k_is_biased() {
    let (table, found) = world().study("bias --shares 0.02,0.08,0.32");
    assert_eq!(keys(&found), "run sizes trace trials");
    let column = |key: &str| list(&found, "sizes").iter().map(|size| number(&size[key])).collect();
    let [top_k, bias, deviation]: [Vec<f64>; 3] = ["top_k", "bias", "deviation"].map(column);
    expect_falling(top_k.iter().copied());
    expect_falling(deviation.iter().copied());
    for (bias, deviation) in bias.iter().zip(&deviation) {
        assert!(*bias < 0.3 * deviation, "{found}");
    }
    // The residual has about 700 tokens: √(1/20 − 1/700) over √(1/328 − 1/700) is 5.4.
    let fall = deviation[0] / deviation[2];
    assert!((4.0..7.0).contains(&fall), "{fall}");
    assert!(table.contains("sample deviation"), "{table}");
}

#[test]
fn errors_increase_with_epsilon() {
    let (_, found) = world().study("epsilon --epsilons 0.02,0.04,0.06,0.08");
    assert_eq!(keys(&found), "delta run series trace trials");
    let series = list(&found, "series");
    assert_eq!(series.len(), 8, "4 promises, 2 floors");
    for curve in series.iter().filter(|curve| curve["floor"] == false) {
        let points = list(curve, "points");
        expect_falling(points.iter().map(|point| -number(&point["error"])));
        assert!(number(&points[0]["tokens"]) > number(&points[3]["tokens"]), "{curve}");
        assert!(number(&curve["correlation"]) > 0.9, "{curve}");
        for point in points {
            assert!(number(&point["error"]) < number(&point["epsilon"]), "{curve}");
        }
    }
    for curve in series.iter().filter(|curve| curve["floor"] == true) {
        assert!(list(curve, "points").iter().all(|point| number(&point["tokens"]) >= 51.0));
    }
}

#[test]
fn larger_base_samples_estimate_the_spread_better() {
    let (table, found) = world().study("base-sample --trials 20");
    assert_eq!(keys(&found), "run sizes trace trials");
    let sizes = list(&found, "sizes");
    let tokens: Vec<u64> = sizes.iter().map(|size| size["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [64, 128, 256, 512], "717 tokens are left");
    for key in ["variance", "trace_numerator", "trace_output"] {
        expect_falling(sizes.iter().map(|size| number(&size[key]["mean"])));
    }
    assert!(table.contains("trace of e v"), "{table}");
}

#[test]
fn larger_samples_are_nearer_to_normal() {
    let (_, found) = world().study("normality --sizes 256,2,16");
    let sizes = list(&found, "sizes");
    assert_eq!(keys(&sizes[0]), "beyond kolmogorov quantiles tokens");
    expect_falling(sizes.iter().map(|size| number(&size["kolmogorov"])));
    let last = &sizes[2];
    assert!(number(&last["kolmogorov"]) < 0.05, "{last}");
    assert!((number(&last["beyond"]) - 0.05).abs() < 0.02, "{last}");
    let middle = &list(last, "quantiles")[10];
    assert_eq!(number(&middle[0]), 0.0);
    assert!(number(&middle[1]).abs() < 0.1, "the median: {middle}");
}

#[test]
fn one_parameter_is_varied_at_a_time() {
    let (_, found) = world().study("sensitivity --queries 2");
    assert_eq!(keys(&found), "backend run trace variations");
    let variations = list(&found, "variations");
    assert_eq!(variations.len(), 60, "2 targets, 6 parameters, 5 values");
    for target in ["denominator", "numerator"] {
        let rows = || variations.iter().filter(|row| row["target"] == target);
        let natural: Vec<&Value> = rows().filter(|row| row["natural"] == true).collect();
        assert_eq!(natural.len(), 6);
        assert!(natural.iter().all(|row| row["density"] == natural[0]["density"]));
        let vary =
            |parameter: &'static str| rows().filter(move |row| row["parameter"] == parameter);
        expect_falling(vary("base").map(|row| -number(&row["density"])).take(2));
        let most = |parameter, key: &str| number(&vary(parameter).next_back().unwrap()[key]);
        let least = |parameter, key: &str| number(&vary(parameter).next().unwrap()[key]);
        assert!(most("top-k", "output_error") < least("top-k", "output_error"));
        assert!(most("epsilon", "density") < least("epsilon", "density"));
        assert!(most("epsilon", "target_error") > least("epsilon", "target_error"));
    }
}

#[test]
fn no_pipeline_beats_the_front() {
    let configs = ["dense", "hybrid", "oracle-top-k", "streaming-llm"].map(config);
    let (table, found) = world().study(&format!("pareto {}", configs.join(" ")));
    assert_eq!(keys(&found), "backend front left_out pipelines run trace");
    let place = |pipeline: &Value| {
        (number(&pipeline["density"]), number(&pipeline["output_error"]["mean"]))
    };
    let places: Vec<(f64, f64)> = list(&found, "pipelines").iter().map(place).collect();
    let front: Vec<bool> =
        list(&found, "front").iter().map(|mark| mark.as_bool().unwrap()).collect();
    assert_eq!(places.len(), 7, "dense, and three pipelines with and without a sample");
    assert!(front[0], "dense attention has the least error");
    for (&(density, error), &on_it) in places.iter().zip(&front) {
        let beaten = places.iter().any(|&(d, e)| d < density && e < error);
        assert!(!(on_it && beaten), "{places:?}");
    }
    assert!(front.iter().any(|on_it| !on_it), "{places:?}");
    for name in ["hybrid, no sample", "oracle top-k + ratio", "StreamingLLM + ratio"] {
        assert!(table.contains(name), "{table}");
    }
}

#[test]
fn pipelines_with_a_promise_read_at_least_the_limit() {
    let world = world();
    let configs = ["vattention-oracle", "vattention-paper-sdpa-clt", "dense"].map(config);
    let (table, found) = world.study(&format!("limit {}", configs.join(" ")));
    let limit = number(&found["limit"]["mean"]);
    assert!(limit > 0.0 && limit < 1.0);
    for pipeline in list(&found, "pipelines") {
        assert!(number(&pipeline["density_per_query_head"]) >= limit, "{pipeline}");
    }
    assert_eq!(list(&found, "heads").len(), 8);
    assert!(table.contains("of limit"), "{table}");
    let (_, laxer) = world.study(&format!("limit {} --epsilon 0.2", configs[0]));
    assert!(number(&laxer["limit"]["mean"]) < limit);
}

#[test]
fn pipelines_are_changed_and_left_out_like_in_compare() {
    let world = world();
    let (hash, hybrid) = (config("hash-attention"), config("hybrid"));
    for study in ["pareto", "limit"] {
        let changes = "--set name=changed --density 0.3 --trace trace --json out.json";
        let line = format!("study {study} {hash} {hybrid} {changes}");
        let said = expect_code(&world.run(&line), 0);
        assert!(said.starts_with("note: left out: ") && said.lines().count() == 1, "{said}");
        let found = world.json("out.json");
        assert_eq!(found["left_out"][0]["file"], hash);
        let read = &found["pipelines"][0];
        assert_eq!(read["pipeline"], "changed, 30 %");
        assert!((number(&read["density"]) - 0.3).abs() < 0.02, "{read}");
    }
}

#[test]
fn error_bars_are_calibrated() {
    let world = world();
    let configs = ["priority", "hybrid"].map(config).join(" ");
    let (table, found) =
        world.study(&format!("calibration {configs} --deltas 0.05,0.3 --trials 200"));
    assert!(table.contains("priority sampling") && table.contains("hybrid"), "{table}");
    for pipeline in list(&found, "pipelines") {
        let points = list(pipeline, "at");
        for point in points {
            let (delta, bars) = (number(&point["delta"]), &point["bars"]);
            let (rows, outside) = (number(&bars["rows"]), number(&bars["outside"]));
            assert!(rows > 800.0 && outside <= delta * rows, "{pipeline}");
            let worst = (200.0 * number(&point["worst"])).round() as usize;
            // Eight heads, two pipelines, two deltas.
            assert!(binomial::p_value(worst, 200, delta) > 1e-6 / 32.0, "{pipeline}");
        }
        let radius = |point: &Value| number(&point["bars"]["mean"]);
        if pipeline["pipeline"] == "hybrid" {
            let radii = (radius(&points[0]), radius(&points[1]));
            assert!(radii.1 < radii.0, "a larger delta makes narrower bars: {pipeline}");
        }
    }
    let dense = format!("study calibration {} --trace trace", config("dense"));
    world.refuse(&dense, "has no [estimator], so no error bars");
}

#[test]
fn studies_are_deterministic_and_measure_the_chosen_layers_and_queries() {
    let world = world();
    let line = "tightness --layers 1 --queries 2 --trials 3";
    let first = world.study(line);
    assert_eq!(first, world.study(line));
    let heads = list(&first.1, "heads");
    assert_eq!(heads.len(), 24, "1 layer");
    assert!(heads.iter().all(|head| head["layer"] == 1 && head["trials"] == 6));
}

#[test]
fn bad_input_is_refused() {
    let world = world();
    for (line, expected) in [
        ("tightness --trials 0", "--trials: expected at least 1 sample, found 0"),
        ("tightness --epsilon 1", "must lie strictly between 0 and 1"),
        ("bias --trials 1", "--trials: 1; expected at least 2, to estimate a variance"),
        ("coverage --share 1", "must lie strictly between 0 and 1"),
        ("epsilon --layers 7", "has no layer 7; it has 0, 1"),
        ("epsilon --queries 6", "expected a number from 1 to 5, found 6"),
        ("base-sample --sizes 1,64", "--sizes: expected sizes of at least 2"),
        ("base-sample --sizes 717", "--sizes: some row has no residual of more than 717 tokens"),
        ("normality --sizes 0", "--sizes: expected sizes of at least 1"),
        ("sensitivity --backend gpu", "--backend: no `gpu`; expected one of"),
        ("normality --plot /nowhere/out.svg", "/nowhere"),
        ("pareto", "CONFIGS"),
        ("limit nothing.toml", "nothing.toml"),
        ("tightness --json trace", "expected another file"),
    ] {
        world.refuse(&format!("study {line} --trace trace"), expected);
    }
    world.write_short_trace();
    let left = "layer 0, query 0: sink, window and top-k leave";
    world.refuse("study tightness --trace short", left);
    let pipeline = config("dense");
    world.refuse(&format!("study tightness --trace {pipeline}"), "not a whole safetensors file");
}

#[test]
fn help_describes_each_study() {
    insta::assert_snapshot!("study-help", succeed("study --help"));
    insta::assert_snapshot!("study-tightness-help", succeed("study tightness --help"));
}
