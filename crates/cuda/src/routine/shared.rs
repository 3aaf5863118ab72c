//! The routines that are in use, shared by all layers and sequences.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use vattention_core::Result;

use super::{Routine, RoutineKind};
use crate::Device;

/// Routines of one device. A clone is the same ones.
#[derive(Debug)]
pub(crate) struct Routines<D: Device> {
    known: Arc<Mutex<Vec<Weak<Routine<D>>>>>,
}

impl<D: Device> Default for Routines<D> {
    fn default() -> Self {
        Self { known: Arc::default() }
    }
}

impl<D: Device> Clone for Routines<D> {
    fn clone(&self) -> Self {
        Self { known: self.known.clone() }
    }
}

impl<D: Device> Routines<D> {
    /// The routine of a kind, recorded if nobody has it.
    pub(crate) fn get(&self, device: &D, kind: &RoutineKind) -> Result<Arc<Routine<D>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|routine| routine.strong_count() > 0);
        let found = known.iter().filter_map(Weak::upgrade).find(|routine| routine.kind() == kind);
        if let Some(routine) = found {
            return Ok(routine);
        }
        let routine = Arc::new(Routine::new(device, kind.clone())?);
        known.push(Arc::downgrade(&routine));
        Ok(routine)
    }
}
