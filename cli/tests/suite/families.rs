//! Commands on tiny models of other families, some of whose layers slide.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use vattention::trace::Trace;

use crate::world::World;

/// Writes a checkpoint of the tests of the runtime to `model`, with a tokenizer whose tokens are
/// ASCII characters, and a text of 400 tokens.
fn world(name: &str) -> World {
    let world = World::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/llm/tests/golden");
    fs::create_dir(world.path("model")).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        let to = world.path("model").join(file);
        fs::copy(golden.join(name).join(file), to).unwrap();
    }
    let character = |code: u8| (char::from(code).to_string(), json!(code));
    let vocab: Map<String, Value> = (0..128).map(character).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    fs::write(world.path("model/tokenizer.json"), tokenizer.to_string()).unwrap();
    let text: String = "The quick brown fox; it jumps over 2 lazy dogs. ".repeat(9);
    world.write("text.txt", &text[..400]);
    world
}

#[test]
fn generate_names_the_layers_that_slide() {
    for (name, kind, windows) in [
        ("gemma2", "window", json!([16, null, 16, null])),
        ("gemma3-multimodal", "window", json!([12, null, 12])),
        ("gpt-oss-mxfp4", "window", json!([8, null])),
        ("llama4", "chunk", json!([16, 16, 16, null, 16])),
        ("mistral-window", "window", json!([16, 16])),
        ("smollm3", "window", json!([null, null, null, null, null])),
    ] {
        let world = world(name);
        let input = "--model model --context text.txt --question What? --tokens 20 --ignore-eos";
        let said =
            world.succeed(&format!("generate {input} --pipeline promised.toml --json out.json"));
        let report = world.json("out.json");
        let layers = report["layers"].as_array().unwrap();
        let found: Vec<&Value> = layers.iter().map(|layer| &layer["window"]["size"]).collect();
        assert_eq!(json!(found), windows, "{name}");
        for window in layers.iter().map(|layer| &layer["window"]).filter(|it| !it.is_null()) {
            assert_eq!(window["aligned"], json!(kind == "chunk"), "{name}");
        }
        let full: Vec<f64> = layers
            .iter()
            .filter(|layer| layer["window"].is_null())
            .map(|layer| layer["density"].as_f64().unwrap())
            .collect();
        let mean = full.iter().sum::<f64>() / full.len().max(1) as f64;
        let mean = if full.is_empty() { 1.0 } else { mean };
        assert!((report["density"].as_f64().unwrap() - mean).abs() < 1e-12, "{name}");
        for (layer, window) in windows.as_array().unwrap().iter().enumerate() {
            let shown = format!("{layer} ({kind} {window})");
            assert_eq!(said.contains(&shown), !window.is_null(), "{name}: {said}");
        }
    }
}

#[test]
fn steps_are_compared_in_full_layers() {
    let world = world("gemma2");
    let input = "--model model --context text.txt --question What? --tokens 5 --ignore-eos";
    world.succeed(&format!("generate {input} --pipeline promised.toml --steps steps.json"));
    let steps = world.json("steps.json");
    let step = &steps["steps"][3];
    assert!(step["error"][0].is_null() && step["error"][1].is_number(), "{step}");
    assert_eq!(step["density"][0], json!(1.0));
}

#[test]
fn perplexities_of_families_are_those_of_dense_attention() {
    for name in ["gemma3", "gpt-oss", "phi3-window"] {
        let world = world(name);
        let input = "--model model --text text.txt --window 200 --text-tokens 400";
        world.succeed(&format!("perplexity {input} --pipeline dense.toml --json out.json"));
        let report = world.json("out.json");
        assert_eq!(report["pipelines"][0]["kl_divergence"], json!(0.0), "{name}");
        assert_eq!(report["pipelines"][0]["density"], json!(1.0), "{name}");
    }
}

#[test]
fn traces_have_full_layers_with_caps_and_sinks() {
    for (name, cap, sinks, local) in [
        ("gemma2", Some(3.0), false, "slides over 16 tokens"),
        ("gpt-oss", None, true, "slides over 8 tokens"),
    ] {
        let world = world(name);
        let input = "--model model --text text.txt --queries 8 --prompt-queries 24 --dtype f32";
        world.succeed(&format!("capture {input} -o trace.safetensors"));
        let trace = Trace::open(&world.path("trace.safetensors")).unwrap();
        let layers: Vec<usize> = trace.layers().map(|(number, _)| number).collect();
        assert_eq!(layers, [1, 3], "{name}");
        let layer = trace.layer(3).unwrap().unwrap();
        assert_eq!((layer.soft_cap, layer.sink_logits.is_some()), (cap, sinks), "{name}");
        let refused = format!("capture {input} --layers 0 -o trace.safetensors");
        world.refuse(&refused, &format!("layer 0 of model {local}"));
    }
}
