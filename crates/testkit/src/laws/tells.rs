//! The law of what a selector tells machines.

use vattention_core::{HashCodes, Picks, Recipe, Row, Score, SelectorConfig};

use super::{Verdict, ensure, filled};
use crate::Head;

/// A [`recipe`](vattention_core::Selector::recipe), followed to the letter, picks what the selector
/// does.
///
/// # Errors
/// The first row that differs.
pub fn tells(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let selector = filled(config, head)?;
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        let step = head.step(visible);
        let Some(recipe) = selector.recipe(&step) else { continue };
        ensure(!recipe.group_wide() || selector.group_wide(), || {
            "the recipe is the same for the group, but group_wide() is false".to_owned()
        })?;
        for row in step.rows() {
            let mut asked = Picks::new(visible);
            asked.take_all((0..visible).filter(|token| token % 3 == 1));
            let mut told = asked.clone();
            selector.select(&row, &mut asked);
            follow(&recipe, &row, &mut told);
            let (asked, told) = (asked.indices(), told.indices());
            ensure(asked == told, || {
                format!("picks {asked:?} of {visible} visible tokens, but tells {told:?}")
            })?;
        }
    }
    Ok(())
}

/// Does what a recipe says.
fn follow(recipe: &Recipe<'_>, row: &Row<'_>, picks: &mut Picks) {
    match recipe {
        Recipe::Range(range) => picks.take_range(range.clone()),
        Recipe::TopLogits { count, score } => {
            picks.take_top(*count, &row.scores(*score));
        }
        Recipe::TopCodes { count, score, codes } => {
            let members = match score {
                Score::Head => row.member()..row.member() + 1,
                Score::Group => 0..codes.queries.len(),
            };
            let agreeing = |token: usize| -> u16 {
                members.clone().map(|member| agreeing_bits(codes, member, token)).sum()
            };
            let scores: Vec<u16> = (0..row.visible()).map(agreeing).collect();
            picks.take_top(*count, &scores);
        }
    }
}

fn agreeing_bits(codes: &HashCodes<'_>, member: usize, token: usize) -> u16 {
    let keys = codes.keys[codes.keys_of(member)];
    let query = &codes.queries[member];
    let differing =
        keys.iter().zip(query).map(|(words, query)| (words[token] ^ query).count_ones());
    codes.bits as u16 - differing.sum::<u32>() as u16
}
