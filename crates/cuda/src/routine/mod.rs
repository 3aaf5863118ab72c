//! A whole step on the device: one copy of the inputs, one start of recorded kernels, one copy of
//! the outputs.
//!
//! A routine is recorded once for a kind of pipeline and shape and a capacity in tokens. All
//! layers and sequences of that kind take turns with it; their differences are copied to the device
//! before each step.
//!
//! | module    | contents                                       |
//! |-----------|------------------------------------------------|
//! | `kind`    | properties that a routine is recorded for      |
//! | `words`   | values of several types in one array           |
//! | `head`    | inputs of one KV head                          |
//! | `inputs`  | inputs of each step                            |
//! | `stage`   | inputs of one stage                            |
//! | `outputs` | outputs of each step                           |
//! | `record`  | recording of the kernels, in order             |
//! | `shared`  | routines that layers and sequences share       |

mod head;
mod inputs;
mod kind;
mod outputs;
mod record;
mod shared;
mod stage;
mod words;

use std::sync::{Mutex, PoisonError};

use vattention_core::Result;

pub(crate) use self::head::HeadInputs;
pub(crate) use self::kind::RoutineKind;
pub(crate) use self::outputs::RoutineOutput;
pub(crate) use self::shared::Routines;

use self::inputs::Inputs;
use self::outputs::Outputs;
use crate::Device;
use crate::launch::{Array, Lists, Progress, RecordedWork};

/// The kernels of a step, and their memory.
#[derive(Debug)]
pub(crate) struct Routine<D: Device> {
    kind: RoutineKind,
    inputs: Inputs,
    outputs: Outputs,
    /// Recorded kernels, locked because a routine runs one step at a time.
    work: Mutex<RecordedWork<D>>,
    input_words: Array<D, u32>,
    output_words: Array<D, u32>,
    /// Always-read tokens.
    lists: Lists<D>,
    progress: Option<Progress<D>>,
}

/// Tokens of each list.
#[derive(Debug)]
pub(crate) struct ListTokens {
    /// Always-read tokens, ascending, `[lists]`.
    pub(crate) taken: Vec<Vec<u32>>,
    /// Drawn tokens, in draw order, `[lists]`; empty without a sample.
    pub(crate) drawn: Vec<Vec<u32>>,
}

impl<D: Device> Routine<D> {
    /// Properties that the routine was recorded for.
    pub(crate) fn kind(&self) -> &RoutineKind {
        &self.kind
    }

    /// Runs a step, and copies the token lists to the host if `listed`.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn run(
        &self,
        heads: &[HeadInputs<'_>],
        listed: bool,
    ) -> Result<(RoutineOutput, Option<ListTokens>)> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        self.input_words.write(&self.inputs.encode(&self.kind, heads), 0)?;
        work.replay()?;
        let found = self.outputs.decode(&self.output_words.read()?);
        let tokens = listed.then(|| self.tokens()).transpose()?;
        Ok((found, tokens))
    }

    fn tokens(&self) -> Result<ListTokens> {
        let drawn = self.progress.as_ref().map_or(Ok(Vec::new()), Progress::tokens)?;
        Ok(ListTokens { taken: self.lists.read()?, drawn })
    }
}
