//! Checks that a saved session fits the session that would continue from it.

use vattention_core::Storage;

use super::{SavedSession, SessionOrigin, describe_prefill};
use crate::{PrefillOptions, Result};

impl SavedSession {
    /// Refuses a saved session if a session of this origin, storage and prefill, which rotates rows
    /// or [does not](crate::rotates_rows), would compute other numbers.
    ///
    /// # Errors
    /// [`Error::SavedSession`](crate::Error::SavedSession) with the found and the expected value.
    pub fn check_origin(
        &self,
        origin: &SessionOrigin,
        storage: Storage,
        rotates: bool,
        prefill: &PrefillOptions,
    ) -> Result<()> {
        let header = &self.header;
        if header.model != origin.model {
            let (found, expected) = (&header.model, &origin.model);
            let reason = format!("saved with another model (digest {found}, expected {expected})");
            return Err(self.refuse(&reason));
        }
        let stepped = header.step > 0;
        // Stored numbers in f32 are rounded to the session's type, as if it had read the prompt
        // itself.
        if self.storage != storage && (stepped || self.storage != Storage::F32) {
            let reason =
                format!("keys and values are saved in {}; expected {storage}", self.storage);
            return Err(self.refuse(&reason));
        }
        if self.storage == storage && header.rotated != rotates {
            let words = |rotated| if rotated { "after a rotation" } else { "without a rotation" };
            let (found, expected) = (words(header.rotated), words(rotates));
            let reason = format!(
                "keys and values are saved {found}; expected {expected}, because of the pipeline's \
                 selectors"
            );
            return Err(self.refuse(&reason));
        }
        let prefill = describe_prefill(prefill);
        if header.prefill != prefill {
            let reason = format!("the prompt was read by {}; expected {prefill}", header.prefill);
            return Err(self.refuse(&reason));
        }
        if stepped && header.pipeline != origin.pipeline {
            let (found, expected) = first_difference(&header.pipeline, &origin.pipeline);
            let reason = format!(
                "saved after {} steps with another pipeline (`{found}`, expected `{expected}`)",
                header.step
            );
            return Err(self.refuse(&reason));
        }
        Ok(())
    }

    /// Refuses a prompt that does not begin with the tokens of the saved session. A longer prompt
    /// is also refused if its results would differ from those of a prefill of the whole prompt: if
    /// keys and values are stored in 16 or 8 bits, if the session has made steps, or if its prefill
    /// was not dense.
    ///
    /// # Errors
    /// [`Error::SavedSession`](crate::Error::SavedSession) with the first different position, or
    /// the reason.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let (found, expected) = (self.tokens().len(), tokens.len());
        let same = self.tokens().iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if same < found {
            let reason = match tokens.get(same) {
                Some(expected) => format!(
                    "saved with another text: token {same} is {}; expected {expected}, as in the \
                     prompt",
                    self.tokens()[same]
                ),
                None => format!("saved with {found} tokens; expected the {expected} of the prompt"),
            };
            return Err(self.refuse(&reason));
        }
        let obstacle = if self.storage != Storage::F32 {
            format!("in {}; expected f32", self.storage)
        } else if self.header.step > 0 {
            format!("after {} steps; expected none", self.header.step)
        } else if self.header.prefill_density != Some(1.0) {
            format!("after {}; expected dense attention", self.header.prefill)
        } else {
            return Ok(());
        };
        if found == expected {
            return Ok(());
        }
        let more = expected - found;
        let reason = format!("{more} more tokens cannot be read densely: saved {obstacle}");
        Err(self.refuse(&reason))
    }
}

/// Returns the first pair of lines that differ.
fn first_difference<'t>(found: &'t str, expected: &'t str) -> (&'t str, &'t str) {
    let (mut found, mut expected) = (found.lines(), expected.lines());
    loop {
        let lines = (found.next(), expected.next());
        if lines.0 != lines.1 || lines.0.is_none() {
            return (lines.0.unwrap_or("nothing"), lines.1.unwrap_or("nothing"));
        }
    }
}
