//! `duo-attention`: the first and the recent tokens at every KV head, and everything at those that retrieve.
//!
//! A file has a gate for each KV head of each layer. The `streaming` share of all heads of the model, those with the
//! smallest gates, read the first `sink` tokens and the last `recent` alone; the others retrieve: they read everything,
//! or beside these tokens what another selector, `of`, picks. Of equal gates the later heads stream.
//!
//! # Gates
//! Text, as the authors write it: a line for each layer of the model from 0 on, a number for each KV head, between tabs.
//! A layer of which nothing is known has `nan` for each: it does not count, and no pipeline can be built there.
//!
//! Cost: none, but that of `of`.
//!
//! # Guarantee
//! None by itself: what streaming heads leave is left at every step. An estimator after it samples that as after any
//! selector.
//!
//! Departures from the paper: true positions; the classes follow from the gates without the authors' noise, which breaks ties.
//!
//! Xiao, Tang, Zuo, Guo, Yang, Tang, Fu, Han (2024), "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and
//! Streaming Heads", <https://arxiv.org/abs/2410.10819>.

mod gates;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size,
    plugin::{Attended, PromptQueries, Tunable},
    register, typetag,
};

use gates::GateFile;

/// The first and the recent tokens at every KV head, and everything at those that retrieve.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DuoAttention {
    /// Gates of the KV heads, text, relative to the pipeline file.
    #[schemars(extend("format" = "path"))]
    pub gates: PathBuf,
    /// The share of the KV heads that read the first and the recent tokens alone.
    #[serde(default = "half")]
    pub streaming: Fraction,
    /// How many of the first tokens.
    #[serde(default = "sink")]
    pub sink: Size,
    /// How many of the most recent tokens.
    #[serde(default = "recent")]
    pub recent: Size,
    /// The selector that picks for the other heads; absent: they read everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Box<dyn SelectorConfig>>,
}

impl DuoAttention {
    /// The authors' `sink`, in tokens.
    pub const SINK: usize = 128;

    /// The authors' `recent`, in tokens.
    pub const RECENT: usize = 256;
}

/// As the authors have for models with grouped queries.
fn half() -> Fraction {
    Fraction::try_from(0.5).expect("a half lies between 0 and 1")
}

fn sink() -> Size {
    Size::Tokens(DuoAttention::SINK)
}

fn recent() -> Size {
    Size::Tokens(DuoAttention::RECENT)
}

#[typetag::serde(name = "duo-attention")]
impl SelectorConfig for DuoAttention {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let gates = crate::named("duo-attention", GateFile::open(&self.gates))?;
        let streams = crate::named("duo-attention", gates.streams(site, self.streaming))?;
        let beside = match &self.of {
            _ if streams => Beside::Nothing,
            None => Beside::Everything,
            Some(of) => Beside::Picks(of.build(site)?),
        };
        Ok(Box::new(DuoAttentionSelector { sink: self.sink, recent: self.recent, beside }))
    }

    fn check(&self) -> Result<()> {
        crate::named("duo-attention", GateFile::open(&self.gates).map(drop))?;
        self.of.as_ref().map_or(Ok(()), |of| of.check())
    }

    fn needs_classes(&self) -> bool {
        self.of.as_ref().is_some_and(|of| of.needs_classes())
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        self.of.as_mut()?.tunable()
    }
}

#[derive(Clone)]
struct DuoAttentionSelector {
    sink: Size,
    recent: Size,
    beside: Beside,
}

/// What a head reads beside the first and the recent tokens.
#[derive(Clone)]
enum Beside {
    Nothing,
    Everything,
    Picks(Box<dyn Selector>),
}

impl Beside {
    fn selector(&self) -> Option<&dyn Selector> {
        if let Self::Picks(inner) = self { Some(&**inner) } else { None }
    }

    fn selector_mut(&mut self) -> Option<&mut Box<dyn Selector>> {
        if let Self::Picks(inner) = self { Some(inner) } else { None }
    }
}

impl Selector for DuoAttentionSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.beside.selector_mut().into_iter().for_each(|inner| inner.append(new));
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        self.beside.selector_mut().into_iter().for_each(|inner| inner.observe(prompt));
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
        self.beside.selector_mut().into_iter().for_each(|inner| inner.feedback(row, attended));
    }

    fn needs_feedback(&self) -> bool {
        self.beside.selector().is_some_and(Selector::needs_feedback)
    }

    fn needs_prompt(&self) -> bool {
        self.beside.selector().is_some_and(Selector::needs_prompt)
    }

    fn group_wide(&self) -> bool {
        self.beside.selector().is_none_or(Selector::group_wide)
    }

    fn index_bytes(&self) -> usize {
        self.beside.selector().map_or(0, Selector::index_bytes)
    }

    fn live(&self, live: &mut Picks) {
        let visible = live.visible();
        // A share grows with the context.
        let sink = if let Size::Tokens(sink) = self.sink { sink } else { visible };
        live.take_range(0..sink);
        live.take_range(visible - self.recent.to_tokens(visible)..visible);
        match &self.beside {
            Beside::Nothing => {}
            Beside::Everything => live.take_range(0..visible),
            Beside::Picks(inner) => inner.live(live),
        }
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let visible = row.visible();
        picks.take_range(0..self.sink.to_tokens(visible));
        picks.take_range(visible - self.recent.to_tokens(visible)..visible);
        match &self.beside {
            Beside::Nothing => {}
            Beside::Everything => picks.take_range(0..visible),
            Beside::Picks(inner) => inner.select(row, picks),
        }
    }
}

register!(
    Selector,
    "duo-attention",
    DuoAttention,
    "the first and the recent tokens, and at KV heads that retrieve everything, or what another selector picks"
);

#[cfg(test)]
mod tests;
