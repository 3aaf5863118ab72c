//! Any bytes as a trace file: layers, or a refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vattention::trace::Trace;

fuzz_target!(|bytes: &[u8]| {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(file.path(), bytes).expect("it can be written");
    if let Ok(trace) = Trace::open(file.path()) {
        let layers: Vec<usize> = trace.layers().map(|(number, _)| number).collect();
        for layer in layers {
            let _ = trace.layer(layer).expect("it was listed");
        }
    }
});
