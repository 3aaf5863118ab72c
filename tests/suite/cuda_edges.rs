//! Steps on the device at the edges: selectors of one's own that tell odd things, threads that share a
//! routine, sequences that outgrow it, and as many looks as there may be.

use crate::common;
use std::sync::Arc;

use ndarray::{Array3, s};
use serde::{Deserialize, Serialize};
use vattention::backends::Reference;
use vattention::config::Loader;
use vattention::cuda::Gpu;
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    Attention, Backend, Options, Output, PipelineConfig, Result, Shape,
    engine::{Activation, Affine, CodeMap, HashCodes, Network, SelectorOp},
    plugin::{
        NewTokens, Picks, Row, Score, Selector, SelectorConfig, Site, Step, register, typetag,
    },
};

use crate::common::agreement::{compare_picks, compare_reports};
use crate::common::devices::Watched;

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 16, value_dim: 12 };

/// A selector that tells what it does in a way that is right, but odd.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Odd {
    how: How,
    #[serde(skip)]
    kv_head: usize,
    /// Maps to codes of 40 bits and of 64.
    #[serde(skip)]
    maps: Vec<CodeMap>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum How {
    /// A range of which little or nothing is visible.
    Beyond,
    /// More than there are, in 32 bits or 64.
    TooMany,
    /// Only of an even number of visible tokens.
    AtTimes,
    /// Of one KV head otherwise than of another.
    ByHead,
    /// By codes where many tokens are visible, of more bits where more are.
    Growing,
}

#[typetag::serde(name = "odd")]
impl SelectorConfig for Odd {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let maps = [40, 64].map(|bits| map(site.shape.head_dim, bits)).to_vec();
        Ok(Box::new(Self { how: self.how, kv_head: site.kv_head, maps }))
    }
}

register!(Selector, "odd", Odd, "what is right, but told oddly");

/// Whole numbers, and queries whose network is deeper than that of keys.
fn map(dim: usize, bits: usize) -> CodeMap {
    let layer = |inputs: usize, outputs: usize| Affine {
        weight: (0..inputs * outputs).map(|i| ((i * i + 3 * i) % 7) as f32 - 3.0).collect(),
        bias: (0..outputs).map(|i| (i % 5) as f32 - 2.5).collect(),
    };
    let network = |layers| Arc::new(Network::new(layers, Activation::Relu).unwrap());
    let query = network(vec![layer(dim, 3), layer(3, bits)]);
    CodeMap::new(query, network(vec![layer(dim, bits)]), 0.25).unwrap()
}

impl Odd {
    fn map(&self, visible: usize) -> Option<&CodeMap> {
        match visible {
            0..100 => None,
            100..200 => Some(&self.maps[0]),
            _ => Some(&self.maps[1]),
        }
    }
}

impl Selector for Odd {
    fn append(&mut self, _: &NewTokens<'_>) {}

    fn op(&self, step: &Step<'_>) -> Option<SelectorOp<'_>> {
        match self.how {
            How::Beyond => Some(SelectorOp::Range(90..(1 << 32) + 1)),
            How::TooMany => Some(SelectorOp::TopLogits { count: 1 << 32, score: Score::Head }),
            How::AtTimes => step.visible.is_multiple_of(2).then_some(SelectorOp::Range(3..9)),
            How::ByHead if self.kv_head == 0 => Some(SelectorOp::Range(0..5)),
            How::ByHead => Some(SelectorOp::TopLogits { count: 7, score: Score::Head }),
            How::Growing => Some(match self.map(step.visible) {
                None => SelectorOp::Range(0..5),
                Some(map) => SelectorOp::TopCodes {
                    count: 7,
                    score: Score::Head,
                    codes: HashCodes { maps: vec![map] },
                },
            }),
        }
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        match self.how {
            How::Beyond => picks.take_range(90..(1 << 32) + 1),
            How::TooMany => {
                picks.take_top(1 << 32, &row.scores(Score::Head));
            }
            How::AtTimes => picks.take_range(3..9),
            How::ByHead if self.kv_head == 0 => picks.take_range(0..5),
            How::ByHead => {
                picks.take_top(7, &row.scores(Score::Head));
            }
            How::Growing => match self.map(row.visible()) {
                None => picks.take_range(0..5),
                Some(map) => {
                    let query = map.of_query(row.query());
                    let agreeing = |token| {
                        let mut key = vec![0.0; row.keys().dim()];
                        row.keys().copy_row(token, &mut key);
                        let pairs = query.iter().zip(map.of_key(&key));
                        pairs.filter(|&(&q, k)| (q > 0.0) == (k > 0.0)).count() as u16
                    };
                    let scores: Vec<u16> = (0..row.visible()).map(agreeing).collect();
                    picks.take_top(7, &scores);
                }
            },
        }
    }
}

fn parsed(text: &str) -> Arc<PipelineConfig> {
    Loader::default().parse("edge.toml", text).unwrap()
}

/// Whole numbers, so that products are exact.
fn numbers(heads: usize, count: usize, dim: usize) -> Array3<f32> {
    Array3::from_shape_fn((heads, count, dim), |(h, t, d)| {
        ((h * 3 + (t * t) % 23 + t * 31 + d * 17 + t / 5) % 5) as f32 - 2.0
    })
}

fn started(
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
    tokens: usize,
) -> Box<dyn Attention> {
    let options = Options { return_selection: true, scale: Some(0.25), ..Options::default() };
    let mut attention = backend.start(pipeline, 0, SHAPE, &options).unwrap();
    append(&mut *attention, 0..tokens);
    attention
}

fn append(attention: &mut dyn Attention, tokens: std::ops::Range<usize>) {
    let part =
        |dim| numbers(SHAPE.kv_heads, tokens.end, dim).slice_move(s![.., tokens.clone(), ..]);
    attention.append(part(SHAPE.head_dim).view(), part(SHAPE.value_dim).view()).unwrap();
}

/// One query for each number of visible tokens.
fn attend(attention: &mut dyn Attention, visible: &[usize]) -> Output {
    let queries = numbers(SHAPE.query_heads, visible.len(), SHAPE.head_dim);
    attention.attend(queries.view(), Some(visible)).unwrap()
}

/// What a selector tells may be of another kind at each step, or of more than there is.
#[test]
fn odd_recipes_are_followed_as_they_are_meant() {
    let Some(emulator) = common::emulator() else { return };
    for (how, by_routine) in [
        ("beyond", &[250, 91, 99][..]),
        ("too-many", &[250, 1, 50][..]),
        ("at-times", &[250, 40, 10][..]),
        ("by-head", &[][..]),
        ("growing", &[150, 250, 50, 149, 99, 200][..]),
    ] {
        let odd = format!("[[selectors]]\ntype = \"odd\"\nhow = \"{how}\"\n");
        let hash = "[[selectors]]\ntype = \"hash-attention\"\nsize = 9\n";
        let alone = [odd.clone(), format!("{odd}{odd}")];
        let beside = [
            format!("{odd}{hash}"),
            format!("{hash}{odd}{odd}[estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 9\n"),
        ];
        for text in alone.iter().chain(&beside) {
            let device = Watched::new(emulator.clone());
            let mut ours = started(&Gpu::new(device.clone()), &parsed(text), 250);
            let mut expected = started(&Reference, &parsed(text), 250);
            for (new, visible) in [(250..251, by_routine), (251..260, &[31, 90, 255])] {
                append(&mut *ours, new.clone());
                append(&mut *expected, new);
                device.take();
                let (ours, expected) =
                    (attend(&mut *ours, visible), attend(&mut *expected, visible));
                if visible == by_routine {
                    assert_eq!(device.take().replays, visible.len(), "{text}");
                }
                compare_reports(text, SHAPE.group(), &ours, &expected);
                compare_picks(text, &ours, &expected);
                for (ours, expected) in ours.out.iter().zip(&expected.out) {
                    assert!((ours - expected).abs() < 2e-5, "{text}: {ours} for {expected}");
                }
            }
        }
    }
}

/// A pipeline that the device runs by itself, of which samples grow.
fn whole(rounds: u8) -> Arc<PipelineConfig> {
    parsed(&format!(
        "[[selectors]]\ntype = \"sink\"\nsize = 8\n\
         [[selectors]]\ntype = \"hash-attention\"\nsize = 20\n\
         [sampler]\nbase = 30\n\
         [estimator]\ntype = \"ratio\"\nepsilon = 0.3\ndelta = 0.3\nrounds = {rounds}\n"
    ))
}

/// Layers and sequences on threads of their own take turns with a routine.
#[test]
fn threads_that_share_a_routine_do_not_disturb_one_another() {
    let Some(emulator) = common::emulator() else { return };
    let gpu = Gpu::new(emulator);
    let lengths = [700, 90, 400];
    let run = |mut attention: Box<dyn Attention>| -> Vec<Output> {
        let last = attention.len();
        (0..3).map(|_| attend(&mut *attention, &[last - 30, last])).collect()
    };
    let together: Vec<Vec<Output>> = std::thread::scope(|scope| {
        let start = |length| started(&gpu, &whole(6), length);
        let threads = lengths.map(|length| scope.spawn(move || run(start(length))));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    for (ours, length) in together.iter().zip(lengths) {
        let alone = run(started(&gpu, &whole(6), length));
        for (ours, alone) in ours.iter().zip(&alone) {
            assert_eq!((&ours.out, &ours.selection), (&alone.out, &alone.selection));
            assert_eq!(ours.rows, alone.rows);
        }
    }
}

/// One look, and as many as can be asked for.
#[test]
fn the_fewest_and_the_most_looks_are_taken() {
    let Some(emulator) = common::emulator() else { return };
    for rounds in [1, 255] {
        let [ours, expected] = [&Gpu::new(emulator.clone()) as &dyn Backend, &Reference]
            .map(|backend| attend(&mut *started(backend, &whole(rounds), 700), &[700]));
        compare_reports("looks", SHAPE.group(), &ours, &expected);
        compare_picks("looks", &ours, &expected);
    }
}

/// Quest proves a bound too, but not one that the device knows: such a step is the host's, and so is
/// one with more bounds than the best logit left over.
#[test]
fn bounds_that_the_device_cannot_find_are_left_to_the_host() {
    let Some(emulator) = common::emulator() else { return };
    let top = "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 40\n";
    let quest = "[[selectors]]\ntype = \"quest\"\nsize = 48\n";
    let hoeffding =
        "[estimator]\ntype = \"hoeffding\"\ntarget = \"denominator\"\nepsilon = 0.2\ndelta = 0.2\n";
    for (selectors, replays) in [(top, 1), (quest, 0), (&format!("{top}{quest}"), 0)] {
        let device = Watched::new(emulator.clone());
        let pipeline = parsed(&format!("share = \"head\"\n{selectors}{hoeffding}"));
        let mut ours = started(&Gpu::new(device.clone()), &pipeline, 700);
        device.take();
        let ours = attend(&mut *ours, &[700]);
        assert_eq!(device.take().replays, replays, "{selectors}");
        let expected = attend(&mut *started(&Reference, &pipeline, 700), &[700]);
        assert!(expected.rows.iter().any(|row| row.sampled > 0), "nothing is left to chance");
        compare_reports(selectors, SHAPE.group(), &ours, &expected);
        compare_picks(selectors, &ours, &expected);
    }
}

/// What is beyond the room that was made is answered as by the reference, before and after.
#[test]
fn room_is_made_as_sequences_grow() {
    let Some(emulator) = common::emulator() else { return };
    let mut ours = started(&Gpu::new(emulator), &whole(6), 650);
    let mut expected = started(&Reference, &whole(6), 650);
    for new in [650..1020, 1020..1030, 1030..2100] {
        append(&mut *ours, new.clone());
        append(&mut *expected, new.clone());
        let visible = [new.end - 7, new.end];
        let (ours, expected) = (attend(&mut *ours, &visible), attend(&mut *expected, &visible));
        compare_reports("room", SHAPE.group(), &ours, &expected);
        compare_picks("room", &ours, &expected);
    }
}
