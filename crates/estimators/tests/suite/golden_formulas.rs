//! Formulas compared with numbers from another implementation (`tests/golden/make_formulas.py`).

use serde::Deserialize;
use serde_json::Value;
use vattention_core::{SampleStats, sample::Sample, step::Softmax};
use vattention_estimators::formula::{
    SdpaSplit, c2, chi2_isf, fpc, hoeffding, kappa, mcdiarmid_radius, mcdiarmid_radius_of, q_rob,
    ratio_grid, sdpa_exact, sdpa_paper, serfling, z_one, z_two,
};

#[derive(Debug, Deserialize)]
struct Row {
    #[serde(rename = "fn")]
    name: String,
    inputs: Value,
    expected: Value,
}

/// Results with their names; the name of a single number is empty.
type NamedResults = Vec<(&'static str, f64)>;

fn read<T: for<'de> Deserialize<'de>>(value: &Value) -> T {
    T::deserialize(value).unwrap()
}

fn formula(row: &Row) -> NamedResults {
    let x: Vec<f64> = read(&row.inputs);
    let number = |x: f64| vec![("", x)];
    match (row.name.as_str(), &x[..]) {
        ("z_one", &[delta]) => number(z_one(delta)),
        ("z_two", &[delta]) => number(z_two(delta)),
        ("chi2_isf", &[delta, dof]) => number(chi2_isf(delta, dof)),
        ("c2", &[delta, rank]) => number(c2(delta, rank as usize)),
        ("kappa", &[delta]) => number(kappa(delta)),
        ("q_rob", &[delta, nu, rank]) => number(q_rob(delta, nu, rank as usize)),
        ("fpc", &[b0, n]) => number(fpc(b0, n as usize)),
        ("sdpa_exact", &[epsilon, delta, s_d, s_n, rank]) => {
            split(sdpa_exact(epsilon, delta, s_d, s_n, rank as usize))
        }
        ("sdpa_paper", &[epsilon, delta, s_d, s_n]) => split(sdpa_paper(epsilon, delta, s_d, s_n)),
        ("ratio_grid", &[epsilon, delta, s_w, s_d, rank, nu]) => {
            number(ratio_grid(epsilon, delta, s_w, s_d, rank as usize, nu))
        }
        ("serfling", &[b0, n]) => number(serfling(b0, n)),
        ("hoeffding", &[delta, n_s, range, tolerance]) => {
            number(hoeffding(delta, n_s, range, tolerance))
        }
        ("mcdiarmid_radius", &[delta, trace, diameter]) => {
            number(mcdiarmid_radius(delta, trace, diameter))
        }
        ("mcdiarmid_radius_of", &[b, n, delta, trace, diameter]) => {
            number(mcdiarmid_radius_of(b as usize, n as usize, delta, trace, diameter))
        }
        _ => panic!("no such formula: {row:?}"),
    }
}

fn split(split: SdpaSplit) -> NamedResults {
    let SdpaSplit { b, delta_num, delta_den, eps_num, eps_den } = split;
    vec![
        ("b", b),
        ("delta_num", delta_num),
        ("delta_den", delta_den),
        ("eps_num", eps_num),
        ("eps_den", eps_den),
    ]
}

fn statistics(row: &Row) -> NamedResults {
    type Inputs = (Vec<f64>, Vec<Vec<f32>>, f64, f64, Vec<f64>);
    let (e, values, n_s, d_certain, n_certain): Inputs = read(&row.inputs);
    let stats = SampleStats::new(&Sample {
        e: &e,
        values: &values.concat(),
        certain: &Softmax::from_sums(0.0, d_certain, n_certain),
        n_s: n_s as usize,
        visible: n_s as usize,
        query_heads: 1,
        max_norm_v: 0.0,
        bound: None,
    });
    vec![
        ("d", stats.d),
        ("norm_n", stats.norm_n),
        ("var_e", stats.var_e),
        ("trace_ev", stats.trace_ev),
        ("trace_w", stats.trace_w),
        ("nu", stats.nu),
        ("kurtosis_e", stats.kurtosis_e),
        ("kurtosis_w", stats.kurtosis_w),
    ]
}

#[test]
fn every_formula_gives_the_golden_numbers() {
    let text = include_str!("../../../../tests/golden/formulas.json");
    let rows: Vec<Row> = serde_json::from_str(text).unwrap();
    assert!(rows.len() >= 60);
    for row in &rows {
        let found = if row.name == "sample_stats" { statistics(row) } else { formula(row) };
        let expected = row.expected.as_object().map_or(1, serde_json::Map::len);
        assert_eq!(found.len(), expected, "{row:?}");
        for (part, got) in found {
            let want = if part.is_empty() { &row.expected } else { &row.expected[part] };
            let want = want.as_f64().unwrap();
            // The minimum is flat, so its position is less accurate than its value.
            let tolerance =
                if ["", "b"].contains(&part) || row.name == "sample_stats" { 1e-9 } else { 1e-6 };
            let error = (got - want).abs();
            assert!(error <= tolerance * want.abs(), "{part}: got {got}, want {want} in {row:?}");
        }
    }
}
