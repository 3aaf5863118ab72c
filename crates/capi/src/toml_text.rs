//! Pipelines from TOML text.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use vattention::PipelineConfig;
use vattention::config::{Loader, pipeline_names};

use crate::pointers::borrow_text;
use crate::status::{CallError, va_status};

/// Pipelines in use, by their text. Handles with the same text share the pipeline and the files
/// that it has loaded.
static IN_USE: Mutex<BTreeMap<String, Weak<PipelineConfig>>> = Mutex::new(BTreeMap::new());

/// Reads a pipeline, or shares the one of a live handle with the same text.
///
/// # Safety
/// A pointer that is not null points to a text that ends with a zero byte.
pub(crate) unsafe fn read_pipeline(toml: *const c_char) -> Result<Arc<PipelineConfig>, CallError> {
    // SAFETY: the caller vouches for the text.
    let text = unsafe { borrow_text(toml, "toml") }?;
    if let Some(shared) = lock().get(text).and_then(Weak::upgrade) {
        return Ok(shared);
    }
    if pipeline_names().is_empty() {
        let message = "this program was linked without the library's selectors, samplers and \
                       estimators: link the archive that install.sh makes, or use --whole-archive";
        return Err(CallError::new(va_status::VA_ERROR_UNSUPPORTED, message));
    }
    let config = Loader::default().parse("pipeline", text)?;
    let mut in_use = lock();
    in_use.retain(|_, config| config.strong_count() > 0);
    in_use.insert(text.to_owned(), Arc::downgrade(&config));
    Ok(config)
}

fn lock() -> std::sync::MutexGuard<'static, BTreeMap<String, Weak<PipelineConfig>>> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_a_pipeline_while_it_is_used() {
        let text = c"name = 'shared'";
        // SAFETY: the texts end with a zero byte.
        unsafe {
            let first = read_pipeline(text.as_ptr()).unwrap();
            assert!(Arc::ptr_eq(&first, &read_pipeline(text.as_ptr()).unwrap()));
            let other = read_pipeline(c"name = 'other'".as_ptr()).unwrap();
            assert!(!Arc::ptr_eq(&first, &other));
            drop((first, other));
            read_pipeline(c"name = 'third'".as_ptr()).unwrap();
            assert!(!lock().contains_key("name = 'shared'"));
        }
    }

    #[test]
    fn faults_of_a_text_have_places() {
        // SAFETY: the texts end with a zero byte.
        unsafe {
            let error = read_pipeline(c"[estimator]\ntype = 'ratio'".as_ptr()).unwrap_err();
            assert_eq!(error.status, va_status::VA_ERROR_PIPELINE);
            assert!(error.message.contains("pipeline:1"), "{}", error.message);
            let error = read_pipeline(c"\xff".as_ptr()).unwrap_err();
            assert_eq!(error.status, va_status::VA_ERROR_ARGUMENT);
            let error = read_pipeline(std::ptr::null()).unwrap_err();
            assert_eq!(error.status, va_status::VA_ERROR_POINTER);
        }
    }
}
