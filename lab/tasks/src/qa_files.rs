//! Files of SQuAD and HotpotQA.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::read;
use crate::qa::{Question, QuestionSet};
use crate::{Error, Result};

#[derive(Deserialize)]
struct Squad {
    data: Vec<Article>,
}

#[derive(Deserialize)]
struct Article {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<SquadQuestion>,
}

#[derive(Deserialize)]
struct SquadQuestion {
    question: String,
    #[serde(default)]
    answers: Vec<SquadAnswer>,
    /// Field of version 2.0.
    #[serde(default)]
    is_impossible: bool,
}

#[derive(Deserialize)]
struct SquadAnswer {
    text: String,
}

#[derive(Deserialize)]
struct HotpotQuestion {
    question: String,
    answer: String,
    context: Vec<(String, Vec<String>)>,
}

/// Distinct documents, each with its place.
#[derive(Default)]
struct Documents {
    places: HashMap<String, usize>,
    texts: Vec<String>,
}

impl Documents {
    fn place(&mut self, text: String) -> usize {
        *self.places.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            self.texts.len() - 1
        })
    }
}

/// Reads SQuAD 1.1 or 2.0, without the questions that have no answer.
pub(crate) fn squad(path: &Path) -> Result<QuestionSet> {
    let Squad { data } = parse(path, "SQuAD's {\"data\": [{\"paragraphs\": ...}]}")?;
    let (mut documents, mut result) = (Documents::default(), QuestionSet::default());
    for (a, article) in data.into_iter().enumerate() {
        let mut group = Vec::new();
        for (p, paragraph) in article.paragraphs.into_iter().enumerate() {
            let document = documents.place(paragraph.context);
            group.push(document);
            for (q, question) in
                paragraph.qas.into_iter().enumerate().filter(|(_, q)| !q.is_impossible)
            {
                let answers = question.answers.into_iter().map(|answer| answer.text);
                let place = format!("data[{a}].paragraphs[{p}].qas[{q}].answers");
                let answers = answers_of(path, &place, answers)?;
                let (text, documents) = (question.question, vec![document]);
                result.questions.push(Question { text, answers, documents, near: Some(a) });
            }
        }
        result.groups.push(group);
    }
    whole(path, result, documents)
}

/// Reads HotpotQA: each question with its ten paragraphs.
pub(crate) fn hotpot(path: &Path) -> Result<QuestionSet> {
    let questions: Vec<HotpotQuestion> = parse(path, "HotpotQA's [{\"question\": ...}]")?;
    let (mut documents, mut result) = (Documents::default(), QuestionSet::default());
    for (q, HotpotQuestion { question, answer, context }) in questions.into_iter().enumerate() {
        let answers = answers_of(path, &format!("[{q}].answer"), [answer].into_iter())?;
        if context.is_empty() {
            let reason = format!("[{q}].context is empty; expected [title, [sentence, ...]]");
            return Err(Error::malformed(path, reason));
        }
        let text =
            |(title, sentences): (String, Vec<String>)| format!("{title}\n{}", sentences.concat());
        let mut own: Vec<_> = context.into_iter().map(|page| documents.place(text(page))).collect();
        own.sort_unstable();
        own.dedup();
        result.questions.push(Question { text: question, answers, documents: own, near: None });
    }
    whole(path, result, documents)
}

fn parse<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T> {
    serde_json::from_str(&read(path)?)
        .map_err(|error| Error::malformed(path, format!("{error}; expected {expected}")))
}

/// Returns the different answers.
fn answers_of(path: &Path, place: &str, all: impl Iterator<Item = String>) -> Result<Vec<String>> {
    let mut answers = Vec::new();
    for answer in all {
        if answer.trim().is_empty() {
            return Err(Error::malformed(
                path,
                format!("{place} has an empty text; expected words"),
            ));
        }
        if !answers.contains(&answer) {
            answers.push(answer);
        }
    }
    if answers.is_empty() {
        return Err(Error::malformed(path, format!("{place} has none; expected one or more")));
    }
    Ok(answers)
}

fn whole(path: &Path, questions: QuestionSet, documents: Documents) -> Result<QuestionSet> {
    if questions.questions.is_empty() {
        return Err(Error::malformed(path, "there is no question with an answer; expected some"));
    }
    Ok(QuestionSet { documents: documents.texts, ..questions })
}
