//! Settings of selectors: defaults, and values that are refused.

#![allow(clippy::unwrap_used)]

use vattention_core::{Fraction, Picks, SelectorConfig, Size, step::Score};
use vattention_selectors::{OracleTopK, Sink, Window};
use vattention_testkit::{Head, Texture};

/// Shares are taken of the tokens visible to the row, not of all stored tokens.
#[test]
fn shares_are_taken_of_visible_tokens() {
    let size = Size::Share(Fraction::try_from(0.1).unwrap());
    let head = Head::new(1000, 2, 0, Texture::Gaussian);
    let configs: [&dyn SelectorConfig; 4] = [
        &Sink { size },
        &Window { size, aligned: false },
        &OracleTopK { size, score: Score::Head },
        &OracleTopK { size, score: Score::Group },
    ];
    for config in configs {
        let mut picks = Picks::new(100);
        config.build(head.site()).unwrap().select(&head.step(100).row(0), &mut picks);
        assert_eq!(picks.len(), 10, "{config:?}");
    }
}

#[test]
fn defaults_are_those_of_the_papers() {
    for (settings, defaults) in [
        (r#""type":"quest","size":0.05"#, r#""page":16,"bits":0,"score":"head""#),
        (
            r#""type":"double-sparsity","size":0.05,"calibration":"c.json""#,
            r#""channels":16,"label_bits":4,"by":"qk","labels":"head","score":"head""#,
        ),
        (r#""type":"sparq","size":0.05"#, r#""score":"head""#),
        (r#""type":"loki","size":1,"rank":16,"basis":"x""#, r#""score":"head""#),
        (
            r#""type":"pq-cache","size":3"#,
            concat!(
                r#""parts":2,"bits":6,"fit":1024,"skip":32,"iterations":10,"#,
                r#""metric":"euclidean","score":"head""#,
            ),
        ),
        (r#""type":"tactic","mass":0.9"#, r#""cluster":32,"exact":0.02,"iterations":10"#),
        (r#""type":"duo-attention","gates":"g.tsv""#, r#""streaming":0.5,"sink":128,"recent":256"#),
        (
            r#""type":"squeezed-attention","size":0.1"#,
            r#""clusters":0.05,"window":100,"iterations":10"#,
        ),
    ] {
        let config: Box<dyn SelectorConfig> =
            serde_json::from_str(&format!("{{{settings}}}")).unwrap();
        let expected = format!("{{{settings},{defaults}}}");
        assert_eq!(serde_json::to_string(&config).unwrap(), expected);
    }
}

#[test]
fn invalid_settings_are_refused() {
    for (settings, expected) in [
        (r#""type":"quest","size":5,"page":0"#, "nonzero"),
        (r#""type":"quest","size":5,"bits":9"#, "got 9"),
        (r#""type":"double-sparsity","size":5"#, "calibration"),
        (r#""type":"double-sparsity","size":5,"calibration":"","channels":0"#, "nonzero"),
        (r#""type":"double-sparsity","size":5,"calibration":"","label_bits":9"#, "got 9"),
        (r#""type":"sparq","size":5,"channels":0"#, "nonzero"),
        (r#""type":"loki","size":1,"basis":"x","rank":0"#, "nonzero"),
        (r#""type":"loki","size":1"#, "basis"),
        (r#""type":"snapkv","size":9,"pool":4"#, "must be odd"),
        (r#""type":"snapkv","size":9,"pool":0"#, "must be odd"),
        (r#""type":"snapkv","size":9,"window":0"#, "nonzero"),
        (r#""type":"pq-cache","size":3,"bits":0"#, "from 1 to 8, got 0"),
        (r#""type":"pq-cache","size":3,"bits":9"#, "from 1 to 8, got 9"),
        (r#""type":"pq-cache","size":3,"parts":0"#, "nonzero"),
        (r#""type":"pq-cache","size":3,"fit":0"#, "nonzero"),
        (r#""type":"pq-cache","size":3,"iterations":-1"#, "-1"),
        (r#""type":"pq-cache","size":3,"metric":"l1""#, "l1"),
        (r#""type":"tactic""#, "mass"),
        (r#""type":"tactic","mass":1.5"#, "1.5"),
        (r#""type":"tactic","mass":0.9,"cluster":0"#, "nonzero"),
        (r#""type":"tactic","mass":0.9,"size":3"#, "size"),
        (r#""type":"squeezed-attention","size":1,"window":0"#, "nonzero"),
        (r#""type":"squeezed-attention","threshold":2"#, "between 0 and 1"),
        (r#""type":"squeezed-attention","size":1,"bits":3"#, "bits"),
    ] {
        let read = serde_json::from_str::<Box<dyn SelectorConfig>>(&format!("{{{settings}}}"));
        let error = read.unwrap_err().to_string();
        assert!(error.contains(expected), "{settings}: {error}");
    }
}
