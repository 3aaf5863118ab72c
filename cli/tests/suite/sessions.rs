//! `generate --save-session` and `--session`: a document is read once.

use std::path::PathBuf;

use crate::world::{QUESTION, World, config, expect_code, recall, root};
use serde_json::{Value, json};

const OTHER: &str = "What is the special magic number for amber_anchor mentioned in the provided";

/// Options with their values; later ones replace earlier ones.
type Pairs<'a> = [(&'a str, &'a str)];

/// Returns arguments of `generate` on `models/recall`.
fn args(pairs: &Pairs<'_>) -> Vec<String> {
    let model = recall().display().to_string();
    let mut all = vec![("--model", model.as_str()), ("--question", QUESTION)];
    for &(option, value) in pairs {
        all.retain(|(other, _)| *other != option);
        all.push((option, value));
    }
    let words = all.into_iter().flat_map(|(option, value)| [option, value]);
    ["generate", "--quiet"].into_iter().chain(words).map(str::to_owned).collect()
}

/// Runs `generate`, and returns the answer and the JSON.
#[track_caller]
fn generate(world: &World, pairs: &Pairs<'_>) -> (String, Value) {
    let output = world.run(&args(&[pairs, &[("--json", "out.json")]].concat()));
    assert_eq!(expect_code(&output, 0), "", "{pairs:?}");
    (String::from_utf8(output.stdout).unwrap(), world.json("out.json"))
}

/// Results of a generation that do not depend on the machine's speed.
fn results(report: &Value) -> Value {
    let keys = ["answer", "stop", "tokens", "prefill_density", "density", "layers", "memory"];
    keys.iter().map(|&key| report[key].clone()).collect()
}

/// Shipped pipelines without weights and layers of another model.
fn shipped() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root("configs")).unwrap().map(|entry| entry.unwrap().path());
    let fits = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "toml")
            && !std::fs::read_to_string(path).unwrap().contains("../weights/")
            && !path.ends_with("pyramid-kv.toml")
    };
    let mut files: Vec<PathBuf> = files.filter(fits).collect();
    files.sort();
    assert!(files.len() > 40, "{files:?}");
    files
}

/// Every shipped pipeline continues from a session that the dense pipeline has saved. The tokens
/// read, their error bars and the text are those of a run that reads the document itself.
#[test]
fn every_shipped_pipeline_continues_with_the_same_results() {
    let world = World::new();
    let storages = ["f32", "f16", "bf16", "q8"];
    for dtype in storages {
        let read = [("--pipeline", "dense.toml"), ("--context", "context.txt")];
        generate(&world, &[&read[..], &[("--dtype", dtype), ("--save-session", dtype)]].concat());
    }
    let sizes = storages.map(|name| std::fs::metadata(world.path(name)).unwrap().len());
    assert!(sizes[1].abs_diff(sizes[2]) < 64 && sizes[0] > sizes[1] * 18 / 10, "{sizes:?}");
    assert!(sizes[1] > sizes[3] * 15 / 10, "{sizes:?}");
    for (i, path) in shipped().iter().enumerate() {
        let dtype = storages[i % 4];
        // In q8, a dense session has rotated rows; one in f32 serves pipelines that rotate none.
        let rotates = vattention::config::load(path).unwrap().is_rotation_invariant();
        let session = if dtype == "q8" && !rotates { "f32" } else { dtype };
        let both = [("--pipeline", path.to_str().unwrap()), ("--dtype", dtype), ("--tokens", "4")];
        let (expected, fresh) =
            generate(&world, &[&both[..], &[("--context", "context.txt")]].concat());
        let (answer, restored) = generate(&world, &[&both[..], &[("--session", session)]].concat());
        assert_eq!(answer, expected, "{both:?}");
        assert_eq!(results(&restored), results(&fresh), "{both:?}");
    }
}

#[test]
fn a_document_is_read_once_for_several_questions() {
    let world = World::new();
    let priority = config("priority");
    let read = [("--pipeline", priority.as_str()), ("--context", "context.txt")];
    let (said, _) = generate(&world, &[&read[..], &[("--save-session", "a.session")]].concat());
    assert_eq!(said, "2998500\n");
    let saved = std::fs::read(world.path("a.session")).unwrap();
    let session = [("--pipeline", priority.as_str()), ("--session", "a.session")];
    let restore = |more: &Pairs<'_>| generate(&world, &[&session[..], more].concat());
    let (said, report) = restore(&[]);
    assert_eq!(said, "2998500\n");
    assert!(report["run"]["inputs"].as_object().unwrap().contains_key("a.session"));
    // Another question, a sequence in fewer bits, and other samples.
    for more in [("--question", OTHER), ("--dtype", "bf16"), ("--sequence", "3")] {
        let (expected, fresh) = generate(&world, &[&read[..], &[more]].concat());
        let (answer, restored) = restore(&[more]);
        assert_eq!((answer, results(&restored)), (expected, results(&fresh)), "{more:?}");
    }
    assert_eq!(restore(&[("--context", "context.txt")]).0, said, "the context given once more");
    // A longer context is read after the saved one.
    let text = std::fs::read_to_string(world.path("context.txt")).unwrap();
    world.write("longer.txt", format!("{text} {text}"));
    let longer = ("--context", "longer.txt");
    let (expected, fresh) = generate(&world, &[read[0], longer]);
    let (answer, restored) = restore(&[longer, ("--save-session", "longer.session")]);
    assert_eq!((answer, results(&restored)), (expected, results(&fresh)));
    let (_, restored) = restore(&[("--session", "longer.session")]);
    assert_eq!(results(&restored), results(&fresh));
    // A session that was read from a file can be saved again.
    restore(&[("--save-session", "again.session")]);
    assert!(std::fs::read(world.path("again.session")).unwrap() == saved);
    let (_, report) = restore(&[("--steps", "steps.json")]);
    assert_eq!(report["beside"]["same"], report["beside"]["compared"]);
    assert!(std::fs::read(world.path("a.session")).unwrap() == saved, "it is only read");
}

#[test]
fn sessions_that_do_not_fit_are_refused() {
    let world = World::new();
    let both = [("--pipeline", "dense.toml"), ("--dtype", "bf16")];
    let read = [("--context", "context.txt"), ("--save-session", "a.session")];
    generate(&world, &[&both[..], &read].concat());
    let text = std::fs::read_to_string(world.path("context.txt")).unwrap();
    world.write("other.txt", text.replacen("grass", "sky", 1));
    world.write("longer.txt", format!("{text} {text}"));
    world.write("sampled.toml", "strategy = \"sample-attention\"\n");
    world.copy_model(&recall(), "other", json!({"rms_norm_eps": 0.001}));
    let mut bytes = std::fs::read(world.path("a.session")).unwrap();
    let middle = bytes.len() / 2;
    world.write("cut.session", &bytes[..middle]);
    bytes[middle] ^= 4;
    world.write("flipped.session", &bytes);
    for (change, expected) in [
        (("--dtype", "f32"), "a.session: keys and values are saved in bf16; expected f32"),
        (("--prefill", "sampled.toml"), "the prompt was read by dense attention in blocks"),
        (("--model", "other"), "a.session: saved with another model (digest "),
        (("--context", "other.txt"), "a.session: saved with another text: token "),
        (("--context", "longer.txt"), "tokens cannot be read densely: saved in bf16; expected f32"),
        (("--prompt", "A special magic"), "tokens; expected the 4 of the prompt"),
        (("--save-session", "a.session"), "expected another file than an input"),
        (("--save-session", "none/a.session"), "none/a.session"),
        (("--session", "dense.toml"), "dense.toml: not a saved session: "),
        (("--session", "none.session"), "none.session: No such file"),
        (("--session", "flipped.session"), "the file was changed or damaged"),
        (("--session", "cut.session"), "cut.session: its tensors end at byte "),
    ] {
        let session = [("--session", "a.session"), change];
        world.refuse(&args(&[&both[..], &session].concat()), expected);
    }
    world.refuse(&args(&both), "--context");
}
