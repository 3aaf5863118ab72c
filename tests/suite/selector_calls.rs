//! Calls of selectors by backends: appends, observed prompts and feedback.

use std::sync::{Arc, Mutex};

use ndarray::{Array3, s};
use serde::{Deserialize, Serialize};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    FallBack, Options, PipelineConfig, Result, Shape, Share, Size, available_backends,
    estimators::Ratio,
    plugin::{
        AttentionWeights, NewTokens, Picks, PromptQueries, Row, Selector, SelectorConfig, Site,
        register, typetag,
    },
};

#[derive(Clone, Debug, PartialEq)]
enum Call {
    Append { kv_head: usize, first: usize, len: usize },
    Observe { kv_head: usize, last: f32 },
    Feedback { head: usize, query: Vec<f32>, tokens: Vec<u32>, weights: Vec<f32> },
}
static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Probe {
    #[serde(default)]
    kv_head: usize,
}

#[typetag::serde(name = "probe")]
impl SelectorConfig for Probe {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(Self { kv_head: site.kv_head }))
    }
}

register!(Selector, "probe", Probe, "records its calls");

impl Selector for Probe {
    fn append(&mut self, new: &NewTokens<'_>) {
        let call = Call::Append { kv_head: self.kv_head, first: new.first, len: new.keys.len() };
        CALLS.lock().unwrap().push(call);
    }
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        let call = Call::Observe { kv_head: self.kv_head, last: *prompt.queries.last().unwrap() };
        CALLS.lock().unwrap().push(call);
    }
    fn needs_feedback(&self) -> bool {
        true
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        CALLS.lock().unwrap().push(Call::Feedback {
            head: self.kv_head * 2 + row.member(),
            query: row.query().to_vec(),
            tokens: attended.tokens.to_vec(),
            weights: attended.weights.to_vec(),
        });
    }
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let stream = row.stream();
        for word in stream.words().take(40) {
            picks.take(word as usize % row.visible());
        }
    }
}

#[test]
fn selectors_are_called_for_each_event() {
    let shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 3, value_dim: 2 };
    let make = |n, dim, salt: usize| {
        Array3::from_shape_fn((n, 500, dim), |(h, t, d)| {
            ((h * 31 + t * 7 + d + salt) % 13) as f32 - 6.0
        })
    };
    let (keys, values, queries) = (make(2, 3, 0), make(2, 2, 1), make(4, 3, 2));
    let pipeline = Arc::new(PipelineConfig {
        share: Share::Head,
        selectors: vec![Box::new(Probe { kv_head: 0 }), Box::new(Probe { kv_head: 0 })],
        estimator: Some(Box::new(Ratio::sized(Size::Tokens(30), 0.1.try_into().unwrap()))),
        ..PipelineConfig::default()
    });
    for backend in available_backends() {
        let options = Options {
            return_selection: true,
            fall_back: FallBack::Never,
            sequence: 7,
            threads: Some(1),
            scale: Some(0.5),
            ..Options::default()
        };
        let mut attention = backend.start(&pipeline, 0, shape, &options).unwrap();
        CALLS.lock().unwrap().clear();
        for part in [0..300, 300..500] {
            attention
                .append(keys.slice(s![.., part.clone(), ..]), values.slice(s![.., part, ..]))
                .unwrap();
        }
        let append = |kv_head, first, len| {
            [Call::Append { kv_head, first, len }, Call::Append { kv_head, first, len }]
        };
        let want = [append(0, 0, 300), append(1, 0, 300), append(0, 300, 200), append(1, 300, 200)]
            .concat();
        // The reference lets selectors index tokens and prompts at the next step.
        let eager = backend.name() != "reference";
        let take = || std::mem::take(&mut *CALLS.lock().unwrap());
        assert_eq!(take(), if eager { want } else { Vec::new() });

        attention.observe(queries.slice(s![.., ..5, ..])).unwrap();
        let observe = |kv_head: usize| {
            let call = Call::Observe { kv_head, last: 0.5 * queries[[2 * kv_head + 1, 4, 2]] };
            [call.clone(), call]
        };
        let want = [observe(0), observe(1)].concat();
        assert_eq!(take(), if eager { want } else { Vec::new() });

        let mut fork = attention.fork(None).unwrap();
        let output = attention.attend(queries.slice(s![.., 5..6, ..]), None).unwrap();
        let selection = output.selection.unwrap();
        let mut calls = take();
        if !eager {
            let before = calls.drain(..calls.len() - 8);
            let prompts = before.filter(|call| matches!(call, Call::Observe { .. }));
            assert_eq!(prompts.count(), 4, "two selectors, two KV heads");
        }
        assert_eq!(calls.len(), 8, "two selectors, four query heads");
        for (i, call) in calls.into_iter().enumerate() {
            let Call::Feedback { head, query, tokens, weights } = call else { panic!() };
            assert_eq!(head, i / 2);
            let (indices, probabilities) = selection.row(head);
            assert_eq!(tokens, indices);
            assert_eq!(query, queries.slice(s![head, 5, ..]).mapv(|q| 0.5 * q).to_vec());
            let sum: f32 = weights.iter().zip(probabilities).map(|(w, p)| w / p).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{}: {sum}", backend.name());
            let certain = probabilities.iter().filter(|&&p| p == 1.0).count();
            assert!(certain > 50, "selectors share their random numbers");
            assert_eq!((output.rows[head].sampled, indices.len() - certain), (30, 30));
        }
        let same = fork.attend(queries.slice(s![.., 5..6, ..]), None).unwrap();
        assert_eq!(same.selection.unwrap(), selection, "a fork has the same sequence number");
        assert_ne!(selection.row(0), selection.row(1));
        assert_ne!(selection.row(0), selection.row(2), "KV heads draw independently");
        let mut other =
            backend.start(&pipeline, 0, shape, &Options { sequence: 8, ..options }).unwrap();
        other.append(keys.view(), values.view()).unwrap();
        let other = other.attend(queries.slice(s![.., 5..6, ..]), None).unwrap();
        assert_ne!(other.selection.unwrap(), selection, "sequences draw independently");
    }
}
