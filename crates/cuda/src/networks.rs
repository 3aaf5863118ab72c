//! Networks on the device, one copy for all whose selectors share them: a sequence and its forks.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use vattention_core::Result;

use crate::Device;
use crate::launch::DeviceNetwork;

/// A network of the host, and the same on the device, as long as somebody has them.
type Known<D> = (Weak<vattention_core::Network>, Weak<DeviceNetwork<D>>);

/// Networks of one device. A clone is the same ones.
#[derive(Debug)]
pub(crate) struct Networks<D: Device> {
    known: Arc<Mutex<Vec<Known<D>>>>,
}

impl<D: Device> Default for Networks<D> {
    fn default() -> Self {
        Self { known: Arc::default() }
    }
}

impl<D: Device> Clone for Networks<D> {
    fn clone(&self) -> Self {
        Self { known: self.known.clone() }
    }
}

impl<D: Device> Networks<D> {
    /// A network on the device, copied there if nobody has it.
    pub(crate) fn get(
        &self,
        device: &D,
        network: &Arc<vattention_core::Network>,
    ) -> Result<Arc<DeviceNetwork<D>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(of, copy)| of.strong_count() > 0 && copy.strong_count() > 0);
        let same = |(of, _): &&Known<D>| std::ptr::eq(of.as_ptr(), Arc::as_ptr(network));
        if let Some(copy) = known.iter().find(same).and_then(|(_, copy)| copy.upgrade()) {
            return Ok(copy);
        }
        let copy = Arc::new(DeviceNetwork::new(device, network)?);
        known.push((Arc::downgrade(network), Arc::downgrade(&copy)));
        Ok(copy)
    }
}
