//! Laws of selectors, invariants of codes, and weight files that are refused.

use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use vattention_core::{Shape, Size, Step, Tokens};
use vattention_testkit::{Head, Texture, heads};

use super::codes::pack;
use super::*;

fn config(bits: u64, codes: IndexScope, score: Score) -> HashAttention {
    HashAttention {
        size: Size::Tokens(7),
        weights: None,
        bits: Some(Bits::try_from(bits).unwrap()),
        codes,
        activation: Activation::Silu,
        score,
    }
}

vattention_testkit::laws!(head_codes, config(32, IndexScope::Head, Score::Head));
vattention_testkit::laws!(head_codes_group_scores, config(40, IndexScope::Head, Score::Group));
vattention_testkit::laws!(group_codes, config(100, IndexScope::Group, Score::Head));
vattention_testkit::laws!(group_codes_group_scores, config(32, IndexScope::Group, Score::Group));

/// Returns the scores of one row by a selector with all of a head's keys.
fn scores(config: &HashAttention, head: &Head, member: usize) -> Vec<u16> {
    let mut selector = config.build_selector(head.site()).unwrap();
    selector.append(&head.part(0..head.tokens));
    selector.scores(&head.step(head.tokens).row(member))
}

fn sign(x: f32) -> i32 {
    if x > 0.0 { 1 } else { -1 }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn packing_round_trips(signs in prop::collection::vec(any::<bool>(), 1..=128)) {
        let numbers: Vec<f32> = signs.iter().map(|&sign| if sign { 0.5 } else { -0.0 }).collect();
        let code = pack(&numbers);
        for bit in 0..128 {
            let set = code[bit / 32] >> (bit % 32) & 1 == 1;
            prop_assert_eq!(set, signs.get(bit) == Some(&true));
        }
    }

    /// After subtraction, a score is `(bits + Σ ±1 · ±1) / 2`, summed over any number of queries.
    #[test]
    fn scores_are_products_of_signs(
        bits in 1_u64..=128,
        numbers in prop::collection::vec(-1.0_f32..1.0, 128 * 9),
        queries in 1_usize..20,
        tokens in 0_usize..70,
    ) {
        let vector = |i: usize| -> Vec<f32> {
            (0..bits as usize).map(|j| numbers[(i * 31 + j * 7) % numbers.len()]).collect()
        };
        let mut codes = Codes::new(Bits::try_from(bits).unwrap());
        (0..tokens).for_each(|token| codes.push(pack(&vector(token))));
        let packed: Vec<_> = (0..queries).map(|i| pack(&vector(100 + i))).collect();
        let mut scores = vec![bits as u16 * queries as u16; tokens];
        codes.subtract_differing(&packed, &mut scores);
        for (token, &score) in scores.iter().enumerate() {
            let product = |i| -> i32 {
                vector(token).iter().zip(vector(100 + i)).map(|(&k, q)| sign(k) * sign(q)).sum()
            };
            let doubled: i32 = (0..queries).map(|i| bits as i32 + product(i)).sum();
            prop_assert_eq!(2 * i32::from(score), doubled);
        }
    }

    /// A group's score is 1 plus the agreeing bits of all its query heads.
    #[test]
    fn a_groups_score_is_the_sum_of_its_heads(head in heads(40)) {
        for codes in [IndexScope::Head, IndexScope::Group] {
            let by_head = config(40, codes, Score::Head);
            let [a, b] = [0, 1].map(|member| scores(&by_head, &head, member));
            let sum: Vec<u16> = a.iter().zip(&b).map(|(a, b)| a + b - 1).collect();
            prop_assert_eq!(scores(&config(40, codes, Score::Group), &head, 1), sum);
        }
    }

    /// A key in the direction of the query has the query's code and thus the highest score; a key
    /// in the opposite direction agrees in no bit.
    #[test]
    fn the_querys_own_code_has_the_top_score(head in heads(20), scale in 0.1_f32..9.0) {
        let config = config(32, IndexScope::Group, Score::Head);
        let mut selector = config.build_selector(head.site()).unwrap();
        let query = head.step(1).row(0).query().to_vec();
        let opposite = query.iter().map(|x| -x);
        let keys: Vec<f32> = query.iter().map(|x| x * scale).chain(opposite).collect();
        let keys = vattention_core::Tokens::new(&keys, 2, head.dim);
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        let row = head.step(head.tokens.min(2)).row(0);
        let scores = selector.scores(&row);
        prop_assert_eq!(&scores[..], &[33, 1][..scores.len()]);
    }
}

/// With many bits, the agreeing bits estimate angles: the needle agrees in more bits than nearly
/// all other tokens.
#[test]
fn hyperplanes_find_a_needle() {
    let head = Head::new(2000, 20, 5, Texture::Needle);
    let row = head.step(2000).row(0);
    let needle = (0..2000).max_by(|&a, &b| row.logit(a).total_cmp(&row.logit(b))).unwrap();
    let scores = scores(&config(128, IndexScope::Group, Score::Group), &head, 0);
    let better = scores.iter().filter(|&&score| score > scores[needle]).count();
    assert!(better < 20, "{better} tokens score higher");
}

/// Writes a file of maps with a layer of `[heads, 8, 8]` and one of `[heads, 8, bits]`.
fn write(
    path: &Path,
    heads: usize,
    format: &str,
    change: impl Fn(&mut HashMap<String, Vec<usize>>),
) {
    let mut shapes = HashMap::new();
    for side in ["query", "key"] {
        for (i, bits) in [8, 40].into_iter().enumerate() {
            shapes.insert(format!("layers.0.{side}.{i}.weight"), vec![heads, 8, bits]);
            shapes.insert(format!("layers.0.{side}.{i}.bias"), vec![heads, bits]);
        }
    }
    change(&mut shapes);
    let number = |i: usize| (i * 7919 % 101) as f32 / 50.0 - 1.0;
    let bytes = |shape: &[usize]| -> Vec<u8> {
        (0..shape.iter().product()).flat_map(|i| number(i).to_le_bytes()).collect()
    };
    let data: Vec<_> =
        shapes.into_iter().map(|(name, shape)| (name, bytes(&shape), shape)).collect();
    let views: Vec<_> = (data.iter())
        .map(|(name, data, shape)| {
            (name.clone(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap())
        })
        .collect();
    let metadata = HashMap::from([("format".to_owned(), format.to_owned())]);
    serialize_to_file(views, Some(metadata), path).unwrap();
}

/// Builds the maps at a site with 4 query heads and 2 KV heads of 8 elements.
fn build(config: &HashAttention) -> Result<Vec<CodeMap>, String> {
    let shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 8, value_dim: 1 };
    let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 1, shape };
    config.maps(&site).map(|(maps, _)| maps)
}

#[test]
fn each_head_reads_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let first = |heads, codes| -> Vec<f32> {
        write(&path, heads, "vattention-hash/1", |_| {});
        let trained = HashAttention {
            weights: Some(path.clone()),
            bits: None,
            ..config(32, codes, Score::Head)
        };
        let maps = build(&trained).unwrap();
        assert!(maps.iter().all(|map| map.bits() == 40));
        let unscaled = |map: &CodeMap| map.unscaled(&[1.0]).next();
        assert!(maps.iter().all(|map| unscaled(map) == Some(8.0_f32.sqrt())));
        maps.iter().map(|map| map.query().layers()[0].weight[0]).collect()
    };
    let row = |head: usize| (head * 64 * 7919 % 101) as f32 / 50.0 - 1.0;
    assert_eq!(first(4, IndexScope::Head), [row(2), row(3)]);
    assert_eq!(first(4, IndexScope::Group), [row(2)], "the group's first query head's");
    assert_eq!(first(2, IndexScope::Group), [row(1)]);
}

#[test]
fn errors_name_the_file_and_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let good = "vattention-hash/1";
    let trained = HashAttention {
        weights: Some(path.clone()),
        bits: None,
        ..config(32, IndexScope::Head, Score::Head)
    };
    let refused = |config: &HashAttention| {
        let error = build(config).unwrap_err();
        let (file, reason) = error.split_once(": ").unwrap();
        assert_eq!(file, path.display().to_string());
        reason.to_owned()
    };
    assert!(refused(&trained).contains("No such file"));
    write(&path, 4, "other/1", |_| {});
    assert!(refused(&trained).contains("format is `other/1`: expected `vattention-hash/1`"));
    write(&path, 2, good, |_| {});
    assert!(refused(&trained).contains("is [2, 8, 8]: expected [4 query heads, 8, out]"));
    assert!(refused(&trained).ends_with("of KV heads: write `codes = \"group\"`"), "HATA's");
    let shared = HashAttention { codes: IndexScope::Group, ..trained.clone() };
    write(&path, 3, good, |_| {});
    assert!(refused(&shared).contains("expected [2 KV heads or 4 query heads, 8, out]"));
    assert!(!refused(&shared).contains("write `codes"));
    write(&path, 4, good, |shapes| shapes.retain(|name, _| !name.contains("key.0.weight")));
    assert_eq!(refused(&trained), "there is no `layers.0.key.0.weight`");
    write(&path, 4, good, |shapes| shapes.retain(|name, _| !name.contains("key.1.weight")));
    assert_eq!(refused(&trained), "keys have codes of 8 bits: expected 40, as queries have");
    write(&path, 4, good, |shapes| {
        shapes.insert("layers.0.query.1.bias".into(), vec![4, 39]);
    });
    assert!(refused(&trained).contains("`layers.0.query.1.bias` is [4, 39]: expected [4, 40]"));
    write(&path, 4, good, |_| {});
    let narrow = HashAttention { bits: Some(Bits::default()), ..trained.clone() };
    assert_eq!(refused(&narrow), "the codes have 40 bits: expected 32, as `bits` says");
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 7, 20, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        refused(&trained);
    }
}

/// Case of HATA, with one matrix per KV head for queries and keys, in the file that
/// `tools/make_selectors_golden.py` writes.
#[derive(Deserialize)]
struct Hata {
    queries: Vec<Vec<f32>>,
    keys: Vec<Vec<f32>>,
    weight: Vec<Vec<f32>>,
    size: usize,
    picks: Vec<usize>,
}

/// Writes a file of one layer without bias, the same for queries and keys.
fn write_matrix(path: &Path, weight: &[Vec<f32>]) {
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (dim, bits) = (weight.len(), weight[0].len());
    let (matrix, bias) = (bytes(&weight.concat()), bytes(&vec![0.0; bits]));
    let side = |side: &str| {
        let view = |shape, data| TensorView::new(Dtype::F32, shape, data).unwrap();
        [
            (format!("layers.0.{side}.0.weight"), view(vec![1, dim, bits], &matrix)),
            (format!("layers.0.{side}.0.bias"), view(vec![1, bits], &bias)),
        ]
    };
    let views = ["query", "key"].into_iter().flat_map(side);
    let metadata = HashMap::from([("format".to_owned(), "vattention-hash/1".to_owned())]);
    serialize_to_file(views, Some(metadata), path).unwrap();
}

#[test]
fn a_linear_group_map_picks_the_tokens_of_hata() {
    let cases = include_str!("../../../../tests/golden/hata.json");
    let cases: Vec<Hata> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 2);
    let file = tempfile::NamedTempFile::new().unwrap();
    for case in cases {
        write_matrix(file.path(), &case.weight);
        let (group, dim, visible) = (case.queries.len(), case.queries[0].len(), case.keys.len());
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let (queries, keys) = (case.queries.concat(), case.keys.concat());
        let keys = Tokens::new(&keys, visible, dim);
        let hata = HashAttention {
            size: Size::Tokens(case.size),
            weights: Some(file.path().into()),
            bits: None,
            ..config(32, IndexScope::Group, Score::Group)
        };
        let mut selector = hata.build_selector(&site).unwrap();
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        let step = Step { visible, ..Step::new(&site, &queries, keys, keys) };
        let mut picks = Picks::new(visible);
        selector.select(&step.row(0), &mut picks);
        assert_eq!(picks.iter().collect::<Vec<_>>(), case.picks);
    }
}
