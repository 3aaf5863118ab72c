//! The selector plug-in: a configuration, and the selector that it builds for a KV head.

use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;

use dyn_clone::DynClone;
use ndarray::ArrayView3;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    Result,
    plugin::Tunable,
    step::{Picks, Row, Site, SoftmaxForm, TokenClass, Tokens},
};

/// Configuration of a selector, as written in a pipeline file: parameters without state.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use vattention_core::{
///     Picks, Result, Row, Selector, SelectorConfig, Site, register, schemars, typetag,
/// };
///
/// /// Picks every `n`-th token.
/// #[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct EveryNth {
///     /// Distance between two picked tokens.
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
    /// Builds the selector of one KV head, without any tokens yet.
    ///
    /// # Errors
    /// Returns [`Error::Build`](crate::Error::Build) if the selector does not support the site's
    /// shape, or if a file does not match the site.
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>>;

    /// Checks settings that do not depend on a site, such as the content of files. It is called
    /// when a pipeline file is read, so that mistakes are found before any work.
    ///
    /// # Errors
    /// Returns [`Error::Build`](crate::Error::Build), which names the file.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns true if the selector proves a bound on the residual's logits
    /// ([`Picks::bound_residual`]) for every query head.
    fn bounds_residual(&self) -> bool {
        false
    }

    /// Returns true if the selector needs the class of each token ([`NewTokens::classes`]). Tokens
    /// without classes are then refused. If they counted as [`Other`](TokenClass::Other), the
    /// selector would silently be another method.
    fn needs_classes(&self) -> bool {
        false
    }

    /// Returns true if an orthogonal rotation of queries and keys changes the selection only by
    /// rounding, or by another draw of random directions: if it depends on products, lengths and
    /// distances, and not on single channels. A model then rotates rows before it stores them in 8
    /// bits, so that a channel with large numbers does not make the others coarse.
    fn is_rotation_invariant(&self) -> bool {
        false
    }

    /// Field that controls how many tokens the selector picks. `None` means that a given density
    /// does not change the selector; the density is refused if nothing else in the pipeline is
    /// tunable.
    fn tunable(&mut self) -> Option<Tunable<'_>> {
        None
    }
}

dyn_clone::clone_trait_object!(SelectorConfig);

/// Schema of a selector in a field of another selector: a table like those of the pipeline. The
/// schema of pipeline files, which lists all selectors, refines the definition `Selector`.
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
/// A selector with an index of the tokens updates it in [`append`](Self::append). A sequence forks
/// by cloning its selectors. Clones may share memory of the index, but tokens that one of them gets
/// or loses do not change the others.
pub trait Selector: Any + DynClone + Send + Sync {
    /// Indexes new tokens, in order, as they are stored. The KV heads of a layer do so in parallel.
    ///
    /// Later rows may see fewer tokens. Their picks must not depend on tokens that they do not see.
    /// Picks must not depend on the division of the tokens into calls either, because a call need
    /// not be a prompt; [`observe`](Self::observe) marks the end of a prompt.
    fn append(&mut self, new: &NewTokens<'_>) {
        let _ = new;
    }

    /// Learns from the last queries of a prompt that was processed elsewhere. Later rows may see
    /// fewer tokens than the prompt has; they use what was learned nevertheless.
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let _ = prompt;
    }

    /// Learns from the attention weights of one row. It is called for each query head of the group,
    /// in order, after the step.
    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        let _ = (row, attended);
    }

    /// Returns true if [`feedback`](Self::feedback) must be called, which costs a pass over the
    /// tokens read.
    fn needs_feedback(&self) -> bool {
        false
    }

    /// Returns true if the selector picks every token until [`observe`](Self::observe) has been
    /// called. Earlier steps are reported
    /// ([`RowReport::unobserved`](crate::pipeline::RowReport::unobserved)) or refused
    /// ([`Error::Unobserved`](crate::Error::Unobserved)).
    fn needs_prompt(&self) -> bool {
        false
    }

    /// Field that controls how many tokens the selector picks, the one that
    /// [`SelectorConfig::tunable`] returns, if nothing that the selector has indexed or learned
    /// depends on it. It may then change between steps, so that a search for its best value does
    /// not index the tokens again.
    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        None
    }

    /// Returns true if the selector can [remove](Self::truncate) its newest tokens in place.
    fn can_truncate(&self) -> bool {
        false
    }

    /// Removes all but the first tokens, whose keys are `keys`, `[tokens, head_dim]`. Later picks
    /// must be those of a selector that has never received the other tokens. It is called only if
    /// [`can_truncate`](Self::can_truncate) returns true, with at least the tokens of the last
    /// prompt, and after every pass that checks drafts: its cost should not grow with the sequence.
    fn truncate(&mut self, keys: &Tokens<'_>) {
        let _ = keys;
    }

    /// Reason why other sequences cannot use this selector's index of tokens that they have in
    /// common. The reason continues a sentence that begins with the selector's name.
    ///
    /// `None` means that they can: a clone that was [cut](Self::truncate) to some tokens is then
    /// the selector of any sequence with these tokens. So its picks do not depend on the sequence's
    /// number, on prompts or on steps, and it can be truncated.
    fn sharing_obstacle(&self) -> Option<&'static str> {
        Some("has an index that serves its own sequence only")
    }

    /// Moves the index to memory that later clones share, where that saves memory. Nothing else
    /// changes. O(1), apart from parts that clones copy.
    fn share(&mut self) {}

    /// Returns true if the picks are the same for every query head of the group, given the same
    /// earlier picks. Then [`select`](Self::select) may be called for one row on behalf of all.
    /// Such a selector proves no [bound](Picks::bound_residual), because a bound belongs to one
    /// row.
    fn group_wide(&self) -> bool {
        false
    }

    /// Size in bytes of the parts of its index that grow with the number of tokens. Memory that
    /// `n` clones share counts for each of them as an `n`-th.
    fn index_bytes(&self) -> usize {
        0
    }

    /// Adds the tokens that are not evicted to `live`. A token among the first
    /// [`visible`](Picks::visible) ones is evicted if neither the current row nor any later row
    /// that sees at least as many tokens can pick it. By default, no token is evicted.
    fn live(&self, live: &mut Picks) {
        live.take_range(0..live.visible());
    }

    /// Adds this selector's picks for one row to those of the selectors before it. The picks must
    /// depend only on the first [`visible`](Row::visible) tokens, although more may have been
    /// appended.
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
    /// Position of the first new token in the sequence.
    pub first: usize,
    /// Keys, `[new, head_dim]`, as stored.
    pub keys: Tokens<'a>,
    /// Values, `[new, value_dim]`, as stored.
    pub values: Tokens<'a>,
    /// Class of each token, `[new]`, or `None` if the classes are unknown. They are present if a
    /// selector of the pipeline [needs](SelectorConfig::needs_classes) them.
    pub classes: Option<&'a [TokenClass]>,
}

/// The last queries of a processed prompt, for one KV head.
#[derive(Clone, Copy, Debug)]
pub struct PromptQueries<'a> {
    /// KV head, layer and sequence.
    pub site: &'a Site,
    /// Queries, `[group, prompt, head_dim]`, multiplied by the softmax scale. The last query
    /// belongs to the newest token.
    pub queries: ArrayView3<'a, f32>,
    /// All keys so far, `[tokens, head_dim]`.
    pub keys: Tokens<'a>,
    /// All values so far, `[tokens, value_dim]`.
    pub values: Tokens<'a>,
    /// Soft cap of the logits, and attention sinks of the group's query heads.
    pub form: SoftmaxForm<'a>,
}

/// Attention weights of one row over the tokens that it read.
#[derive(Clone, Copy, Debug)]
pub struct AttentionWeights<'a> {
    /// Tokens read, ascending.
    pub tokens: &'a [u32],
    /// Weight `e / D^` of each token, not divided by its inclusion probability.
    pub weights: &'a [f32],
    /// Weight `e^sink / D^` of the attention sink; 0 if there is none.
    pub sink: f32,
}
