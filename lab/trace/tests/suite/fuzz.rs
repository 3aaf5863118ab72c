//! Fuzz tests of the reader of traces: for any bytes, reading ends with a readable trace or with an
//! error that names the file, and takes no more memory than a small multiple of the file's size.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ndarray::Array3;
use proptest::prelude::*;
use vattention_core::{Storage, TokenClass};
use vattention_trace::{Trace, TraceInfo, TraceLayer, write_trace};

/// Returns the path of this thread's file.
fn path() -> PathBuf {
    thread_local! {
        static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
    }
    FOLDER.with(|folder| folder.path().join("fuzz.safetensors"))
}

fn good() -> Vec<u8> {
    let numbers = |dim| Array3::from_elem(dim, 0.5);
    let layer = TraceLayer {
        queries: numbers((2, 2, 3)),
        keys: numbers((1, 4, 3)),
        values: numbers((1, 4, 2)),
        visible: Some(vec![4, 2]),
        prompt: Some(numbers((2, 1, 3))),
        prompt_tokens: Some(3),
        classes: Some(vec![TokenClass::Special; 4]),
        soft_cap: Some(20.0),
        sink_logits: Some(vec![0.5; 2]),
    };
    let layers = BTreeMap::from([(0, layer)]);
    write_trace(&path(), &TraceInfo::default(), &layers, Storage::F16).unwrap();
    std::fs::read(path()).unwrap()
}

fn read(bytes: &[u8]) {
    std::fs::write(path(), bytes).unwrap();
    let trace = match Trace::open(&path()) {
        Ok(trace) => trace,
        Err(error) => return assert!(error.to_string().contains("fuzz.safetensors")),
    };
    let layers: Vec<usize> = trace.layers().map(|(number, _)| number).collect();
    for number in layers {
        match trace.layer(number).unwrap() {
            Ok(layer) => {
                let numbers = layer.queries.len() + layer.keys.len() + layer.values.len();
                assert!(2 * numbers <= bytes.len(), "more numbers than bytes");
            }
            Err(error) => assert!(error.to_string().contains("fuzz.safetensors")),
        }
    }
}

fn settings() -> ProptestConfig {
    ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&bytes);
    }

    /// The header is random text, and its length may be wrong.
    #[test]
    fn headers_of_wrong_length(
        text in "[{}\\[\\]\":,a-z0-9._]{0,120}",
        error in 0u64..64,
        huge: bool,
    ) {
        let length = if huge { u64::MAX - error } else { text.len() as u64 + error % 2 };
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(text.bytes());
        read(&bytes);
    }
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn flipped_and_cut_files(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..=255), 0..6),
        length: prop::sample::Index,
        cut: bool,
    ) {
        thread_local! {
            static GOOD: Vec<u8> = good();
        }
        let mut bytes = GOOD.with(Clone::clone);
        for (place, mask) in flips {
            let place = place.index(bytes.len());
            bytes[place] ^= mask;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        read(&bytes);
    }
}
