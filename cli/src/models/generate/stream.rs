//! Answers that are printed while a model generates them.

use std::io::Write;

use vattention_llm::{Session, Speculation, Stop, TextGenerator, TokenLogprob};

use super::tally::{StepOrigin, StepTally};
use crate::fail::Failure;
use crate::models::sampling_args::name_option;
use crate::outputs::Interrupt;

/// Generation of an answer in a session, printed as it arrives.
pub(in crate::models) struct AnswerStream<'a, 'm, 't, 'r> {
    pub(in crate::models) session: &'a mut Session<'m>,
    /// Tokens of the prompt, in which drafts are looked up.
    prompt: Vec<u32>,
    pub(in crate::models) interrupt: &'a Interrupt,
    pub(in crate::models) generator: TextGenerator<'t>,
    pub(in crate::models) tally: &'a mut StepTally<'r>,
    /// True if the answer is not printed.
    pub(in crate::models) silent: bool,
    /// Answer so far.
    pub(in crate::models) text: String,
    /// Log-probabilities of the answer's tokens.
    pub(in crate::models) scores: Vec<TokenLogprob>,
}

impl<'a, 'm, 't, 'r> AnswerStream<'a, 'm, 't, 'r> {
    /// Creates the stream of an answer, which is printed unless `silent` is set.
    pub(in crate::models) fn new(
        session: &'a mut Session<'m>,
        prompt: Vec<u32>,
        interrupt: &'a Interrupt,
        generator: TextGenerator<'t>,
        tally: &'a mut StepTally<'r>,
    ) -> Self {
        let (text, scores) = (String::new(), Vec::new());
        Self { session, prompt, interrupt, generator, tally, silent: false, text, scores }
    }

    /// Generates the answer from the logits after the prompt, and returns the reason for its end.
    /// After Ctrl-C and at the maximum length, the session has not read the last token.
    pub(in crate::models) fn write_answer(
        &mut self,
        mut logits: Vec<f32>,
    ) -> Result<Stop, Failure> {
        let Self { prompt, interrupt, generator, tally, silent, text, scores, .. } = self;
        let mut steps = Speculation::new(self.session, prompt)?;
        let mut origin = StepOrigin::Chosen;
        let stop = loop {
            tally.add_step(steps.session(), origin);
            let token = generator.choose(&logits).map_err(name_option)?;
            add_text(text, &token.text, *silent)?;
            let id = token.choice.token;
            if !matches!(token.stop, Some(Stop::End(_) | Stop::StopToken(_))) {
                scores.push(token.choice);
            }
            if let Some(stop) = token.stop {
                break stop;
            }
            if interrupt.is_requested() {
                break Stop::Interrupted;
            }
            tally.start_step();
            logits = steps.step(id)?;
            origin = if steps.is_draft() { StepOrigin::Draft } else { StepOrigin::Chosen };
        };
        tally.add_drafts(steps.counts());
        add_text(text, &generator.finish()?, *silent)?;
        Ok(stop)
    }
}

/// Adds a part to the answer, and prints it unless `silent` is true.
fn add_text(text: &mut String, part: &str, silent: bool) -> Result<(), Failure> {
    *text += part;
    if silent || part.is_empty() { Ok(()) } else { print(part) }
}

/// Prints a part of the answer. A closed pipe is no error.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::input(error)),
        _ => Ok(()),
    }
}
