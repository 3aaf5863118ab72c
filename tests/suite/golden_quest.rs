//! Quest compared with page scores and picks of the reference implementation
//! (`tests/golden/reference`).
//!
//! The peer (the reference implementation) picks whole pages, at least three, and unites them with
//! earlier picks, while our `size` is a number of tokens in addition to earlier picks. So the masks
//! are equal if Quest is the first selector and its size is the number of tokens in the peer's
//! pages. With few bits, scores differ too: the peer rounds to the nearest, so its scores are not
//! bounds.

use std::num::NonZeroUsize;

use crate::common::peer::{Case, LAYER, size};
use ndarray::{Array1, Array3, s};
use serde_json::Value;
use vattention::index::LabelBits;
use vattention::selectors::Quest;
use vattention::{
    Shape, Size,
    plugin::{NewTokens, Picks, Row, Score, Selector, SelectorConfig, Site, Step, Tokens},
};

const PAGE: usize = 16;

fn quest(size: usize, bits: u64) -> Quest {
    Quest {
        size: Size::Tokens(size),
        page: NonZeroUsize::new(PAGE).unwrap(),
        bits: LabelBits::try_from(bits).unwrap(),
        score: Score::Head,
    }
}

/// Inputs of a case for one KV head.
struct Head {
    site: Site,
    /// `[tokens, head_dim]`
    keys: Array3<f32>,
    /// `[queries, group, head_dim]`, scaled
    queries: Array3<f32>,
}

impl Head {
    fn new(case: &Case, kv_head: usize) -> Self {
        let shape = case.shape();
        let site = Site { seed: 0, sequence: 0, layer: LAYER, kv_head, shape };
        let group = kv_head * shape.group()..(kv_head + 1) * shape.group();
        let queries = case.input("queries").slice_move(s![group, .., ..]) * shape.default_scale();
        let queries = queries.permuted_axes([1, 0, 2]).as_standard_layout().into_owned();
        let keys = case.input("keys").slice_move(s![kv_head..kv_head + 1, .., ..]);
        Self { site, keys: keys.as_standard_layout().into_owned(), queries }
    }

    fn keys(&self) -> Tokens<'_> {
        let (_, tokens, dim) = self.keys.dim();
        Tokens::new(self.keys.as_slice().unwrap(), tokens, dim)
    }

    /// Step of one query.
    fn step(&self, query: usize, visible: usize) -> Step<'_> {
        let per_step = self.queries.len() / self.queries.dim().0;
        let queries = &self.queries.as_slice().unwrap()[query * per_step..][..per_step];
        let (site, keys) = (&self.site, self.keys());
        Step { visible, step: query as u32, ..Step::new(site, queries, keys, keys) }
    }

    fn build(&self, config: &dyn SelectorConfig) -> Box<dyn Selector> {
        let mut selector = config.build(&self.site).unwrap();
        selector.append(&NewTokens {
            first: 0,
            keys: self.keys(),
            values: self.keys(),
            classes: None,
        });
        selector
    }

    /// Bounds of all pages for one query head: each is the residual bound if all other pages are
    /// picked.
    fn bounds(&self, row: &Row<'_>, bits: u64) -> Array1<f64> {
        let quest = self.build(&quest(1, bits));
        let bound = |page: usize| {
            let mut picks = Picks::new(row.visible());
            picks.take_range(0..page * PAGE);
            picks.take_range((page + 1) * PAGE..row.visible());
            quest.select(row, &mut picks);
            f64::from(picks.residual_bound().unwrap())
        };
        (0..row.visible().div_ceil(PAGE)).map(bound).collect()
    }

    /// Largest difference between a page's bounds if they are rounded outwards or to the nearest: a
    /// step of the grid of each of the two vectors, times the elements of the query.
    fn step_size(&self, row: &Row<'_>, bits: u32) -> Array1<f64> {
        let pages = self.keys.slice(s![0, .., ..]);
        let spread = |page: usize, fold: fn(f32, f32) -> f32| {
            let page = pages.slice(s![page * PAGE..(page + 1) * PAGE, ..]);
            let vector =
                page.map_axis(ndarray::Axis(0), |keys| keys.iter().copied().reduce(fold).unwrap());
            let [least, most] = [f32::min, f32::max].map(|f| vector.iter().copied().reduce(f));
            f64::from(most.unwrap() - least.unwrap()) / f64::from((1_u32 << bits) - 1)
        };
        let weight = |sign: f32| -> f64 {
            row.query().iter().map(|&q| f64::from((q * sign).max(0.0))).sum()
        };
        (0..pages.nrows() / PAGE)
            .map(|page| {
                weight(-1.0) * spread(page, f32::min) + weight(1.0) * spread(page, f32::max)
            })
            .collect()
    }
}

/// Largest logit of each page.
fn largest(row: &Row<'_>) -> Array1<f64> {
    let logits: Vec<f64> = (0..row.visible()).map(|token| row.logit(token).into()).collect();
    logits.chunks(PAGE).map(|page| page.iter().copied().fold(f64::MIN, f64::max)).collect()
}

/// Calls `visit` for each row of each case, with its KV head, query head in the group, query and
/// number of visible tokens.
fn for_each_row(mut visit: impl FnMut(&Case, &Head, usize, usize, usize)) {
    for case in &["a_causal", "a_nomask"].map(Case::load) {
        let Shape { kv_heads, .. } = case.shape();
        for kv_head in 0..kv_heads {
            let head = Head::new(case, kv_head);
            for (query, visible) in case.visible().into_iter().enumerate() {
                for member in 0..case.shape().group() {
                    visit(case, &head, member, query, visible);
                }
            }
        }
    }
}

/// Scaled page scores of the peer for a row.
fn their_scores(case: &Case, head: &Head, bits: u64, member: usize, query: usize) -> Array1<f64> {
    let scores = case.composition_tensor(&format!("quest_bits{bits}"), "page_scores");
    let query_head = head.site.kv_head * head.site.shape.group() + member;
    let scale = f64::from(head.site.shape.default_scale());
    scores.slice(s![0, query_head, query, ..]).mapv(|score| f64::from(score) * scale)
}

/// Allowance of our bounds for rounding errors, about 1e-5 of the largest products.
const SLACK: f64 = 5e-4;

#[test]
fn exact_page_bounds_equal_the_peers_scores() {
    for_each_row(|case, head, member, query, _| {
        let tokens = head.keys().len();
        let step = head.step(query, tokens);
        let ours = head.bounds(&step.row(member), 0);
        for (ours, theirs) in ours.iter().zip(their_scores(case, head, 16, member, query)) {
            let over = ours - theirs;
            assert!((-1e-5..SLACK).contains(&over), "{ours}, not {theirs}");
        }
    });
}

/// With few bits, our bounds are at least the exact ones and at most a step above the peer's
/// scores. The peer's scores are often below the exact bounds.
#[test]
fn bounds_rounded_outwards_remain_bounds() {
    for bits in [2, 4] {
        let mut below = 0;
        for_each_row(|case, head, member, query, _| {
            let step = head.step(query, head.keys().len());
            let row = step.row(member);
            let (exact, ours, largest) =
                (head.bounds(&row, 0), head.bounds(&row, bits), largest(&row));
            let theirs = their_scores(case, head, bits, member, query);
            let apart = head.step_size(&row, bits as u32);
            for page in 0..ours.len() {
                assert!(ours[page] >= largest[page], "{} < {}", ours[page], largest[page]);
                assert!(ours[page] >= exact[page] - SLACK);
                let over = ours[page] - theirs[page];
                assert!((-1e-5..apart[page] + SLACK).contains(&over), "{over} of {}", apart[page]);
                below += usize::from(theirs[page] < exact[page] - SLACK);
            }
        });
        // About half of the peer's 1536 scores are below the bounds. None is below a logit, because
        // the exact bounds of these keys are loose.
        assert!(below > 700, "{below} of {bits} bits");
    }
}

/// Returns a value for each visible token of a row: true if one of the peer's `count` best pages
/// contains the token.
fn their_pages(scores: &Array1<f64>, count: usize, visible: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..visible.div_ceil(PAGE)).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    (0..visible).map(|token| order[..count].contains(&(token / PAGE))).collect()
}

/// With a size of whole pages and no earlier picks, Quest picks the peer's pages; these pages, the
/// sink and the window are the peer's mask. After other picks, Quest picks the same number of
/// *other* tokens, unlike the peer. Rows with a partly visible page are left out: the peer's score
/// includes keys of the page that are not visible.
#[test]
fn a_size_of_whole_pages_picks_the_peers_pages() {
    let (mut whole_pages, mut rows) = (0, 0);
    for_each_row(|case, head, member, query, visible| {
        rows += 1;
        if !visible.is_multiple_of(PAGE) {
            let ours = head.bounds(&head.step(query, visible).row(member), 0);
            let theirs = their_scores(case, head, 16, member, query);
            assert!(ours[visible / PAGE] <= theirs[visible / PAGE] + SLACK);
            return;
        }
        whole_pages += 1;
        let composition = case.compositions().iter().find(|c| c["label"] == "quest_bits16");
        let maskers: &Value = &composition.unwrap()["maskers"];
        assert_eq!([&maskers[0]["sink_size"], &maskers[1]["window_size"]], [PAGE, PAGE]);
        let (tokens, queries) = (head.keys().len(), head.queries.dim().0);
        let whole = size(&maskers[2]["heavy_size"]).to_tokens(tokens) / PAGE;
        let scores = their_scores(case, head, 16, member, query);
        let theirs = their_pages(&scores, whole.max(3), visible);
        let quest = quest(theirs.iter().filter(|&&taken| taken).count(), 0);
        let (step, selector) = (head.step(query, visible), head.build(&quest));
        let select = |picks: &mut Picks| selector.select(&step.row(member), picks);

        let mut first = Picks::new(visible);
        select(&mut first);
        assert!((0..visible).all(|token| first.contains(token) == theirs[token]));
        // The peer's window ends at the query's own position, mask or not.
        let position = tokens - queries + query + 1;
        let mut ends = Picks::new(visible);
        ends.take_range(0..PAGE);
        ends.take_range(position - PAGE..position);
        let mask = case.composition_tensor("quest_bits16", "mask");
        let query_head = head.site.kv_head * head.site.shape.group() + member;
        let mask = mask.slice(s![0, query_head, query, ..visible]);
        first.union(&ends);
        assert!((0..visible).all(|token| first.contains(token) == (mask[token] > 0.0)));

        select(&mut ends);
        assert_eq!(ends.len(), 2 * PAGE + quest.size.to_tokens(visible));
        assert!(ends.len() > first.len(), "the peer counts earlier picks");
    });
    assert_eq!(3 * whole_pages, 2 * rows, "one of three queries of a case sees a page partly");
}
