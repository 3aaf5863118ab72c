//! Tests of sessions that are saved to a file and restored from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{CASES, backends, case, copy, dense, promised, snapkv, sparse};
use candle_core::{Device, safetensors};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{Backend, FallBack, Options, PipelineConfig, Storage};
use vattention_llm::{
    Error, Model, PrefillOptions, SavedSession, Session, SessionContent, SessionOrigin,
    model_digest,
};

/// Model, and the folder for the files of its sessions.
struct SavedWorld {
    model: Model,
    digest: String,
    folder: TempDir,
}

/// Tokens of a session, and the logits after the last one.
#[derive(Clone)]
struct Position {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl SavedWorld {
    fn new(name: &str) -> Self {
        Self::open(&case(name))
    }

    fn open(path: &Path) -> Self {
        let (model, digest) = (Model::open(path).unwrap(), model_digest(path).unwrap());
        Self { model, digest, folder: tempfile::tempdir().unwrap() }
    }

    fn origin(&self, pipeline: &PipelineConfig) -> SessionOrigin {
        SessionOrigin { model: self.digest.clone(), pipeline: toml::to_string(pipeline).unwrap() }
    }

    fn session(
        &self,
        backend: &dyn Backend,
        pipeline: &Arc<PipelineConfig>,
        storage: Storage,
    ) -> Session<'_> {
        let options = Options { storage, fall_back: FallBack::Never, ..Options::default() };
        Session::new(&self.model, backend, pipeline, &options).unwrap()
    }

    /// Returns a session of the `cpu` backend in f32.
    fn simple(&self, pipeline: &Arc<PipelineConfig>) -> Session<'_> {
        self.session(&Cpu::default(), pipeline, Storage::F32)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("saved.session")
    }

    fn save(
        &self,
        session: &Session<'_>,
        pipeline: &PipelineConfig,
        position: &Position,
    ) -> Vec<u8> {
        let Position { tokens, logits } = position;
        let content = SessionContent { tokens, logits, text: Some("a text") };
        let mut bytes = Vec::new();
        session.save(&mut bytes, &self.origin(pipeline), &content).unwrap();
        std::fs::write(self.path(), &bytes).unwrap();
        bytes
    }

    /// Restores the saved session in an empty session.
    fn restore(
        &self,
        mut empty: Session<'_>,
        pipeline: &PipelineConfig,
    ) -> vattention_llm::Result<Vec<f32>> {
        let mut saved = SavedSession::open(&self.path())?;
        empty.restore(&mut saved, &self.origin(pipeline))
    }

    /// Returns the message of the error that refuses the saved session, and checks that the message
    /// names the file.
    #[track_caller]
    fn refuse(&self, empty: Session<'_>, pipeline: &PipelineConfig) -> String {
        let message = self.restore(empty, pipeline).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{}: ", self.path().display())), "{message}");
        message
    }
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| (i * 37 + i / 11) % 126).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Runs a step for each token, and returns the bits of all logits.
fn decode(session: &mut Session<'_>, position: &mut Position, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for &token in tokens {
        position.logits = session.step(token).unwrap();
        position.tokens.push(token);
        all.push(bits(&position.logits));
    }
    all
}

/// Saves a session, restores it, and compares the steps of both.
fn check_continuation(
    world: &SavedWorld,
    session: &mut Session<'_>,
    mut empty: Session<'_>,
    pipeline: &PipelineConfig,
    position: &mut Position,
) {
    let bytes = world.save(session, pipeline, position);
    let mut saved = SavedSession::open(&world.path()).unwrap();
    assert_eq!((saved.tokens(), saved.text()), (&position.tokens[..], Some("a text")));
    let logits = empty.restore(&mut saved, &world.origin(pipeline)).unwrap();
    assert_eq!(bits(&logits), bits(&position.logits));
    assert_eq!((empty.len(), empty.prefill_density()), (session.len(), session.prefill_density()));
    assert!(world.save(&empty, pipeline, position) == bytes, "saved again");
    let expected = decode(session, &mut position.clone(), &[5, 9, 2, 120]);
    assert!(expected == decode(&mut empty, &mut position.clone(), &[5, 9, 2, 120]), "steps");
    position.tokens.extend([5, 9, 2, 120]);
    position.logits = session.step(7).unwrap();
    position.tokens.push(7);
}

/// Sessions are saved after the prefill, and after several steps.
#[test]
fn sessions_continue_with_the_same_bits() {
    let pipelines = [dense(), sparse(), promised(), snapkv()];
    for (i, name) in CASES.into_iter().enumerate() {
        let world = SavedWorld::new(name);
        for (j, backend) in backends().iter().enumerate() {
            let (pipeline, storage) = (&pipelines[(i + j) % 4], Storage::ALL[(i + j) % 4]);
            let start = || world.session(&**backend, pipeline, storage);
            let mut session = start();
            let tokens = prompt(300);
            let mut position = Position { logits: session.prefill(&tokens).unwrap(), tokens };
            check_continuation(&world, &mut session, start(), pipeline, &mut position);
            check_continuation(&world, &mut session, start(), pipeline, &mut position);
        }
    }
}

#[test]
fn every_pipeline_and_storage_continues() {
    let world = SavedWorld::new("llama3");
    for pipeline in [dense(), sparse(), promised(), snapkv()] {
        let sizes = Storage::ALL.map(|storage| {
            let start = || world.session(&Cpu::default(), &pipeline, storage);
            let mut session = start();
            let tokens = prompt(300);
            let mut position = Position { logits: session.prefill(&tokens).unwrap(), tokens };
            check_continuation(&world, &mut session, start(), &pipeline, &mut position);
            check_continuation(&world, &mut session, start(), &pipeline, &mut position);
            std::fs::metadata(world.path()).unwrap().len()
        });
        assert!(sizes[1].abs_diff(sizes[2]) < 64 && sizes[1] < sizes[0], "{sizes:?}");
        assert!(sizes[3] < sizes[2], "{sizes:?}");
    }
}

/// A prompt that is saved in f32 continues in fewer bits or with another pipeline, as if that
/// session had read the prompt itself.
#[test]
fn a_prompt_continues_with_another_pipeline_and_in_fewer_bits() {
    let world = SavedWorld::new("qwen3");
    let mut session = world.simple(&dense());
    let tokens = prompt(300);
    let position = Position { logits: session.prefill(&tokens).unwrap(), tokens };
    world.save(&session, &dense(), &position);
    let cases = [(snapkv(), Storage::F32), (sparse(), Storage::Bf16), (sparse(), Storage::Q8)];
    for (pipeline, storage) in cases {
        let start = || world.session(&Cpu::default(), &pipeline, storage);
        let (mut fresh, mut restored) = (start(), start());
        fresh.prefill(&position.tokens).unwrap();
        let mut saved = SavedSession::open(&world.path()).unwrap();
        restored.restore(&mut saved, &world.origin(&pipeline)).unwrap();
        let expected = decode(&mut fresh, &mut position.clone(), &[3, 4]);
        assert!(expected == decode(&mut restored, &mut position.clone(), &[3, 4]));
    }
}

/// A longer prompt continues after the whole blocks of the saved prompt, and gives the same bits as
/// a prefill of the whole prompt.
#[test]
fn a_longer_prompt_continues_a_saved_one() {
    let world = SavedWorld::new("llama3");
    let options = PrefillOptions { block: 64, ..PrefillOptions::default() };
    let start = || world.simple(&snapkv()).with_prefill_options(options);
    let mut session = start();
    let position = Position { logits: session.prefill(&prompt(200)).unwrap(), tokens: prompt(200) };
    world.save(&session, &snapkv(), &position);
    for count in [200, 201, 255, 256, 300] {
        let tokens = prompt(count);
        let (mut whole, mut continued) = (start(), start());
        let expected = whole.prefill(&tokens).unwrap();
        let mut saved = SavedSession::open(&world.path()).unwrap();
        let mut layers = 0;
        let origin = world.origin(&snapkv());
        let logits =
            continued.prefill_after(&mut saved, &origin, &tokens, |_, _| layers += 1).unwrap();
        assert_eq!(bits(&logits), bits(&expected), "{count} tokens");
        assert_eq!(layers > 0, count > 200);
        assert_eq!(continued.prefill_density(), Some(1.0));
        let mut position = Position { tokens, logits };
        let expected = decode(&mut whole, &mut position.clone(), &[3, 4]);
        assert!(expected == decode(&mut continued, &mut position, &[3, 4]), "{count} tokens");
    }
    let refuse = |tokens: &[u32]| {
        let saved = SavedSession::open(&world.path()).unwrap();
        saved.check_tokens(tokens).unwrap_err().to_string()
    };
    let message = refuse(&prompt(199));
    assert!(message.contains("saved with 200 tokens; expected the 199 of the prompt"), "{message}");
    let mut position = position;
    decode(&mut session, &mut position, &[5]);
    world.save(&session, &snapkv(), &position);
    let message = refuse(&[&position.tokens[..], &[7]].concat());
    assert!(
        message.contains("1 more tokens cannot be read densely: saved after 1 st"),
        "{message}"
    );
    let mut session = world.session(&Cpu::default(), &snapkv(), Storage::F16);
    let position = Position { logits: session.prefill(&prompt(40)).unwrap(), tokens: prompt(40) };
    world.save(&session, &snapkv(), &position);
    let message = refuse(&prompt(42));
    assert!(message.ends_with("2 more tokens cannot be read densely: saved in f16; expected f32"));
}

/// Rows that are saved after a rotation fit only pipelines that rotate rows.
#[test]
fn sessions_that_rotate_rows_and_others_are_refused() {
    let text = "[[selectors]]\ntype = 'quest'\npage = 16\nsize = 32";
    let quest = Loader::default().parse("quest.toml", text).unwrap();
    let world = SavedWorld::new("llama3");
    let start =
        |pipeline: &Arc<PipelineConfig>| world.session(&Cpu::default(), pipeline, Storage::Q8);
    let cases = [(dense(), quest.clone(), "after a rotation"), (quest, dense(), "without a")];
    for (saver, other, found) in cases {
        let (mut session, tokens) = (start(&saver), prompt(40));
        let logits = session.prefill(&tokens).unwrap();
        world.save(&session, &saver, &Position { tokens, logits });
        let message = world.refuse(start(&other), &other);
        assert!(message.contains(&format!("keys and values are saved {found}")), "{message}");
    }
}

#[test]
fn sessions_of_another_origin_are_refused() {
    let world = SavedWorld::new("llama3");
    let bf16 = || world.session(&Cpu::default(), &sparse(), Storage::Bf16);
    let mut session = bf16();
    let tokens = prompt(40);
    let mut position = Position { logits: session.prefill(&tokens).unwrap(), tokens };
    world.save(&session, &sparse(), &position);
    let message = world.refuse(world.simple(&sparse()), &sparse());
    assert!(message.contains("keys and values are saved in bf16; expected f32"), "{message}");
    let options = PrefillOptions { block: 16, ..PrefillOptions::default() };
    let message = world.refuse(bf16().with_prefill_options(options), &sparse());
    assert!(message.contains("in blocks of 256 tokens"), "{message}");
    assert!(
        message
            .ends_with("expected dense attention in blocks of 16 tokens, with 64 observed queries"),
        "{message}"
    );
    assert!(world.restore(bf16(), &dense()).is_ok(), "no step was made");

    decode(&mut session, &mut position, &[5]);
    world.save(&session, &sparse(), &position);
    let message = world.refuse(bf16(), &promised());
    assert!(message.contains("saved after 1 steps with another pipeline (`"), "{message}");

    let other = changed_model("llama3");
    let other = SavedWorld::open(other.path());
    std::fs::copy(world.path(), other.path()).unwrap();
    let message = other.refuse(other.session(&Cpu::default(), &sparse(), Storage::Bf16), &sparse());
    assert!(message.contains("saved with another model (digest "), "{message}");

    let saved = SavedSession::open(&world.path()).unwrap();
    let mut tokens = position.tokens.clone();
    saved.check_tokens(&tokens).unwrap();
    tokens[17] += 1;
    let message = saved.check_tokens(&tokens).unwrap_err().to_string();
    assert!(message.contains("another text: token 17 is "), "{message}");
    let message = saved.check_tokens(&position.tokens[..30]).unwrap_err().to_string();
    assert!(message.contains("saved with 41 tokens; expected the 30 of the prompt"), "{message}");

    session.step(5).unwrap();
    let content = SessionContent { tokens: &[1, 2], logits: &[], text: None };
    let error = session.save(Vec::new(), &world.origin(&sparse()), &content).unwrap_err();
    assert!(error.to_string().contains("tokens to save: 2; expected the session's 42"), "{error}");
    let mut saved = SavedSession::open(&world.path()).unwrap();
    let error = session.restore(&mut saved, &world.origin(&sparse())).unwrap_err();
    assert!(matches!(error, Error::Input { what: "prefill", .. }), "{error}");
}

/// Copies the model of a case, and changes one weight.
fn changed_model(name: &str) -> TempDir {
    let copy = copy(name);
    let path = copy.path().join("model.safetensors");
    let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    let norm = tensors.get_mut("model.norm.weight").unwrap();
    *norm = norm.affine(1.0, 0.5).unwrap();
    safetensors::save(&tensors, path).unwrap();
    copy
}

/// Returns a small saved session of three tokens.
fn small() -> (SavedWorld, Vec<u8>) {
    let world = SavedWorld::new("llama3");
    let mut session = world.simple(&dense());
    let tokens = prompt(3);
    let position = Position { logits: session.prefill(&tokens).unwrap(), tokens };
    let bytes = world.save(&session, &dense(), &position);
    (world, bytes)
}

#[test]
fn damaged_files_are_refused() {
    let (world, bytes) = small();
    let refuse = |bytes: &[u8], what: &str| {
        std::fs::write(world.path(), bytes).unwrap();
        let error = SavedSession::open(&world.path()).expect_err(what);
        assert!(matches!(error, Error::SavedSession { .. }), "{what}: {error}");
        assert!(error.to_string().starts_with(&world.path().display().to_string()), "{error}");
        error.to_string()
    };
    for length in (0..bytes.len()).step_by(5).chain([bytes.len() - 1]) {
        refuse(&bytes[..length], &format!("the first {length} bytes"));
    }
    let message = refuse(&bytes[..bytes.len() - 40], "cut short");
    assert!(message.contains("its tensors end at byte"), "{message}");
    for place in (0..bytes.len()).step_by(3).chain([bytes.len() - 1]) {
        let mut changed = bytes.clone();
        changed[place] ^= 1 << (place % 8);
        refuse(&changed, &format!("byte {place}"));
    }
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    let message = refuse(&changed, "the middle");
    assert!(message.contains("the file was changed or damaged"), "{message}");
    refuse(&[&bytes[..], &[0; 8]].concat(), "more bytes");
    let weights = std::fs::read(case("llama3").join("model.safetensors")).unwrap();
    assert!(refuse(&weights, "weights").contains("not a saved session"));
    assert!(refuse(b"[[selectors]]\ntype = \"sink\"\n", "a text").contains("not a saved session"));
    std::fs::remove_file(world.path()).unwrap();
    assert!(matches!(SavedSession::open(&world.path()), Err(Error::File { .. })));
}

/// Files with a valid digest and invalid content are refused as well.
#[test]
fn forged_files_are_refused() {
    let (world, bytes) = small();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let forge = |mut bytes: Vec<u8>| {
        let content = bytes.len() - 32;
        let digest = Sha256::digest(&bytes[..content]);
        bytes[content..].copy_from_slice(&digest);
        std::fs::write(world.path(), bytes).unwrap();
        world.restore(world.simple(&dense()), &dense()).unwrap_err().to_string()
    };
    let replace = |old: &str, new: &str| {
        let header = String::from_utf8(bytes[8..start].to_vec()).unwrap();
        assert!(header.contains(old) && old.len() == new.len(), "{header}");
        let text = header.replacen(old, new, 1).into_bytes();
        forge([&bytes[..8], &text, &bytes[start..]].concat())
    };
    let fill = |place: usize, byte: u8| {
        let mut changed = bytes.clone();
        changed[place..place + 4].fill(byte);
        forge(changed)
    };
    for (message, expected) in [
        (fill(start, 0xFF), "tokens: 4294967295 at [0]; expected less than"),
        (fill(start + 12, 0xFF), "logits"),
        (fill(start + 12 + 4 * world.model.config().vocab_size, 0xFF), "layer 0: keys[0, 0, 0] is"),
        (replace("session-2", "session-1"), "expected \"vattention-session-2\""),
        (
            replace("\\\"tokens\\\":3", "\\\"tokens\\\":4"),
            "no tensor `tokens` of U32 and shape [4]",
        ),
        (replace("\\\"queries\\\":3", "\\\"queries\\\":2"), "no tensor `layers.0.queries.0`"),
        (replace("\\\"storage\\\":\\\"f32", "\\\"storage\\\":\\\"f33"), "number type \"f33\""),
        (replace("layers.1.keys", "layers.1.kexs"), "no tensor `layers.1.keys`"),
        (replace("\\\"step\\\":0", "\\\"step\\\":x"), "expected value"),
    ] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
}
