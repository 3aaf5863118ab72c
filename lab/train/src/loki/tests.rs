use ndarray::s;

use super::*;
use crate::test_traces;

const DIM: usize = 8;

fn calibrate(layers: &[TraceLayer]) -> Bases {
    let folder = tempfile::tempdir().unwrap();
    let path = |(i, layer): (usize, &TraceLayer)| {
        test_traces::trace(&folder, &i.to_string(), &[(3, layer.clone())])
    };
    let paths: Vec<_> = layers.iter().enumerate().map(path).collect();
    Bases::calibrate(&Corpus::open(&paths).unwrap()).unwrap()
}

#[test]
fn bases_are_orthonormal_and_variances_are_those_of_the_keys() {
    let layers = [test_traces::layer(1), test_traces::layer(5)];
    let bases = calibrate(&layers);
    for (head, basis) in bases.layer(3).unwrap().iter().enumerate() {
        let rows = ArrayView2::from_shape((DIM, DIM), &basis.rows).unwrap();
        let products = rows.dot(&rows.t());
        for ((i, j), &x) in products.indexed_iter() {
            assert!((x - f32::from(i == j)).abs() < 1e-6, "{head}: {i} {j} {x}");
        }
        assert!(basis.variance.is_sorted_by(|a, b| a >= b));
        for (row, &variance) in rows.outer_iter().zip(&basis.variance) {
            let mean: f32 = layers
                .iter()
                .map(|layer| layer.keys.slice(s![head, .., ..]).dot(&row).mapv(|x| x * x).sum())
                .sum::<f32>()
                / 600.0;
            assert!((mean - variance).abs() < 1e-4 * variance, "{mean} {variance}");
            let largest = row.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
            assert!(largest > 0.0);
        }
    }
}

#[test]
fn keys_are_not_centred() {
    let mut layer = test_traces::layer(2);
    layer.keys.slice_mut(s![.., .., 6]).mapv_inplace(|x| x + 20.0);
    let basis = &calibrate(&[layer]).layer(3).unwrap()[1].clone();
    assert!(basis.rows[6] > 0.99, "{:?}", &basis.rows[..DIM]);
    assert!(basis.variance[0] > 350.0);
}

#[test]
fn equal_traces_make_equal_files_with_the_documented_shapes() {
    let bytes = calibrate(&[test_traces::layer(4)]).to_bytes();
    assert_eq!(bytes, calibrate(&[test_traces::layer(4)]).to_bytes());
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("layers.3.basis").unwrap().shape(), [2, DIM, DIM]);
    assert_eq!(file.tensor("layers.3.variance").unwrap().shape(), [2, DIM]);
}
