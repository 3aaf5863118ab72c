//! `--speculate`: drafts change neither answers nor reports, except for times.

use serde_json::{Value, json};

use crate::world::{World, config, expect_code, recall};

/// Returns a world with a model that answers with the text, again and again.
fn endless() -> World {
    let world = World::new();
    world.copy_model(&recall(), "endless", json!({"eos_token_id": null}));
    let template = "{{ bos_token }}{% for message in messages %}{{ message.content }} {% endfor %}";
    world.write("endless/chat_template.jinja", template);
    world.write("chat.json", r#"[{"role": "user", "content": "The grass is green. The sky is"}]"#);
    world
}

/// Runs a command, and returns the JSON and the report on standard error.
#[track_caller]
fn run(world: &World, line: &str, options: &[&str]) -> (Value, String) {
    let line = format!("{line} --json out.json");
    let words: Vec<String> =
        line.split(' ').chain(options.iter().copied()).map(str::to_owned).collect();
    let said = expect_code(&world.run(&words), 0);
    (world.json("out.json"), said)
}

/// Results that do not depend on times.
fn results(report: &Value) -> Value {
    let keys =
        ["answer", "stop", "logprobs", "tokens", "prefill_density", "density", "layers", "memory"];
    keys.iter().map(|&key| report[key].clone()).collect()
}

#[test]
fn answers_and_reports_are_those_without_drafts() {
    let world = endless();
    let line = "generate --model endless --context context.txt --tokens 80 --logprobs 2";
    let mut accepted = 0;
    for pipeline in [config("dense"), config("priority"), "promised.toml".into()] {
        let line = format!("{line} --pipeline {pipeline}");
        for sampling in [
            &[][..],
            &["--temperature", "0.7", "--seed", "3", "--min-p", "0.02"],
            &["--stop", "again", "--repetition-penalty", "1.05"],
        ] {
            let (plain, said) = run(&world, &line, sampling);
            assert!(plain["drafts"].is_null() && !said.contains("drafts"), "{said}");
            for drafts in ["1", "6"] {
                let options = [sampling, &["--speculate", drafts]].concat();
                let (drafted, said) = run(&world, &line, &options);
                assert_eq!(results(&drafted), results(&plain), "{pipeline} {options:?}");
                assert_eq!(drafted["steps"]["count"], plain["steps"]["count"]);
                let [drafted, found] =
                    ["drafted", "accepted"].map(|key| drafted["drafts"][key].as_u64().unwrap());
                assert!(said.contains(&format!("drafts: {found} of {drafted} accepted")), "{said}");
                accepted += found;
            }
        }
    }
    assert!(accepted > 200, "{accepted}");
}

#[test]
fn chats_have_drafts_too() {
    let world = endless();
    let line = "chat --model endless --messages chat.json --tokens 40";
    let (plain, _) = run(&world, line, &[]);
    let (drafted, _) = run(&world, line, &["--speculate", "4"]);
    assert_eq!(results(&drafted), results(&plain));
    assert!(drafted["drafts"]["drafted"].is_u64());
}

#[test]
fn pipelines_and_options_without_drafts_are_refused() {
    let world = endless();
    let line = "generate --model endless --prompt The --tokens 4 --speculate 2";
    let h2o = config("h2o");
    for (more, expected) in [
        (
            format!("--pipeline {h2o}"),
            "--speculate: attention of layer 0: `h2o` cannot remove tokens",
        ),
        ("--pipeline dense.toml --steps s.json".into(), "cannot be used with"),
        (
            "--pipeline dense.toml --fall-back by-clock".into(),
            "--speculate: expected --fall-back by-count or never, found by-clock",
        ),
    ] {
        world.refuse(&format!("{line} {more}"), expected);
    }
    let line = "generate --model endless --prompt The --pipeline dense.toml --speculate 16";
    world.refuse(line, "16 is not in 0..=15");
    let chat = format!("chat --model endless --messages chat.json --speculate 2 --pipeline {h2o}");
    world.refuse(&chat, "`h2o` cannot remove tokens");
}
