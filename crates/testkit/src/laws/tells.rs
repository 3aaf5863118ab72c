//! The law of what a selector tells machines.

use std::ops::Range;

use vattention_core::{
    HashCodes, Picks, Row, Selector, SelectorConfig, SelectorOp, Step, step::Score,
};

use super::{Verdict, build, ensure, filled};
use crate::Head;

/// An [`op`](vattention_core::Selector::op), followed to the letter, picks what the selector
/// does, and one by logits leaves the bound that it promises, if it promises one. A selector that has
/// been shown nothing tells what one does that has been shown everything.
///
/// # Errors
/// The first row that differs.
pub fn tells(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let (selector, unshown) = (filled(config, head)?, build(config, head)?);
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        let step = head.step(visible);
        let ops = [&selector, &unshown].map(|selector| selector.op(&step));
        ensure(ops[0].is_some() == ops[1].is_some(), || {
            "whether there is an op depends on what it has been shown".to_owned()
        })?;
        for op in ops.iter().flatten() {
            is_followed(op, config, &*selector, &step)?;
        }
    }
    Ok(())
}

/// Whether a selector does what an op says.
fn is_followed(
    op: &SelectorOp<'_>,
    config: &dyn SelectorConfig,
    selector: &dyn Selector,
    step: &Step<'_>,
) -> Verdict {
    let visible = step.visible;
    ensure(!op.group_wide() || selector.group_wide(), || {
        "the op is the same for the group, but group_wide() is false".to_owned()
    })?;
    for row in step.rows() {
        let mut asked = Picks::new(visible);
        asked.take_all((0..visible).filter(|token| token % 3 == 1));
        let mut told = asked.clone();
        selector.select(&row, &mut asked);
        let left = follow(op, &row, &mut told);
        let (bound, left) = (asked.residual_bound(), left.filter(|_| config.bounds_residual()));
        let by_logits = matches!(op, SelectorOp::TopLogits { .. });
        ensure(!by_logits || bound == left, || {
            format!("promises the bound {bound:?}, but its op leaves {left:?}")
        })?;
        let (asked, told) = (asked.indices(), told.indices());
        ensure(asked == told, || {
            format!("picks {asked:?} of {visible} visible tokens, but tells {told:?}")
        })?;
    }
    Ok(())
}

/// Does what an op says; says the bound that it leaves on the logits of the rest, if it does.
fn follow(op: &SelectorOp<'_>, row: &Row<'_>, picks: &mut Picks) -> Option<f32> {
    match op {
        SelectorOp::Range(range) => {
            picks.take_range(range.clone());
            None
        }
        SelectorOp::TopLogits { count, score } => {
            let left = picks.take_top(*count, &row.scores(*score));
            left.filter(|_| *score == Score::Head)
        }
        SelectorOp::TopPages { count, score, page } => {
            let bound = |token: usize| -> f32 {
                let first = token - token % page.get();
                let tokens = first..row.visible().min(first.saturating_add(page.get()));
                let members = counting(row, *score);
                members.iter().map(|member| largest_product(member, tokens.clone())).sum()
            };
            let scores: Vec<f32> = (0..row.visible()).map(bound).collect();
            picks.take_top(*count, &scores);
            None
        }
        SelectorOp::TopCodes { count, score, codes } => {
            let agreeing = |token: usize| -> u16 {
                counting(row, *score).iter().map(|member| agreeing_bits(codes, member, token)).sum()
            };
            let scores: Vec<u16> = (0..row.visible()).map(agreeing).collect();
            picks.take_top(*count, &scores);
            None
        }
    }
}

/// The rows whose queries count.
fn counting<'a>(row: &Row<'a>, score: Score) -> Vec<Row<'a>> {
    match score {
        Score::Head => vec![*row],
        Score::Group => row.members().collect(),
    }
}

fn key(row: &Row<'_>, token: usize) -> Vec<f32> {
    let mut key = vec![0.0; row.keys().dim()];
    row.keys().copy_row(token, &mut key);
    key
}

/// The largest product that a query may have with a key between those of a page.
fn largest_product(row: &Row<'_>, page: Range<usize>) -> f32 {
    let keys: Vec<Vec<f32>> = page.map(|token| key(row, token)).collect();
    let of_channel = |(channel, q): (usize, &f32)| {
        let products = keys.iter().map(|key| q * key[channel]);
        products.fold(f32::NEG_INFINITY, f32::max)
    };
    row.query().iter().enumerate().map(of_channel).sum()
}

fn agreeing_bits(codes: &HashCodes<'_>, member: &Row<'_>, token: usize) -> u16 {
    let map = codes.maps[codes.map_of(member.member())];
    let pairs = map.of_query(member.query()).into_iter().zip(map.of_key(&key(member, token)));
    pairs.filter(|&(query, key)| (query > 0.0) == (key > 0.0)).count() as u16
}
