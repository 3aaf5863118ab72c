//! Fuzzes trace files: any bytes have layers or are refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vattention::trace::Trace;

fuzz_target!(|bytes: &[u8]| {
    let file = tempfile::NamedTempFile::new().expect("the temporary folder is writable");
    std::fs::write(file.path(), bytes).expect("the file is writable");
    if let Ok(trace) = Trace::open(file.path()) {
        let layers: Vec<usize> = trace.layers().map(|(number, _)| number).collect();
        for layer in layers {
            let _ = trace.layer(layer).expect("the trace lists this layer");
        }
    }
});
