//! Fuzzes pipeline files: any text is a pipeline or has problems.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vattention::config::Loader;

fuzz_target!(|text: &str| {
    if let Err(error) = Loader::default().parse("fuzz.toml", text) {
        assert!(!error.problems.is_empty());
        let _ = error.to_string();
    }
});
