//! Tables of the objects that handles stand for.
//!
//! A handle is a number that is used once and that C sees as a pointer to an incomplete type. So
//! each misuse of a handle can be checked.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use crate::status::{CallError, va_status};

/// Distance between two handles, so that they are aligned like pointers.
const STEP: usize = 16;

/// Next handle of any table, so that a handle of another type is not found.
static NEXT: AtomicUsize = AtomicUsize::new(STEP);

/// Live objects of one type, by their handles.
#[derive(Debug)]
pub(crate) struct HandleTable<T> {
    /// Name of the handles in messages.
    name: &'static str,
    objects: RwLock<BTreeMap<usize, Arc<Mutex<T>>>>,
}

impl<T> HandleTable<T> {
    /// Creates an empty table.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, objects: RwLock::new(BTreeMap::new()) }
    }

    /// Stores an object, and returns its handle.
    pub(crate) fn insert<H>(&self, object: T) -> Result<*mut H, CallError> {
        let next = |handle: usize| handle.checked_add(STEP);
        let handle =
            NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
                CallError::new(va_status::VA_ERROR_MEMORY, "this process has used up all handles")
            })?;
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(handle, Arc::new(Mutex::new(object)));
        Ok(ptr::without_provenance_mut(handle))
    }

    /// Returns the object of a handle.
    pub(crate) fn find<H>(&self, handle: *const H) -> Result<Arc<Mutex<T>>, CallError> {
        if handle.is_null() {
            let message = format!("{}: expected a handle, found NULL", self.name);
            return Err(CallError::new(va_status::VA_ERROR_POINTER, message));
        }
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(&handle.addr()).cloned().ok_or_else(|| self.refuse_dead())
    }

    /// Locks an object, and fails if another call uses it.
    pub(crate) fn lock<'a>(&self, object: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, CallError> {
        object.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let message = format!(
                    "{}: another call is using it, on another thread or in the same batch; \
                     expected one call at a time",
                    self.name
                );
                CallError::new(va_status::VA_ERROR_BUSY, message)
            }
            TryLockError::Poisoned(_) => {
                let message = format!("{}: an earlier call failed by a bug; free it", self.name);
                CallError::new(va_status::VA_ERROR_LOST, message)
            }
        })
    }

    /// Calls `work` with the object of a handle.
    pub(crate) fn with<H, R>(
        &self,
        handle: *const H,
        work: impl FnOnce(&mut T) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let object = self.find(handle)?;
        let mut locked = self.lock(&object)?;
        work(&mut locked)
    }

    /// Frees the object of a handle, unless another call uses it. NULL is ignored.
    pub(crate) fn remove<H>(&self, handle: *const H) -> Result<(), CallError> {
        if handle.is_null() {
            return Ok(());
        }
        let object = self.find(handle)?;
        if let Err(error) = self.lock(&object)
            && error.status == va_status::VA_ERROR_BUSY
        {
            return Err(error);
        }
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let removed = objects.remove(&handle.addr());
        // Other handles can be used while the object is freed.
        drop(objects);
        removed.map(drop).ok_or_else(|| self.refuse_dead())
    }

    fn refuse_dead(&self) -> CallError {
        let message = format!(
            "{}: expected a live handle, found one that was freed or never created",
            self.name
        );
        CallError::new(va_status::VA_ERROR_HANDLE, message)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn status<R>(result: Result<R, CallError>) -> va_status {
        result.err().map_or(va_status::VA_OK, |error| error.status)
    }

    #[test]
    fn handles_are_null_live_busy_or_freed() {
        let table = HandleTable::new("number");
        let first: *mut u8 = table.insert(7).unwrap();
        let second: *mut u8 = table.insert(8).unwrap();
        assert_eq!(table.with(second, |number| Ok(*number)).unwrap(), 8);
        assert_eq!(status(table.with(ptr::null::<u8>(), |_| Ok(()))), va_status::VA_ERROR_POINTER);
        let nested =
            table.with(first, |_| Ok((table.remove(first), table.with(first, |_| Ok(())))));
        let (remove, with) = nested.unwrap();
        assert_eq!(status(remove), va_status::VA_ERROR_BUSY);
        assert_eq!(status(with), va_status::VA_ERROR_BUSY);
        table.remove(first).unwrap();
        assert_eq!(status(table.remove(first)), va_status::VA_ERROR_HANDLE);
        assert_eq!(status(table.with(first, |_| Ok(()))), va_status::VA_ERROR_HANDLE);
        assert_eq!(status(table.remove(ptr::null::<u8>())), va_status::VA_OK);
        let third: *mut u8 = table.insert(9).unwrap();
        assert_ne!(third, first, "a handle is used once");
    }

    #[test]
    fn an_object_whose_call_panicked_can_only_be_freed() {
        let table = HandleTable::new("number");
        let handle: *mut u8 = table.insert(7).unwrap();
        let call = || table.with(handle, |_| -> Result<(), CallError> { panic!("a bug") });
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        assert_eq!(status(table.with(handle, |_| Ok(()))), va_status::VA_ERROR_LOST);
        table.remove(handle).unwrap();
    }

    #[test]
    fn handles_of_other_tables_are_not_found() {
        let (numbers, texts) = (HandleTable::new("number"), HandleTable::new("text"));
        let number: *mut u8 = numbers.insert(7).unwrap();
        texts.insert::<u8>("a").unwrap();
        assert_eq!(status(texts.with(number, |_| Ok(()))), va_status::VA_ERROR_HANDLE);
    }
}
