//! A share is of the tokens that a row may read, not of all that are stored.

#![allow(clippy::unwrap_used)]

use vattention_core::{Fraction, Picks, SelectorConfig, Size, step::Score};
use vattention_selectors::{OracleTopK, Sink, Window};
use vattention_testkit::{Head, Texture};

#[test]
fn a_share_is_of_the_visible_tokens() {
    let size = Size::Share(Fraction::try_from(0.1).unwrap());
    let head = Head::new(1000, 2, 0, Texture::Gaussian);
    let configs: [&dyn SelectorConfig; 4] = [
        &Sink { size },
        &Window { size },
        &OracleTopK { size, score: Score::Head },
        &OracleTopK { size, score: Score::Group },
    ];
    for config in configs {
        let mut picks = Picks::new(100);
        config.build(head.site()).unwrap().select(&head.step(100).row(0), &mut picks);
        assert_eq!(picks.len(), 10, "{config:?}");
    }
}
