//! Valid combinations of selectors, samplers and estimators, and error messages of the others (see
//! the table in docs/methods.md).

use vattention::config::Loader;

const BOUNDED: &str = "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.05\nscore = \"head\"\n";

/// Error message of a pipeline; empty if the pipeline is valid.
fn error_of(selectors: &str, sampler: &str, estimator: &str) -> String {
    let part = |name: &str, text: &str| match text {
        "" => String::new(),
        text => format!("[{name}]\n{text}\n"),
    };
    let text = format!(
        "share = \"head\"\n{selectors}{}{}",
        part("sampler", sampler),
        part("estimator", estimator)
    );
    let parsed = Loader::default().parse("p.toml", &text);
    parsed.map_or_else(|error| error.to_string(), |_| String::new())
}

const UNIFORM: &str = "type = \"uniform\"";
const CODES: &str = "type = \"priority\"";
const KEYS: &str = "type = \"priority\"\nindex = \"8-bit\"";
const RANKED: &str = "type = \"priority\"\nindex = \"selectors\"";
const STRATIFIED: &str = "type = \"stratified\"";
const LSH: &str = "type = \"lsh\"";

/// Table of an estimator with a promise.
fn promise(name: &str, more: &str) -> String {
    format!("type = \"{name}\"\nepsilon = 0.1\ndelta = 0.1\n{more}")
}

#[test]
fn any_sampler_is_valid_with_any_estimator_or_an_error_explains_it() {
    let rigorous = "mode = \"rigorous\"";
    let sdpa = |name: &str, mode: &str| {
        let target = if name == "ratio" { "" } else { "target = \"sdpa\"\n" };
        promise(name, &format!("{target}{mode}"))
    };
    for name in ["ratio", "clt", "sub-gaussian"] {
        for sampler in [UNIFORM, CODES, KEYS, RANKED, STRATIFIED] {
            for mode in ["", "mode = \"strict\""] {
                let error = error_of(BOUNDED, sampler, &sdpa(name, mode));
                assert_eq!(error, "", "{name}, {sampler}, {mode}");
            }
        }
        let proof = sdpa(name, rigorous);
        for sampler in [UNIFORM, KEYS] {
            assert_eq!(error_of(BOUNDED, sampler, &proof), "", "{name}, {sampler}");
        }
        assert!(error_of("", UNIFORM, &proof).contains("needs a proved bound"), "{name}");
        assert_eq!(error_of("", KEYS, &proof), "", "{name}");
        for sampler in [CODES, RANKED, STRATIFIED] {
            let error = error_of(BOUNDED, sampler, &proof);
            assert!(error.contains("nothing bounds the weights"), "{name}, {sampler}: {error}");
        }
        let error = error_of(BOUNDED, LSH, &sdpa(name, ""));
        assert!(error.contains("no estimator can be used"), "{name}: {error}");
    }
    let hoeffding = promise("hoeffding", "target = \"denominator\"");
    assert_eq!(error_of(BOUNDED, UNIFORM, &hoeffding), "");
    assert!(error_of("", UNIFORM, &hoeffding).contains("needs a proved bound"));
    for sampler in [CODES, KEYS, STRATIFIED] {
        let error = error_of(BOUNDED, sampler, &hoeffding);
        assert!(error.contains("needs a uniform sample"), "{sampler}: {error}");
    }
    assert_eq!(error_of(BOUNDED, LSH, ""), "");
    for sampler in [UNIFORM, CODES, STRATIFIED] {
        let error = error_of(BOUNDED, sampler, "");
        assert!(error.contains("without [estimator] nothing is drawn"), "{sampler}: {error}");
    }
    let grouped = format!("{BOUNDED}[sampler]\n{LSH}\n").replace("head", "group");
    let error = Loader::default().parse("p.toml", &grouped).unwrap_err().to_string();
    assert!(error.contains("`lsh` draws for each query head"), "{error}");
}

/// Priority sampling proves only the error of the output, so it must not promise other targets.
#[test]
fn a_target_without_a_proof_is_an_error() {
    for name in ["clt", "sub-gaussian"] {
        for target in ["denominator", "numerator"] {
            let estimator = promise(name, &format!("target = \"{target}\"\nmode = \"rigorous\""));
            let error = error_of(BOUNDED, KEYS, &estimator);
            let expected = format!("proves only the error of the output, not that of the {target}");
            assert!(error.contains(&expected), "{name}, {target}: {error}");
            assert_eq!(error_of(BOUNDED, UNIFORM, &estimator), "", "{name}, {target}");
        }
    }
}

/// The advice solves the problem: `priority` is not suggested for a pipeline that has it, and an
/// exact top-k, which reads every key, is not the first suggestion.
#[test]
fn advice_for_rigorous_mode_solves_the_problem() {
    let rigorous = promise("ratio", "mode = \"rigorous\"");
    for sampler in [CODES, RANKED] {
        let error = error_of("", sampler, &rigorous);
        assert!(error.contains("write `index = \"8-bit\"` under [sampler]"), "{error}");
        assert!(!error.contains("the sampler `priority`"), "{error}");
    }
    assert_eq!(error_of("", KEYS, &rigorous), "", "the suggested pipeline");
    let stratified = error_of("", STRATIFIED, &rigorous);
    assert!(stratified.contains("the sampler `priority` with `index = \"8-bit\"`"), "{stratified}");
    let uniform = error_of("", "", &rigorous);
    let (cheap, costly) = (uniform.find("8-bit").unwrap(), uniform.find("oracle-top-k").unwrap());
    assert!(cheap < costly, "{uniform}");
    let denominator = promise("clt", "target = \"denominator\"\nmode = \"rigorous\"");
    assert!(error_of("", "", &denominator).contains("write `target = \"sdpa\"` and choose"));
    let hoeffding = promise("hoeffding", "target = \"denominator\"");
    assert!(error_of("", "", &hoeffding).contains("choose the estimator `ratio`"));
}

/// Conflicts of an estimator are reported together with a missing `delta`.
#[test]
fn a_missing_delta_hides_no_other_problem() {
    let both = error_of("", "", "type = \"ratio\"\nepsilon = 0.1\nsize = 0.1");
    for part in ["missing field `delta`", "sets both `epsilon` and `size`"] {
        assert!(both.contains(part), "{both}");
    }
    let neither = error_of("", "", "type = \"clt\"\ntarget = \"sdpa\"");
    for part in ["missing field `delta`", "sets neither `epsilon` nor `size`"] {
        assert!(neither.contains(part), "{neither}");
    }
    let good = error_of("", "", "type = \"ratio\"\nepsilon = 0.1");
    assert!(good.contains("missing field `delta`") && !good.contains("sets"), "{good}");
    let mode = error_of("", CODES, "type = \"ratio\"\nepsilon = 0.1\nmode = \"rigorous\"");
    assert!(mode.contains("missing field `delta`") && mode.contains("8-bit"), "{mode}");
}

#[test]
fn an_estimator_has_one_goal() {
    for name in ["ratio", "clt", "sub-gaussian", "hoeffding"] {
        let target = if name == "ratio" { "" } else { "target = \"denominator\"\n" };
        let with = |goal: &str| {
            error_of(BOUNDED, "", &format!("type = \"{name}\"\n{target}delta = 0.1\n{goal}"))
        };
        assert_eq!(with("epsilon = 0.1"), "", "{name}");
        assert_eq!(with("epsilon = 0.1\nlimit = 0.2"), "", "{name}");
        assert_eq!(with("size = 0.1"), "", "{name}");
        assert!(with("").contains("sets neither `epsilon` nor `size`"), "{name}");
        assert!(
            with("epsilon = 0.1\nsize = 0.1").contains("sets both `epsilon` and `size`"),
            "{name}"
        );
        assert!(with("size = 0.1\nlimit = 0.2").contains("sets both `limit` and `size`"), "{name}");
    }
}
