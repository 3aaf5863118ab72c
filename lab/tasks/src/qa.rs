//! Questions about documents, among other documents.

use std::collections::BTreeSet;

use crate::draw::SeededDraw;
use crate::fit::TokenLimit;
use crate::words::SENTENCES;
use crate::{Case, Result, Task};

const ANSWER_TOKENS: usize = 32;

/// Question, its right answers, and the places of its documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) answers: Vec<String>,
    /// Places of the documents that answer the question.
    pub(crate) documents: Vec<usize>,
    /// Group of related documents, if any, which are the first to be added.
    pub(crate) near: Option<usize>,
}

/// Questions of a file, and all its documents, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuestionSet {
    pub(crate) questions: Vec<Question>,
    pub(crate) documents: Vec<String>,
    /// Groups of documents, such as the paragraphs of an article.
    pub(crate) groups: Vec<Vec<usize>>,
}

impl QuestionSet {
    /// Returns the documents to add to those of a question, in random order: related ones first.
    fn draw_others(&self, question: &Question, draw: &mut SeededDraw) -> Vec<usize> {
        let own: BTreeSet<_> = question.documents.iter().copied().collect();
        let group = question.near.map_or(&[][..], |group| &self.groups[group]);
        let near: BTreeSet<_> = group.iter().copied().filter(|i| !own.contains(i)).collect();
        let far = (0..self.documents.len()).filter(|i| !own.contains(i) && !near.contains(i));
        let mut far: Vec<_> = far.collect();
        let mut others: Vec<_> = near.into_iter().collect();
        draw.shuffle(&mut others);
        draw.shuffle(&mut far);
        others.extend(far);
        others
    }

    fn text(&self, question: &Question, mut documents: Vec<usize>, mut draw: SeededDraw) -> Case {
        draw.shuffle(&mut documents);
        let documents: Vec<_> = documents
            .iter()
            .enumerate()
            .map(|(i, place)| format!("Document {}:\n{}", i + 1, self.documents[*place]))
            .collect();
        let (introduction, question_text, beginning) =
            SENTENCES.qa.fill(&[("query", &question.text)]);
        Case {
            context: introduction + &documents.join("\n\n"),
            question: question_text,
            beginning,
            answers: question.answers.clone(),
            tokens: ANSWER_TOKENS,
            ..Case::default()
        }
    }

    /// Builds the case of a random question, filled with documents.
    pub(crate) fn case(&self, task: Task, length: TokenLimit, draw: &SeededDraw) -> Result<Case> {
        let mut draw = draw.clone();
        let question = draw.choose(&self.questions);
        let others = self.draw_others(question, &mut draw);
        length.fill(task.name(), 0..=others.len(), |count| {
            let documents = question.documents.iter().chain(&others[..count]).copied().collect();
            self.text(question, documents, draw.clone())
        })
    }
}
