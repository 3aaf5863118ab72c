//! Laws of selectors, error of the scores, and basis files that are refused.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use half::f16;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use tempfile::TempDir;
use vattention_core::{Shape, SoftmaxForm, Step};
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::OracleTopK;
use crate::test_picks::pick;

/// Returns orthonormal rows that depend on `seed`, by the Gram–Schmidt process.
fn orthonormal(dim: usize, seed: u64) -> Vec<f32> {
    let head = Head::new(2 * dim, dim, seed, Texture::Gaussian);
    let numbers = head.part(0..2 * dim).keys;
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for candidate in numbers.to_array(0..2 * dim).rows() {
        let mut row: Vec<f64> = candidate.iter().map(|&x| x.into()).collect();
        for _ in 0..2 {
            for other in &rows {
                let product: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                row.iter_mut().zip(other).for_each(|(a, b)| *a -= product * b);
            }
        }
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        if norm > 1e-3 && rows.len() < dim {
            rows.push(row.iter().map(|x| x / norm).collect());
        }
    }
    assert_eq!(rows.len(), dim);
    rows.concat().into_iter().map(|x| x as f32).collect()
}

/// Returns rows that have ±1 in one place and 0 elsewhere.
fn signed_permutation(dim: usize) -> Vec<f32> {
    let sign = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
    let entry = |(i, j)| if j == (i + 3) % dim { sign(i) } else { 0.0 };
    (0..dim).flat_map(|i| (0..dim).map(move |j| (i, j))).map(entry).collect()
}

/// Tensors in f32, by name.
type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

/// Writes a file of the bases of one layer's KV heads.
fn write(path: &Path, layer: usize, bases: &[Vec<f32>], change: impl Fn(&mut Tensors)) {
    let (heads, dim) = (bases.len(), bases[0].len().isqrt());
    let variance: Vec<f32> = (0..heads * dim).map(|i| (dim - i % dim) as f32).collect();
    let mut tensors = Tensors::from([
        (format!("layers.{layer}.basis"), (vec![heads, dim, dim], bases.concat())),
        (format!("layers.{layer}.variance"), (vec![heads, dim], variance)),
    ]);
    change(&mut tensors);
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let data: HashMap<_, _> = tensors
        .into_iter()
        .map(|(name, (shape, numbers))| (name, (shape, bytes(&numbers))))
        .collect();
    let view = |(name, (shape, data))| (name, TensorView::new(Dtype::F32, shape, data).unwrap());
    let views: Vec<_> =
        data.iter().map(|(name, (shape, data))| view((name, (shape.clone(), data)))).collect();
    let metadata = HashMap::from([("format".to_owned(), "vattention-loki/1".to_owned())]);
    serialize_to_file(views, Some(metadata), path).unwrap();
}

fn config(rank: Option<usize>, basis: &Path, score: Score) -> Loki {
    let rank = rank.map(|rank| NonZeroUsize::new(rank).unwrap());
    Loki { size: Size::Tokens(7), rank, basis: basis.into(), score }
}

/// Path of a file with a random basis for the heads of the laws, one file per key length.
fn basis_path(dim: usize) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        for dim in [2, 8, 20] {
            let path = folder.path().join(format!("{dim}.safetensors"));
            write(&path, 0, &[orthonormal(dim, 3)], |_| {});
        }
        folder
    });
    folder.path().join(format!("{dim}.safetensors"))
}

/// Config of `loki` whose basis fits the head that it is built for.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LokiWithBasis(Loki);

#[typetag::serde(name = "loki-that-fits")]
impl SelectorConfig for LokiWithBasis {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Loki { basis: basis_path(site.shape.head_dim), ..self.0.clone() }.build(site)
    }
}

vattention_testkit::laws!(default_rank, LokiWithBasis(config(None, Path::new("x"), Score::Head)));
vattention_testkit::laws!(
    group_scores,
    LokiWithBasis(config(Some(2), Path::new("x"), Score::Group))
);

fn build_filled(rank: usize, score: Score, head: &Head) -> LokiSelector {
    let mut selector =
        config(Some(rank), &basis_path(head.dim), score).build_selector(head.site()).unwrap();
    selector.append(&head.part(0..head.tokens));
    selector
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// `|score − q·k| ≤ |q⊥| |k⊥|`, plus the rounding of each coordinate to bf16.
    #[test]
    fn scores_err_by_the_coordinates_left_out(head in heads(60), rank in 1_usize..=20) {
        let rank = rank.min(head.dim);
        let selector = build_filled(rank, Score::Head, &head);
        let basis = orthonormal(head.dim, 3);
        let coordinates = |x: &[f32]| -> Vec<f64> {
            let dot = |row: &[f32]| {
                row.iter().zip(x).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
            };
            basis.chunks_exact(head.dim).map(dot).collect()
        };
        let row = head.step(head.tokens).row(1);
        let query = coordinates(row.query());
        let scores = selector.scores(&row);
        let mut key = vec![0.0; head.dim];
        for (token, &score) in scores.iter().enumerate() {
            row.keys().copy_row(token, &mut key);
            let rotated = coordinates(&key);
            let product: f64 = query.iter().zip(&rotated).map(|(q, k)| q * k).sum();
            let sizes = query.iter().zip(&rotated).map(|(q, k)| (q * k).abs());
            let rounding = sizes.sum::<f64>() / 256.0;
            let left_out = norm(&query[rank..]) * norm(&rotated[rank..]);
            let error = (f64::from(score) - product).abs();
            prop_assert!(error <= left_out + rounding + 1e-5, "{token}");
        }
    }

    /// A higher rank adds coordinates and changes none, so that it captures at least as much of a
    /// key; all coordinates capture the whole key.
    #[test]
    fn more_coordinates_capture_more(head in heads(20), rank in 1_usize..20) {
        let rank = rank.min(head.dim - 1);
        let build = |rank| build_filled(rank, Score::Head, &head);
        let [few, many, all] = [rank, rank + 1, head.dim].map(build);
        for token in 0..head.tokens {
            let coordinates = |selector: &LokiSelector| selector.index.row(token);
            prop_assert_eq!(&coordinates(&many)[..rank], &coordinates(&few)[..]);
            let mut key = vec![0.0; head.dim];
            head.part(0..head.tokens).keys.copy_row(token, &mut key);
            let whole = norm(&key.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
            let all: Vec<f64> = coordinates(&all).iter().map(|x| x.to_f64()).collect();
            let captured = norm(&all);
            prop_assert!((captured - whole).abs() <= whole / 250.0);
        }
    }

    /// If nothing is rounded, scores over all coordinates equal the logits.
    #[test]
    fn full_rank_picks_equal_the_oracles(
        keys in prop::collection::vec(-9_i8..=9, 4..400),
        query in prop::collection::vec(-9_i8..=9, 8),
        taken in prop::collection::vec(0_usize..99, 0..9),
    ) {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), 5, &[signed_permutation(4)], |_| {});
        let [keys, query] = [keys, query].map(|x| x.into_iter().map(f32::from).collect::<Vec<_>>());
        let count = keys.len() / 4;
        let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 4, value_dim: 4 };
        let site = Site { seed: 1, sequence: 0, layer: 5, kv_head: 0, shape };
        let keys = Tokens::new(&keys[..count * 4], count, 4);
        let (visible, step) = (count, 0);
        let (queries, form) = (&query[..], SoftmaxForm::default());
        let step = Step { visible, step, form, ..Step::new(&site, queries, keys, keys) };
        for score in [Score::Head, Score::Group] {
            let mut selector = config(Some(4), file.path(), score).build_selector(&site).unwrap();
            selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
            let oracle = OracleTopK { size: Size::Tokens(7), score };
            for row in step.rows() {
                prop_assert_eq!(&selector.scores(&row)[..], &*row.scores(score));
                prop_assert_eq!(pick(&selector, &row, &taken), pick(&oracle, &row, &taken));
            }
        }
    }
}

#[test]
fn an_index_is_two_bytes_per_token_and_coordinate() {
    let head = Head::new(50, 20, 1, Texture::Gaussian);
    assert_eq!(build_filled(3, Score::Head, &head).index_bytes(), 50 * 3 * 2);
    let quarter = config(None, &basis_path(20), Score::Head).build_selector(head.site()).unwrap();
    assert_eq!(quarter.index.count(), 5);
    let head = Head::new(5, 2, 1, Texture::Gaussian);
    assert_eq!(
        config(None, &basis_path(2), Score::Head)
            .build_selector(head.site())
            .unwrap()
            .index
            .count(),
        1
    );
}

/// Builds a selector at a site of layer 2 with 2 KV heads of 8 elements.
fn build(config: &Loki, kv_head: usize) -> Result<LokiSelector, String> {
    let shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 8, value_dim: 1 };
    config.build_selector(&Site { seed: 0, sequence: 0, layer: 2, kv_head, shape })
}

#[test]
fn each_kv_head_reads_its_basis() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.safetensors");
    let bases = [orthonormal(8, 1), orthonormal(8, 2)];
    write(&path, 2, &bases, |_| {});
    for (head, basis) in bases.iter().enumerate() {
        let selector = build(&config(Some(3), &path, Score::Head), head).unwrap();
        assert_eq!(*selector.basis, basis[..3 * 8]);
    }
}

#[test]
fn errors_name_the_file_and_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.safetensors");
    let refused = |rank| {
        let error = build(&config(Some(rank), &path, Score::Head), 1).unwrap_err();
        error.strip_prefix(&format!("{}: ", path.display())).unwrap().to_owned()
    };
    let bases = [orthonormal(8, 1), orthonormal(8, 2)];
    let written = |change: fn(&mut Tensors)| write(&path, 2, &bases, change);
    assert!(refused(8).contains("No such file"));
    std::fs::create_dir(&path).unwrap();
    assert!(!refused(8).contains("safetensors file"), "a folder is not a file that is too short");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "short").unwrap();
    assert_eq!(refused(8), "not a safetensors file: too short");
    write(&path, 1, &bases, |_| {});
    assert_eq!(refused(8), "there is no `layers.2.variance`");
    written(|tensors| tensors.retain(|name, _| name.contains("variance")));
    assert_eq!(refused(8), "there is no `layers.2.basis`");
    write(&path, 2, &bases[..1], |_| {});
    assert_eq!(refused(8), "`layers.2.variance` is [1, 8]: expected [2, 8], KV heads first");
    written(|tensors| tensors.get_mut("layers.2.basis").unwrap().0 = vec![2, 64]);
    assert_eq!(refused(8), "`layers.2.basis` is [2, 64]: expected [2, 8, 8], KV heads first");
    written(|tensors| tensors.get_mut("layers.2.variance").unwrap().1[9] = 9.0);
    assert_eq!(refused(8), "`layers.2.variance` has 8 before 9: expected falling");
    written(|tensors| tensors.get_mut("layers.2.basis").unwrap().1[64 + 8] += 0.1);
    assert!(refused(8).starts_with("`layers.2.basis`: the product of components 0 and 1 is "));
    written(|tensors| {
        tensors.get_mut("layers.2.basis").unwrap().1[64..].iter_mut().for_each(|x| *x *= 1.01);
    });
    assert!(refused(1).ends_with(": expected 1"));
    written(|tensors| tensors.get_mut("layers.2.basis").unwrap().1[64] = f32::NAN);
    assert!(refused(1).contains("expected finite numbers"));
    written(|_| {});
    let error = build(&config(Some(9), &path, Score::Head), 1).unwrap_err();
    assert_eq!(error, "`rank` is 9: expected at most 8, the elements of a key");
    assert!(build(&config(Some(8), &path, Score::Head), 1).is_ok());
}

/// A basis rounded to f16 is accepted.
#[test]
fn a_basis_rounded_to_f16_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.safetensors");
    let round = |x: f32| f16::from_f32(x).to_f32();
    let bases = [1, 2].map(|seed| orthonormal(8, seed).into_iter().map(round).collect());
    write(&path, 2, &bases, |_| {});
    assert!(build(&config(Some(8), &path, Score::Head), 1).is_ok());
}
