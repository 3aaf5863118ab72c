//! Writer of traces.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use ndarray::Array3;
use safetensors::Dtype;
use vattention_core::{Storage, step::MAX_MAGNITUDE};

use super::layout::{FORMAT, TraceInfo, TraceLayer};
use crate::tensors::Tensors;
use crate::{Error, Result, write_beside};

/// Writes a trace, with elements rounded to `storage`, as [`write_beside`] does.
///
/// # Errors
/// [`Error::File`] if the file cannot be written, [`Error::Trace`] if a number is too large for
/// `storage` or is NaN, or if `storage` has scales, which a trace does not store.
pub fn write_trace(
    path: &Path,
    info: &TraceInfo,
    layers: &BTreeMap<usize, TraceLayer>,
    storage: Storage,
) -> Result<()> {
    if !Storage::FLOATS.contains(&storage) {
        let reason = format!("cannot store numbers in {storage}; expected f32, f16 or bf16");
        return Err(Error::trace(path, reason));
    }
    let mut tensors = Tensors::default();
    for (number, layer) in layers {
        let arrays = [
            ("queries", Some(&layer.queries)),
            ("keys", Some(&layer.keys)),
            ("values", Some(&layer.values)),
            ("prompt", layer.prompt.as_ref()),
        ];
        for (part, array) in arrays.into_iter().filter_map(|(part, a)| Some((part, a?))) {
            let name = format!("layers.{number}.{part}");
            let (dtype, bytes) = encode(array, storage)
                .map_err(|x| Error::trace(path, format!("tensor `{name}`: cannot store {x}")))?;
            tensors.push(name, dtype, array.shape(), &bytes);
        }
        let end = layer.prompt_tokens.map(|end| vec![end]);
        let limits = [("visible", layer.visible.as_ref()), ("prompt_tokens", end.as_ref())];
        for (part, limits) in limits.into_iter().filter_map(|(part, l)| Some((part, l?))) {
            let bytes: Vec<u8> = limits.iter().flat_map(|&n| (n as i64).to_le_bytes()).collect();
            let name = format!("layers.{number}.{part}");
            tensors.push(name, Dtype::I64, &[limits.len()], &bytes);
        }
        if let Some(classes) = &layer.classes {
            let bytes: Vec<u8> = classes.iter().map(|class| class.number()).collect();
            tensors.push(format!("layers.{number}.classes"), Dtype::U8, &[bytes.len()], &bytes);
        }
        let cap = layer.soft_cap.map(|cap| vec![cap]);
        let numbers = [("soft_cap", cap.as_ref()), ("sink_logits", layer.sink_logits.as_ref())];
        for (part, numbers) in numbers.into_iter().filter_map(|(part, n)| Some((part, n?))) {
            tensors.push_f32(format!("layers.{number}.{part}"), &[numbers.len()], numbers);
        }
    }
    write_beside(path, &tensors.into_bytes(metadata(info)))
}

/// Metadata of the file.
pub(super) fn metadata(info: &TraceInfo) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::from([("format".to_owned(), FORMAT.to_owned())]);
    let scale = info.scale.map(|scale| scale.to_string());
    let texts = [&info.model, &info.source, &info.share].map(Clone::clone);
    let all =
        ["scale", "model", "source", "share"].into_iter().zip([scale].into_iter().chain(texts));
    metadata.extend(all.filter_map(|(key, text)| Some((key.to_owned(), text?))));
    metadata
}

/// Encodes an array as bytes; the error is the first number that is NaN or too large for `storage`.
fn encode(array: &Array3<f32>, storage: Storage) -> Result<(Dtype, Vec<u8>), f32> {
    let largest = if storage == Storage::F16 { f16::MAX.to_f32() } else { MAX_MAGNITUDE };
    if let Some(&x) = array.iter().find(|x| x.is_nan() || x.abs() > largest) {
        return Err(x);
    }
    Ok(match storage {
        Storage::F32 => (Dtype::F32, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Storage::F16 => {
            (Dtype::F16, array.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect())
        }
        Storage::Bf16 => {
            (Dtype::BF16, array.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect())
        }
        Storage::Q8 => unreachable!("refused above"),
    })
}
