//! Tests of GGUF files in several parts: they equal the whole file, and wrong parts are refused.
//!
//! `tools/make_chat_gguf.py` makes the parts and the whole file from the same tensors.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::gguf::{logits, pairs, parse_value, read_all, write};
use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};
use proptest::prelude::*;
use tempfile::TempDir;
use vattention_llm::{
    ChatTemplate, Config, Model, Tokenizer, model_digest, weight_bytes, weight_files,
};

const COUNT: usize = 3;

fn part_name(number: usize) -> String {
    format!("chat-0000{number}-of-0000{COUNT}.gguf")
}

fn parts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf-split")
}

fn whole() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cli/tests/golden/chat.gguf")
}

/// Copies all parts; returns the folder and the path of the first part.
fn copy_parts() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=COUNT {
        let name = part_name(number);
        fs::copy(parts().join(&name), folder.path().join(name)).unwrap();
    }
    let first = folder.path().join(part_name(1));
    (folder, first)
}

/// Rewrites a file with other metadata or tensors.
fn edit(
    path: &Path,
    change: impl FnOnce(&mut HashMap<String, Value>, &mut Vec<(String, QTensor)>),
) {
    let mut file = File::open(path).unwrap();
    let mut content = Content::read(&mut file).unwrap();
    let names: Vec<String> = content.tensor_infos.keys().cloned().collect();
    let mut tensors = Vec::new();
    for name in names {
        let tensor = content.tensor(&mut file, &name, &Device::Cpu).unwrap();
        tensors.push((name, tensor));
    }
    change(&mut content.metadata, &mut tensors);
    write(path, pairs(&content.metadata), &tensors);
}

/// Error for a file, with paths relative to its folder.
fn refusal(path: &Path) -> String {
    let folder = format!("{}/", path.parent().unwrap().display());
    Model::open(path).unwrap_err().to_string().replace(&folder, "")
}

#[test]
fn parts_are_the_whole_model() {
    let (first, whole) = (parts().join(part_name(1)), whole());
    let [ours, expected] = [&first, &whole].map(|path| logits(&Model::open(path).unwrap()));
    assert_eq!(ours, expected);
    assert_eq!(weight_bytes(&first).unwrap(), weight_bytes(&whole).unwrap());
    let config = Config::open(&first).unwrap();
    assert_eq!(config, Config::open(&whole).unwrap());
    let tokens = |path: &Path| Tokenizer::open(path, &config).unwrap().first("Hello world");
    assert_eq!(tokens(&first).unwrap(), tokens(&whole).unwrap());
    let prompt = |path: &Path| {
        let template = ChatTemplate::open(path).unwrap().unwrap();
        template.render(None, "Hello", "world").unwrap()
    };
    assert_eq!(prompt(&first), prompt(&whole));
}

#[test]
fn every_part_is_a_file_of_the_model() {
    let (folder, first) = copy_parts();
    let expected: Vec<PathBuf> =
        (1..=COUNT).map(|number| folder.path().join(part_name(number))).collect();
    assert_eq!(weight_files(&first).unwrap(), expected);
    assert_eq!(weight_files(&whole()).unwrap(), [whole()]);
    let digest = model_digest(&first).unwrap();
    for path in expected {
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_ne!(model_digest(&first).unwrap(), digest, "{}", path.display());
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(model_digest(&first).unwrap(), digest);
}

#[test]
fn errors_of_keys_name_the_part() {
    for row in include_str!("../golden/gguf-split-refused.txt").lines().skip(1) {
        let [numbers, key, text, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let (folder, first) = copy_parts();
        for number in numbers.split(' ') {
            edit(&folder.path().join(part_name(number.parse().unwrap())), |metadata, _| {
                match parse_value(text) {
                    Some(value) => metadata.insert(key.into(), value),
                    None => metadata.remove(key),
                };
            });
        }
        assert_eq!(refusal(&first), expected, "{row}");
    }
}

#[test]
fn missing_parts_are_named() {
    for number in 2..=COUNT {
        let (folder, first) = copy_parts();
        let name = part_name(number);
        fs::remove_file(folder.path().join(&name)).unwrap();
        let expected = format!(
            "{name}: no such file; expected part {number} of {COUNT} of chat-00001-of-00003.gguf"
        );
        assert_eq!(refusal(&first), expected);
    }
}

#[test]
fn later_parts_refer_to_the_first() {
    let expected = "chat-00002-of-00003.gguf: part 2 of 3; give part 1, chat-00001-of-00003.gguf";
    assert_eq!(refusal(&parts().join(part_name(2))), expected);
}

#[test]
fn renamed_parts_are_refused() {
    let (folder, first) = copy_parts();
    let other = folder.path().join("model.gguf");
    fs::rename(first, &other).unwrap();
    let expected = "model.gguf: `split.no` is 0 and `split.count` is 3; expected a file whose \
                    name ends in -00001-of-00003.gguf";
    assert_eq!(refusal(&other), expected);
}

#[test]
fn folders_of_parts_name_the_first_part() {
    let folder = parts();
    let message = Model::open(&folder).unwrap_err().to_string();
    let first = folder.join(part_name(1));
    let expected = format!("name the folder's GGUF file itself: {}", first.display());
    assert!(message.ends_with(&expected), "{message}");
}

#[test]
fn damaged_parts_are_named() {
    for number in 2..=COUNT {
        let (folder, first) = copy_parts();
        let path = folder.path().join(part_name(number));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
        let message = refusal(&first);
        let expected = format!("{}: tensor `", part_name(number));
        assert!(
            message.starts_with(&expected) && message.ends_with("the file is cut"),
            "{message}"
        );
        fs::write(&path, "PK").unwrap();
        let expected = format!("{}: not a whole GGUF file", part_name(number));
        assert!(refusal(&first).starts_with(&expected));
    }
}

#[test]
fn a_tensor_in_two_parts_is_refused() {
    let (folder, first) = copy_parts();
    let mut name = String::new();
    edit(&folder.path().join(part_name(3)), |_, tensors| {
        let mut file = File::open(folder.path().join(part_name(2))).unwrap();
        let content = Content::read(&mut file).unwrap();
        name.clone_from(content.tensor_infos.keys().next().unwrap());
        let again = content.tensor(&mut file, &name, &Device::Cpu).unwrap();
        tensors[0] = (name.clone(), again);
    });
    let expected = format!(
        "chat-00003-of-00003.gguf: tensor `{name}` is in chat-00002-of-00003.gguf too; expected \
         it in one part"
    );
    assert_eq!(refusal(&first), expected);
}

#[test]
fn tensors_of_a_later_part_are_named_with_it() {
    let (folder, first) = copy_parts();
    let path = folder.path().join(part_name(3));
    edit(&path, |_, tensors| tensors[0].0 = "another.weight".into());
    let message = refusal(&first);
    assert!(message.contains("no tensor `") || message.contains("another.weight"), "{message}");
    edit(&path, |_, tensors| {
        let place = tensors.iter().position(|(name, _)| name == "another.weight").unwrap();
        tensors.remove(place);
    });
    let message = refusal(&first);
    assert!(message.ends_with("its 3 parts have 19 tensors; `split.tensors.count` is 20"));
}

#[test]
fn one_part_is_a_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::copy(whole(), &path).unwrap();
    for count in [0, 1] {
        edit(&path, |metadata, _| {
            metadata.insert("split.count".into(), Value::U16(count));
        });
        assert_eq!(weight_files(&path).unwrap(), std::slice::from_ref(&path));
        Model::open(&path).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 200,
        ..ProptestConfig::default()
    })]
    /// Damage of the headers of parts causes at most an error.
    #[test]
    fn damaged_parts_do_no_harm(
        damage in proptest::collection::vec((1..=COUNT, 0_usize..1000, any::<u8>()), 1..8),
    ) {
        let (folder, first) = copy_parts();
        for (number, place, byte) in damage {
            let path = folder.path().join(part_name(number));
            let mut bytes = fs::read(&path).unwrap();
            bytes[place] = byte;
            fs::write(&path, &bytes).unwrap();
        }
        read_all(&first);
        let _ = Model::open(&first);
    }

    /// A header of random bytes with small counts causes at most an error.
    #[test]
    fn random_headers_do_no_harm(
        version in 0_u32..4,
        counts in [0_u64..4, 0_u64..4],
        bytes in proptest::collection::vec(prop_oneof![3 => 0_u8..16, 1 => any::<u8>()], 0..400),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("random.gguf");
        let mut file = b"GGUF".to_vec();
        file.extend(version.to_le_bytes());
        file.extend(counts.into_iter().flat_map(u64::to_le_bytes));
        file.extend(bytes);
        fs::write(&path, &file).unwrap();
        read_all(&path);
        let _ = Model::open(&path);
    }
}
