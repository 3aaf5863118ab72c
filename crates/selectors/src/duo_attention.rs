//! `duo-attention`: the first and the most recent tokens at every KV head, and all tokens at
//! retrieval heads.
//!
//! A file has a gate for each KV head of each layer. The `streaming` share of all KV heads of the
//! model, those with the smallest gates, are streaming heads: they read only the first `sink` and
//! the last `recent` tokens. The others are retrieval heads: they read everything, or these tokens
//! and the picks of another selector, `of`. Among equal gates the later heads stream.
//!
//! # Gates
//! A text file in the authors' format: one line for each layer of the model, from layer 0 on, with
//! a number for each KV head, separated by tabs. A layer with unknown gates has `nan` for each
//! head. Such a layer does not count towards the share, and no pipeline can be built for it.
//!
//! Cost: none beyond that of `of`.
//!
//! # Guarantee
//! The selector alone guarantees nothing: streaming heads never read the tokens between the first
//! and the most recent ones. As with any selector, an estimator after it samples those tokens.
//!
//! Departures from the paper: tokens keep their true positions; the classes follow from the gates
//! without the authors' noise, which breaks ties.
//!
//! Xiao, Tang, Zuo, Guo, Yang, Tang, Fu, Han (2024), "DuoAttention: Efficient Long-Context LLM
//! Inference with Retrieval and Streaming Heads", <https://arxiv.org/abs/2410.10819>.

mod gates;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Fraction, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, Size, Tokens,
    plugin::{AttentionWeights, PromptQueries, Tunable},
    register, typetag,
};

use gates::GateFile;

/// First and most recent tokens at every KV head, and all tokens at retrieval heads.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DuoAttention {
    /// Gates of the KV heads: path of a text file, relative to the pipeline file.
    #[schemars(extend("format" = "path"))]
    pub gates: PathBuf,
    /// Share of the KV heads that read only the first and the most recent tokens.
    #[serde(default = "half")]
    pub streaming: Fraction,
    /// Number of first tokens that every head reads.
    #[serde(default = "sink")]
    pub sink: Size,
    /// Number of most recent tokens that every head reads.
    #[serde(default = "recent")]
    pub recent: Size,
    /// Selector that picks for the retrieval heads; absent: these heads read everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Box<dyn SelectorConfig>>,
}

impl DuoAttention {
    /// Default of `sink`, the authors' number of tokens.
    pub const SINK: usize = 128;

    /// Default of `recent`, the authors' number of tokens.
    pub const RECENT: usize = 256;
}

/// Share that the authors use for models with grouped-query attention.
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
        let gates = crate::name_error("duo-attention", GateFile::open(&self.gates))?;
        let streams = crate::name_error("duo-attention", gates.streams(site, self.streaming))?;
        let class = match &self.of {
            _ if streams => HeadClass::Streaming,
            None => HeadClass::Full,
            Some(of) => HeadClass::Selected(of.build(site)?),
        };
        Ok(Box::new(DuoAttentionSelector { sink: self.sink, recent: self.recent, class }))
    }

    fn check(&self) -> Result<()> {
        crate::name_error("duo-attention", GateFile::open(&self.gates).map(drop))?;
        self.of.as_ref().map_or(Ok(()), |of| of.check())
    }

    fn needs_classes(&self) -> bool {
        self.of.as_ref().is_some_and(|of| of.needs_classes())
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        self.of.as_mut()?.tunable()
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct DuoAttentionSelector {
    sink: Size,
    recent: Size,
    class: HeadClass,
}

/// Class of a KV head: the tokens that it reads in addition to the first and the most recent ones.
#[derive(Clone)]
enum HeadClass {
    Streaming,
    Full,
    Selected(Box<dyn Selector>),
}

impl HeadClass {
    fn selector(&self) -> Option<&dyn Selector> {
        if let Self::Selected(inner) = self { Some(&**inner) } else { None }
    }

    fn selector_mut(&mut self) -> Option<&mut Box<dyn Selector>> {
        if let Self::Selected(inner) = self { Some(inner) } else { None }
    }
}

impl Selector for DuoAttentionSelector {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.class.selector_mut().into_iter().for_each(|inner| inner.append(new));
    }

    fn can_truncate(&self) -> bool {
        self.class.selector().is_none_or(Selector::can_truncate)
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.class.selector_mut().into_iter().for_each(|inner| inner.truncate(keys));
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        self.class.selector().and_then(Selector::sharing_obstacle)
    }

    fn share(&mut self) {
        self.class.selector_mut().into_iter().for_each(|inner| inner.share());
    }

    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        self.class.selector_mut().into_iter().for_each(|inner| inner.observe(prompt));
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        self.class.selector_mut().into_iter().for_each(|inner| inner.feedback(row, attended));
    }

    fn needs_feedback(&self) -> bool {
        self.class.selector().is_some_and(Selector::needs_feedback)
    }

    fn needs_prompt(&self) -> bool {
        self.class.selector().is_some_and(Selector::needs_prompt)
    }

    fn group_wide(&self) -> bool {
        self.class.selector().is_none_or(Selector::group_wide)
    }

    fn index_bytes(&self) -> usize {
        self.class.selector().map_or(0, Selector::index_bytes)
    }

    fn live(&self, live: &mut Picks) {
        let visible = live.visible();
        // A share grows with the context.
        let sink = if let Size::Tokens(sink) = self.sink { sink } else { visible };
        live.take_range(0..sink);
        live.take_range(visible - self.recent.to_tokens(visible)..visible);
        match &self.class {
            HeadClass::Streaming => {}
            HeadClass::Full => live.take_range(0..visible),
            HeadClass::Selected(inner) => inner.live(live),
        }
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let visible = row.visible();
        picks.take_range(0..self.sink.to_tokens(visible));
        picks.take_range(visible - self.recent.to_tokens(visible)..visible);
        match &self.class {
            HeadClass::Streaming => {}
            HeadClass::Full => picks.take_range(0..visible),
            HeadClass::Selected(inner) => inner.select(row, picks),
        }
    }
}

register!(
    Selector,
    "duo-attention",
    DuoAttention,
    "the first and the most recent tokens, and at retrieval heads all tokens or the picks of \
     another selector"
);

#[cfg(test)]
mod tests;
