//! Formulas compared with numbers of another implementation (`tests/golden/budgets.json`).

use crate::common;
use std::collections::BTreeMap;

use serde_json::Value;
use vattention::estimators::Terms;
use vattention::estimators::formula::{
    Combine, SdpaSplit, bar_of_radius, c2, chi2_isf, fpc, hoeffding, hoeffding_radius, kappa,
    mcdiarmid_radius, mcdiarmid_radius_of, q_rob, ratio_grid, sdpa, sdpa_exact, sdpa_paper,
    serfling, whole_tokens, z_one, z_two,
};
use vattention::{Fraction, engine::Softmax, estimators, plugin::SampleStats, statistics::Sample};
use vattention::{
    Target,
    plugin::{Estimator, required_size},
};

/// Rows of the file by id.
fn rows() -> BTreeMap<u64, Value> {
    let text = std::fs::read_to_string(common::golden("budgets.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let rows = all["rows"].as_array().unwrap();
    rows.iter().map(|row| (row["id"].as_u64().unwrap(), row.clone())).collect()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number `{key}` in {value}"))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[track_caller]
fn close(got: f64, want: f64, tolerance: f64, row: &Value) {
    let scale = want.abs().max(1e-300);
    assert!((got - want).abs() <= tolerance * scale, "got {got}, want {want} in {row}");
}

fn split(got: &SdpaSplit, row: &Value) {
    let want = &row["expected"];
    close(got.b, number(want, "b"), 1e-9, row);
    for (part, key) in [
        (got.delta_num, "delta_num"),
        (got.delta_den, "delta_den"),
        (got.eps_num, "eps_num"),
        (got.eps_den, "eps_den"),
    ] {
        if want[key].as_f64().is_some_and(f64::is_finite) && got.b > 0.0 {
            close(part, number(want, key), 1e-4, row);
        }
    }
}

/// Statistics with these scales; an estimator uses only some of them.
fn stats_of(n_s: f64, d: f64, norm_n: f64) -> SampleStats {
    SampleStats {
        drawn: 100,
        b: 100,
        n_s: n_s as usize,
        visible: n_s as usize,
        query_heads: 1,
        value_dim: 128,
        d,
        d_certain: 0.0,
        norm_n,
        drift: 0.0,
        var_e: 0.0,
        trace_ev: 0.0,
        trace_w: 0.0,
        nu: 1.0,
        // With these kurtoses, estimates need no allowance.
        kurtosis_e: 1.0,
        kurtosis_w: 1.0,
        max_norm_v: 1.0,
        bound: None,
        unseen: None,
    }
}

/// Function that creates an estimator from its terms.
type MakeEstimator = fn(Terms) -> Box<dyn Estimator>;

/// Finite-population correction of a budget, for a number of tokens.
type FiniteCorrection = fn(f64, usize) -> f64;

/// Checks the budget of an estimator with and without finite-population correction, in whole
/// tokens.
fn check_budget(
    row: &Value,
    make: MakeEstimator,
    finite: FiniteCorrection,
    target: Target,
    combine: Combine,
) {
    let (inputs, want) = (&row["inputs"], row["expected"].as_f64().unwrap());
    let get = |key: &str| inputs[key].as_f64().unwrap_or(1.0);
    let n_s = get("n_s");
    let stats = SampleStats {
        var_e: get("sigma").powi(2),
        trace_ev: get("tr"),
        bound: inputs["R"].as_f64(),
        value_dim: inputs["r"].as_u64().unwrap_or(128) as usize,
        ..stats_of(n_s, get("D"), get("N"))
    };
    let (epsilon, delta) = (get("eps"), get("delta"));
    // The formulas use the error relative to the estimate.
    let promised = match combine {
        Combine::Exact => bar_of_radius(epsilon, delta),
        Combine::Paper => epsilon,
    };
    let [promised, delta] = [promised, delta].map(|x| Fraction::try_from(x).unwrap());
    let corrected = finite(want, n_s as usize);
    let corrections =
        [(estimators::Correction::None, want), (estimators::Correction::Finite, corrected)];
    for (correction, want) in corrections {
        let terms = estimators::Terms {
            combine,
            correction,
            ..estimators::Terms::new(target, promised, delta)
        };
        let want = whole_tokens(want, n_s as usize);
        assert_eq!(required_size(&*make(terms), &stats).tokens, want, "{correction:?} in {row}");
    }
}

fn sample_stats(inputs: &Value) -> SampleStats {
    let e = numbers(&inputs["e"]);
    let values: Vec<f32> =
        inputs["V"].as_array().unwrap().iter().flat_map(numbers).map(|x| x as f32).collect();
    let certain = Softmax::from_sums(0.0, number(inputs, "Df"), numbers(&inputs["Nf"]));
    SampleStats::new(&Sample {
        e: &e,
        values: &values,
        certain: &certain,
        n_s: inputs["n_s"].as_u64().unwrap() as usize,
        visible: inputs["n_s"].as_u64().unwrap() as usize,
        query_heads: 1,
        max_norm_v: 0.0,
        bound: None,
    })
}

/// Values are stored in f32, so statistics agree to its precision.
const F32: f64 = 2e-6;

fn check_sample_stats(row: &Value) {
    let (stats, want) = (sample_stats(&row["inputs"]), &row["expected"]);
    for (got, key) in [
        (stats.d, "D"),
        (stats.norm_n, "normN"),
        (stats.var_e, "s2"),
        (stats.trace_ev, "trN"),
        (stats.trace_w, "trW"),
        (stats.nu, "nu"),
        (stats.kurtosis_w, "kurt_w"),
        (stats.kurtosis_e, "kurt_e"),
    ] {
        close(got, number(want, key), F32, row);
    }
}

fn check_b_need(row: &Value, all: &BTreeMap<u64, Value>) {
    let inputs = &row["inputs"];
    let source = &all[&inputs["from_row"].as_u64().unwrap()];
    let mut stats = sample_stats(&source["inputs"]);
    // The norm of these numbers is without its expected noise.
    stats.norm_n = number(&source["expected"], "normN_deb");
    let (epsilon, delta) = (number(inputs, "eps"), number(inputs, "delta"));
    let n_s = inputs["n_s"].as_u64().unwrap() as usize;
    let want = number(&row["expected"], "b");
    let fraction = |x| Fraction::try_from(x).unwrap();
    let promised = bar_of_radius(epsilon, delta);
    let mut estimator = estimators::Ratio::new(fraction(promised), fraction(delta));
    if inputs["ucb_alpha"].is_null() {
        let s_w = n_s as f64 * stats.trace_w.sqrt() / stats.norm_n;
        let s_d = n_s as f64 * stats.var_e.sqrt() / stats.d;
        let b = fpc(ratio_grid(epsilon, delta, s_w, s_d, stats.value_dim, stats.nu), n_s);
        close(b, want, F32, row);
        // These numbers are without allowance.
        (stats.kurtosis_e, stats.kurtosis_w) = (1.0, 1.0);
    } else {
        estimator.mode = estimators::Mode::Strict;
        // The allowance of these numbers raises the variances only; that of the strict mode also
        // adds this term to 1/nu.
        let rank_allowance = (stats.kurtosis_w - 1.0) / stats.b as f64;
        stats.nu = 1.0 / (1.0 / stats.nu - rank_allowance);
    }
    assert_eq!(required_size(&estimator, &stats).tokens, whole_tokens(want, n_s), "{row}");
}

fn clt(terms: Terms) -> Box<dyn Estimator> {
    Box::new(estimators::Clt(terms))
}

fn proxy(terms: Terms) -> Box<dyn Estimator> {
    Box::new(estimators::SubGaussian(terms))
}

fn bounded(terms: Terms) -> Box<dyn Estimator> {
    let (combine, correction) = (terms.combine, terms.correction);
    let epsilon = terms.epsilon.unwrap();
    let defaults = estimators::Hoeffding::new(terms.target, epsilon, terms.delta);
    Box::new(estimators::Hoeffding { combine, correction, ..defaults })
}

fn check(row: &Value, all: &BTreeMap<u64, Value>) -> bool {
    let (inputs, want) = (&row["inputs"], &row["expected"]);
    let get = |key: &str| number(inputs, key);
    let rank = inputs["r"].as_u64().unwrap_or(128) as usize;
    let scalar = |got: f64| close(got, want.as_f64().unwrap(), 1e-9, row);
    match row["fn"].as_str().unwrap() {
        "z_two" => scalar(z_two(get("delta"))),
        "z_one" if want.as_f64() == Some(0.0) => assert!(z_one(get("delta")).abs() < 1e-12),
        "z_one" => scalar(z_one(get("delta"))),
        "chi2_isf" => scalar(chi2_isf(get("delta"), get("nu"))),
        "c2" => scalar(c2(get("delta"), rank)),
        "kappa" => scalar(kappa(get("delta"))),
        "q_rob" => scalar(q_rob(get("delta"), get("nu"), rank)),
        "b_clt_den" => check_budget(row, clt, fpc, Target::Denominator, Combine::Exact),
        "b_clt_num" => check_budget(row, clt, fpc, Target::Numerator, Combine::Exact),
        "b_clt_num_paper" => check_budget(row, clt, fpc, Target::Numerator, Combine::Paper),
        "b_subgauss_paper" => {
            check_budget(row, proxy, fpc, Target::Denominator, Combine::Paper);
        }
        "b_hoeff_den" => {
            let tolerance = get("eps") * get("D");
            scalar(hoeffding(get("delta"), get("n_s"), get("R"), tolerance));
            check_budget(
                row,
                bounded,
                |b, n| serfling(b, n as f64),
                Target::Denominator,
                Combine::Paper,
            );
        }
        "b_serfling" => scalar(serfling(get("b0"), get("n"))),
        "b_mcdiarmid" => {
            let radius = mcdiarmid_radius(get("delta"), get("tr"), get("diam"));
            scalar((get("n_s") * radius / get("tau")).powi(2));
        }
        "mcdiarmid_wor_radius" => {
            let (b, n) = (get("b") as usize, get("n") as usize);
            scalar(mcdiarmid_radius_of(b, n, get("delta"), get("S2tr"), get("diam")));
        }
        "sdpa_hoeffding" => {
            let den = |delta: f64| hoeffding_radius(delta, get("hD_unit"));
            let num = |delta: f64| mcdiarmid_radius(delta, get("hN_tr").powi(2), get("hN_diam"));
            split(&sdpa(Combine::Exact, get("eps"), get("delta"), num, den), row);
        }
        "fpc" => scalar(fpc(get("b0"), get("n") as usize)),
        "finish" if inputs["floor"].as_u64() == Some(1) => {
            let b = inputs["b"].as_f64().unwrap_or(f64::NAN);
            let n_s = inputs["n_s"].as_u64().unwrap() as usize;
            assert_eq!(whole_tokens(b, n_s), want.as_u64().unwrap() as usize, "{row}");
        }
        "sdpa_exact" => {
            split(&sdpa_exact(get("eps"), get("delta"), get("sD"), get("sN"), rank), row);
        }
        "sdpa_paper" => split(&sdpa_paper(get("eps"), get("delta"), get("sD"), get("sN")), row),
        "ratio_grid" => {
            scalar(ratio_grid(get("eps"), get("delta"), get("sW"), get("sD"), rank, get("nu")));
        }
        "sample_stats" => check_sample_stats(row),
        "b_need" => check_b_need(row, all),
        _ => return false,
    }
    true
}

#[test]
fn every_formula_gives_the_golden_numbers() {
    let rows = rows();
    let mut checked: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows.values() {
        if check(row, &rows) {
            *checked.entry(row["fn"].as_str().unwrap()).or_default() += 1;
        }
    }
    println!("{checked:?}");
    assert_eq!(checked.len(), 22, "{checked:?}");
}
