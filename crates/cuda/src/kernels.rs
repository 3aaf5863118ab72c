//! The sources of the kernels, and with which constants they are compiled.

use std::fmt::Write;

/// What is put before every source.
const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

/// Files one after the other, each told to the compiler by its name.
macro_rules! files {
    ($($file:literal)+) => {
        concat!($("#line 1 \"", $file, "\"\n", include_str!(concat!("../kernels/", $file))),+)
    };
}

/// Weighted attention over lists of rows.
pub(crate) const ATTEND: Source =
    Source { name: "attend", text: files!("rows.cuh" "keys.cuh" "attend.cu") };

/// Logits of all tokens.
pub(crate) const LOGITS: Source =
    Source { name: "logits", text: files!("rows.cuh" "keys.cuh" "logits.cu") };

/// What the keys of a page can reach.
pub(crate) const PAGES: Source =
    Source { name: "pages", text: files!("rows.cuh" "keys.cuh" "pages.cu") };

/// The merge of its parts.
pub(crate) const COMBINE: Source =
    Source { name: "combine", text: include_str!("../kernels/combine.cu") };

/// Hash codes.
pub(crate) const ENCODE: Source = Source { name: "encode", text: files!("rows.cuh" "encode.cu") };

/// Scores of hash codes.
pub(crate) const SCORE: Source =
    Source { name: "score", text: include_str!("../kernels/score.cu") };

/// The best of many scores.
pub(crate) const SELECT: Source =
    Source { name: "select", text: include_str!("../kernels/select.cu") };

/// Tokens taken without a score.
pub(crate) const TAKE: Source = Source { name: "take", text: include_str!("../kernels/take.cu") };

/// From bits to tokens.
pub(crate) const LIST: Source = Source { name: "list", text: include_str!("../kernels/list.cu") };

/// A uniform sample of the others.
pub(crate) const SAMPLE: Source =
    Source { name: "sample", text: include_str!("../kernels/sample.cu") };

/// What a sample says of the rest.
pub(crate) const LOOK: Source = Source { name: "look", text: files!("rows.cuh" "look.cu") };

/// Whether that is enough.
pub(crate) const BUDGET_CHECK: Source =
    Source { name: "budget_check", text: files!("budget.cuh" "budget_check.cu") };

/// A file of kernels, behind those that it shares with others. It includes nothing: the prelude is put
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its name, for messages.
    pub name: &'static str,
    /// What it says.
    pub text: &'static str,
}

/// A source with its constants: one program for each kind of row, head size and so on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// The kernels.
    pub source: Source,
    /// `#define NAME VALUE`, in order.
    pub constants: Vec<(&'static str, String)>,
}

impl Program {
    /// What a compiler is given: the prelude, the constants and the source.
    pub fn text(&self) -> String {
        let mut text = format!("#line 1 \"prelude.cuh\"\n{PRELUDE}");
        for (name, value) in &self.constants {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        let Source { name, text: source } = self.source;
        let _ = write!(text, "#line 1 \"{name}.cu\"\n{source}");
        text
    }
}
