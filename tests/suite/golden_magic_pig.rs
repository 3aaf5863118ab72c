//! MagicPig's tables against the reference implementation's (`tests/golden/reference`): signatures,
//! hits, probabilities, and the output of a pipeline that hashes with its vectors.
//!
//! The reference departs from the authors in three ways, and from us in two more. It counts one
//! table as enough, lengthens keys, and subtracts the mean key from the query too, which moves the
//! query to other buckets: the authors and we leave it. It scales all keys of all heads by one
//! largest norm and would have to hash anew when a longer key comes; here each block of keys has
//! its own.

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

/// The reference's tables: for all heads the same.
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
    fn of(case: &Case, composition: &Value) -> Self {
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

    /// The signatures of keys, `[tokens][tables]`.
    fn signatures(&self, keys: &[Vec<f32>]) -> Vec<Vec<u16>> {
        let lsh = self.lsh();
        let of_block = |keys: &[Vec<f32>]| -> Vec<Vec<u16>> {
            let tables = lsh.key_signatures(keys, self.largest);
            (0..keys.len()).map(|token| tables.iter().map(|table| table[token]).collect()).collect()
        };
        keys.chunks(BLOCK).flat_map(of_block).collect()
    }
}

fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// The mean key of a query head, or zeros if nothing is to be subtracted.
fn mean(case: &Case, composition: &Value, head: usize) -> Vec<f32> {
    if composition["maskers"][2]["center"] == false {
        return vec![0.0; case.shape().head_dim];
    }
    case.of(composition["label"].as_str().unwrap(), "key_mean").slice(s![0, head, 0, ..]).to_vec()
}

fn minus(a: impl IntoIterator<Item = f32>, b: &[f32]) -> Vec<f32> {
    a.into_iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The keys that a query head reads, less their mean.
fn keys(case: &Case, composition: &Value, head: usize) -> Vec<Vec<f32>> {
    let mean = mean(case, composition, head);
    let keys = case.input("keys");
    let of_head = keys.slice(s![head / case.shape().group(), .., ..]);
    of_head.rows().into_iter().map(|key| minus(key.iter().copied(), &mean)).collect()
}

/// The compositions with hash tables. Without a causal mask the reference has the same tables, but
/// windows that end before the last token.
fn each(mut check: impl FnMut(&Case, &Value)) {
    let case = Case::load("a_causal");
    let compositions: Vec<&Value> = case.compositions_with("magic_pig").collect();
    assert_eq!(compositions.len(), 2);
    for composition in compositions {
        check(&case, composition);
    }
}

/// Compares all of a composition but its output. How often a query falls into another bucket
/// because the reference subtracts the mean key from it.
fn moved(case: &Case, composition: &Value) -> usize {
    let label = composition["label"].as_str().unwrap();
    let tables = Peer::of(case, composition);
    let (lsh, collisions) = (tables.lsh(), tables.collisions());
    let [key_signatures, query_signatures, probabilities, mask] =
        ["key_signatures", "query_signatures", "probabilities", "mask"]
            .map(|name| case.of(label, name));
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
                let at = [0, head, t, token];
                assert!((p - f64::from(probabilities[at])).abs() < 1e-5, "{label}: {at:?}");
                let hit = signatures[token].iter().zip(&signature).any(|(a, b)| a == b);
                let certain = token < 16 || token + 16 >= visible;
                let want = if certain { 1.0 } else { p * f64::from(u8::from(hit)) };
                let same = (f64::from(mask[at]) - want).abs() < 1e-5;
                assert!(same, "{label}: {at:?} is {} for {want}", mask[at]);
            }
        }
    }
    moved
}

#[test]
fn signatures_hits_and_probabilities_are_the_peers() {
    each(|case, composition| {
        let expected = if composition["label"] == "magicpig_center" { 53 } else { 0 };
        assert_eq!(moved(case, composition), expected, "{}", composition["label"]);
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

register!(Sampler, "tables", Peer, "the reference's tables");

/// The tokens that were found, and with which probability.
struct Found(Vec<(u32, f64)>);

impl Design for Found {
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
        readers: &[Row<'a>],
        picks: &'a Picks,
        _: &Stream,
    ) -> Box<dyn Design + 'a> {
        let row = &readers[0];
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
        Box::new(Found(found))
    }
}

#[test]
fn outputs_are_the_peers() {
    each(|case, composition| {
        if composition["label"] != "magicpig_nocenter" {
            return;
        }
        let [sink, window] = [(0, "sink_size"), (1, "window_size")]
            .map(|(i, key)| size(&composition["maskers"][i][key]));
        let theirs = case.of("magicpig_nocenter", "output");
        for backend in available_backends() {
            let pipeline = PipelineConfig {
                share: Share::Head,
                selectors: vec![Box::new(Sink { size: sink }), Box::new(Window { size: window })],
                sampler: Some(Box::new(Peer::of(case, composition))),
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

/// A block's own largest norm is at most that of all, which brings its keys nearer to the queries
/// that they point at: what is likely to be found becomes likelier, and nothing else changes.
#[test]
fn a_blocks_own_norm_only_widens_angles_from_the_right_one() {
    each(|case, composition| {
        let tables = Peer::of(case, composition);
        let lsh = tables.lsh();
        let (keys, queries) = (keys(case, composition, 0), case.input("queries"));
        let query = queries.slice(s![0, 0, ..]);
        let mut changed = 0;
        for block in keys.chunks(BLOCK) {
            let own = block.iter().map(|key| norm(key)).fold(0.0, f64::max);
            assert!(own <= tables.largest);
            changed += usize::from(
                lsh.key_signatures(block, own) != lsh.key_signatures(block, tables.largest),
            );
            for key in block {
                let cosine = |largest| lsh.cosine(query.as_slice().unwrap(), key, largest);
                let (ours, theirs) = (cosine(own), cosine(tables.largest));
                assert!((ours * own - theirs * tables.largest).abs() < 1e-9, "one product");
                assert!(ours.abs() <= 1.0 + 1e-12 && ours.abs() >= theirs.abs());
            }
        }
        assert!(changed > 0);
    });
}
