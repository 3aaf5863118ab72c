//! Pipeline files with the best settings.

use std::path::Path;

use vattention::PipelineConfig;
use vattention::config::to_toml;
use vattention::experiments::Tuning;
use vattention::trace::write_beside;

use super::table::settings;
use crate::fail::Failure;
use crate::numbers::{percent, short};

/// Creates the folder if it does not exist, and refuses a path that is no folder.
pub(crate) fn check_folder(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::input(format!("--output {}: {error}", folder.display())))
}

/// Writes a file for each of the best pipelines, named after its method and goal.
pub(crate) fn write(folder: &Path, found: &Tuning) -> Result<(), Failure> {
    for (number, best) in (1..).zip(&found.best) {
        let Some(tried) = best.tried.map(|number| &found.tried[number]) else { continue };
        let goal = best.goal.map_or_else(|| format!("front {number}"), |goal| goal.to_string());
        let name = format!("{}, {goal}", best.method);
        let pipeline = PipelineConfig { name: name.clone(), ..(*tried.pipeline).clone() };
        let failed = |error| Failure::input(format!("--output {}: {error}", folder.display()));
        let text = to_toml(&pipeline, folder).map_err(failed)?;
        let score = &tried.score;
        let (read, error) = (percent(score.density), short(score.error));
        let about = format!(
            "# The best of {} by `vattention tune`: {}.\n\
             # Its density was {read}, and its mean error {error}, on {}.\n",
            tried.file,
            settings(tried),
            found.traces.join(", ")
        );
        write_beside(&folder.join(format!("{}.toml", slug(&name))), (about + &text).as_bytes())?;
    }
    Ok(())
}

/// Returns a file name: lower-case letters, digits and dots, with dashes for everything else.
fn slug(name: &str) -> String {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let words = name.split(|c| !is_kept(c)).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}
