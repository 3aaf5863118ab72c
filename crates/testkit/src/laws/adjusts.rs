//! Change of an adjustable setting.

use vattention_core::{Fraction, SelectorConfig, Size, plugin::Tunable};

use super::{all_picks, filled, read_again, same};
use crate::Head;
use crate::verdict::{Verdict, ensure};

/// If a selector's setting is adjustable, the selector with another value has the picks of a
/// selector that had this value from the beginning.
///
/// # Errors
/// The picks of the first violation, or that the selector has another setting than its config.
pub fn adjusts(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let mut adjusted = filled(config, head)?;
    let (_, mut other) = read_again::<Box<dyn SelectorConfig>>(config)?;
    let (Some(setting), Some(mut new)) = (adjusted.adjustable(), other.tunable()) else {
        return Ok(());
    };
    change(&mut new, head.tokens);
    ensure(setting.copy_from(new), || "adjustable() and tunable() differ in kind".into())?;
    let expected = filled(&*other, head)?;
    same(&all_picks(&*expected, head), &all_picks(&*adjusted, head), "the adjusted selector")
}

fn change(setting: &mut Tunable<'_>, tokens: usize) {
    match setting {
        Tunable::Sizes(sizes) => {
            for size in sizes {
                **size = Size::Tokens(tokens.div_ceil(3));
            }
        }
        Tunable::Sink => {}
        Tunable::Window(size) => **size = Size::Tokens(tokens.div_ceil(3)),
        Tunable::Mass(share) | Tunable::Threshold(share) => {
            **share = Fraction::try_from(share.get() / 2.0).expect("half of a share");
        }
    }
}
