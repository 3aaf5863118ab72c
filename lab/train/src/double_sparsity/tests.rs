use ndarray::s;

use super::*;
use crate::test_traces;

fn calibrate(layer: TraceLayer) -> Channels {
    let folder = tempfile::tempdir().unwrap();
    let path = test_traces::trace(&folder, "a", &[(3, layer)]);
    Channels::calibrate(&Corpus::open(&[path]).unwrap()).unwrap()
}

fn list<'a>(channels: &'a Channels, name: &str) -> &'a [Vec<usize>] {
    channels.get(&format!("model.layers.3.self_attn.{name}")).unwrap()
}

#[test]
fn large_channels_come_first_in_each_head_and_in_its_group() {
    let mut layer = test_traces::layer(1);
    for (head, (channel, times)) in [(5, 100.0), (2, 10.0), (1, 10.0), (1, 10.0)].iter().enumerate()
    {
        layer.queries.slice_mut(s![head, .., *channel]).mapv_inplace(|x| x * times);
    }
    layer.keys.slice_mut(s![1, .., 7]).mapv_inplace(|x| x * 30.0);
    let channels = calibrate(layer);
    let first = |name: &str| list(&channels, name).iter().map(|l| l[0]).collect::<Vec<_>>();
    assert_eq!(first("q_proj"), [5, 2, 1, 1]);
    assert_eq!(first("q_proj_group"), [5, 1]);
    assert_eq!(first("k_proj")[2..], [7, 7]);
    assert_eq!(first("k_proj_group")[1], 7);
    assert_eq!(first("qk_proj")[..2], [5, 2]);
    assert_eq!(first("qk_proj")[2..], [7, 7], "30 · 1 beats 1 · 10");
    assert_eq!(list(&channels, "qk_proj_group").len(), 2);
    assert_eq!(channels.pairs, 0);
}

#[test]
fn a_pair_has_the_query_and_the_key_of_one_token() {
    // In the prompt's last tokens, channel 0 is large in queries and zero in keys; in other keys,
    // it is very large. Channel 4 is large in both.
    let mut layer = test_traces::layer(2);
    let mut prompt = test_traces::noise((4, 10, 8), 9);
    prompt.slice_mut(s![.., .., 0]).fill(50.0);
    prompt.slice_mut(s![.., .., 4]).fill(5.0);
    layer.keys.slice_mut(s![.., ..290, 0]).fill(50.0);
    layer.keys.slice_mut(s![.., 290.., 0]).fill(0.0);
    layer.keys.slice_mut(s![.., 290.., 4]).fill(5.0);
    layer.prompt = Some(prompt);
    let channels = calibrate(layer.clone());
    assert_eq!(channels.pairs, 10);
    let last: Vec<usize> = list(&channels, "qk_proj").iter().map(|l| l[7]).collect();
    let first: Vec<usize> = list(&channels, "qk_proj").iter().map(|l| l[0]).collect();
    assert_eq!((first, last), (vec![4; 4], vec![0; 4]));
    layer.prompt = None;
    assert_eq!(list(&calibrate(layer), "k_proj")[0][0], 0, "the mean ignores correlation");
}

#[test]
fn the_file_is_json_of_permutations() {
    let channels = calibrate(test_traces::layer(3));
    let read: BTreeMap<String, Vec<Vec<usize>>> =
        serde_json::from_str(&channels.to_json()).unwrap();
    assert_eq!(read, channels.lists);
    assert_eq!(read.len(), 6);
    for list in read.values().flatten() {
        let mut sorted = list.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..8).collect::<Vec<_>>());
    }
}
