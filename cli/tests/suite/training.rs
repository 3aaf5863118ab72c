//! `vattention calibrate`, `train-hash` and `train-hata`.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::world::{World, expect_code};
use safetensors::SafeTensors;

/// Returns a folder with two small synthetic traces, of two and three layers.
fn world() -> World {
    let world = World::empty();
    synth(&world, "trace", 2, 16);
    synth(&world, "other", 3, 16);
    world
}

fn synth(world: &World, name: &str, layers: usize, prompt: usize) {
    let size = "--tokens 512 --query-heads 4 --kv-heads 2 --head-dim 8 --queries 40";
    world.succeed(&format!(
        "synth --kind sharp {size} --prompt-queries {prompt} --layers {layers} -o {name}"
    ));
}

#[test]
fn channels_are_written_for_every_layer_and_head() {
    let world = world();
    let said = world.succeed("calibrate double-sparsity --trace trace trace -o channels.json");
    let expected = "wrote channels.json\n`qk_proj`, which `by = \"qk\"` reads, is measured on 32 \
                    pairs of a prompt query";
    assert!(said.starts_with(expected), "16 in each trace: {said}");
    let channels = world.json("channels.json");
    assert_eq!(channels.as_object().unwrap().len(), 2 * 3 * 2);
    let heads = |key: &str| channels[key].as_array().unwrap().len();
    assert_eq!(heads("model.layers.1.self_attn.qk_proj"), 4);
    assert_eq!(heads("model.layers.1.self_attn.qk_proj_group"), 2);
    synth(&world, "plain", 1, 0);
    let said = world.succeed("calibrate double-sparsity --trace plain -o plain.json");
    assert!(
        said.contains("no prompt queries") && said.contains("`--prompt-queries 512`"),
        "{said}"
    );
}

#[test]
fn bases_are_written_for_every_layer_and_head() {
    let world = world();
    assert_eq!(world.succeed("calibrate loki --trace trace -o basis"), "wrote basis\n");
    let bytes = std::fs::read(world.path("basis")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("layers.1.basis").unwrap().shape(), [2, 8, 8]);
    assert_eq!(tensors.tensor("layers.1.variance").unwrap().shape(), [2, 8]);
}

#[test]
fn pipelines_read_calibrated_gates() {
    let world = world();
    assert_eq!(world.succeed("calibrate duo-attention --trace trace -o gates"), "wrote gates\n");
    let text = std::fs::read_to_string(world.path("gates")).unwrap();
    assert_eq!((text.lines().count(), text.split_whitespace().count()), (2, 4), "{text}");
    let pipeline = "[[selectors]]\ntype = \"duo-attention\"\ngates = \"gates\"\n\
                    of = { type = \"oracle-top-k\", size = 0.1 }\n";
    world.write("pipeline.toml", pipeline);
    world.succeed("compare pipeline.toml --trace trace");
    world.write("gates", "0.5\t0.5\n");
    world.refuse("compare pipeline.toml --trace trace", "expected one for layer 1");
    world.write("gates", "0.5\tmuch\n");
    world.refuse("compare pipeline.toml --trace trace", "line 1 has `much`");
}

#[test]
fn pipelines_read_trained_maps() {
    let world = world();
    let line = "train-hash --trace trace -o weights --bits 16 --hidden 12 --steps 20 --top 8";
    let said = world.succeed(line);
    assert!(said.starts_with("wrote weights\n\nrecall of the best 8 keys, by picks"), "{said}");
    assert_eq!(said.lines().count(), 6, "a header and two layers: {said}");
    assert_eq!(world.files(), ["other", "trace", "weights"], "no checkpoint is left");
    let bytes = std::fs::read(world.path("weights")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("layers.1.key.1.weight").unwrap().shape(), [4, 12, 16]);
    let pipeline = "[[selectors]]\ntype = \"hash-attention\"\nsize = 0.1\nweights = \"weights\"\n";
    world.write("pipeline.toml", pipeline);
    world.succeed("compare pipeline.toml --trace trace");
    world.succeed(&line.replace("weights", "again"));
    assert_eq!(std::fs::read(world.path("again")).unwrap(), bytes, "equal seeds, equal weights");
    world.succeed(&line.replace("weights", "seeded --seed 1"));
    assert_ne!(std::fs::read(world.path("seeded")).unwrap(), bytes);
    synth(&world, "unseen", 2, 0);
    let said = world.succeed(&line.replace("weights", "held --held-out unseen"));
    assert!(said.starts_with("wrote held"), "{said}");
}

#[test]
fn pipelines_read_trained_matrices() {
    let world = world();
    let line = "train-hata --trace trace -o weights --bits 16 --steps 20";
    let said = world.succeed(line);
    assert!(said.starts_with("wrote weights\n\nrecall of the best 32 keys, by picks"), "{said}");
    assert_eq!(said.lines().count(), 6, "a header and two layers: {said}");
    let bytes = std::fs::read(world.path("weights")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: &str| tensors.tensor(name).unwrap();
    assert_eq!(tensor("layers.1.key.0.weight").shape(), [2, 8, 16]);
    assert_eq!(tensor("layers.1.query.0.weight").data(), tensor("layers.1.key.0.weight").data());
    let pipeline = "[[selectors]]\ntype = \"hash-attention\"\nsize = 0.1\nweights = \"weights\"\n\
                    codes = \"group\"\nscore = \"group\"\n";
    world.write("pipeline.toml", pipeline);
    world.succeed("compare pipeline.toml --trace trace");
    world.refuse(&line.replace("16", "0"), "--bits");
    world.refuse(&line.replace("20", "0"), "--steps: 0; expected at least 1");
}

#[test]
fn bad_traces_are_refused_and_no_file_is_written() {
    let world = world();
    world.write("text", "no trace");
    let calibrate = ["double-sparsity", "loki", "duo-attention"];
    let calibrate = calibrate.map(|selector| format!("calibrate {selector}"));
    for command in calibrate.into_iter().chain(["train-hash", "train-hata"].map(str::to_owned)) {
        for (files, expected) in [
            ("text -o out", "text: not a whole safetensors"),
            ("none -o out", "none: No such file"),
            ("trace other -o out", "other: has layers [0, 1, 2]; expected [0, 1] as trace has"),
            ("trace -o no/out", "no/out: No such file"),
            ("trace -o trace", "--output trace: expected another file than an input"),
        ] {
            world.refuse(&format!("{command} --trace {files}"), expected);
        }
    }
}

#[test]
fn settings_that_cannot_train_are_refused() {
    let world = world();
    for (options, expected) in [
        ("--steps 0", "--steps: 0; expected at least 1"),
        ("--hidden 8,0", "--hidden: 0; expected at least 1"),
        // Sizes beyond any memory, and beyond the range of the types.
        ("--hidden 8,9000", "--hidden: 9000; expected at most 2048"),
        ("--hidden 18446744073709551615", "expected at most 2048"),
        ("--steps 18446744073709551615", "expected at most 2147483647"),
        ("--positive-weight 1e300", "--positive-weight: 1e300; expected above 0 and at most"),
        ("--learning-rate 0", "--learning-rate: 0.0; expected above 0"),
        ("--positive-weight NaN", "--positive-weight: NaN; expected above 0"),
        ("--bits 129", "must be a whole number from 1 to 128, got 129"),
        ("--held-out ./trace", "--held-out ./trace: expected another file than those"),
        ("--held-out other", "other: has layers [0, 1, 2]"),
        ("--resume", "--resume: there is no out.checkpoint to continue from"),
        ("--learning-rate 1e38 --steps 9", "--learning-rate: the loss became"),
    ] {
        world.refuse(&format!("train-hash --trace trace -o out {options}"), expected);
    }
}

/// A run that was interrupted after its first checkpoint can continue only with equal settings.
#[test]
fn an_interrupted_run_continues_with_equal_settings() {
    let world = world();
    let line = "train-hash --trace trace -o out --steps 1000000";
    let mut command = world.command(line);
    let mut training = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !world.path("out.checkpoint").exists() {
        assert_eq!(training.try_wait().unwrap(), None, "the training ended by itself");
        std::thread::sleep(Duration::from_millis(50));
    }
    let interrupt = Command::new("kill").args(["-INT", &training.id().to_string()]).status();
    assert!(interrupt.unwrap().success());
    let output = training.wait_with_output().unwrap();
    let said = expect_code(&output, 130);
    assert!(said.contains("note: interrupted; --resume continues"), "{said}");
    assert_eq!(world.files(), ["other", "out.checkpoint", "trace"], "no partial file is left");
    world.refuse(line, "out.checkpoint: left by an interrupted run");
    let short = "train-hash --trace trace -o out --resume --steps 300";
    world.refuse(short, "out.checkpoint: was made with steps = 1000000; expected 300 to continue");
    world.write("out.checkpoint", "damaged");
    world.refuse(short, "out.checkpoint: not a whole checkpoint");
}
