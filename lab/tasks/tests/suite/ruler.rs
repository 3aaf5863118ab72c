//! Tests that texts of RULER's tasks can be solved from the text alone, and have RULER's shapes.

use crate::common::{
    SYNTHETIC, assert_right, count, count_words, hash, needles, parse_list, queried_keys, set,
};
use vattention_tasks::{Case, Task, Texts};

fn case(task: Task, tokens: usize, seed: u64) -> Case {
    Texts::ruler().case(task, tokens, seed, &count).unwrap()
}

#[test]
fn answers_are_in_the_text() {
    for task in SYNTHETIC {
        for tokens in [1024, 4095, 4096, 10000] {
            for seed in 0..4 {
                assert_right(task, &case(task, tokens, seed));
            }
        }
    }
}

#[test]
fn numbers_of_answers_and_tokens_are_rulers() {
    for (task, answers, tokens) in [
        (Task::NiahSingle1, 1, 128),
        (Task::NiahSingle2, 1, 128),
        (Task::NiahSingle3, 1, 128),
        (Task::NiahMultikey1, 1, 128),
        (Task::NiahMultikey2, 1, 128),
        (Task::NiahMultikey3, 1, 128),
        (Task::NiahMultivalue, 4, 128),
        (Task::NiahMultiquery, 4, 128),
        (Task::Vt, 5, 30),
        (Task::Cwe, 10, 120),
        (Task::Fwe, 3, 50),
    ] {
        let case = case(task, 4096, 1);
        assert_eq!((case.answers.len(), case.tokens), (answers, tokens), "{task}");
    }
}

#[test]
fn keys_and_values_differ_and_have_their_kinds() {
    for (task, keys, each) in [
        (Task::NiahSingle1, 1, 1),
        (Task::NiahSingle2, 1, 1),
        (Task::NiahSingle3, 1, 1),
        (Task::NiahMultikey1, 4, 1),
        (Task::NiahMultivalue, 1, 4),
        (Task::NiahMultiquery, 4, 1),
    ] {
        let case = case(task, 2048, 5);
        let found = needles(&case.context);
        assert_eq!(set(found.iter().map(|found| found.0)).len(), keys, "{task}");
        assert_eq!(set(found.iter().map(|found| found.1)).len(), keys * each, "{task}");
        assert_eq!(found.len(), keys * each, "{task}");
    }
    let is_uuid = |word: &str| word.len() == 36 && word.split('-').count() == 5;
    let is_number = |word: &str| word.len() == 7 && word.bytes().all(|b| b.is_ascii_digit());
    let is_words =
        |word: &str| word.split('-').count() == 2 && !word.bytes().any(|b| b.is_ascii_digit());
    for (task, key, value) in [
        (Task::NiahSingle3, &is_words as &dyn Fn(&str) -> bool, &is_uuid as &dyn Fn(&str) -> bool),
        (Task::NiahMultikey1, &is_words, &is_number),
        (Task::NiahMultikey2, &is_words, &is_number),
        (Task::NiahMultikey3, &is_uuid, &is_uuid),
    ] {
        let case = case(task, 8192, 5);
        assert!(
            needles(&case.context).iter().all(|found| key(found.0) && value(found.1)),
            "{task}"
        );
    }
}

#[test]
fn haystacks_of_needles_contain_only_needles() {
    for task in [Task::NiahMultikey2, Task::NiahMultikey3] {
        let case = case(task, 8192, 3);
        let found = needles(&case.context);
        assert!(found.len() > 200);
        assert_eq!(case.context.lines().count(), 1 + found.len(), "the introduction, and needles");
        assert_eq!(set(found.iter().map(|found| found.0)).len(), found.len());
        assert_eq!(set(found.iter().map(|found| found.1)).len(), found.len());
    }
}

#[test]
fn noise_repeats_and_prose_varies() {
    let noise = case(Task::NiahSingle1, 1024, 0).context;
    let lines = count_words(noise.lines().filter(|line| line.starts_with("The grass is green. ")));
    assert_eq!(lines.len(), 1);
    assert!(noise.lines().count() > 30);
    let prose = |seed| case(Task::NiahSingle2, 1024, seed).context;
    assert!(!prose(0).contains("grass is green"));
    assert_ne!(prose(0).split(". ").nth(9), prose(1).split(". ").nth(9));
}

#[test]
fn questions_use_singular_and_plural() {
    let one = case(Task::NiahSingle3, 1024, 0);
    assert!(one.context.starts_with("A special magic uuid is hidden within the following text."));
    assert!(one.question.ends_with(" mentioned in the provided text is"));
    let four = case(Task::NiahMultiquery, 1024, 0);
    assert!(four.context.starts_with("Some special magic numbers are hidden"));
    let keys = queried_keys(&four);
    let list = format!("{}, {}, {}, and {}", keys[0], keys[1], keys[2], keys[3]);
    assert_eq!(
        four.question,
        format!(
            "\nWhat are all the special magic numbers for {list} mentioned in the provided text? \
             The special magic numbers for {list} mentioned in the provided text are"
        )
    );
}

#[test]
fn needles_are_at_all_depths() {
    for task in [Task::NiahSingle1, Task::NiahSingle2, Task::NiahMultikey2] {
        let mut tenths = [0; 10];
        for seed in 0..200 {
            let case = case(task, 1024, seed);
            let start = case.context.find(".\n").unwrap();
            let key = queried_keys(&case)[0];
            let place = needles(&case.context).into_iter().find(|found| found.0 == key).unwrap().2;
            tenths[(place - start) * 10 / (case.context.len() - start)] += 1;
        }
        // Each tenth has 20 of 200 needles, with a standard deviation of 4.2.
        assert!(tenths.iter().all(|found| (5..=38).contains(found)), "{task}: {tenths:?}");
    }
}

#[test]
fn places_of_needles_are_uniform() {
    let place = |seed| {
        let context = case(Task::NiahSingle2, 600, seed).context;
        let sentences: Vec<_> = context.split_once('\n').unwrap().1.split(". ").collect();
        let needle = sentences.iter().position(|text| text.starts_with("One of the special"));
        (needle.unwrap() as f64 + 0.5) / sentences.len() as f64
    };
    let mean = (0..1000).map(place).sum::<f64>() / 1000.0;
    // The mean of 1000 uniform numbers has a standard deviation of 0.0091.
    assert!((mean - 0.5).abs() < 0.04, "{mean}");
}

#[test]
fn lists_repeat_words_as_in_ruler() {
    for (tokens, common, rare, example) in [(2048, 6, 1, 40), (4096, 30, 3, 190)] {
        let case = case(Task::Cwe, tokens, 2);
        let lists: Vec<_> = case.context.split("appear most often.\n").skip(1).collect();
        assert_eq!(lists.len(), 2, "an example, and the list");
        let (worked, answer) = lists[0].split_once("\nQuestion: ").unwrap();
        let worked = count_words(parse_list(worked).into_iter());
        assert_eq!(worked.values().sum::<usize>(), example);
        let most = worked.values().max().unwrap();
        let answer = answer.split_once("list are: ").unwrap().1.split_once('\n').unwrap().0;
        assert_eq!(parse_list(answer).len(), 10);
        assert!(parse_list(answer).iter().all(|word| worked[word] == *most));
        let counts = count_words(parse_list(lists[1]).into_iter());
        for (word, times) in counts {
            let is_common = case.answers.iter().any(|answer| answer == word);
            assert_eq!(times, if is_common { common } else { rare }, "{word}");
        }
    }
}

#[test]
fn no_common_word_is_part_of_another() {
    for seed in 0..300 {
        let Case { answers, .. } = case(Task::Cwe, 1024, seed);
        let part = |a: &String| answers.iter().filter(|b| b.contains(a)).count() > 1;
        assert!(!answers.iter().any(part), "{answers:?}");
    }
}

#[test]
fn coded_words_follow_the_zeta_law() {
    let case = case(Task::Fwe, 8192, 4);
    let text = case.context.rsplit_once("coded words. ").unwrap().1;
    let mut counts: Vec<_> = count_words(text.split(' ')).into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // Counts are the expected numbers rounded down, so that one number of words explains all of
    // them.
    let zeta = std::f64::consts::PI.powi(2) / 6.0;
    let expected =
        |words: usize, rank: usize| (words as f64 / (rank * rank) as f64 / zeta + 1e-6) as usize;
    let words = (1..16384).find(|words| expected(*words, 1) == counts[0]);
    let words = (words.unwrap()..).take(2).find(|words| {
        counts.iter().enumerate().all(|(i, count)| *count == expected(*words, i + 1))
    });
    assert!(words.is_some(), "{counts:?}");
    assert!(counts.len() > 60, "as many words as the law leaves: {}", counts.len());
}

#[test]
fn variables_have_an_example_first() {
    for (tokens, most) in [(1024, 256), (8192, 500)] {
        let case = case(Task::Vt, tokens, 0);
        let (example, text) = case.context.split_once("\n\nMemorize").unwrap();
        let size = count(example);
        assert!((most - 40..=most + 5).contains(&size), "{tokens}: {size}");
        assert_eq!(text.matches("VAR ").count(), 9);
        let (assignments, answer) = example.split_once(", they are: ").unwrap();
        let variables = count_words(answer.split(' '));
        assert_eq!(variables.len(), 5);
        let is_assigned = |variable: &str| assignments.contains(&format!("VAR {variable} = "));
        assert!(variables.keys().all(|variable| variable.len() == 3 && is_assigned(variable)));
    }
}

#[test]
fn files_of_prose_are_haystacks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prose.txt");
    std::fs::write(&file, "It was\n a night.  Was it? It\twas! ").unwrap();
    let texts = Texts::ruler().with_haystack(&file).unwrap();
    let case = texts.case(Task::NiahSingle2, 400, 0, &count).unwrap();
    assert_right(Task::NiahSingle2, &case);
    assert!(case.context.contains(" It was a night. Was it? It was! It was a night. "));
    assert!(texts.case(Task::NiahSingle1, 400, 0, &count).unwrap().context.contains("grass"));
    std::fs::write(&file, " \n").unwrap();
    let refused = Texts::ruler().with_haystack(&file).unwrap_err().to_string();
    assert!(refused.ends_with("prose.txt: there is no word; expected prose"), "{refused}");
}

#[test]
fn texts_are_stable() {
    let hashes: Vec<_> = SYNTHETIC
        .iter()
        .map(|task| format!("{task} {:016x}", hash(&case(*task, 1000, 7))))
        .collect();
    assert_eq!(hashes, GOLDEN);
    for task in SYNTHETIC {
        assert_eq!(case(task, 1000, 7), case(task, 1000, 7));
        assert_ne!(case(task, 1000, 7), case(task, 1000, 8), "{task}: seeds");
        assert_ne!(case(task, 1000, 7).answers, case(task, 1001, 7).answers, "{task}: lengths");
    }
}

const GOLDEN: [&str; 11] = [
    "niah_single_1 63c860dc9a0f0bb0",
    "niah_single_2 575e61d5e05ceb5b",
    "niah_single_3 8e80286ea2c06709",
    "niah_multikey_1 892999dd79c64e47",
    "niah_multikey_2 7955dd84ad4f23a3",
    "niah_multikey_3 337458884b2df5e1",
    "niah_multivalue e0b118e5b5e1d683",
    "niah_multiquery 60fbd99fcc06ef52",
    "vt 3756910c800038d5",
    "cwe c79348ee002c14ec",
    "fwe a524e1ece1e9c41e",
];
