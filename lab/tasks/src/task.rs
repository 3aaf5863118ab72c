//! The names of the tasks, alone and in groups.

use std::fmt;
use std::str::FromStr;

use crate::{AnswerMetric, Benchmark, Case, Dataset, Error, Result};

/// One of RULER's thirteen tasks, or a dataset of a benchmark.
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
    /// One of many numbers, and nothing else.
    NiahMultikey2,
    /// One of many UUIDs with UUIDs as keys, and nothing else.
    NiahMultikey3,
    /// The four numbers of one key, in prose.
    NiahMultivalue,
    /// The numbers of four keys, in prose.
    NiahMultiquery,
    /// The five variables of a chain of assignments, in noise.
    Vt,
    /// The ten words that a list has most often.
    Cwe,
    /// The three coded words that a text has most often.
    Fwe,
    /// A question about a paragraph of many (SQuAD).
    Qa1,
    /// A question about two paragraphs of many (HotpotQA).
    Qa2,
    /// A dataset of a published benchmark, from its files: none of RULER's synthetic tasks.
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

    /// RULER's name, or the dataset's.
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
    /// The score of an answer in [0, 1]. RULER's ignores case: the share of the right words that it
    /// has; for `qa_1` and `qa_2` 1 if it has any of the right answers. A dataset has its own metric.
    pub fn score(&self, case: &Case, answer: &str) -> f64 {
        match self {
            Self::Qa1 | Self::Qa2 => AnswerMetric::MatchPart.score(case, answer),
            Self::Dataset(dataset) => dataset.score(case, answer),
            _ => AnswerMetric::MatchAll.score(case, answer),
        }
    }

    /// Scores of an answer by what else its publishers score it by.
    pub fn other_scores(&self, case: &Case, answer: &str) -> Vec<(AnswerMetric, f64)> {
        match self {
            Self::Dataset(dataset) => dataset.other_scores(case, answer),
            _ => Vec::new(),
        }
    }
}

impl Benchmark {
    /// The datasets that there are cases of.
    pub fn tasks(&self) -> Vec<Task> {
        self.datasets().map(Task::Dataset).collect()
    }
}

/// Names that stand for several tasks. The hard ones are those that published scripts reproduce the
/// table of RULER-HARD in vAttention's paper with; the paper's text does not list them.
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

/// The tasks of some names of tasks and groups (`ruler`: all; `ruler-hard`: the seven of
/// vAttention's paper), each once, in RULER's order.
///
/// # Errors
/// [`Error::Unknown`] for the first name that is neither.
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

    fn of(names: &[&str]) -> Result<Vec<Task>> {
        tasks(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn names_and_tasks_are_the_same() {
        assert!(Task::ALL.iter().all(|task| task.to_string().parse::<Task>().unwrap() == *task));
        assert!(Task::ALL.is_sorted(), "sorting gives RULER's order");
    }

    #[test]
    fn groups_and_names_give_each_task_once_in_order() {
        assert_eq!(of(&["ruler"]).unwrap(), Task::ALL);
        assert_eq!(of(&["vt", "niah_single_3", "vt"]).unwrap(), [Task::NiahSingle3, Task::Vt]);
        assert_eq!(of(&["qa_2", "ruler"]).unwrap(), Task::ALL);
        assert_eq!(of(&["ruler-hard"]).unwrap().len(), 7);
        assert!(of(&[]).unwrap().is_empty());
    }

    #[test]
    fn an_unknown_name_is_told_with_those_there_are() {
        let told = of(&["vt", "VT"]).unwrap_err().to_string();
        assert!(told.starts_with(
            "there is no task `VT`; expected one of ruler, ruler-hard, niah_single_1, "
        ));
        assert!(told.ends_with(", cwe, fwe, qa_1, qa_2"), "{told}");
    }

    fn case(answers: &[&str]) -> Case {
        let answers = answers.iter().map(ToString::to_string).collect();
        let [context, question, beginning] = Default::default();
        Case { context, question, beginning, answers, labels: Vec::new(), tokens: 1 }
    }

    #[test]
    fn words_are_scored_by_the_share_that_is_told() {
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
