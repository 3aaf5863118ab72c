//! Where texts come from.

use std::path::Path;

use crate::draw::SeededDraw;
use crate::fit::TokenLimit;
use crate::prose::Prose;
use crate::qa::Questions;
use crate::source::WordSource;
use crate::vocabulary::Vocabulary;
use crate::words::Ruler;
use crate::{Benchmark, Case, Error, Result, Task, cwe, fwe, niah, qa_files, vt};

/// Words, sentences and files that texts are made of.
#[derive(Clone, Debug)]
pub struct Texts {
    words: Words,
    squad: Option<Questions>,
    hotpot: Option<Questions>,
    benchmark: Option<Benchmark>,
}

#[derive(Clone, Debug)]
enum Words {
    Ruler(Ruler),
    Vocabulary(Box<Vocabulary>),
}

impl Texts {
    /// Words of RULER's kind. Its haystack of prose is sentences of random words.
    pub fn ruler() -> Self {
        Self::of(Words::Ruler(Ruler::default()))
    }

    fn of(words: Words) -> Self {
        Self { words, squad: None, hotpot: None, benchmark: None }
    }

    /// The words of a vocabulary file, format "vattention-recall/1", and no others: for `niah_...`
    /// and `vt`.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Malformed`] with the place that is wrong.
    pub fn open(vocabulary: &Path) -> Result<Self> {
        Ok(Self::of(Words::Vocabulary(Box::new(Vocabulary::open(vocabulary)?))))
    }

    /// Takes the haystack of prose from a text file, from its beginning, and again from there if it
    /// is too short.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Malformed`] if it has no words, or these texts are of a
    /// vocabulary, which has its own.
    pub fn with_haystack(mut self, prose: &Path) -> Result<Self> {
        match &mut self.words {
            Words::Ruler(words) => words.prose = Some(Prose::open(prose)?),
            Words::Vocabulary(_) => {
                let reason = "a vocabulary knows its own haystack only; expected no other";
                return Err(Error::malformed(prose, reason));
            }
        }
        Ok(self)
    }

    /// Takes the questions of `qa_1` from a file of SQuAD, 1.1 or 2.0.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Malformed`] with the place that is wrong.
    pub fn with_squad(mut self, json: &Path) -> Result<Self> {
        self.squad = Some(qa_files::squad(json)?);
        Ok(self)
    }

    /// Takes the questions of `qa_2` from a file of HotpotQA, with distractors.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Malformed`] with the place that is wrong.
    pub fn with_hotpot(mut self, json: &Path) -> Result<Self> {
        self.hotpot = Some(qa_files::hotpot(json)?);
        Ok(self)
    }

    /// Takes the cases of datasets from a benchmark.
    #[must_use]
    pub fn with_benchmark(mut self, benchmark: Benchmark) -> Self {
        self.benchmark = Some(benchmark);
        self
    }

    /// How many cases of a task are asked if so many are wanted: a dataset has no more than its rows.
    pub fn cases(&self, task: Task, wanted: usize) -> usize {
        match (task, &self.benchmark) {
            (Task::Dataset(dataset), Some(benchmark)) => benchmark.cases(dataset).min(wanted),
            _ => wanted,
        }
    }

    /// A text of a task, as long as fits in `tokens` with [`Case::tokens`] for the answer. `count`
    /// says how many tokens a text has; it is asked O(log `tokens`) times, for context and question
    /// apart. The same task, `tokens` and `seed` make the same text, given the same counts. Of a
    /// dataset, `seed` is the place in its file, and again from the first behind the last.
    ///
    /// # Errors
    /// [`Error::TooShort`] if the shortest text does not fit, [`Error::Wordless`] if the vocabulary
    /// cannot say it, [`Error::Missing`] if it needs a file of questions.
    pub fn case(
        &self,
        task: Task,
        tokens: usize,
        seed: u64,
        count: &dyn Fn(&str) -> usize,
    ) -> Result<Case> {
        let length = TokenLimit { tokens, count };
        if let Task::Dataset(dataset) = task {
            let files = self.benchmark.as_ref();
            let files =
                files.ok_or(Error::Missing { task: task.name(), what: "rows of a benchmark" })?;
            return files.case(dataset, seed, length);
        }
        let draw = SeededDraw::new(task, tokens, seed);
        if let (Words::Vocabulary(words), Task::Cwe | Task::Fwe | Task::Qa1 | Task::Qa2) =
            (&self.words, task)
        {
            return Err(Error::Wordless { path: words.path.clone(), task: task.name() });
        }
        match task {
            Task::Vt => vt::case(self.source(), length, &draw),
            Task::Cwe => cwe::case(length, &draw),
            Task::Fwe => fwe::case(length, &draw),
            Task::Qa1 => {
                asked(self.squad.as_ref(), task, "paragraphs of SQuAD")?.case(task, length, &draw)
            }
            Task::Qa2 => asked(self.hotpot.as_ref(), task, "paragraphs of HotpotQA")?
                .case(task, length, &draw),
            _ => niah::case(task, self.source(), length, &draw),
        }
    }

    fn source(&self) -> &dyn WordSource {
        match &self.words {
            Words::Ruler(words) => words,
            Words::Vocabulary(words) => words.as_ref(),
        }
    }
}

fn asked<'a>(
    questions: Option<&'a Questions>,
    task: Task,
    what: &'static str,
) -> Result<&'a Questions> {
    questions.ok_or(Error::Missing { task: task.name(), what })
}
