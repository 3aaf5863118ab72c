//! `calibrate` and `train-hash`, run as a user runs them.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::world::said;
use safetensors::SafeTensors;
use serde_json::Value;

/// A folder with a small synthetic trace of two layers, and one of three.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap() };
        world.synth("trace", 2, 16);
        world.synth("other", 3, 16);
        world
    }

    fn synth(&self, name: &str, layers: usize, prompt: usize) {
        let command = format!(
            "synth --kind sharp --tokens 512 --query-heads 4 --kv-heads 2 --head-dim 8 --queries 40 \
             --prompt-queries {prompt} --layers {layers} -o {name}"
        );
        self.succeed(&command);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vattention"));
        command.args(line.split_whitespace()).current_dir(self.folder.path());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    #[track_caller]
    fn succeed(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), ""), "{line}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The exit code must be 2, with `expected` in the message, and the folder as it was.
    #[track_caller]
    fn refuse(&self, line: &str, expected: &str) {
        let before = self.files();
        let output = self.run(line);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(output.stdout.is_empty() && said.contains(expected), "{line}: {said}");
        assert_eq!(self.files(), before, "{line}");
    }

    /// The names of the files.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn channels_are_written_for_every_layer_and_head() {
    let world = World::new();
    let said = world.succeed("calibrate double-sparsity --trace trace trace -o channels.json");
    let of_pairs =
        "wrote channels.json\n`qk_proj`, which `by = \"qk\"` reads, is of 32 pairs of a query and";
    assert!(said.starts_with(of_pairs), "16 in each trace: {said}");
    let text = std::fs::read_to_string(world.path("channels.json")).unwrap();
    let channels: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(channels.as_object().unwrap().len(), 2 * 3 * 2);
    let heads = |key: &str| channels[key].as_array().unwrap().len();
    assert_eq!(heads("model.layers.1.self_attn.qk_proj"), 4);
    assert_eq!(heads("model.layers.1.self_attn.qk_proj_group"), 2);
    world.synth("plain", 1, 0);
    let said = world.succeed("calibrate double-sparsity --trace plain -o plain.json");
    assert!(
        said.contains("no prompt queries") && said.contains("`--prompt-queries 512`"),
        "{said}"
    );
}

#[test]
fn bases_are_written_for_every_layer_and_head() {
    let world = World::new();
    assert_eq!(world.succeed("calibrate loki --trace trace -o basis"), "wrote basis\n");
    let bytes = std::fs::read(world.path("basis")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("layers.1.basis").unwrap().shape(), [2, 8, 8]);
    assert_eq!(tensors.tensor("layers.1.variance").unwrap().shape(), [2, 8]);
}

#[test]
fn gates_are_what_a_pipeline_reads() {
    let world = World::new();
    assert_eq!(world.succeed("calibrate duo-attention --trace trace -o gates"), "wrote gates\n");
    let text = std::fs::read_to_string(world.path("gates")).unwrap();
    assert_eq!((text.lines().count(), text.split_whitespace().count()), (2, 4), "{text}");
    let pipeline = "[[selectors]]\ntype = \"duo-attention\"\ngates = \"gates\"\n\
                    of = { type = \"oracle-top-k\", size = 0.1 }\n";
    std::fs::write(world.path("pipeline.toml"), pipeline).unwrap();
    world.succeed("compare pipeline.toml --trace trace");
    std::fs::write(world.path("gates"), "0.5\t0.5\n").unwrap();
    world.refuse("compare pipeline.toml --trace trace", "expected one for layer 1");
    std::fs::write(world.path("gates"), "0.5\tmuch\n").unwrap();
    world.refuse("compare pipeline.toml --trace trace", "line 1 has `much`");
}

#[test]
fn trained_maps_are_what_a_pipeline_reads() {
    let world = World::new();
    let line = "train-hash --trace trace -o weights --bits 16 --hidden 12 --steps 20 --top 8";
    let said = world.succeed(line);
    assert!(said.starts_with("wrote weights\n\nrecall of the best 8 in a sixteenth"), "{said}");
    assert_eq!(said.lines().count(), 6, "a header and two layers: {said}");
    assert_eq!(world.files(), ["other", "trace", "weights"], "no checkpoint is left");
    let bytes = std::fs::read(world.path("weights")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("layers.1.key.1.weight").unwrap().shape(), [4, 12, 16]);
    let pipeline = "[[selectors]]\ntype = \"hash-attention\"\nsize = 0.1\nweights = \"weights\"\n";
    std::fs::write(world.path("pipeline.toml"), pipeline).unwrap();
    world.succeed("compare pipeline.toml --trace trace");
    world.succeed(&line.replace("weights", "again"));
    assert_eq!(std::fs::read(world.path("again")).unwrap(), bytes, "equal seeds, equal weights");
    world.succeed(&line.replace("weights", "seeded --seed 1"));
    assert_ne!(std::fs::read(world.path("seeded")).unwrap(), bytes);
    world.synth("unseen", 2, 0);
    let said = world.succeed(&line.replace("weights", "held --held-out unseen"));
    assert!(said.starts_with("wrote held"), "{said}");
}

#[test]
fn matrices_are_what_a_pipeline_reads() {
    let world = World::new();
    let line = "train-hata --trace trace -o weights --bits 16 --steps 20";
    let said = world.succeed(line);
    assert!(said.starts_with("wrote weights\n\nrecall of the best 32 in a sixteenth"), "{said}");
    assert_eq!(said.lines().count(), 6, "a header and two layers: {said}");
    let bytes = std::fs::read(world.path("weights")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: &str| tensors.tensor(name).unwrap();
    assert_eq!(tensor("layers.1.key.0.weight").shape(), [2, 8, 16]);
    assert_eq!(tensor("layers.1.query.0.weight").data(), tensor("layers.1.key.0.weight").data());
    let pipeline = "[[selectors]]\ntype = \"hash-attention\"\nsize = 0.1\nweights = \"weights\"\n\
                    codes = \"group\"\nscore = \"group\"\n";
    std::fs::write(world.path("pipeline.toml"), pipeline).unwrap();
    world.succeed("compare pipeline.toml --trace trace");
    world.refuse(&line.replace("16", "0"), "--bits");
    world.refuse(&line.replace("20", "0"), "--steps: 0; expected at least 1");
}

#[test]
fn what_cannot_be_learnt_from_is_refused_and_leaves_nothing() {
    let world = World::new();
    std::fs::write(world.path("text"), "no trace").unwrap();
    for command in [
        "calibrate double-sparsity",
        "calibrate loki",
        "calibrate duo-attention",
        "train-hash",
        "train-hata",
    ] {
        world.refuse(&format!("{command} --trace text -o out"), "text: not a whole safetensors");
        world.refuse(&format!("{command} --trace none -o out"), "none: No such file");
        let other = "other: has layers [0, 1, 2]; expected [0, 1] as trace has";
        world.refuse(&format!("{command} --trace trace other -o out"), other);
        world.refuse(&format!("{command} --trace trace -o no/out"), "no/out: No such file");
        let same = "--output trace: expected another file than an input";
        world.refuse(&format!("{command} --trace trace -o trace"), same);
    }
}

#[test]
fn settings_that_cannot_train_are_refused() {
    let world = World::new();
    let refuse = |options: &str, expected: &str| {
        world.refuse(&format!("train-hash --trace trace -o out {options}"), expected);
    };
    refuse("--steps 0", "--steps: 0; expected at least 1");
    refuse("--hidden 8,0", "--hidden: 0; expected at least 1");
    // More than any memory holds, or can be counted.
    refuse("--hidden 8,9000", "--hidden: 9000; expected at most 2048");
    refuse("--hidden 18446744073709551615", "expected at most 2048");
    refuse("--steps 18446744073709551615", "expected at most 2147483647");
    refuse("--positive-weight 1e300", "--positive-weight: 1e300; expected above 0 and at most");
    refuse("--learning-rate 0", "--learning-rate: 0.0; expected above 0");
    refuse("--positive-weight NaN", "--positive-weight: NaN; expected above 0");
    refuse("--bits 129", "must be a whole number from 1 to 128, got 129");
    refuse("--held-out ./trace", "--held-out ./trace: expected another file than those");
    refuse("--held-out other", "other: has layers [0, 1, 2]");
    refuse("--resume", "--resume: there is no out.checkpoint to go on from");
    refuse("--learning-rate 1e38 --steps 9", "--learning-rate: the loss became");
}

/// Interrupted after its first checkpoint, a training goes on from there, and only with the same
/// settings.
#[test]
fn an_interrupted_training_goes_on() {
    let world = World::new();
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
    assert_eq!(output.status.code(), Some(130));
    assert!(said(&output).contains("note: interrupted; --resume continues"), "{}", said(&output));
    assert_eq!(world.files(), ["other", "out.checkpoint", "trace"], "nothing half written");
    world.refuse(line, "out.checkpoint: left by an interrupted training");
    let short = "train-hash --trace trace -o out --resume --steps 300";
    world.refuse(short, "out.checkpoint: was made with steps = 1000000; expected 300 to go on");
    std::fs::write(world.path("out.checkpoint"), "damaged").unwrap();
    world.refuse(short, "out.checkpoint: not a whole checkpoint");
}
