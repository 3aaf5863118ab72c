//! The law of what a selector tells machines.

use vattention_core::{HashCodes, Picks, Recipe, Row, Score, SelectorConfig};

use super::{Verdict, ensure, filled};
use crate::Head;

/// A [`recipe`](vattention_core::Selector::recipe), followed to the letter, picks what the selector
/// does, and leaves the bound that it promises, if it promises one.
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
            let left = follow(&recipe, &row, &mut told);
            let (bound, left) = (asked.residual_bound(), left.filter(|_| config.bounds_residual()));
            ensure(bound == left, || {
                format!("promises the bound {bound:?}, but its recipe leaves {left:?}")
            })?;
            let (asked, told) = (asked.indices(), told.indices());
            ensure(asked == told, || {
                format!("picks {asked:?} of {visible} visible tokens, but tells {told:?}")
            })?;
        }
    }
    Ok(())
}

/// Does what a recipe says; says the bound that it leaves on the logits of the rest, if it does.
fn follow(recipe: &Recipe<'_>, row: &Row<'_>, picks: &mut Picks) -> Option<f32> {
    match recipe {
        Recipe::Range(range) => {
            picks.take_range(range.clone());
            None
        }
        Recipe::TopLogits { count, score } => {
            let left = picks.take_top(*count, &row.scores(*score));
            left.filter(|_| *score == Score::Head)
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
            None
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
