//! `vattention capture`: a trace has the numbers that the model computes, and replays decoding.

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

/// Captures the first tokens with more options, and opens the trace.
fn capture(world: &World, more: &str) -> Trace {
    let files = format!("--model {} --text context.txt -o trace.safetensors", recall().display());
    let usual = "--tokens 400 --queries 8 --prompt-queries 24";
    let said = world.succeed(&format!("capture {files} {usual} {more}"));
    assert_eq!(said, "wrote trace.safetensors\n");
    Trace::open(&world.path("trace.safetensors")).unwrap()
}

/// Returns the model and the text's first tokens.
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
fn a_trace_has_the_numbers_of_the_model() {
    let world = World::new();
    let prefilled = prefill(&world);
    let (model, tokens) = model(&world);
    let classes =
        Tokenizer::open(&recall(), model.config()).unwrap().classes().unwrap().classify(&tokens);
    let count = |class| classes.iter().filter(|&&other| other == class).count();
    assert_eq!((classes[0], count(TokenClass::Special)), (TokenClass::Special, 1), "<bos>");
    assert!(count(TokenClass::Punctuation) > 50, "{classes:?}");
    let trace = capture(&world, "--dtype f32 --layers 0,2");
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

/// Each chunk is read separately; the queries are those of the last chunk.
#[test]
fn chunks_are_concatenated() {
    let world = World::new();
    let (model, tokens) = model(&world);
    let layer = capture(&world, "--dtype f32 --layers 1 --chunk 150").layer(1).unwrap().unwrap();
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
    let shown = world.succeed("trace trace.safetensors");
    assert!(shown.contains("context.txt, chunks of 150 tokens side by side"), "{shown}");
}

#[test]
fn numbers_are_rounded_to_the_format() {
    let world = World::new();
    let prefilled = prefill(&world);
    // Relative error: half of the last bit. Absolute error: half of the smallest number.
    for (dtype, share, least) in
        [("f16", 2_f32.powi(-11), 2_f32.powi(-25)), ("bf16", 2_f32.powi(-8), 0.0)]
    {
        let trace = capture(&world, &format!("--dtype {dtype}"));
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
fn other_commands_read_a_captured_trace() {
    let world = World::new();
    capture(&world, "");
    let shown = world.succeed("trace trace.safetensors");
    let model = "model   Llama, 3 layers, hidden size 128, 4 query heads, 2 KV heads, head dim 64, \
                 2626 tokens";
    assert!(shown.lines().any(|line| line == model), "{shown}");
    assert!(shown.lines().any(|line| line == "source  context.txt"), "{shown}");
    let rows = shown.lines().filter(|line| {
        line.split_whitespace()
            .eq(["0", "4", "2", "64", "64", "400", "8", "(causal)", "24", "yes", "plain", "f16"])
    });
    assert_eq!(rows.count(), 1, "{shown}");
    world.succeed("compare dense.toml --trace trace.safetensors --json out.json");
    let errors = &world.json("out.json")["pipelines"][0]["output_error"];
    let error = |key: &str| errors[key].as_f64().unwrap();
    assert!(error("mean") < 1e-6 && error("max") < 1e-5, "dense is exact: {errors}");
}

/// Returns the tokens that each row reads.
fn sets(selection: &Selection) -> Vec<HashSet<usize>> {
    let row = |bounds: &[usize]| {
        selection.indices[bounds[0]..bounds[1]].iter().map(|&token| token as usize).collect()
    };
    selection.indptr.windows(2).map(row).collect()
}

/// Returns the tokens that `compare` read in layer 0 of the trace.
fn replayed(world: &World, pipeline: &str) -> Vec<HashSet<usize>> {
    world.succeed(&format!("compare {pipeline} --trace trace.safetensors --dump dump"));
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

/// Returns the tokens that a sequence read in layer 0 while the last tokens were decoded.
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

/// SnapKV keeps 40 tokens of the prompt, by the votes of its last queries, and all later tokens.
#[test]
fn a_trace_replays_decoding() {
    let world = World::new();
    let text = "[[selectors]]\ntype = \"snapkv\"\nsize = 40\nwindow = 16\n";
    world.write("snapkv.toml", text);
    let pipeline = Loader::default().parse("snapkv.toml", text).unwrap();
    capture(&world, "--dtype f32 --layers 0");
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

/// FastGen keeps special tokens, punctuation and some others. Classes of tokens come from the trace
/// or from the tokenizer.
#[test]
fn a_trace_replays_decoding_by_classes() {
    let world = World::new();
    let text = "[[selectors]]\ntype = \"fastgen\"\nrecover = 0.5\nfrequent = 20\nlocal = 20\n";
    world.write("fastgen.toml", text);
    let pipeline = Loader::default().parse("fastgen.toml", text).unwrap();
    let trace = capture(&world, "--dtype f32 --layers 0");
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
fn bad_input_is_refused() {
    let world = World::new();
    world.write("long.txt", "The grass is green. ".repeat(4000));
    world.write("empty.txt", "");
    let usual = "--text context.txt -o trace.safetensors";
    let together = "expected together at most the";
    for (options, expected) in [
        (format!("{usual} --layers 0,3"), "models/recall has no layer 3; it has 0 to 2"),
        (format!("{usual} --layers 1,1"), "--layers: names layer 1 twice; expected different"),
        (format!("{usual} --queries 0"), "--queries: 0; expected at least 1"),
        (format!("{usual} --tokens 99999"), "--tokens: 99999; expected at most the "),
        (
            format!("{usual} --tokens 95"),
            &format!("--queries: 32, and --prompt-queries: 64; {together} 95 tokens"),
        ),
        (format!("{usual} --tokens 0"), &format!("{together} 0 tokens that are captured")),
        (format!("{usual} --tokens 400 --chunk 0"), "--chunk: 0; expected at least 1"),
        (
            format!("{usual} --tokens 400 --chunk 130"),
            &format!("{together} 10 tokens of the last chunk"),
        ),
        (
            format!("{usual} --tokens 95 --chunk 130"),
            &format!("{together} 95 tokens of the last chunk"),
        ),
        (
            "--text long.txt -o trace".into(),
            "`max_position_embeddings` = 16384; --tokens N takes the first N of the text, --chunk",
        ),
        ("--text empty.txt -o trace".into(), "--text empty.txt: empty; expected a text"),
        ("--text none.txt -o trace".into(), "--text none.txt: No such file"),
        (
            "--text context.txt -o context.txt".into(),
            "--output context.txt: expected another file than an input",
        ),
        ("--text context.txt -o no/such/trace".into(), "no/such/trace"),
    ] {
        world.refuse(&format!("capture --model {} {options}", recall().display()), expected);
    }
    let nowhere = "--model nowhere: no such file or folder; expected a folder";
    world.refuse(&format!("capture --model nowhere {usual}"), nowhere);
}
