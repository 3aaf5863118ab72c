//! `vattention capture`, run as a user runs it: what it writes is what the model computes, and
//! replays decoding.

use std::collections::HashSet;
use std::sync::Arc;

use crate::world::{World, recall};
use safetensors::SafeTensors;
use vattention::config::Loader;
use vattention::ndarray::{Array3, s};
use vattention::trace::Trace;
use vattention::{FallBack, Options, PipelineConfig, TokenClass, backends::Cpu, engine::Selection};
use vattention_llm::{Model, PrefillOptions, Prefilled, Session, Tokenizer};

const TOKENS: usize = 400;
const QUERIES: usize = 8;
const PROMPT: usize = 24;

fn args<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["capture", "--model", model, "--text", "context.txt", "-o", "trace.safetensors"];
    [&all[..], more].concat()
}

/// What `more` captures of the first tokens.
fn capture(world: &World, more: &[&str]) -> Trace {
    let model = recall().display().to_string();
    let usual = ["--tokens", "400", "--queries", "8", "--prompt-queries", "24"];
    let said = world.succeed(&args(&model, &[&usual[..], more].concat()));
    assert_eq!(said, "wrote trace.safetensors\n");
    Trace::open(&world.path("trace.safetensors")).unwrap()
}

/// The model and the text's first tokens.
fn model(world: &World) -> (Model, Vec<u32>) {
    let model = Model::open(&recall()).unwrap();
    let tokenizer = Tokenizer::open(&recall(), model.config()).unwrap();
    let text = std::fs::read_to_string(world.path("context.txt")).unwrap();
    let mut tokens = tokenizer.first(&text).unwrap();
    tokens.truncate(TOKENS);
    (model, tokens)
}

fn prefill(world: &World) -> Prefilled {
    let (model, tokens) = model(world);
    let reading = PrefillOptions { observed: QUERIES + PROMPT, ..PrefillOptions::default() };
    model.prefill(&tokens, reading).unwrap()
}

#[test]
fn a_trace_is_what_the_model_computes() {
    let world = World::new();
    let prefilled = prefill(&world);
    let (model, tokens) = model(&world);
    let classes =
        Tokenizer::open(&recall(), model.config()).unwrap().classes().unwrap().of(&tokens);
    let count = |class| classes.iter().filter(|&&other| other == class).count();
    assert_eq!((classes[0], count(TokenClass::Special)), (TokenClass::Special, 1), "<bos>");
    assert!(count(TokenClass::Punctuation) > 50, "{classes:?}");
    let trace = capture(&world, &["--dtype", "f32", "--layers", "0,2"]);
    assert_eq!(trace.layers().map(|(number, _)| number).collect::<Vec<_>>(), [0, 2]);
    for number in [0, 2] {
        let (layer, expected) = (trace.layer(number).unwrap().unwrap(), &prefilled.layers[number]);
        assert_eq!((&layer.keys, &layer.values), (&expected.keys, &expected.values));
        assert_eq!(layer.queries, expected.queries.slice(s![.., PROMPT.., ..]));
        assert_eq!(layer.prompt.unwrap(), expected.queries.slice(s![.., ..PROMPT, ..]));
        assert_eq!(layer.visible, Some((TOKENS - QUERIES + 1..=TOKENS).collect()));
        assert_eq!(layer.prompt_tokens, Some(TOKENS - QUERIES));
        assert_eq!(layer.classes.unwrap(), classes);
    }
}

/// Each chunk is a text of its own; the queries are the last one's.
#[test]
fn chunks_are_laid_side_by_side() {
    let world = World::new();
    let (model, tokens) = model(&world);
    let more = ["--dtype", "f32", "--layers", "1", "--chunk", "150"];
    let layer = capture(&world, &more).layer(1).unwrap().unwrap();
    let reading = PrefillOptions { observed: QUERIES + PROMPT, ..PrefillOptions::default() };
    for (i, chunk) in tokens.chunks(150).enumerate() {
        let expected = &model.prefill(chunk, reading).unwrap().layers[1];
        let place = s![.., 150 * i..(150 * (i + 1)).min(TOKENS), ..];
        assert_eq!(layer.keys.slice(place), expected.keys);
        assert_eq!(layer.values.slice(place), expected.values);
        assert_eq!(layer.queries == expected.queries.slice(s![.., PROMPT.., ..]), i == 2);
    }
    assert_eq!(layer.visible, Some((TOKENS - QUERIES + 1..=TOKENS).collect()));
    assert_eq!(layer.prompt_tokens, Some(TOKENS - QUERIES));
    let shown = world.succeed(&["trace", "trace.safetensors"]);
    assert!(shown.contains("context.txt, chunks of 150 tokens side by side"), "{shown}");
}

#[test]
fn numbers_are_rounded_to_what_is_asked_for() {
    let world = World::new();
    let prefilled = prefill(&world);
    // Half of the last bit's worth, and of the smallest number.
    for (dtype, share, least) in
        [("f16", 2_f32.powi(-11), 2_f32.powi(-25)), ("bf16", 2_f32.powi(-8), 0.0)]
    {
        let trace = capture(&world, &["--dtype", dtype]);
        for (number, expected) in prefilled.layers.iter().enumerate() {
            let layer = trace.layer(number).unwrap().unwrap();
            let close = |found: &Array3<f32>, expected: &Array3<f32>| {
                let mut pairs = found.iter().zip(expected);
                pairs.all(|(a, b)| (a - b).abs() <= share * b.abs() + least)
            };
            assert!(close(&layer.keys, &expected.keys) && close(&layer.values, &expected.values));
            assert_ne!(layer.keys, expected.keys);
        }
    }
}

#[test]
fn other_commands_read_it() {
    let world = World::new();
    capture(&world, &[]);
    let shown = world.succeed(&["trace", "trace.safetensors"]);
    let model = "model   Llama, 3 layers, hidden size 128, 4 query heads, 2 KV heads, head dim 64, \
                 2626 tokens";
    assert!(shown.lines().any(|line| line == model), "{shown}");
    assert!(shown.lines().any(|line| line == "source  context.txt"), "{shown}");
    let rows = shown.lines().filter(|line| {
        line.split_whitespace()
            .eq(["0", "4", "2", "64", "64", "400", "8", "(causal)", "24", "yes", "f16"])
    });
    assert_eq!(rows.count(), 1, "{shown}");
    let out = ["--trace", "trace.safetensors", "--json", "out.json"];
    world.succeed(&[&["compare", "dense.toml"][..], &out].concat());
    let errors = &world.json("out.json")["pipelines"][0]["output_error"];
    let error = |of: &str| errors[of].as_f64().unwrap();
    assert!(error("mean") < 1e-6 && error("max") < 1e-5, "dense is exact: {errors}");
}

/// The tokens that a row reads.
fn sets(selection: &Selection) -> Vec<HashSet<usize>> {
    let row = |bounds: &[usize]| {
        selection.indices[bounds[0]..bounds[1]].iter().map(|&token| token as usize).collect()
    };
    selection.indptr.windows(2).map(row).collect()
}

/// What `compare` read in layer 0 of the trace.
fn replayed(world: &World, pipeline: &str) -> Vec<HashSet<usize>> {
    let args = ["compare", pipeline, "--trace", "trace.safetensors", "--dump", "dump"];
    world.succeed(&args);
    let bytes = std::fs::read(world.path("dump")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: &str| -> Vec<usize> {
        let tensor = tensors.tensor(&format!("0.layers.0.{name}")).unwrap();
        let numbers = tensor.data().chunks(8);
        numbers.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as usize).collect()
    };
    let (bounds, tokens) = (numbers("indptr"), numbers("indices"));
    bounds.windows(2).map(|row| tokens[row[0]..row[1]].iter().copied().collect()).collect()
}

/// What a sequence read in layer 0 when the last tokens were decoded.
fn decoded(world: &World, pipeline: &Arc<PipelineConfig>) -> Vec<HashSet<usize>> {
    let (model, tokens) = model(world);
    let options =
        Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
    let session = Session::new(&model, &Cpu::default(), pipeline, &options).unwrap();
    let tokenizer = Tokenizer::open(&recall(), model.config()).unwrap();
    let mut session = session
        .with_classes(tokenizer.classes_for(pipeline).unwrap())
        .with_prefill_options(PrefillOptions { observed: PROMPT, ..PrefillOptions::default() });
    let (prompt, last) = tokens.split_at(TOKENS - QUERIES);
    session.prefill(prompt).unwrap();
    let mut read = Vec::new();
    for &token in last {
        session.step(token).unwrap();
        read.extend(sets(session.reports()[0].selection.as_ref().unwrap()));
    }
    read
}

/// SnapKV keeps 40 tokens of the prompt by the votes of its last queries, and all after it.
#[test]
fn a_trace_replays_decoding() {
    let world = World::new();
    let text = "[[selectors]]\ntype = \"snapkv\"\nsize = 40\nwindow = 16\n";
    world.write("snapkv.toml", text);
    let pipeline = Loader::default().parse("snapkv.toml", text).unwrap();
    capture(&world, &["--dtype", "f32", "--layers", "0"]);
    let (replayed, decoded) = (replayed(&world, "snapkv.toml"), decoded(&world, &pipeline));
    assert_eq!((replayed.len(), decoded.len()), (QUERIES * 4, QUERIES * 4));
    for (row, (replayed, decoded)) in replayed.iter().zip(&decoded).enumerate() {
        let later = row / 4 + 1;
        assert_eq!((replayed.len(), decoded.len()), (40 + later, 40 + later));
        // Rounding may decide between tokens with equal votes.
        let both = replayed.intersection(decoded).count();
        assert!(both + 2 >= 40 + later, "row {row}: {both} of {}", 40 + later);
    }
}

/// FastGen keeps special tokens and punctuation, by classes from the trace or from the tokenizer, and some others.
#[test]
fn a_trace_replays_decoding_by_classes() {
    let world = World::new();
    let text = "[[selectors]]\ntype = \"fastgen\"\nrecover = 0.5\nfrequent = 20\nlocal = 20\n";
    world.write("fastgen.toml", text);
    let pipeline = Loader::default().parse("fastgen.toml", text).unwrap();
    let trace = capture(&world, &["--dtype", "f32", "--layers", "0"]);
    let classes = trace.layer(0).unwrap().unwrap().classes.unwrap();
    let special = |token: usize| classes[token] == TokenClass::Special;
    let (replayed, decoded) = (replayed(&world, "fastgen.toml"), decoded(&world, &pipeline));
    assert_eq!((replayed.len(), decoded.len()), (QUERIES * 4, QUERIES * 4));
    for (row, (replayed, decoded)) in replayed.iter().zip(&decoded).enumerate() {
        let visible = TOKENS - QUERIES + row / 4 + 1;
        assert!((0..visible).all(|token| !special(token) || replayed.contains(&token)));
        assert!(replayed.len() < visible, "row {row}: {}", replayed.len());
        // Rounding may decide between tokens with equal scores.
        let both = replayed.intersection(decoded).count();
        assert!(
            both + 2 >= replayed.len().max(decoded.len()),
            "row {row}: {both} of {}",
            decoded.len()
        );
    }
}

#[test]
fn what_cannot_be_captured_is_refused() {
    let world = World::new();
    let folder = recall().display().to_string();
    let refuse = |more: &[&str], expected: &str| world.refuse(&args(&folder, more), expected);
    refuse(&["--layers", "0,3"], "models/recall has no layer 3; it has 0 to 2");
    refuse(&["--layers", "1,1"], "--layers: names layer 1 twice; expected different layers");
    refuse(&["--queries", "0"], "--queries: 0; expected at least 1");
    refuse(&["--tokens", "99999"], "--tokens: 99999; expected at most the ");
    let expected =
        "--queries: 32, and --prompt-queries: 64; expected together at most the 95 tokens";
    refuse(&["--tokens", "95"], expected);
    refuse(&["--tokens", "0"], "expected together at most the 0 tokens that are captured");
    refuse(&["--tokens", "400", "--chunk", "0"], "--chunk: 0; expected at least 1");
    let expected = "expected together at most the 10 tokens of the last chunk";
    refuse(&["--tokens", "400", "--chunk", "130"], expected);
    let expected = "expected together at most the 95 tokens of the last chunk";
    refuse(&["--tokens", "95", "--chunk", "130"], expected);
    world.write("long.txt", "The grass is green. ".repeat(4000));
    let usual = ["--model", folder.as_str()];
    let capture = |more: &[&'static str]| {
        [&["capture"][..], &usual, more].concat().into_iter().map(String::from).collect::<Vec<_>>()
    };
    let refuse = |more: &[&'static str], expected: &str| {
        let args = capture(more);
        world.refuse(&args.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    };
    let expected =
        "`max_position_embeddings` = 16384; --tokens N takes the first N of the text, --chunk";
    refuse(&["--text", "long.txt", "-o", "trace"], expected);
    world.write("empty.txt", "");
    refuse(&["--text", "empty.txt", "-o", "trace"], "--text empty.txt: empty; expected a text");
    refuse(&["--text", "none.txt", "-o", "trace"], "--text none.txt: No such file");
    let expected = "--output context.txt: expected another file than an input";
    refuse(&["--text", "context.txt", "-o", "context.txt"], expected);
    refuse(&["--text", "context.txt", "-o", "no/such/trace"], "no/such/trace");
    world.refuse(
        &args("nowhere", &[]),
        "--model nowhere: no such file or folder; expected a folder",
    );
}
