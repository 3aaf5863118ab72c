//! `vattention generate` on the model of `models/recall`.

use crate::world::{PROMISED, QUESTION, World, expect_code, llama3, read_stderr, recall};
use serde_json::{Value, json};

/// Returns valid arguments. `changes` replaces options, adds them, or removes them (`""`).
fn args(changes: &[(&str, &str)]) -> Vec<String> {
    let model = recall().display().to_string();
    let mut all = vec![
        ("--model", model.as_str()),
        ("--pipeline", "promised.toml"),
        ("--context", "context.txt"),
        ("--question", QUESTION),
    ];
    for &(option, value) in changes {
        all.retain(|(other, _)| *other != option);
        all.push((option, value));
    }
    let words = all.into_iter().filter(|(_, value)| !value.is_empty());
    let words = words.flat_map(|(option, value)| [option.to_owned(), value.to_owned()]);
    std::iter::once("generate".to_owned()).chain(words).collect()
}

/// Runs `generate`, and returns its output and the JSON.
#[track_caller]
fn generate(world: &World, changes: &[(&str, &str)]) -> (String, Value) {
    let said = world.succeed(&args(&[changes, &[("--json", "out.json")]].concat()));
    (said, world.json("out.json"))
}

#[track_caller]
fn refuse(world: &World, changes: &[(&str, &str)], expected: &str) {
    world.refuse(&args(changes), expected);
}

fn numbers(report: &Value, key: &str) -> Vec<f64> {
    report["layers"].as_array().unwrap().iter().map(|layer| layer[key].as_f64().unwrap()).collect()
}

#[test]
fn both_setups_answer_and_report_what_they_read() {
    let world = World::new();
    for (setup, letter, steps) in
        [("dense-prompt", "a", 1), ("sparse-question", "b", 27), ("a", "a", 1), ("b", "b", 27)]
    {
        let (said, report) = generate(&world, &[("--setup", setup)]);
        assert!(said.starts_with("2998500\n\n"), "{said}");
        assert_eq!((&report["answer"], &report["stop"]), (&json!("2998500"), &json!("end")));
        assert_eq!(report["setup"], letter);
        let parts = match letter {
            "a" => "setup dense-prompt: context and question read densely; answer",
            _ => "setup sparse-question: context read densely; question and answer",
        };
        assert!(said.contains(&format!("{parts} with the pipeline `promised`")), "{said}");
        let tokens = report["tokens"]["context"].as_u64().unwrap();
        assert!((1800..2200).contains(&tokens), "{tokens}");
        assert_eq!(report["tokens"], json!({"context": tokens, "question": 26, "answer": 1}));
        assert_eq!(report["steps"]["count"], steps, "the last one finds that the text ends");
        let density = numbers(&report, "density");
        assert_eq!(density.len(), 3);
        assert!(density.iter().all(|&density| density > 0.05 && density < 0.6), "{density:?}");
        let mean = density.iter().sum::<f64>() / 3.0;
        assert!((report["density"].as_f64().unwrap() - mean).abs() < 1e-12);
        assert!(numbers(&report, "sampled").iter().all(|n| (32.0..1000.0).contains(n)));
        assert!(numbers(&report, "held").iter().all(|held| (0.5..=1.0).contains(held)));
        let shown = format!("{:.1} %", 100.0 * density[1]);
        assert!(said.lines().any(|line| line.contains(&shown)), "{said}");
        let bytes = (tokens + 27) * 3 * 2 * (64 + 64) * 4;
        let memory = json!({"weights": 1_855_488, "keys_values": bytes, "index": 0});
        assert_eq!(report["memory"], memory, "0.93 million weights, most in bf16");
    }
}

#[test]
fn times_cover_the_steps_with_the_pipeline() {
    let world = World::new();
    let begin = std::time::Instant::now();
    let (_, report) = generate(&world, &[]);
    let all = begin.elapsed().as_secs_f64();
    let steps = &report["steps"];
    let [prefill, median] = [&report["prefill_seconds"], &steps["median_seconds"]];
    let (prefill, median) = (prefill.as_f64().unwrap(), median.as_f64().unwrap());
    assert!(median > 0.0 && prefill > 0.0, "{report}");
    assert!(prefill + 14.0 * median < all, "half of 27 steps take the median or more: {report}");
    let share = |key: &str| steps[key].as_f64().unwrap();
    assert!(share("attention_share") > 0.0 && share("attention_share") < 1.0);
    let parts = ["select_share", "sample_share", "attend_share"].map(share);
    assert!(parts.iter().all(|&part| part > 0.0) && (parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
}

#[test]
fn a_prefill_strategy_reads_the_prompt() {
    let world = World::new();
    let (said, report) = generate(&world, &[]);
    assert_eq!(report["prefill_density"], 1.0);
    world.write("all.toml", "strategy = \"sample-attention\"\ncoverage = 1.0\n");
    let (all, everything) = generate(&world, &[("--prefill", "all.toml")]);
    assert!(all.contains("context read densely"), "{all}");
    assert_eq!(everything["density"], report["density"], "{said}");
    world.write("some.toml", "strategy = \"sample-attention\"\n");
    let (some, report) = generate(&world, &[("--prefill", "some.toml")]);
    let density = report["prefill_density"].as_f64().unwrap();
    assert!(density > 0.08 && density < 0.9, "{density}");
    let shown = format!("context read sparsely ({:.1} % of all pairs)", 100.0 * density);
    assert!(some.contains(&shown), "{some}");
    world.write("wrong.toml", "strategy = \"sample-attention\"\nalpha = 0.9\n");
    refuse(&world, &[("--prefill", "wrong.toml")], "unknown field `alpha`");
    refuse(&world, &[("--prefill", "none.toml")], "none.toml: No such file");
}

#[test]
fn dense_layers_read_all_tokens() {
    let world = World::new();
    let (said, report) = generate(&world, &[("--pipeline", "dense.toml")]);
    assert!(said.starts_with("2998500\n"), "{said}");
    assert_eq!(numbers(&report, "density"), [1.0; 3]);
    assert_eq!(numbers(&report, "sampled"), [0.0; 3]);
    assert!(report["layers"][0]["held"].is_null(), "there is no promise");

    world.write("first.toml", format!("dense_layers = [0]\n{PROMISED}"));
    let (said, report) = generate(&world, &[("--pipeline", "first.toml")]);
    let density = numbers(&report, "density");
    assert!(density[0] == 1.0 && density[1] < 0.6 && density[2] < 0.6, "{density:?}");
    let held = |layer: usize| &report["layers"][layer]["held"];
    assert!(held(0).is_null() && held(1).is_f64(), "a dense layer makes no promise");
    assert!(said.contains("100.0 %"), "{said}");
}

#[test]
fn a_pipeline_without_the_needle_does_not_find_the_answer() {
    let world = World::new();
    world.write("edges.toml", "[[selectors]]\ntype = \"sink\"\nsize = 16\n");
    let set = ("--pipeline", "edges.toml");
    let (said, report) = generate(&world, &[set, ("--tokens", "3")]);
    assert!(!said.contains("2998500"), "{said}");
    assert!(said.contains("with the pipeline `edges`"), "the name of the file: {said}");
    assert!(report["density"].as_f64().unwrap() < 0.05);
}

#[test]
fn a_note_explains_an_empty_answer_without_the_chat_template() {
    let world = World::new();
    // Every token ends the text.
    let all: Vec<u32> = (0..2626).collect();
    for name in ["plain", "in-config", "in-file"] {
        world.copy_model(&recall(), name, json!({"eos_token_id": all}));
    }
    let template = json!({"chat_template": "{{ bos_token }}"});
    world.write("in-config/tokenizer_config.json", template.to_string());
    world.write("in-file/chat_template.jinja", "{{ bos_token }}");
    let hint = |model: &str| {
        let args = [args(&[("--model", model)]), vec!["--quiet".into()]].concat();
        expect_code(&world.run(&args), 0)
    };
    assert_eq!(hint("plain"), "");
    for model in ["in-config", "in-file"] {
        assert!(hint(model).starts_with("note: the answer is empty. The model"), "{model}");
    }
    world.copy_model(&recall(), "answering", json!({}));
    world.write("answering/chat_template.jinja", "{{ bos_token }}");
    assert_eq!(hint("answering"), "");
}

#[test]
fn options_reach_the_sequence() {
    let world = World::new();
    let short = [("--context", ""), ("--prompt", "The grass is green. The sky is")];
    let (said, report) = generate(&world, &[&short[..], &[("--question", "")]].concat());
    assert!(said.contains("0 of question"), "{said}");
    assert_eq!(report["tokens"]["context"], 9, "<bos>, words and punctuation");
    let run = |changes: &[(&str, &str)]| generate(&world, changes).1;
    let first = run(&[]);
    let half = run(&[("--dtype", "bf16")]);
    let bytes = |report: &Value| report["memory"]["keys_values"].as_u64().unwrap();
    assert_eq!(bytes(&first), 2 * bytes(&half));
    assert_eq!(numbers(&first, "sampled"), numbers(&run(&[]), "sampled"));
    let other = run(&[("--sequence", "1")]);
    assert_ne!(numbers(&first, "sampled"), numbers(&other, "sampled"), "other samples");
    let looser = run(&[("--set", "estimator.epsilon=0.5")]);
    let sampled = |report: &Value| numbers(report, "sampled").iter().sum::<f64>();
    assert!(sampled(&looser) < sampled(&first));
}

#[test]
fn the_answer_ends_at_its_maximum_length() {
    let world = World::new();
    world.copy_model(&recall(), "endless", json!({"eos_token_id": null}));
    let (said, report) = generate(&world, &[("--model", "endless"), ("--tokens", "4")]);
    assert_eq!((&report["stop"], &report["tokens"]["answer"]), (&json!("length"), &json!(4)));
    assert_eq!(report["steps"]["count"], 26 + 3, "none after the last token");
    assert!(said.starts_with("2998500"), "{said}");
    let single = [("--model", "endless"), ("--tokens", "1"), ("--setup", "a")];
    let (said, report) = generate(&world, &single);
    assert!(
        report["steps"].is_null() && report["density"].is_null() && report["layers"] == json!([])
    );
    assert!(said.contains("no step with the pipeline"), "{said}");
}

#[test]
fn standard_output_has_only_the_answer_or_only_the_json() {
    let world = World::new();
    let report = "tokens: ";
    let loud = world.run(&args(&[]));
    let [stdout, stderr] = [&loud.stdout, &loud.stderr].map(|all| String::from_utf8_lossy(all));
    assert_eq!(stdout, "2998500\n");
    assert!(stderr.contains(report), "{stderr}");
    let quiet = world.run(&[args(&[]), vec!["--quiet".into()]].concat());
    assert_eq!(String::from_utf8_lossy(&quiet.stdout), "2998500\n");
    assert!(!String::from_utf8_lossy(&quiet.stderr).contains(report));
    let json = world.run(&args(&[("--json", "-")]));
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["answer"], "2998500");
    assert!(!world.path("-").exists());
    let run = &json["run"];
    assert_eq!(run["backend"], "cpu");
    assert_eq!(run["command"][0], "generate");
    assert!(run["vattention"].as_str().unwrap().starts_with(env!("CARGO_PKG_VERSION")));
    assert!(run["pipelines"][0]["toml"].as_str().unwrap().contains("oracle-top-k"));
    let inputs = run["inputs"].as_object().unwrap();
    for file in ["promised.toml", "context.txt", "config.json", "model.safetensors"] {
        let (_, digest) = inputs.iter().find(|(path, _)| path.ends_with(file)).unwrap();
        assert_eq!(digest.as_str().unwrap().len(), 32, "{file}");
    }
    assert!(run["machine"]["cores"].as_u64().unwrap() >= 1);
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_prints_the_report() {
    use std::io::Read;
    use std::process::{Command, Stdio};

    let world = World::new();
    world.copy_model(&recall(), "endless", json!({"eos_token_id": null}));
    let changes = [("--model", "endless"), ("--tokens", "13000"), ("--json", "out.json")];
    let mut command = world.command(&args(&changes));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = vec![0];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut said).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    out.read_to_end(&mut said).unwrap();
    let said = String::from_utf8(said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    let mut report = String::new();
    child.stderr.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(said.starts_with("2998500") && report.contains("of answer (interrupted)"), "{report}");
    let report = world.json("out.json");
    assert_eq!(report["stop"], "interrupted");
    let answer = report["tokens"]["answer"].as_u64().unwrap();
    assert!((1..13000).contains(&answer), "{answer}");
    assert_eq!(report["steps"]["count"], 26 + answer - 1);
}

#[test]
fn steps_are_compared_with_dense_attention() {
    let world = World::new();
    let steps = |pipeline: &str, file: &str| {
        let (said, report) = generate(&world, &[("--pipeline", pipeline), ("--steps", file)]);
        let written = world.json(file);
        assert_eq!(written["beside"], report["beside"]);
        let steps = written["steps"].as_array().unwrap().clone();
        assert_eq!(steps.len() as u64, report["steps"]["count"].as_u64().unwrap());
        for (number, step) in steps.iter().enumerate() {
            let first = report["tokens"]["context"].as_u64().unwrap() + 1;
            assert_eq!(step["tokens"], first + number as u64);
        }
        (said, report, steps)
    };
    let of_layers = |step: &Value, key: &str| -> Vec<Option<f64>> {
        step[key].as_array().unwrap().iter().map(Value::as_f64).collect()
    };

    let (said, report, dense) = steps("dense.toml", "dense.json");
    let answer = report["tokens"]["answer"].as_u64().unwrap() + 1;
    assert_eq!(report["beside"], json!({"compared": answer, "same": answer}), "and both end");
    assert!(said.contains("against dense attention: the same text"), "{said}");
    assert!(dense.iter().all(|step| of_layers(step, "error") == [Some(0.0); 3]));
    assert!(dense.iter().all(|step| of_layers(step, "bar") == [None; 3]));

    let (_, report, promised) = steps("promised.toml", "promised.json");
    for key in ["density", "bar"] {
        for (layer, mean) in numbers(&report, key).into_iter().enumerate() {
            let of_layer = promised.iter().map(|step| of_layers(step, key)[layer].unwrap());
            let sum: f64 = of_layer.sum();
            assert!((sum / promised.len() as f64 - mean).abs() < 1e-5, "{key} of {layer}: {sum}");
        }
    }
    let errors = || promised.iter().flat_map(|step| of_layers(step, "error"));
    assert!(errors().all(|error| (0.0..1.0).contains(&error.unwrap())));
    assert!(errors().any(|error| error.unwrap() > 0.0), "a sample has errors");
    let sum = |key: &str| -> f64 {
        promised.iter().flat_map(|step| of_layers(step, key)).map(Option::unwrap).sum()
    };
    let (rows, outside) = (sum("barred"), sum("outside"));
    assert!(rows > 0.0 && outside <= rows, "{outside} of {rows}");
    assert_eq!(report["bars"], json!({"rows": rows as u64, "outside": outside as u64}));

    world.write("ends.toml", "[[selectors]]\ntype = \"sink\"\nsize = 16\n");
    let (said, report, _) = steps("ends.toml", "ends.json");
    let same = report["beside"]["same"].as_u64().unwrap();
    assert!(same < report["beside"]["compared"].as_u64().unwrap(), "{said}");
    assert!(said.contains(&format!("departs after {same} of ")), "{said}");

    let line = "plot-steps dense.json promised.json ends.json";
    let said = world.succeed(&format!("{line} --plot out.svg"));
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.contains("the same text") && said.contains("departs after"), "{said}");
    let plot = std::fs::read_to_string(world.path("out.svg")).unwrap();
    assert_eq!(plot.matches("relative error").count(), 2, "over steps, and over layers");

    world.write("none.json", r#"{"model": "", "pipeline": "", "setup": "b", "steps": []}"#);
    let last = world.succeed(&format!("{line} --last 2"));
    assert_ne!(last, said, "the means cover two steps");
    let steps = |line: &str| line.split_whitespace().any(|cell| cell == "2");
    assert!(last.lines().skip(1).all(steps), "{last}");
    world.write(
        "ragged.json",
        r#"{"model": "", "pipeline": "", "setup": "b", "steps": [
        {"tokens": 1, "error": [0.1], "density": [1.0], "bar": [], "barred": [1],
         "outside": [0]}]}"#,
    );
    for (files, expected) in [
        ("none.json", "none.json: there are no steps with a pipeline"),
        ("out.json", "out.json: invalid type: map, expected a sequence"),
        ("missing.json", "missing.json: "),
        ("ragged.json", "ragged.json: step 0 does not have a number for each of the 1 layers"),
        ("ends.json --plot ends.json", "--plot ends.json: expected another file than an input"),
    ] {
        world.refuse(&format!("plot-steps {files}"), expected);
    }
}

#[test]
fn the_end_of_the_text_can_be_ignored() {
    let world = World::new();
    let mut args = args(&[("--tokens", "20"), ("--json", "out.json")]);
    args.push("--ignore-eos".into());
    world.succeed(&args);
    let report = world.json("out.json");
    assert_eq!((&report["stop"], &report["tokens"]["answer"]), (&json!("length"), &json!(20)));
}

#[test]
fn incomplete_models_are_refused() {
    let world = World::new();
    refuse(
        &world,
        &[("--model", "nowhere")],
        "--model nowhere: no such file or folder; expected a folder with config.json",
    );
    let golden = llama3().display().to_string();
    refuse(&world, &[("--model", &golden)], "llama3/tokenizer.json: No such file");

    world.copy_model(&llama3(), "another", json!({}));
    std::fs::copy(recall().join("tokenizer.json"), world.path("another/tokenizer.json")).unwrap();
    refuse(&world, &[("--model", "another")], "another/tokenizer.json: the text has token ");

    world.copy_model(&recall(), "cut", json!({}));
    let weights = std::fs::read(world.path("cut/model.safetensors")).unwrap();
    world.write("cut/model.safetensors", &weights[..1000]);
    refuse(&world, &[("--model", "cut")], "cut/model.safetensors: not a whole safetensors file");

    world.copy_model(&recall(), "gone", json!({}));
    std::fs::remove_file(world.path("gone/model.safetensors")).unwrap();
    refuse(&world, &[("--model", "gone")], "gone: expected model.safetensors or");
}

#[test]
fn layers_that_the_model_does_not_have_are_refused() {
    let world = World::new();
    world.write("far.toml", format!("dense_layers = [0, 77]\n{PROMISED}"));
    let expected =
        "far.toml: dense_layers[1]: layer 77, which the model does not have; expected 0 to 2";
    refuse(&world, &[("--pipeline", "far.toml")], expected);
    let model = recall().display().to_string();
    world.refuse(&format!("check far.toml --model {model}"), expected);
    let tasks = "--cases 1 --tasks niah_single_1 --context 400";
    world.refuse(&format!("evaluate --model {model} --pipelines far.toml {tasks}"), expected);
    world.succeed("check far.toml");
}

/// Adds a tensor to a file: the numbers of another tensor, rotated.
fn add_tensor(world: &World, path: &str, from: &str, name: &str) {
    let file = std::fs::read(world.path(path)).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut data = file[8 + length..].to_vec();
    let mut tensor = header[from].clone();
    let [first, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize);
    let mut numbers = data[first..end].to_vec();
    numbers.rotate_left(64);
    tensor["data_offsets"] = json!([data.len(), data.len() + numbers.len()]);
    header[name] = tensor;
    data.extend(numbers);
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(data);
    world.write(path, bytes);
}

#[test]
fn a_note_reports_tied_weights_that_differ() {
    let world = World::new();
    world.copy_model(&recall(), "untied", json!({"tie_word_embeddings": true}));
    let path = "untied/model.safetensors";
    add_tensor(&world, path, "model.embed_tokens.weight", "lm_head.weight");
    let evaluate = "evaluate --model untied --pipelines dense.toml --cases 1 --tasks niah_single_1";
    let evaluate = world.run(&format!("{evaluate} --context 400"));
    let generate = world.run(&args(&[("--model", "untied"), ("--tokens", "2")]));
    for output in [generate, evaluate] {
        let said = expect_code(&output, 0);
        let expected = "note: untied: `tie_word_embeddings` is true, but `lm_head.weight` differs";
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn texts_that_cannot_be_read_are_refused() {
    let world = World::new();
    world.write("empty.txt", " \n");
    world.write("bytes.txt", b"grass \xff\xfe");
    let most = u64::MAX.to_string();
    for (option, value, expected) in [
        ("--context", "empty.txt", "--context empty.txt: empty; expected a text"),
        ("--context", "bytes.txt", "bytes.txt: not UTF-8 at byte 6; expected a text in UTF-8"),
        ("--context", "none.txt", "--context none.txt: No such file"),
        ("--question", " ", "--question: empty; expected a text, or no --question"),
        ("--context", "", "--context <FILE>"),
        ("--prompt", "grass", "cannot be used with"),
        ("--tokens", "0", "--tokens: 0; expected at least 1"),
        ("--tokens", "20000", "20000 of --tokens"),
        ("--tokens", "20000", "expected at most `max_position_embeddings` = 16384"),
        ("--tokens", &most, "max_position_embeddings"),
    ] {
        refuse(&world, &[(option, value)], expected);
    }
    refuse(&world, &[("--context", ""), ("--prompt", " ")], "--prompt: empty; expected a text");
}

#[test]
fn bad_pipelines_outputs_and_backends_are_refused() {
    let world = World::new();
    world.write("typo.toml", "[[selectors]]\ntype = \"sinc\"\n");
    let parts = "[[selectors]]\ntype = \"pq-cache\"\nsize = 64\nparts = 3\nbits = 4\n";
    world.write("parts.toml", parts);
    for (option, value, expected) in [
        ("--pipeline", "none.toml", "none.toml"),
        ("--pipeline", "typo.toml", "sinc"),
        (
            "--pipeline",
            "parts.toml",
            "parts.toml: on layer 0: pq-cache: keys of 64 elements cannot be cut",
        ),
        ("--backend", "tpu", "--backend: no `tpu`; expected one of"),
        ("--json", "no/such/out.json", "no/such/out.json"),
        ("--json", "context.txt", "--json context.txt: expected another file than an input"),
    ] {
        refuse(&world, &[(option, value)], expected);
    }
    world.copy_model(&recall(), "mine", json!({}));
    let changes = [("--model", "mine"), ("--json", "mine/model.safetensors")];
    refuse(&world, &changes, "--json mine/model.safetensors: expected another file than an input");
}

#[cfg(target_os = "linux")]
#[test]
fn sequences_that_exceed_the_memory_are_refused() {
    let world = World::new();
    world.copy_model(&recall(), "long", json!({"max_position_embeddings": 2_000_000_000}));
    let most = 1_900_000_000_u64;
    let tokens = most.to_string();
    let changes = [("--model", "long"), ("--tokens", &tokens), ("--dtype", "f16")];
    refuse(&world, &changes, " bytes of memory needed, 1855488 for the weights and ");
    // Tokens of text and answer, in 3 layers with 2 KV heads of 64 + 64 elements.
    let output = world.run(&args(&changes));
    let said = read_stderr(&output);
    let words: Vec<&str> = said.split_whitespace().collect();
    let after = |word: &str| words[1 + words.iter().position(|found| *found == word).unwrap()];
    let rows: u64 = after("and").parse().unwrap();
    let tokens: u64 =
        said.split(" tokens;").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(tokens > most + 1800 && tokens < most + 2300, "{said}");
    assert_eq!(rows, tokens * 3 * 2 * (64 + 64) * 2);
    assert!(said.trim_end().ends_with("are available"), "{said}");
}
