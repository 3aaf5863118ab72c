//! Loading of pipelines from files and options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vattention_core::{PipelineConfig, plugin::registry_faults};

use crate::library::locate;
use crate::node::Node;
use crate::problem::{ConfigError, Problem};
use crate::reader::Reader;

/// Loads a pipeline file.
///
/// # Errors
/// All problems in the file.
pub fn load(path: impl AsRef<Path>) -> Result<Arc<PipelineConfig>, ConfigError> {
    Loader::default().load(path)
}

/// Loads pipelines, with changes to the settings in the files.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    /// Changes such as `estimator.epsilon=0.1` or `selectors.0.size = 64`, applied in order.
    pub set: Vec<String>,
}

impl Loader {
    /// Loads a pipeline file and the files that it extends, and applies the changes. A path that is
    /// not a file and has neither a folder nor an extension is the name of a built-in pipeline
    /// ([`pipeline_names`](crate::pipeline_names)).
    ///
    /// # Errors
    /// All problems in files and changes.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Arc<PipelineConfig>, ConfigError> {
        self.load_with_files(path).map(|(pipeline, _)| pipeline)
    }

    /// Loads a pipeline file, and also returns the files that were read, without built-in
    /// pipelines.
    ///
    /// # Errors
    /// All problems in files and changes.
    pub fn load_with_files(
        &self,
        path: impl AsRef<Path>,
    ) -> Result<(Arc<PipelineConfig>, Vec<PathBuf>), ConfigError> {
        let path = &locate(Path::new(""), path.as_ref());
        let mut reader = Reader::default();
        let tree = reader.read_file(path, &mut Vec::new());
        let files = std::mem::take(&mut reader.files);
        Ok((self.finish(reader, tree, path)?, files))
    }

    /// Loads a pipeline from text. Messages call it `name`, and `extends` is relative to this path.
    ///
    /// # Errors
    /// All problems in text and changes.
    pub fn parse(&self, name: &str, text: &str) -> Result<Arc<PipelineConfig>, ConfigError> {
        let mut reader = Reader::default();
        let tree = reader.read_text(Path::new(name), text.to_owned(), &mut Vec::new());
        self.finish(reader, Some(tree), Path::new(name))
    }

    fn finish(
        &self,
        mut reader: Reader,
        tree: Option<Node>,
        path: &Path,
    ) -> Result<Arc<PipelineConfig>, ConfigError> {
        reader.problems.extend(registry_faults().into_iter().map(Problem::of_file));
        let pipeline = tree.map(|mut tree| {
            for (i, change) in self.set.iter().enumerate() {
                reader.apply(i, change, &mut tree);
            }
            reader.read_pipeline(&tree, path)
        });
        match pipeline {
            Some(pipeline) if reader.problems.is_empty() => Ok(Arc::new(pipeline)),
            _ => Err(reader.into_error()),
        }
    }
}
