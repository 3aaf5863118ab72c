//! The law that a shared index is that of any sequence with the same tokens.

use vattention_core::{NewTokens, Selector, SelectorConfig, Site, Tokens};

use super::{all_picks, same};
use crate::Head;
use crate::sharing::{IndexOwner, check_sharing};
use crate::verdict::Verdict;

/// If a selector has no [sharing obstacle](vattention_core::Selector::sharing_obstacle), it can be
/// truncated, and a clone of it that is cut to some tokens picks like a selector of another
/// sequence that has these tokens only, before and after it gets other tokens. The original picks
/// as before.
///
/// # Errors
/// The first row that differs.
pub fn shares(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let elsewhere = Site { sequence: head.site().sequence + 1, ..*head.site() };
    let build =
        |site: &Site| config.build(site).map_err(|error| format!("cannot be built: {error}"));
    let both = [&build(head.site())?, &build(&elsewhere)?];
    check_sharing(
        both,
        head,
        |selector, head| all_picks(&**selector, head),
        |expected, found, when| same(expected, found, when),
    )
}

impl IndexOwner for Box<dyn Selector> {
    fn sharing_obstacle(&self) -> Option<&'static str> {
        (**self).sharing_obstacle()
    }

    fn can_truncate(&self) -> bool {
        (**self).can_truncate()
    }

    fn append(&mut self, new: &NewTokens<'_>) {
        (**self).append(new);
    }

    fn share(&mut self) {
        (**self).share();
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        (**self).truncate(keys);
    }
}
