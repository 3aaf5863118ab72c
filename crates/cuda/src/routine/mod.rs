//! A whole step on the device: one copy there, one start of recorded kernels, one copy back.
//!
//! A routine is recorded once for a kind of pipeline and shape and a capacity in tokens. All
//! layers and sequences of that kind use it, one after the other: what they differ in is copied
//! there before each step.
//!
//! | file      | what                                                            |
//! |-----------|-----------------------------------------------------------------|
//! | `kind`    | for what it is recorded                                         |
//! | `words`   | values of several types in one array                            |
//! | `inputs`  | what it is told at each step                                    |
//! | `stage`   | what of that one selector tells                                 |
//! | `outputs` | what it says of each step                                       |
//! | `record`  | the kernels, in order                                           |
//! | `shared`  | the routines that are in use                                    |

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
pub(crate) use self::outputs::Found;
pub(crate) use self::shared::Routines;

use self::inputs::Inputs;
use self::outputs::Outputs;
use crate::Device;
use crate::launch::{Array, Lists, Progress, Recorded};

/// Kernels that take a step, and what they work on.
#[derive(Debug)]
pub(crate) struct Routine<D: Device> {
    kind: RoutineKind,
    inputs: Inputs,
    outputs: Outputs,
    /// One step at a time.
    work: Mutex<Recorded<D>>,
    given: Array<D, u32>,
    said: Array<D, u32>,
    /// What the selectors took.
    lists: Lists<D>,
    progress: Option<Progress<D>>,
}

/// The tokens that each list was found to have.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// Taken for certain, ascending, `[lists]`.
    pub(crate) taken: Vec<Vec<u32>>,
    /// Drawn, in draw order, `[lists]`; none without a sample.
    pub(crate) drawn: Vec<Vec<u32>>,
}

impl<D: Device> Routine<D> {
    /// What it is recorded for.
    pub(crate) fn kind(&self) -> &RoutineKind {
        &self.kind
    }

    /// Takes a step, and lists the tokens read if they are wanted.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn run(
        &self,
        heads: &[HeadInputs<'_>],
        listed: bool,
    ) -> Result<(Found, Option<Tokens>)> {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        self.given.write(&self.inputs.of_step(&self.kind, heads), 0)?;
        work.replay()?;
        let found = self.outputs.read(&self.said.read()?);
        let tokens = listed.then(|| self.tokens()).transpose()?;
        Ok((found, tokens))
    }

    fn tokens(&self) -> Result<Tokens> {
        let drawn = self.progress.as_ref().map_or(Ok(Vec::new()), Progress::tokens)?;
        Ok(Tokens { taken: self.lists.read()?, drawn })
    }
}
