//! temporary
use candle_core::quantized::gguf_file::Value;
use std::collections::HashMap;
pub(crate) fn ends(metadata: &HashMap<String, Value>) -> Result<Vec<u32>, String> {
    match metadata.get("tokenizer.ggml.eos_token_id") {
        Some(Value::U32(n)) => Ok(vec![*n]),
        _ => Ok(vec![]),
    }
}
