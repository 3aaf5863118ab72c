use std::fs;

use proptest::prelude::*;

use super::*;

fn header() -> Header {
    Header {
        vattention: "1".into(),
        command: vec!["compare".into(), "a.toml".into()],
        inputs: [("trace".to_owned(), "00".to_owned())].into(),
        shards: None,
        shard: None,
    }
}

fn shard(text: &str) -> Part {
    Part::Shard(text.parse().unwrap())
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("unit {i}")).collect()
}

type ResultValue = Vec<Option<f64>>;
type Change = fn(&mut Header);
type NumberTuple = (f64, i64, u64, String, f64, [Option<u64>; 2]);

/// Returns a result with numbers that JSON cannot represent.
fn make_result(i: usize) -> ResultValue {
    vec![Some(0.1 / i as f64), None, Some(-(i as f64)), Some(f64::NEG_INFINITY)]
}

/// Runs units; returns the indices of the computed ones, and the results.
fn run(results: &Results, count: usize) -> (Vec<usize>, Result<Vec<ResultValue>>) {
    let mut computed = Vec::new();
    let all = results.run(&keys(count), |i| {
        computed.push(i);
        Ok(make_result(i))
    });
    (computed, all)
}

#[test]
fn stored_results_are_not_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let open = || Results::open(&path, &header(), Part::All).unwrap();
    let (computed, all) = run(&open(), 4);
    let all = all.unwrap();
    assert_eq!((computed, &all), (vec![0, 1, 2, 3], &(0..4).map(make_result).collect()));
    assert_eq!(run(&open(), 4).0, [0_usize; 0]);
    assert_eq!(run(&open(), 4).1.unwrap(), all);
    // The file is cut in the middle of the last line, then in the middle of the header.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 5]).unwrap();
    let (computed, again) = run(&open(), 4);
    assert_eq!((computed, again.unwrap()), (vec![3], all));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    fs::write(&path, &text[..9]).unwrap();
    assert_eq!(run(&open(), 4).0, [0, 1, 2, 3]);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn two_runs_cannot_write_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let _first = Results::open(&path, &header(), Part::All).unwrap();
    let message = Results::open(&path, &header(), Part::All).unwrap_err().to_string();
    assert!(message.contains("another run"), "{message}");
}

#[test]
fn a_malformed_line_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    run(&Results::open(&path, &header(), Part::All).unwrap(), 2).1.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let bad = text.replace("{\"unit\":\"unit 1\"", "{\"unit\":1");
    fs::write(&path, &bad).unwrap();
    for message in [
        Results::open(&path, &header(), Part::All).unwrap_err(),
        merge_results(std::slice::from_ref(&path)).unwrap_err(),
    ] {
        assert!(message.to_string().contains("kept.jsonl, line 3: "), "{message}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), bad);
    for other in ["a note", "a note\n"] {
        fs::write(&path, other).unwrap();
        let message = Results::open(&path, &header(), Part::All).unwrap_err().to_string();
        assert!(message.contains("kept.jsonl, line 1: expected"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), other);
    }
    // The type of the results is another one.
    fs::write(&path, &text).unwrap();
    let results = Results::open(&path, &header(), Part::All).unwrap();
    let message = results.run(&keys(2), |_| Ok::<_, Error>(String::new())).unwrap_err().to_string();
    assert!(message.contains("kept.jsonl: the result of `unit 0`"), "{message}");
}

#[test]
fn results_of_other_work_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.jsonl");
    let first = shard("1/3");
    drop(Results::open(&path, &header(), first).unwrap());
    let refused = |change: Change, part| {
        let mut other = header();
        change(&mut other);
        Results::open(&path, &other, part).unwrap_err().to_string()
    };
    let cases: [(Change, Part, &str); 6] = [
        (|header| header.vattention = "2".into(), first, "the version is `1` and `2`"),
        (
            |header| header.command[1] = "b.toml".into(),
            first,
            "argument 2 is `a.toml` and `b.toml`",
        ),
        (|header| header.command.truncate(1), first, "argument 2 is `a.toml` and nothing"),
        (|header| header.inputs = [].into(), first, "the digest of trace is `00` and nothing"),
        (|_| (), shard("2/3"), "results of shard 1/3; expected those of 2/3"),
        (|_| (), shard("1/4"), "results of shard 1/3; expected those of 1/4"),
    ];
    for (change, part, expected) in cases {
        let message = refused(change, part);
        assert!(
            message.contains("kept.jsonl, line 1: ") && message.contains(expected),
            "{message}"
        );
    }
}

/// A stage that needs all results of the stage before continues from merged results.
#[test]
fn a_shard_continues_from_merged_results() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let first = |number: usize| {
        let part = Part::Shard(Shard::new(number, 2).unwrap());
        let results = Results::open(&path(&number.to_string()), &header(), part).unwrap();
        run(&results, 3)
    };
    let (computed, all) = first(1);
    let Error::Incomplete(incomplete) = all.unwrap_err() else { panic!() };
    assert_eq!((computed, incomplete.shards()), (vec![0], vec![2]));
    assert_eq!(incomplete.missing.len(), 2);
    assert_eq!(first(2).0, [1, 2]);
    let merged = merge_results(&[path("1"), path("2")]).unwrap();
    assert_eq!((merged.header.shards, merged.header.shard), (Some(2), None));
    for number in [1, 2] {
        fs::write(path(&number.to_string()), &merged.text).unwrap();
        let (computed, all) = first(number);
        assert!(computed.is_empty());
        assert_eq!(all.unwrap().len(), 3);
        let text = fs::read_to_string(path(&number.to_string())).unwrap();
        assert!(text.lines().next().unwrap().contains(&format!("\"shard\":{number}")));
        assert_eq!(text.lines().count(), 4);
    }
    assert!(merge_results(&[path("1"), path("2")]).is_ok());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing half written");
}

#[test]
fn results_of_different_work_are_not_merged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let make = |name: &str, part| {
        let _ = run(&Results::open(&path(name), &header(), part).unwrap(), 3);
        path(name)
    };
    let [one, two, other] =
        [("1", "1/2"), ("2", "2/2"), ("3", "2/3")].map(|(name, part)| make(name, shard(part)));
    let message = merge_results(&[one.clone(), other.clone()]).unwrap_err().to_string();
    assert!(message.contains("the number of shards is 2 and 3"), "{message}");
    assert!(
        message.contains(&one.display().to_string()) && message.contains("3, line 1"),
        "{message}"
    );
    let text = fs::read_to_string(&two).unwrap();
    fs::write(&other, text.replace("-2.0", "-3.0")).unwrap();
    let message =
        merge_results(&[one.clone(), two.clone(), other.clone()]).unwrap_err().to_string();
    assert!(
        message.contains("unit `unit 2` has another result than in")
            && message.contains("2, line 3"),
        "{message}"
    );
    // Results may differ in the time that they took.
    for (path, seconds) in [(&two, "1.5"), (&other, "2.5")] {
        let timed = format!("{{\"unit\":\"timed\",\"value\":{{\"seconds\":{seconds},\"x\":1}}}}\n");
        fs::write(path, format!("{text}{timed}")).unwrap();
    }
    let merged = merge_results(&[two, other, one]).unwrap();
    assert_eq!(merged.text.lines().count(), 1 + 3 + 1);
}

proptest! {
    #[test]
    fn shards_divide_all_units(count in 1_usize..40, total in 0_usize..60) {
        let shards = || (1..=count).map(|number| Shard::new(number, count).unwrap());
        let units: Vec<usize> = shards().flat_map(|shard| shard.units(total)).collect();
        prop_assert_eq!(units, (0..total).collect::<Vec<_>>());
        for shard in shards() {
            prop_assert!(shard.units(total).len() <= total.div_ceil(count));
            for unit in shard.units(total) {
                prop_assert_eq!(Part::Shard(shard).shard_of(unit, total), Some(shard.number()));
            }
        }
        for unit in 0..total {
            prop_assert_eq!(shards().filter(|shard| shard.has_interleaved(unit)).count(), 1);
        }
    }

    #[test]
    fn every_number_round_trips_bit_for_bit(
        bits in any::<u64>(),
        whole in any::<i64>(),
        text in ".*",
    ) {
        let numbers = [Some(bits), None];
        let all = (f64::from_bits(bits), whole, whole as u64, text, whole as f64, numbers);
        let back: NumberTuple = value::from_text(value::to_text(&all).unwrap().get()).unwrap();
        prop_assert_eq!(back.0.to_bits(), bits);
        let rest = (back.1, back.2, &back.3, back.4, back.5);
        prop_assert_eq!(rest, (all.1, all.2, &all.3, all.4, all.5));
    }
}

#[test]
fn non_finite_numbers_round_trip_bit_for_bit() {
    let odd = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN, -0.0, 5e-324, f64::MAX];
    let text = value::to_text(&odd).unwrap();
    let back: Vec<f64> = value::from_text(text.get()).unwrap();
    assert!(back.iter().zip(odd).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
}

#[test]
fn shards_are_counted_from_one() {
    assert_eq!("2/3".parse::<Shard>().unwrap().to_string(), "2/3");
    for bad in ["0/3", "4/3", "x", "1/0", "", "1/", "-1/3", "1/3/4"] {
        assert!(bad.parse::<Shard>().is_err(), "{bad}");
    }
}
