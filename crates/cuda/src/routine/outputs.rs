//! Outputs of a routine at each step, read in one copy.

use vattention_core::{Result, step::Softmax};

use super::kind::RoutineKind;
use super::words::{WordSlot, WordSlots};
use crate::Device;
use crate::launch::{Array, Progress, SampleState, Sums, read_sample_states, softmax};

/// Places of the outputs.
#[derive(Debug)]
pub(super) struct Outputs {
    places: WordSlots,
    value_dim: usize,
    /// `[query_heads, 2 + value_dim]`
    certain: WordSlot<f64>,
    /// `[query_heads, 2 + value_dim]`, if there is a sample.
    sample: Option<WordSlot<f64>>,
    /// Number of always-read tokens, `[lists]`.
    taken: WordSlot<u32>,
    /// `[7, lists]`
    progress: Option<WordSlot<u32>>,
    /// Number of distinct tokens read, `[kv_heads]`.
    read: WordSlot<u32>,
}

/// Views of the outputs on the device.
pub(super) struct OutputsOnDevice<D: Device> {
    pub(super) all: Array<D, u32>,
    pub(super) certain: Sums<D>,
    pub(super) sample: Option<SampleOutputs<D>>,
    pub(super) taken: Array<D, u32>,
    pub(super) read: Array<D, u32>,
}

/// Sums and progress of a sample on the device.
pub(super) struct SampleOutputs<D: Device> {
    pub(super) sums: Sums<D>,
    pub(super) progress: Progress<D>,
}

/// Results of a step.
#[derive(Debug)]
pub(crate) struct RoutineOutput {
    /// Sums over the always-read tokens, `[query_heads]`.
    pub(crate) certain: Vec<Softmax>,
    /// Sums over the sample, with weight 1 for each token, `[query_heads]`; empty without a sample.
    pub(crate) sample: Vec<Softmax>,
    /// Number of always-read tokens, `[lists]`.
    pub(crate) taken: Vec<usize>,
    /// State of each list's sample, `[lists]`; empty without a sample.
    pub(crate) progress: Vec<SampleState>,
    /// Number of distinct tokens that the query heads of each KV head read, `[kv_heads]`.
    pub(crate) read: Vec<usize>,
}

impl Outputs {
    pub(super) fn new(kind: &RoutineKind) -> Self {
        let value_dim = kind.shape.value_dim;
        let sums = kind.shape.query_heads * (2 + value_dim);
        let mut places = WordSlots::default();
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
        let sums = |place: &WordSlot<f64>| Sums::within(place.view(&all), self.value_dim);
        let sample = match (&self.sample, &self.progress) {
            (Some(sample), Some(progress)) => Some(SampleOutputs {
                sums: sums(sample),
                progress: Progress::within(device, progress.view(&all), kind.capacity)?,
            }),
            _ => None,
        };
        let certain = sums(&self.certain);
        Ok(OutputsOnDevice {
            certain,
            sample,
            taken: self.taken.view(&all),
            read: self.read.view(&all),
            all,
        })
    }

    /// Decodes the outputs of a step.
    pub(super) fn decode(&self, all: &[u32]) -> RoutineOutput {
        let sums = |place: &WordSlot<f64>| softmax(&place.get(all), self.value_dim);
        let counts = |place: &WordSlot<u32>| -> Vec<usize> {
            place.get(all).into_iter().map(|count| count as usize).collect()
        };
        RoutineOutput {
            certain: sums(&self.certain),
            sample: self.sample.as_ref().map_or(Vec::new(), sums),
            taken: counts(&self.taken),
            progress: self
                .progress
                .as_ref()
                .map_or(Vec::new(), |place| read_sample_states(&place.get(all))),
            read: counts(&self.read),
        }
    }
}
