//! The selector plug-in: a config that is read, and a worker that it builds.

use std::borrow::Cow;
use std::fmt::Debug;

use dyn_clone::DynClone;
use ndarray::ArrayView3;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{Picks, Result, Row, SelectorOp, Site, Step, Tokens, Tunable};

/// A selector as written in a pipeline file: parameters, no state.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use vattention_core::{Picks, Result, Row, Selector, SelectorConfig, Site, register, schemars, typetag};
///
/// /// Every `n`-th token.
/// #[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct EveryNth {
///     /// The distance between two of them.
///     n: std::num::NonZeroUsize,
/// }
///
/// #[typetag::serde(name = "every-nth")]
/// impl SelectorConfig for EveryNth {
///     fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
///         Ok(Box::new(self.clone()))
///     }
/// }
///
/// impl Selector for EveryNth {
///     fn select(&self, row: &Row<'_>, picks: &mut Picks) {
///         picks.take_all((0..row.visible()).step_by(self.n.get()));
///     }
/// }
///
/// register!(Selector, "every-nth", EveryNth, "every n-th token");
/// ```
#[typetag::serde(tag = "type")]
pub trait SelectorConfig: Debug + DynClone + Send + Sync {
    /// Makes the worker of one KV head, before any token has arrived.
    ///
    /// # Errors
    /// [`Error::Build`](crate::Error::Build) if the site's shape or a file does not fit.
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>>;

    /// Finds what is wrong at any site: a file that is not what it should be. Called when a pipeline
    /// file is read, so that it is said before any work.
    ///
    /// # Errors
    /// [`Error::Build`](crate::Error::Build), with the file.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Whether it proves a bound on the logits that it leaves, [`Picks::bound_residual`], for every
    /// query head.
    fn bounds_residual(&self) -> bool {
        false
    }

    /// Whether it takes as many tokens as suit the sample that follows, [`Row::sampling`]. A
    /// pipeline without a sample for a promise is refused.
    fn needs_sampling(&self) -> bool {
        false
    }

    /// What of it can be set so that it takes more or fewer tokens. Without it the selector is left as it is, and a pipeline in
    /// which nothing else can be set is made to read no given share.
    fn tunable(&mut self) -> Option<Tunable<'_>> {
        None
    }
}

dyn_clone::clone_trait_object!(SelectorConfig);

/// A selector in a field of another: a table like those of the pipeline. Whoever knows all selectors
/// can say more of what is called `Selector`.
impl JsonSchema for dyn SelectorConfig {
    fn schema_name() -> Cow<'static, str> {
        "Selector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "required": ["type"] })
    }
}

/// Picks tokens for the queries of one KV head of one layer of one sequence.
///
/// A worker that scores tokens from its own index of them keeps it up to date in
/// [`append`](Self::append); cloning the worker clones the index, which is how a sequence forks.
pub trait Selector: DynClone + Send + Sync {
    /// Takes note of new tokens, in order, as they are stored. KV heads are shown theirs in parallel.
    ///
    /// Rows that see fewer tokens may still come: what is picked for them may not depend on tokens
    /// that they do not see.
    fn append(&mut self, new: &NewTokens<'_>) {
        let _ = new;
    }

    /// Takes note of the last queries of a prompt that was processed elsewhere.
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let _ = prompt;
    }

    /// Takes note of how one row's attention was spread. Called for each member of the group in
    /// order, after the step.
    fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
        let _ = (row, attended);
    }

    /// Whether [`feedback`](Self::feedback) is to be called; it costs a pass over what was read.
    fn needs_feedback(&self) -> bool {
        false
    }

    /// Whether every query head of the group picks the same, given the same picks before; one is
    /// then asked for all. Such a selector gives no [bound](Picks::bound_residual), which is of
    /// one row.
    fn group_wide(&self) -> bool {
        false
    }

    /// Bytes of the index that it keeps beside keys and values, without what does not grow with the
    /// tokens.
    fn index_bytes(&self) -> usize {
        0
    }

    /// What it does at a step, if that is something that machines know how to do by themselves; it
    /// must be what [`select`](Self::select) does.
    ///
    /// It follows from the config and the step alone: a machine that takes the steps by itself shows
    /// the selector nothing until it needs picks.
    ///
    /// Of a selector that
    /// [bounds](SelectorConfig::bounds_residual) what it leaves, machines know one bound: the best
    /// score left over, by [`SelectorOp::TopLogits`] of one query head.
    fn op(&self, step: &Step<'_>) -> Option<SelectorOp<'_>> {
        let _ = step;
        None
    }

    /// Adds this selector's picks for one row to those of the selectors before it. They follow from
    /// the first [`visible`](Row::visible) tokens, of which more may have been appended.
    fn select(&self, row: &Row<'_>, picks: &mut Picks);
}

dyn_clone::clone_trait_object!(Selector);

impl Debug for dyn Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Selector")
    }
}

/// Tokens that have just been appended to a KV head.
#[derive(Clone, Copy, Debug)]
pub struct NewTokens<'a> {
    /// The position of the first of them.
    pub first: usize,
    /// Their keys, `[new, head_dim]`, as stored.
    pub keys: Tokens<'a>,
    /// Their values, `[new, value_dim]`, as stored.
    pub values: Tokens<'a>,
}

/// The last queries of a processed prompt, for one KV head.
#[derive(Clone, Copy, Debug)]
pub struct PromptQueries<'a> {
    /// The KV head.
    pub site: &'a Site,
    /// The queries, `[group, prompt, head_dim]`, scaled; the last one is of the newest token.
    pub queries: ArrayView3<'a, f32>,
    /// All keys so far, `[tokens, head_dim]`.
    pub keys: Tokens<'a>,
    /// All values so far, `[tokens, value_dim]`.
    pub values: Tokens<'a>,
}

/// How one row's attention was spread over the tokens it read.
#[derive(Clone, Copy, Debug)]
pub struct Attended<'a> {
    /// The tokens read, ascending.
    pub tokens: &'a [u32],
    /// `e / D^` of each, not divided by its inclusion probability.
    pub weights: &'a [f32],
}
