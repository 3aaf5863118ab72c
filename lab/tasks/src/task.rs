//! Names of the tasks and of groups of tasks.

use std::fmt;
use std::str::FromStr;

use crate::{AnswerMetric, Benchmark, Case, Dataset, Error, Result};

/// Task of RULER, or a dataset of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// A number in noise.
    NiahSingle1,
    /// A number in prose.
    NiahSingle2,
    /// A UUID in prose.
    NiahSingle3,
    /// One of four numbers in prose.
    NiahMultikey1,
    /// One of many numbers, in a haystack of other numbers.
    NiahMultikey2,
    /// One of many UUIDs with UUIDs as keys, in a haystack of others.
    NiahMultikey3,
    /// The four numbers of one key, in prose.
    NiahMultivalue,
    /// The numbers of four keys, in prose.
    NiahMultiquery,
    /// The five variables of a chain of assignments, in noise.
    Vt,
    /// The ten most frequent words of a list.
    Cwe,
    /// The three most frequent coded words of a text.
    Fwe,
    /// A question about one of many paragraphs (SQuAD).
    Qa1,
    /// A question about two of many paragraphs (HotpotQA).
    Qa2,
    /// Dataset of a published benchmark from its files, not a synthetic task of RULER.
    Dataset(Dataset),
}

impl Task {
    /// RULER's tasks, in its order.
    pub const ALL: [Self; 13] = [
        Self::NiahSingle1,
        Self::NiahSingle2,
        Self::NiahSingle3,
        Self::NiahMultikey1,
        Self::NiahMultikey2,
        Self::NiahMultikey3,
        Self::NiahMultivalue,
        Self::NiahMultiquery,
        Self::Vt,
        Self::Cwe,
        Self::Fwe,
        Self::Qa1,
        Self::Qa2,
    ];

    /// Name of the task in RULER, or of the dataset.
    pub fn name(self) -> &'static str {
        match self {
            Self::NiahSingle1 => "niah_single_1",
            Self::NiahSingle2 => "niah_single_2",
            Self::NiahSingle3 => "niah_single_3",
            Self::NiahMultikey1 => "niah_multikey_1",
            Self::NiahMultikey2 => "niah_multikey_2",
            Self::NiahMultikey3 => "niah_multikey_3",
            Self::NiahMultivalue => "niah_multivalue",
            Self::NiahMultiquery => "niah_multiquery",
            Self::Vt => "vt",
            Self::Cwe => "cwe",
            Self::Fwe => "fwe",
            Self::Qa1 => "qa_1",
            Self::Qa2 => "qa_2",
            Self::Dataset(dataset) => dataset.name(),
        }
    }
}

impl Task {
    /// Scores an answer in [0, 1], ignoring case in RULER's tasks: the share of the right answers
    /// that the answer contains, or for `qa_1` and `qa_2` 1 if it contains any of them. A dataset
    /// has its own metric.
    pub fn score(&self, case: &Case, answer: &str) -> f64 {
        match self {
            Self::Qa1 | Self::Qa2 => AnswerMetric::MatchPart.score(case, answer),
            Self::Dataset(dataset) => dataset.score(case, answer),
            _ => AnswerMetric::MatchAll.score(case, answer),
        }
    }

    /// Scores an answer by the other metrics of the dataset's publishers.
    pub fn other_scores(&self, case: &Case, answer: &str) -> Vec<(AnswerMetric, f64)> {
        match self {
            Self::Dataset(dataset) => dataset.other_scores(case, answer),
            _ => Vec::new(),
        }
    }
}

impl Benchmark {
    /// Datasets that have cases.
    pub fn tasks(&self) -> Vec<Task> {
        self.datasets().map(Task::Dataset).collect()
    }
}

/// Names of groups of tasks. `ruler-hard` has the tasks with which the published scripts reproduce
/// the table RULER-HARD in vAttention's paper; the paper's text does not list them.
const GROUPS: &[(&str, &[Task])] = &[
    ("ruler", &Task::ALL),
    (
        "ruler-hard",
        &[
            Task::NiahMultikey2,
            Task::NiahMultikey3,
            Task::NiahMultivalue,
            Task::Vt,
            Task::Fwe,
            Task::Qa1,
            Task::Qa2,
        ],
    ),
];

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|task| task.name() == name).ok_or_else(|| unknown(name))
    }
}

/// Returns the tasks with these names of tasks and groups (`ruler`: all; `ruler-hard`: the seven of
/// vAttention's paper), each once, in RULER's order.
///
/// # Errors
/// [`Error::Unknown`] for the first name that is neither a task nor a group.
pub fn tasks(names: &[String]) -> Result<Vec<Task>> {
    let mut named = Vec::new();
    for name in names {
        match GROUPS.iter().find(|(group, _)| group == name) {
            Some((_, tasks)) => named.extend_from_slice(tasks),
            None => named.push(name.parse()?),
        }
    }
    named.sort_unstable();
    named.dedup();
    Ok(named)
}

fn unknown(name: &str) -> Error {
    let groups = GROUPS.iter().map(|(group, _)| *group);
    let known: Vec<_> = groups.chain(Task::ALL.iter().map(|task| task.name())).collect();
    Error::Unknown { name: name.into(), known: known.join(", ") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse_names(names: &[&str]) -> Result<Vec<Task>> {
        tasks(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn names_parse_as_their_tasks() {
        assert!(Task::ALL.iter().all(|task| task.to_string().parse::<Task>().unwrap() == *task));
        assert!(Task::ALL.is_sorted(), "sorting gives RULER's order");
    }

    #[test]
    fn groups_and_names_give_each_task_once_in_order() {
        assert_eq!(parse_names(&["ruler"]).unwrap(), Task::ALL);
        assert_eq!(
            parse_names(&["vt", "niah_single_3", "vt"]).unwrap(),
            [Task::NiahSingle3, Task::Vt]
        );
        assert_eq!(parse_names(&["qa_2", "ruler"]).unwrap(), Task::ALL);
        assert_eq!(parse_names(&["ruler-hard"]).unwrap().len(), 7);
        assert!(parse_names(&[]).unwrap().is_empty());
    }

    #[test]
    fn errors_of_unknown_names_list_known_ones() {
        let message = parse_names(&["vt", "VT"]).unwrap_err().to_string();
        assert!(message.starts_with(
            "there is no task `VT`; expected one of ruler, ruler-hard, niah_single_1, "
        ));
        assert!(message.ends_with(", cwe, fwe, qa_1, qa_2"), "{message}");
    }

    fn case(answers: &[&str]) -> Case {
        let answers = answers.iter().map(ToString::to_string).collect();
        Case { answers, tokens: 1, ..Case::default() }
    }

    #[test]
    fn answers_are_scored_by_the_share_they_contain() {
        let case = case(&["1234567", "Amber-Fox", "7654321", "Bold-Owl"]);
        let score = |answer| Task::NiahMultiquery.score(&case, answer);
        assert_eq!(score(""), 0.0);
        assert_eq!(score("It is 1234567."), 0.25);
        assert_eq!(score("amber-fox,\n1234567"), 0.5);
        assert_eq!(score("7654321 AMBER-FOX 1234567 BOLD-OWL"), 1.0);
    }

    #[test]
    fn one_right_answer_is_enough_for_a_question() {
        let case = case(&["Émile", "the writer Émile"]);
        for task in [Task::Qa1, Task::Qa2] {
            assert_eq!(task.score(&case, "éMILE, of course"), 1.0);
            assert_eq!(task.score(&case, "Emil"), 0.0);
        }
        assert_eq!(Task::Vt.score(&case, "Émile"), 0.5);
    }
}
