//! Sources of the kernels, and the constants with which they are compiled.

use std::fmt::Write;

/// Code in front of every source.
const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

/// Concatenates files, with `#line` directives that name each for the compiler.
macro_rules! files {
    ($($file:literal)+) => {
        concat!($("#line 1 \"", $file, "\"\n", include_str!(concat!("../kernels/", $file))),+)
    };
}

/// Weighted attention over token lists.
pub(crate) const ATTEND: KernelSource =
    KernelSource { name: "attend", text: files!("rows.cuh" "keys.cuh" "attend.cu") };

/// Logits of all tokens.
pub(crate) const LOGITS: KernelSource =
    KernelSource { name: "logits", text: files!("rows.cuh" "keys.cuh" "logits.cu") };

/// Bounds of pages, and upper bounds on the logits of their keys.
pub(crate) const PAGES: KernelSource =
    KernelSource { name: "pages", text: files!("rows.cuh" "keys.cuh" "pages.cu") };

/// Merge of the partial sums of [`ATTEND`].
pub(crate) const COMBINE: KernelSource =
    KernelSource { name: "combine", text: include_str!("../kernels/combine.cu") };

/// Hash codes.
pub(crate) const ENCODE: KernelSource =
    KernelSource { name: "encode", text: files!("rows.cuh" "encode.cu") };

/// Scores of tokens by hash codes.
pub(crate) const SCORE: KernelSource =
    KernelSource { name: "score", text: include_str!("../kernels/score.cu") };

/// Tokens with the largest scores.
pub(crate) const SELECT: KernelSource =
    KernelSource { name: "select", text: include_str!("../kernels/select.cu") };

/// Tokens taken by position.
pub(crate) const TAKE: KernelSource =
    KernelSource { name: "take", text: include_str!("../kernels/take.cu") };

/// Token lists from bits.
pub(crate) const LIST: KernelSource =
    KernelSource { name: "list", text: include_str!("../kernels/list.cu") };

/// Uniform sample of the untaken tokens.
pub(crate) const SAMPLE: KernelSource =
    KernelSource { name: "sample", text: include_str!("../kernels/sample.cu") };

/// Moments of a sample.
pub(crate) const SAMPLE_MOMENTS: KernelSource =
    KernelSource { name: "look", text: files!("rows.cuh" "look.cu") };

/// Budgets from the moments of a sample, and the decision to draw more.
pub(crate) const BUDGET_CHECK: KernelSource =
    KernelSource { name: "budget_check", text: files!("budget.cuh" "budget_check.cu") };

/// A file of kernels, preceded by the headers that it shares with others. It has no `#include`
/// lines; [`Program::text`] adds the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// Name of the file without its ending, used in messages.
    pub name: &'static str,
    /// Source code.
    pub text: &'static str,
}

/// A source with its constants. There is one program for each type of row, head size and so on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// The kernels.
    pub source: KernelSource,
    /// Names and values of `#define` lines, in order.
    pub constants: Vec<(&'static str, String)>,
}

impl Program {
    /// Returns the input of a compiler: the prelude, the constants and the source.
    pub fn text(&self) -> String {
        let mut text = format!("#line 1 \"prelude.cuh\"\n{PRELUDE}");
        for (name, value) in &self.constants {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        let KernelSource { name, text: source } = self.source;
        let _ = write!(text, "#line 1 \"{name}.cu\"\n{source}");
        text
    }
}
