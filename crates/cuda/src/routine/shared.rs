//! Routines in use, shared by all layers and sequences.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use vattention_core::Result;

use super::{Routine, RoutineKind};
use crate::Device;

/// Routines of one device. Clones share them.
#[derive(Debug)]
pub(crate) struct Routines<D: Device> {
    routines: Arc<Mutex<Vec<Weak<Routine<D>>>>>,
}

impl<D: Device> Default for Routines<D> {
    fn default() -> Self {
        Self { routines: Arc::default() }
    }
}

impl<D: Device> Clone for Routines<D> {
    fn clone(&self) -> Self {
        Self { routines: self.routines.clone() }
    }
}

impl<D: Device> Routines<D> {
    /// Returns the routine of a kind, and records it if none exists.
    pub(crate) fn get(&self, device: &D, kind: &RoutineKind) -> Result<Arc<Routine<D>>> {
        let mut routines = self.routines.lock().unwrap_or_else(PoisonError::into_inner);
        routines.retain(|routine| routine.strong_count() > 0);
        let found =
            routines.iter().filter_map(Weak::upgrade).find(|routine| routine.kind() == kind);
        if let Some(routine) = found {
            return Ok(routine);
        }
        let routine = Arc::new(Routine::new(device, kind.clone())?);
        routines.push(Arc::downgrade(&routine));
        Ok(routine)
    }
}
