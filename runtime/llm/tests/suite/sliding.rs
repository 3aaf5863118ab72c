//! Tests of layers that slide beside layers that are full: what they read, keep, report and save.

use std::sync::Arc;

use crate::common::{backends, case, cases_with_full_layers, copy, dense, sparse};
use serde_json::{Value, json};
use vattention_backends::Cpu;
use vattention_core::{Backend, Options, PipelineConfig};
use vattention_llm::{
    Config, Model, PrefillOptions, SavedSession, Session, SessionContent, SessionOrigin,
};

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| (i * 37 + i / 11) % 126).collect()
}

fn start<'m>(
    model: &'m Model,
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
) -> Session<'m> {
    Session::new(model, backend, pipeline, &Options::default()).unwrap()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Steps read the window of the token that they add, as a prompt does.
#[test]
fn steps_within_windows_equal_a_prompt() {
    for name in ["gemma2", "gemma3", "llama4", "gpt-oss", "mistral-window", "exaone4", "olmo3"] {
        let model = Model::open(&case(name)).unwrap();
        let tokens = prompt(90);
        for backend in backends() {
            for first in [1, 5, 30, 80] {
                let mut session = start(&model, backend.as_ref(), &dense());
                session.prefill(&tokens[..first]).unwrap();
                for end in first..tokens.len() {
                    let logits = session.step(tokens[end]).unwrap();
                    if end % 20 == 9 {
                        let whole = model
                            .prefill(&tokens[..=end], PrefillOptions::default())
                            .unwrap()
                            .logits;
                        let distance = distance(&logits, &whole);
                        assert!(distance < 1e-4, "{name}: {first}, {end}: {distance:e}");
                    }
                }
            }
        }
    }
}

#[test]
fn reports_tell_sliding_layers_from_full_ones() {
    for name in cases_with_full_layers() {
        let model = Model::open(&case(name)).unwrap();
        let mut session = start(&model, &Cpu::default(), &sparse());
        session.prefill(&prompt(600)).unwrap();
        session.step(9).unwrap();
        let (mut sum, mut full) = (0.0, 0);
        for (layer, report) in session.reports().iter().enumerate() {
            let window = model.config().window(layer);
            assert_eq!((report.window, report.is_full()), (window, window.is_none()), "{name}");
            if let Some(window) = window {
                let read = 601 - window.first(600);
                assert!(report.rows.iter().all(|row| row.read_by_group == read), "{name}");
                assert!(report.density() == 1.0 && report.sampled() == 0.0 && report.held());
            } else {
                sum += report.density();
                full += 1;
            }
        }
        assert_eq!(session.density(), Some(sum / f64::from(full)), "{name}");
    }
    let model = Model::open(&case("mistral-window")).unwrap();
    let mut session = start(&model, &Cpu::default(), &sparse());
    session.prefill(&prompt(100)).unwrap();
    session.step(9).unwrap();
    assert_eq!((session.density(), session.prefill_density()), (Some(1.0), Some(1.0)));
}

/// Full layers of a dense session keep all rows.
#[test]
fn rows_that_leave_the_window_are_freed() {
    for name in ["gemma2", "llama4"] {
        let model = Model::open(&case(name)).unwrap();
        let layers = model.config().layers;
        let full = (0..layers).filter(|layer| model.config().window(*layer).is_none()).count();
        for backend in backends() {
            let mut session = start(&model, backend.as_ref(), &dense());
            session.prefill(&prompt(1000)).unwrap();
            // All rows are kept until the first step.
            let row = session.held_bytes() / (layers * 1000);
            for step in 1..100_u32 {
                session.step(step).unwrap();
                let sliding = session.held_bytes() - full * session.len() * row;
                // A window of 16 tokens is within two pages of 16, and at most a quarter is spare.
                assert!(sliding <= (layers - full) * 64 * row, "{name}, {step}: {sliding}");
            }
        }
    }
}

#[test]
fn forks_continue_after_rows_were_freed() {
    let model = Model::open(&case("gpt-oss")).unwrap();
    let mut session = start(&model, &Cpu::default(), &sparse());
    session.prefill(&prompt(300)).unwrap();
    for token in 1..40 {
        session.step(token).unwrap();
    }
    let mut fork = session.fork(None).unwrap();
    for token in [7, 3, 99] {
        assert_eq!(fork.step(token).unwrap(), session.step(token).unwrap());
    }
}

/// A file of a session with steps has the windows of sliding layers only; one without steps has all
/// rows, so that a longer prompt can continue from it.
#[test]
fn saved_sessions_have_the_rows_that_later_steps_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.session");
    let origin = SessionOrigin { model: "digest".into(), pipeline: "pipeline".into() };
    for name in ["gemma2", "llama4", "gpt-oss", "mistral-window"] {
        let model = Model::open(&case(name)).unwrap();
        let begin = || start(&model, &Cpu::default(), &dense());
        let mut tokens = prompt(200);
        let mut session = begin();
        let mut logits = session.prefill(&tokens).unwrap();
        let save = |session: &Session<'_>, tokens: &[u32], logits: &[f32]| {
            let mut bytes = Vec::new();
            let content = SessionContent { tokens, logits, text: None };
            session.save(&mut bytes, &origin, &content).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            bytes.len()
        };
        let whole = save(&session, &tokens, &logits);
        let longer: Vec<u32> = tokens.iter().copied().chain(prompt(300)).collect();
        let mut saved = SavedSession::open(&path).unwrap();
        let continued = begin().prefill_after(&mut saved, &origin, &longer, |_, _| ()).unwrap();
        assert_eq!(continued, begin().prefill(&longer).unwrap(), "{name}");
        for token in 1..30 {
            tokens.push(token);
            logits = session.step(token).unwrap();
        }
        assert!(save(&session, &tokens, &logits) < whole * 3 / 4, "{name}");
        let mut saved = SavedSession::open(&path).unwrap();
        let mut restored = begin();
        assert_eq!(restored.restore(&mut saved, &origin).unwrap(), logits);
        for token in 60..90 {
            assert_eq!(restored.step(token).unwrap(), session.step(token).unwrap(), "{name}");
        }
        let mut saved = SavedSession::open(&path).unwrap();
        let refused = begin().prefill_after(&mut saved, &origin, &longer, |_, _| ());
        assert!(refused.is_err(), "{name}");
    }
}

fn edit(name: &str, change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Config) {
    let dir = copy(name);
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    let config = Config::open(dir.path()).unwrap();
    (dir, config)
}

/// Keys as transformers 4 writes them, without `layer_types`.
#[test]
fn configs_of_old_checkpoints_are_read() {
    let plain = Config::open(&case("gemma3")).unwrap();
    let (_dir, old) = edit("gemma3", |config| {
        let keys = config.as_object_mut().unwrap();
        for key in ["layer_types", "rope_parameters", "_sliding_window_pattern"] {
            keys.remove(key);
        }
        keys.insert("rope_theta".into(), json!(100_000.0));
        keys.insert("rope_local_base_freq".into(), json!(5000.0));
        keys.insert("rope_scaling".into(), json!({"rope_type": "linear", "factor": 4.0}));
        keys.insert("sliding_window_pattern".into(), json!(6));
    });
    assert_eq!(old, plain);
    let plain = Config::open(&case("phi3")).unwrap();
    let (_dir, old) = edit("phi3", |config| {
        let mut rope = config["rope_parameters"].clone();
        config["rope_theta"] = rope["rope_theta"].clone();
        config["partial_rotary_factor"] = rope["partial_rotary_factor"].clone();
        rope["type"] = rope["rope_type"].clone();
        for key in ["rope_type", "rope_theta", "partial_rotary_factor"] {
            rope.as_object_mut().unwrap().remove(key);
        }
        rope.as_object_mut().unwrap().remove("original_max_position_embeddings");
        config["rope_scaling"] = rope;
        config.as_object_mut().unwrap().remove("rope_parameters");
    });
    assert_eq!(old, plain);
}

/// A model within its original context has the short factors of longrope.
#[test]
fn longrope_depends_on_the_context_of_the_model() {
    let factors = |context: usize| {
        let (_dir, config) = edit("phi3", |config| {
            config["max_position_embeddings"] = json!(context);
        });
        format!("{:?}", config.ropes[0].scaling)
    };
    assert!(factors(33).contains("16.0"), "{}", factors(33));
    assert!(factors(32).contains("1.1") && factors(32).contains("length: 1.0"), "{}", factors(32));
}
