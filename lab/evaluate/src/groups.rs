//! Accuracy on groups of cases.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_experiments::ShareInterval;

use crate::record::{Record, mean_score};

/// Accuracy on the cases of one group, such as the easy ones.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GroupScore {
    /// Name of the group.
    pub group: String,
    /// Number of cases.
    pub cases: usize,
    /// Mean score over the cases, from 0 to 1.
    pub accuracy: f64,
    /// 95 % interval of the accuracy.
    pub interval: ShareInterval,
}

/// Returns the score of each group of a task's cases, in the order in which the cases name them. A
/// case may belong to several groups.
pub(crate) fn score_groups(records: &[&Record]) -> Vec<GroupScore> {
    let mut names: Vec<&String> = Vec::new();
    for name in records.iter().flat_map(|record| &record.groups) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let score = |name: &String| {
        let belongs = |record: &&&Record| record.groups.contains(name);
        let records: Vec<&Record> = records.iter().filter(belongs).copied().collect();
        let accuracy = mean_score(&records);
        GroupScore {
            group: name.clone(),
            cases: records.len(),
            accuracy,
            interval: ShareInterval::new(accuracy, records.len() as f64),
        }
    };
    names.into_iter().map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{AttentionSummary, CaseAnswer};

    fn record(score: f64, groups: &[&str]) -> Record {
        let attention = AttentionSummary::default();
        let attended =
            CaseAnswer { score, answer: String::new(), attention, prefill_density: None };
        Record {
            digest: String::new(),
            pipeline: String::new(),
            task: "longbench-v2".into(),
            context: 300,
            case: 0,
            attended,
            others: Vec::new(),
            groups: groups.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn each_group_has_the_mean_of_its_cases() {
        let records = [
            record(1.0, &["easy", "short"]),
            record(0.0, &["easy", "long"]),
            record(1.0, &["hard", "short"]),
        ];
        let scores = score_groups(&records.iter().collect::<Vec<_>>());
        let found: Vec<_> =
            scores.iter().map(|it| (it.group.as_str(), it.cases, it.accuracy)).collect();
        let expected = [("easy", 2, 0.5), ("short", 2, 1.0), ("long", 1, 0.0), ("hard", 1, 1.0)];
        assert_eq!(found, expected);
        assert!(score_groups(&[&record(1.0, &[])]).is_empty());
    }
}
