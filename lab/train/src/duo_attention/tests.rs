use super::*;
use crate::test_traces;

/// Returns a layer with two KV heads of two query heads each, over 600 tokens. For the second KV
/// head, a token in the middle has nearly all attention weight.
fn layer() -> TraceLayer {
    let mut layer = TraceLayer {
        queries: test_traces::noise((4, 32, 8), 1),
        keys: test_traces::noise((2, 600, 8), 2),
        values: test_traces::noise((2, 600, 8), 3),
        visible: None,
        prompt: None,
        prompt_tokens: None,
        classes: None,
        soft_cap: None,
        sink_logits: None,
    };
    layer.keys.mapv_inplace(|x| 0.1 * x);
    layer.queries.slice_mut(s![.., .., 0]).fill(1.0);
    layer.keys.slice_mut(s![0, 0, 0]).fill(100.0);
    layer.keys.slice_mut(s![1, 300, 0]).fill(100.0);
    layer
}

fn calibrate(layers: &[(usize, TraceLayer)]) -> Gates {
    let folder = tempfile::tempdir().unwrap();
    let corpus = Corpus::open(&[test_traces::trace(&folder, "trace", layers)]).unwrap();
    Gates::calibrate(&corpus).unwrap()
}

#[test]
fn a_retrieval_head_has_the_larger_gate() {
    let gates = calibrate(&[(1, layer())]);
    let [streaming, retrieval] = gates.layer(1).unwrap() else { panic!("two heads") };
    assert!(*streaming < 1e-6 && *retrieval > 0.9, "{streaming} {retrieval}");
}

/// Computes the gates by their definition, in f64.
#[test]
fn a_gate_is_the_mean_error_of_reading_only_the_ends() {
    let mut layer = layer();
    layer.keys = test_traces::noise((2, 600, 8), 5);
    let visible: Vec<usize> = (0..32).map(|i| 370 + 7 * i).collect();
    layer.visible = Some(visible.clone());
    let gates = calibrate(&[(0, layer.clone())]);
    for (kv_head, &gate) in gates.layer(0).unwrap().iter().enumerate() {
        let mut sum = 0.0;
        for (head, i) in (0..2).flat_map(|head| (0..32).map(move |i| (head, i))) {
            let query = layer.queries.slice(s![2 * kv_head + head, i, ..]).mapv(f64::from);
            let out = |tokens: &mut dyn Iterator<Item = usize>| {
                let (mut total, mut out) = (0.0, Array1::<f64>::zeros(8));
                for token in tokens {
                    let key = layer.keys.slice(s![kv_head, token, ..]).mapv(f64::from);
                    let product: f64 = key.dot(&query);
                    let weight = (product / 8_f64.sqrt()).exp();
                    total += weight;
                    out.scaled_add(
                        weight,
                        &layer.values.slice(s![kv_head, token, ..]).mapv(f64::from),
                    );
                }
                out / total
            };
            let n = visible[i];
            let exact = out(&mut (0..n));
            let ends = out(&mut (0..n).filter(|&t| t < 128 || t + 256 >= n));
            let squared = (&ends - &exact).mapv(|x| x * x).sum() / exact.mapv(|x| x * x).sum();
            sum += squared.sqrt().min(1.0);
        }
        assert!((gate - sum / 64.0).abs() < 1e-4, "{gate} {sum}");
    }
}

#[test]
fn a_file_has_a_line_for_each_layer() {
    let text = calibrate(&[(1, layer()), (3, layer())]).to_tsv();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert_eq!([lines[0], lines[2]], ["nan\tnan"; 2]);
    assert_eq!(lines[1], lines[3]);
    assert!(
        lines[1].starts_with("0.000000\t0.9") || lines[1].starts_with("0.000000\t1.0"),
        "{text}"
    );
}
