//! MagicPig's hash tables compared with those of the reference implementation
//! (`tests/golden/reference`): signatures, hits, probabilities, and the output of a pipeline with
//! its projection vectors.
//!
//! The reference implementation differs from the authors' in three ways: a token is found by a hit
//! in one table, keys are lengthened, and the mean key is subtracted from the query too, which
//! moves the query to other buckets. Ours, like the authors', does not subtract from the query. The
//! reference implementation also scales the keys of all heads by the largest norm, so that a longer
//! key would require hashing them again; ours scales each block of keys by its own largest norm.

use std::num::NonZeroU16;

use crate::common::peer::{Case, size};
use ndarray::{Array2, s};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vattention::index::{BLOCK, Collisions, Lsh, Rule, TableBits, Transform};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::selectors::{Sink, Window};
use vattention::{
    PipelineConfig, Result, Share, Size, available_backends,
    plugin::{
        Design, Picks, Row, SampleEvidence, Sampler, SamplerConfig, Site, Stream, register, typetag,
    },
};

/// Hash tables of the reference implementation, which are the same for all heads.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Peer {
    tables: NonZeroU16,
    bits: TableBits,
    /// `[tables · bits, head_dim + 1]`.
    planes: Vec<f32>,
    head_dim: usize,
    largest: f64,
}

impl Peer {
    fn new(case: &Case, composition: &Value) -> Self {
        let label = composition["label"].as_str().unwrap();
        let pig = &composition["maskers"][2];
        let projection: Array2<f32> =
            case.tensor(&format!("{label}/projection")).into_dimensionality().unwrap();
        let tables: u16 = pig["lsh_l"].as_u64().unwrap().try_into().unwrap();
        let heads = 0..case.shape().query_heads;
        let norms = heads.flat_map(|head| keys(case, composition, head)).map(|key| norm(&key));
        Self {
            tables: NonZeroU16::new(tables).unwrap(),
            bits: pig["lsh_k"].as_u64().unwrap().try_into().unwrap(),
            planes: projection.t().iter().copied().collect(),
            head_dim: case.shape().head_dim,
            largest: norms.fold(0.0, f64::max),
        }
    }

    fn lsh(&self) -> Lsh {
        Lsh::new(self.planes.clone(), self.head_dim, self.bits, Transform::SimpleLsh)
    }

    fn collisions(&self) -> Collisions {
        Collisions { tables: self.tables, bits: self.bits, rule: Rule::Any }
    }

    /// Signatures of keys, `[tokens][tables]`.
    fn signatures(&self, keys: &[Vec<f32>]) -> Vec<Vec<u16>> {
        let lsh = self.lsh();
        let block_signatures = |keys: &[Vec<f32>]| -> Vec<Vec<u16>> {
            let tables = lsh.key_signatures(keys, self.largest);
            (0..keys.len()).map(|token| tables.iter().map(|table| table[token]).collect()).collect()
        };
        keys.chunks(BLOCK).flat_map(block_signatures).collect()
    }
}

fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// Mean key of a query head, or zeros if the composition does not centre keys.
fn mean(case: &Case, composition: &Value, head: usize) -> Vec<f32> {
    if composition["maskers"][2]["center"] == false {
        return vec![0.0; case.shape().head_dim];
    }
    case.composition_tensor(composition["label"].as_str().unwrap(), "key_mean")
        .slice(s![0, head, 0, ..])
        .to_vec()
}

fn minus(a: impl IntoIterator<Item = f32>, b: &[f32]) -> Vec<f32> {
    a.into_iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Keys of a query head's KV head minus their mean.
fn keys(case: &Case, composition: &Value, head: usize) -> Vec<Vec<f32>> {
    let mean = mean(case, composition, head);
    let keys = case.input("keys");
    let keys = keys.slice(s![head / case.shape().group(), .., ..]);
    keys.rows().into_iter().map(|key| minus(key.iter().copied(), &mean)).collect()
}

/// Calls `check` with each composition that has hash tables. The case without a causal mask is left
/// out: it has the same tables, but its windows end before the last token.
fn for_each_composition(mut check: impl FnMut(&Case, &Value)) {
    let case = Case::load("a_causal");
    let compositions: Vec<&Value> = case.compositions_with("magic_pig").collect();
    assert_eq!(compositions.len(), 2);
    for composition in compositions {
        check(&case, composition);
    }
}

/// Compares all results of a composition except its output. Returns the number of buckets that
/// change because the reference implementation subtracts the mean key from queries.
fn count_moved(case: &Case, composition: &Value) -> usize {
    let label = composition["label"].as_str().unwrap();
    let tables = Peer::new(case, composition);
    let (lsh, collisions) = (tables.lsh(), tables.collisions());
    let [key_signatures, query_signatures, probabilities, mask] =
        ["key_signatures", "query_signatures", "probabilities", "mask"]
            .map(|name| case.composition_tensor(label, name));
    let (queries, visible) = (case.input("queries"), case.visible());
    let mut moved = 0;
    for head in 0..case.shape().query_heads {
        let keys = keys(case, composition, head);
        let signatures = tables.signatures(&keys);
        for (token, signature) in signatures.iter().enumerate() {
            let theirs = key_signatures.slice(s![0, head, token, ..]);
            assert!(theirs.iter().zip(signature).all(|(&x, &y)| x == f32::from(y)));
        }
        for (t, &visible) in visible.iter().enumerate() {
            let query = queries.slice(s![head, t, ..]);
            let centered = minus(query.iter().copied(), &mean(case, composition, head));
            let signature = lsh.signatures(&centered);
            let theirs: Vec<f32> = signature.iter().map(|&x| f32::from(x)).collect();
            assert_eq!(query_signatures.slice(s![0, head, t, ..]).to_vec(), theirs);
            let ours = lsh.signatures(query.as_slice().unwrap());
            moved += ours.iter().zip(&signature).filter(|(a, b)| a != b).count();
            for (token, key) in keys.iter().enumerate().take(visible) {
                let p = collisions.probability(lsh.cosine(&centered, key, tables.largest));
                let i = [0, head, t, token];
                assert!((p - f64::from(probabilities[i])).abs() < 1e-5, "{label}: {i:?}");
                let hit = signatures[token].iter().zip(&signature).any(|(a, b)| a == b);
                let certain = token < 16 || token + 16 >= visible;
                let want = if certain { 1.0 } else { p * f64::from(u8::from(hit)) };
                let same = (f64::from(mask[i]) - want).abs() < 1e-5;
                assert!(same, "{label}: {i:?} is {} for {want}", mask[i]);
            }
        }
    }
    moved
}

#[test]
fn signatures_hits_and_probabilities_equal_the_peers() {
    for_each_composition(|case, composition| {
        let expected = if composition["label"] == "magicpig_center" { 53 } else { 0 };
        assert_eq!(count_moved(case, composition), expected, "{}", composition["label"]);
    });
}

#[typetag::serde(name = "tables")]
impl SamplerConfig for Peer {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(self.clone()))
    }

    fn base(&self) -> Size {
        Size::Tokens(1)
    }

    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Nothing
    }
}

register!(Sampler, "tables", Peer, "the reference implementation's tables");

/// Tokens of the tables, with their inclusion probabilities.
struct TableTokens(Vec<(u32, f64)>);

impl Design for TableTokens {
    fn extend(&mut self, _: usize, out: &mut Vec<u32>) {
        out.extend(self.0.iter().map(|found| found.0));
    }

    fn probabilities(&self) -> Vec<f64> {
        self.0.iter().map(|found| found.1).collect()
    }

    fn factors(&self, _: usize) -> Vec<f64> {
        vec![f64::NAN; self.0.len()]
    }
}

impl Sampler for Peer {
    fn design<'a>(
        &'a self,
        rows: &[Row<'a>],
        picks: &'a Picks,
        _: &Stream,
    ) -> Box<dyn Design + 'a> {
        let row = &rows[0];
        let mut found = Vec::new();
        let lsh = self.lsh();
        let keys = row.keys().to_array(0..row.visible());
        let keys: Vec<Vec<f32>> = keys.rows().into_iter().map(|key| key.to_vec()).collect();
        let query = lsh.signatures(row.query());
        for (token, signature) in self.signatures(&keys).iter().enumerate() {
            let hit = signature.iter().zip(&query).any(|(a, b)| a == b);
            if hit && !picks.contains(token) {
                let cosine = lsh.cosine(row.query(), &keys[token], self.largest);
                found.push((token as u32, self.collisions().probability(cosine)));
            }
        }
        Box::new(TableTokens(found))
    }
}

#[test]
fn outputs_equal_the_peers() {
    for_each_composition(|case, composition| {
        if composition["label"] != "magicpig_nocenter" {
            return;
        }
        let [sink, window] = [(0, "sink_size"), (1, "window_size")]
            .map(|(i, key)| size(&composition["maskers"][i][key]));
        let theirs = case.composition_tensor("magicpig_nocenter", "output");
        for backend in available_backends() {
            let pipeline = PipelineConfig {
                share: Share::Head,
                selectors: vec![
                    Box::new(Sink { size: sink }),
                    Box::new(Window { size: window, aligned: false }),
                ],
                sampler: Some(Box::new(Peer::new(case, composition))),
                ..PipelineConfig::default()
            };
            let ours = case.run(&*backend, pipeline).out;
            for ((head, t, i), x) in ours.indexed_iter() {
                let want = theirs[[0, t, head, i]];
                assert!((x - want).abs() < 1e-4, "{}: {x} for {want}", backend.name());
            }
        }
    });
}

/// The largest norm of a block is at most that of all keys. Scaling by it increases the cosines of
/// its keys in absolute value, and leaves the products unchanged.
#[test]
fn scaling_by_a_blocks_norm_increases_absolute_cosines() {
    for_each_composition(|case, composition| {
        let tables = Peer::new(case, composition);
        let lsh = tables.lsh();
        let (keys, queries) = (keys(case, composition, 0), case.input("queries"));
        let query = queries.slice(s![0, 0, ..]);
        let mut changed = 0;
        for block in keys.chunks(BLOCK) {
            let block_norm = block.iter().map(|key| norm(key)).fold(0.0, f64::max);
            assert!(block_norm <= tables.largest);
            let signatures = lsh.key_signatures(block, block_norm);
            changed += usize::from(signatures != lsh.key_signatures(block, tables.largest));
            for key in block {
                let cosine = |largest| lsh.cosine(query.as_slice().unwrap(), key, largest);
                let (ours, theirs) = (cosine(block_norm), cosine(tables.largest));
                assert!((ours * block_norm - theirs * tables.largest).abs() < 1e-9);
                assert!(ours.abs() <= 1.0 + 1e-12 && ours.abs() >= theirs.abs());
            }
        }
        assert!(changed > 0);
    });
}
