//! RULER's own files (Hsieh et al., <https://arxiv.org/abs/2404.06654>): a folder for each task with
//! `validation.jsonl`, whose lines have `index`, `input`, `outputs` and `length`; `answer_prefix` is
//! what newer files have the answer begin with.

use super::{Counted, Definition, Fit, Layout};
use crate::benchmarks::rows::Row;
use crate::metrics::AnswerMetric;
use crate::{Case, Task};

pub(super) fn datasets() -> Vec<Definition> {
    Task::ALL.iter().map(|task| dataset(*task)).collect()
}

fn dataset(task: Task) -> Definition {
    let name = task.name();
    let (tokens, metric) = match task {
        Task::Vt => (30, AnswerMetric::MatchAll),
        Task::Cwe => (120, AnswerMetric::MatchAll),
        Task::Fwe => (50, AnswerMetric::MatchAll),
        Task::Qa1 | Task::Qa2 => (32, AnswerMetric::MatchPart),
        _ => (128, AnswerMetric::MatchAll),
    };
    Definition {
        benchmark: "ruler",
        dataset: name.into(),
        name: name.into(),
        files: vec![format!("{name}/validation"), name.into()],
        tokens,
        metric,
        others: &[],
        fit: Fit::Whole,
        as_chat: true,
        counted: Counted::All,
        lengths: None,
        layout: Layout::Ruler,
    }
}

/// The question begins with the last line that says one, or is the last line.
pub(super) fn case(row: &Row) -> Result<Case, String> {
    let input = row.text(&["input"])?;
    let beginning =
        if row.has("answer_prefix") { row.text(&["answer_prefix"])? } else { String::new() };
    let place = input.rfind("\nQuestion:").or_else(|| input.trim_end().rfind('\n')).unwrap_or(0);
    let (context, question) =
        (input[..place].to_owned(), format!("{}{beginning}", &input[place..]));
    let answers = row.texts("outputs")?;
    Ok(Case { context, question, beginning, answers, labels: Vec::new(), tokens: 0 })
}
