//! Which selectors, samplers and estimators go together, and what is said of the others (the table of docs/samplers.md).

use vattention::config::Loader;

const BOUNDED: &str = "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.05\nscore = \"head\"\n";

/// What is said of a pipeline; nothing if it can run.
fn said(selectors: &str, sampler: &str, estimator: &str) -> String {
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

/// An estimator with a promise.
fn promise(name: &str, more: &str) -> String {
    format!("type = \"{name}\"\nepsilon = 0.1\ndelta = 0.1\n{more}")
}

#[test]
fn any_sampler_goes_with_any_estimator_or_it_is_said_why_not() {
    let rigorous = "mode = \"rigorous\"";
    let sdpa = |name: &str, mode: &str| {
        let target = if name == "ratio" { "" } else { "target = \"sdpa\"\n" };
        promise(name, &format!("{target}{mode}"))
    };
    for name in ["ratio", "clt", "sub-gaussian"] {
        for sampler in [UNIFORM, CODES, KEYS, RANKED, STRATIFIED] {
            for mode in ["", "mode = \"strict\""] {
                assert_eq!(
                    said(BOUNDED, sampler, &sdpa(name, mode)),
                    "",
                    "{name}, {sampler}, {mode}"
                );
            }
        }
        let proof = sdpa(name, rigorous);
        for sampler in [UNIFORM, KEYS] {
            assert_eq!(said(BOUNDED, sampler, &proof), "", "{name}, {sampler}");
        }
        assert!(said("", UNIFORM, &proof).contains("needs a proved bound"), "{name}");
        assert_eq!(said("", KEYS, &proof), "", "{name}");
        for sampler in [CODES, RANKED, STRATIFIED] {
            let said = said(BOUNDED, sampler, &proof);
            assert!(said.contains("nothing bounds the weights"), "{name}, {sampler}: {said}");
        }
        let said = said(BOUNDED, LSH, &sdpa(name, ""));
        assert!(said.contains("no estimator can be used"), "{name}: {said}");
    }
    let hoeffding = promise("hoeffding", "target = \"denominator\"");
    assert_eq!(said(BOUNDED, UNIFORM, &hoeffding), "");
    assert!(said("", UNIFORM, &hoeffding).contains("needs a proved bound"));
    for sampler in [CODES, KEYS, STRATIFIED] {
        let said = said(BOUNDED, sampler, &hoeffding);
        assert!(said.contains("needs a uniform sample"), "{sampler}: {said}");
    }
    assert_eq!(said(BOUNDED, LSH, ""), "");
    for sampler in [UNIFORM, CODES, STRATIFIED] {
        assert!(
            said(BOUNDED, sampler, "").contains("without [estimator] nothing is drawn"),
            "{sampler}"
        );
    }
    let grouped = format!("{BOUNDED}[sampler]\n{LSH}\n").replace("head", "group");
    let error = Loader::default().parse("p.toml", &grouped).unwrap_err().to_string();
    assert!(error.contains("`lsh` draws for each query head"), "{error}");
}

/// Priority sampling proves the error of the output; what it does not prove is not promised as if it did.
#[test]
fn a_target_that_is_not_proved_is_refused() {
    for name in ["clt", "sub-gaussian"] {
        for target in ["denominator", "numerator"] {
            let estimator = promise(name, &format!("target = \"{target}\"\nmode = \"rigorous\""));
            let said = said(BOUNDED, KEYS, &estimator);
            let expected = format!("proves only the error of the output, not that of the {target}");
            assert!(said.contains(&expected), "{name}, {target}: {said}");
            assert_eq!(self::said(BOUNDED, UNIFORM, &estimator), "", "{name}, {target}");
        }
    }
}

/// Advice solves the problem: `priority` is not suggested to a pipeline that has it, and an exact
/// top-k, which reads every key, is not the first suggestion.
#[test]
fn advice_for_rigorous_mode_cures() {
    let rigorous = promise("ratio", "mode = \"rigorous\"");
    for sampler in [CODES, RANKED] {
        let said = said("", sampler, &rigorous);
        assert!(said.contains("write `index = \"8-bit\"` under [sampler]"), "{said}");
        assert!(!said.contains("the sampler `priority`"), "{said}");
    }
    assert_eq!(said("", KEYS, &rigorous), "", "the cure");
    let stratified = said("", STRATIFIED, &rigorous);
    assert!(stratified.contains("the sampler `priority` with `index = \"8-bit\"`"), "{stratified}");
    let uniform = said("", "", &rigorous);
    let (cure, costly) = (uniform.find("8-bit").unwrap(), uniform.find("oracle-top-k").unwrap());
    assert!(cure < costly, "{uniform}");
    let denominator = promise("clt", "target = \"denominator\"\nmode = \"rigorous\"");
    assert!(said("", "", &denominator).contains("write `target = \"sdpa\"` and choose"));
    let hoeffding = promise("hoeffding", "target = \"denominator\"");
    assert!(said("", "", &hoeffding).contains("choose the estimator `ratio`"));
}

/// Conflicts of an estimator are reported together with a missing `delta`.
#[test]
fn a_missing_delta_hides_no_other_problem() {
    let both = said("", "", "type = \"ratio\"\nepsilon = 0.1\nsize = 0.1");
    for part in ["missing field `delta`", "sets both `epsilon` and `size`"] {
        assert!(both.contains(part), "{both}");
    }
    let neither = said("", "", "type = \"clt\"\ntarget = \"sdpa\"");
    for part in ["missing field `delta`", "sets neither `epsilon` nor `size`"] {
        assert!(neither.contains(part), "{neither}");
    }
    let good = said("", "", "type = \"ratio\"\nepsilon = 0.1");
    assert!(good.contains("missing field `delta`") && !good.contains("says"), "{good}");
    let mode = said("", CODES, "type = \"ratio\"\nepsilon = 0.1\nmode = \"rigorous\"");
    assert!(mode.contains("missing field `delta`") && mode.contains("8-bit"), "{mode}");
}

#[test]
fn an_estimator_is_asked_for_one_thing() {
    for name in ["ratio", "clt", "sub-gaussian", "hoeffding"] {
        let target = if name == "ratio" { "" } else { "target = \"denominator\"\n" };
        let with = |what: &str| {
            said(BOUNDED, "", &format!("type = \"{name}\"\n{target}delta = 0.1\n{what}"))
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
