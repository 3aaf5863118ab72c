//! Sessions that `generate` saves to a file and continues from one.

use std::io::BufWriter;
use std::path::PathBuf;

use vattention::trace::write_beside_with;
use vattention::{PipelineConfig, Storage};
use vattention_llm::{
    PrefillOptions, SavedSession, Session, SessionContent, SessionOrigin, model_digest,
    rotates_rows,
};

use crate::fail::Failure;
use crate::models::checkpoint::ModelFiles;
use crate::progress;

#[derive(Debug, clap::Args)]
pub(super) struct SavedSessionArgs {
    /// Save the session after the part of the prompt that dense attention reads (see --setup), for
    /// later calls with --session.
    #[arg(long, value_name = "FILE")]
    pub(super) save_session: Option<PathBuf>,
    /// Continue from a file that --save-session wrote, instead of reading its tokens again. The
    /// context is the saved one unless --context or --prompt is given.
    #[arg(long, value_name = "FILE")]
    pub(super) session: Option<PathBuf>,
}

/// Files of `--session` and `--save-session`, and the origin that both must have.
pub(super) struct SessionFiles {
    saved: Option<SavedSession>,
    save_to: Option<PathBuf>,
    origin: SessionOrigin,
}

impl SessionFiles {
    /// Opens the file of `--session`.
    pub(super) fn open(
        args: &SavedSessionArgs,
        storage: Storage,
        checkpoint: &ModelFiles<'_>,
        pipeline: &PipelineConfig,
        prefill: &PrefillOptions,
    ) -> Result<Self, Failure> {
        let SavedSessionArgs { session, save_session } = args;
        let saved = session.as_deref().map(SavedSession::open).transpose()?;
        let save_to = save_session.clone();
        let is_used = saved.is_some() || save_to.is_some();
        let model = if is_used { model_digest(checkpoint.path())? } else { String::new() };
        let rotates = rotates_rows(pipeline, storage);
        let pipeline = toml::to_string(pipeline).map_err(Failure::input)?;
        let origin = SessionOrigin { model, pipeline };
        if let Some(saved) = &saved {
            saved.check_origin(&origin, storage, rotates, prefill)?;
        }
        Ok(Self { saved, save_to, origin })
    }

    /// Returns the context of the saved session.
    pub(super) fn context(&self) -> Result<Option<String>, Failure> {
        let Some(saved) = &self.saved else { return Ok(None) };
        if let Some(text) = saved.text() {
            return Ok(Some(text.to_owned()));
        }
        let path = saved.path().display();
        Err(Failure::input(format!("--session {path}: no text; add --context")))
    }

    /// Refuses a saved session whose tokens are not those that a request reads densely.
    pub(super) fn check(&self, dense: &[u32]) -> Result<(), Failure> {
        let Some(saved) = &self.saved else { return Ok(()) };
        saved.check_tokens(dense)?;
        Ok(())
    }

    /// Reads the dense part of a request, after the tokens of the saved session if there is one.
    /// Returns the logits after the last token of `dense`.
    pub(super) fn read(
        &mut self,
        session: &mut Session<'_>,
        dense: &[u32],
    ) -> Result<Vec<f32>, Failure> {
        let bar = progress::bar("layers");
        let show = |done, total| progress::show(&bar, done, total);
        let logits = match &mut self.saved {
            Some(saved) => session.prefill_after(saved, &self.origin, dense, show),
            None => session.prefill_with(dense, show),
        }?;
        bar.finish_and_clear();
        Ok(logits)
    }

    /// Saves a session that has read the dense part of a request, and the text of its context.
    pub(super) fn save(
        &self,
        session: &Session<'_>,
        dense: &[u32],
        context: &str,
        logits: &[f32],
    ) -> Result<(), Failure> {
        let Some(path) = &self.save_to else { return Ok(()) };
        let content = SessionContent { tokens: dense, logits, text: Some(context) };
        write_beside_with(path, |file| -> Result<(), Failure> {
            let saved = session.save(BufWriter::new(file), &self.origin, &content);
            saved.map_err(|error| Failure::input(format!("{}: {error}", path.display())))
        })
    }
}
