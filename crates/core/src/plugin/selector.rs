//! The selector plug-in: a config that is read, and a worker that it builds.

use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;

use dyn_clone::DynClone;
use ndarray::ArrayView3;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    Result,
    plugin::Tunable,
    step::{Picks, Row, Site, TokenClass, Tokens},
};

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
pub trait SelectorConfig: Any + Debug + DynClone + Send + Sync {
    /// Builds the worker of one KV head, before any token has arrived.
    ///
    /// # Errors
    /// [`Error::Build`](crate::Error::Build) if the site's shape or a file does not fit.
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>>;

    /// Checks what does not depend on the site, such as the content of files. Called when a pipeline
    /// file is read, before any work.
    ///
    /// # Errors
    /// [`Error::Build`](crate::Error::Build), with the file.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Whether it proves a bound on the residual's logits, [`Picks::bound_residual`], for every
    /// query head.
    fn bounds_residual(&self) -> bool {
        false
    }

    /// Whether it reads what class each token is of, [`NewTokens::classes`]. Tokens without are then refused.
    fn needs_classes(&self) -> bool {
        false
    }

    /// The field that decides how many tokens it takes. `None`: a given density does not change the selector, and is refused if
    /// nothing else in the pipeline is tunable.
    fn tunable(&mut self) -> Option<Tunable<'_>> {
        None
    }
}

dyn_clone::clone_trait_object!(SelectorConfig);

/// A selector in a field of another: a table like those of the pipeline. The complete schema, with
/// all selectors, refines the definition `Selector`.
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
/// A worker with an index of the tokens updates it in [`append`](Self::append); cloning the worker
/// clones the index, which is how a sequence forks.
pub trait Selector: Any + DynClone + Send + Sync {
    /// Indexes new tokens, in order, as they are stored. KV heads are shown theirs in parallel.
    ///
    /// Rows that see fewer tokens may follow: their picks may not depend on tokens that they do not
    /// see.
    fn append(&mut self, new: &NewTokens<'_>) {
        let _ = new;
    }

    /// Receives the last queries of a prompt that was processed elsewhere.
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let _ = prompt;
    }

    /// Receives the attention weights of one row. Called for each query head of the group in order,
    /// after the step.
    fn feedback(&mut self, row: &Row<'_>, attended: &Attended<'_>) {
        let _ = (row, attended);
    }

    /// Whether [`feedback`](Self::feedback) is called; it costs a pass over the tokens read.
    fn needs_feedback(&self) -> bool {
        false
    }

    /// Returns whether the selector picks everything until [`observe`](Self::observe) has shown it
    /// a prompt. Earlier steps are reported
    /// ([`RowReport::unobserved`](crate::pipeline::RowReport::unobserved)) or refused
    /// ([`Error::Unobserved`](crate::Error::Unobserved)).
    fn needs_prompt(&self) -> bool {
        false
    }

    /// Whether every query head of the group picks the same, given the same earlier picks; then one
    /// row picks for all. Such a selector gives no [bound](Picks::bound_residual), which belongs to
    /// one row.
    fn group_wide(&self) -> bool {
        false
    }

    /// Bytes of its index beside keys and values, counting only what grows with the tokens.
    fn index_bytes(&self) -> usize {
        0
    }

    /// Adds the tokens that it still holds: of the first [`visible`](Picks::visible) those that a row of now or later, which sees
    /// at least as many, may pick. The others are evicted, and never come back. By default nothing is evicted.
    fn live(&self, live: &mut Picks) {
        live.take_range(0..live.visible());
    }

    /// Adds this selector's picks for one row to those of the selectors before it. They depend only
    /// on the first [`visible`](Row::visible) tokens; more may have been appended.
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
    /// What each is in the text, `[new]`. `None` if nobody knows, which only selectors that do not
    /// [need](SelectorConfig::needs_classes) it are shown; they may be shown it too.
    pub classes: Option<&'a [TokenClass]>,
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

/// One row's attention weights over the tokens it read.
#[derive(Clone, Copy, Debug)]
pub struct Attended<'a> {
    /// The tokens read, ascending.
    pub tokens: &'a [u32],
    /// `e / D^` of each, not divided by its inclusion probability.
    pub weights: &'a [f32],
}
