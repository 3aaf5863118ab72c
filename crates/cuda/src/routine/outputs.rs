//! What a routine says of each step, in one copy.

use vattention_core::{Result, step::Softmax};

use super::kind::RoutineKind;
use super::words::{Place, Places};
use crate::Device;
use crate::launch::{Array, Progress, Progressed, Sums, progressed, softmax};

/// Where the numbers are.
#[derive(Debug)]
pub(super) struct Outputs {
    places: Places,
    value_dim: usize,
    /// `[query_heads, 2 + value_dim]`
    certain: Place<f64>,
    /// The same, if there is a sample.
    sample: Option<Place<f64>>,
    /// Tokens that the selectors took, `[lists]`.
    taken: Place<u32>,
    /// `[7, lists]`
    progress: Option<Place<u32>>,
    /// Different tokens read, `[kv_heads]`.
    read: Place<u32>,
}

/// The same on the device.
pub(super) struct OutputsOnDevice<D: Device> {
    pub(super) all: Array<D, u32>,
    pub(super) certain: Sums<D>,
    pub(super) sample: Option<SampleOutputs<D>>,
    pub(super) taken: Array<D, u32>,
    pub(super) read: Array<D, u32>,
}

/// A sample that grows.
pub(super) struct SampleOutputs<D: Device> {
    pub(super) sums: Sums<D>,
    pub(super) progress: Progress<D>,
}

/// What has come of a step.
#[derive(Debug)]
pub(crate) struct Found {
    /// Of what was taken for certain, `[query_heads]`.
    pub(crate) certain: Vec<Softmax>,
    /// Of the sample, its tokens weighing 1, `[query_heads]`; none without a sample.
    pub(crate) sample: Vec<Softmax>,
    /// Tokens that the selectors took, `[lists]`.
    pub(crate) taken: Vec<usize>,
    /// How far the sample of each list went, `[lists]`; none without a sample.
    pub(crate) progress: Vec<Progressed>,
    /// Different tokens that each KV head's query heads read, `[kv_heads]`.
    pub(crate) read: Vec<usize>,
}

impl Outputs {
    pub(super) fn new(kind: &RoutineKind) -> Self {
        let value_dim = kind.shape.value_dim;
        let sums = kind.shape.query_heads * (2 + value_dim);
        let mut places = Places::default();
        let certain = places.add(sums);
        let sampled = kind.sample.is_some();
        let sample = sampled.then(|| places.add(sums));
        let taken = places.add(kind.lists());
        let progress =
            sampled.then(|| places.add(Progress::<crate::Driver>::NUMBERS * kind.lists()));
        let read = places.add(kind.shape.kv_heads);
        Self { places, value_dim, certain, sample, taken, progress, read }
    }

    pub(super) fn on_device<D: Device>(
        &self,
        device: &D,
        kind: &RoutineKind,
    ) -> Result<OutputsOnDevice<D>> {
        let all = self.places.array(device)?;
        let sums = |place: &Place<f64>| Sums::within(place.of(&all), self.value_dim);
        let sample = match (&self.sample, &self.progress) {
            (Some(sample), Some(progress)) => Some(SampleOutputs {
                sums: sums(sample),
                progress: Progress::within(device, progress.of(&all), kind.capacity)?,
            }),
            _ => None,
        };
        let certain = sums(&self.certain);
        Ok(OutputsOnDevice {
            certain,
            sample,
            taken: self.taken.of(&all),
            read: self.read.of(&all),
            all,
        })
    }

    /// What the numbers say.
    pub(super) fn read(&self, all: &[u32]) -> Found {
        let sums = |place: &Place<f64>| softmax(&place.get(all), self.value_dim);
        let counts = |place: &Place<u32>| -> Vec<usize> {
            place.get(all).into_iter().map(|count| count as usize).collect()
        };
        Found {
            certain: sums(&self.certain),
            sample: self.sample.as_ref().map_or(Vec::new(), sums),
            taken: counts(&self.taken),
            progress: self
                .progress
                .as_ref()
                .map_or(Vec::new(), |place| progressed(&place.get(all))),
            read: counts(&self.read),
        }
    }
}
