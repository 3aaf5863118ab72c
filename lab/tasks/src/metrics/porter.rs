//! Porter's stemmer (1980) with nltk's extensions, the default of `nltk.stem.PorterStemmer`:
//! irregular words, `ies` and `ied` in short words, `y` only after consonants, `alli` and `fulli`,
//! `logi` after any word.

/// Words that the rules would stem wrongly.
const IRREGULAR: [(&str, &str); 16] = [
    ("sky", "sky"),
    ("skies", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("innings", "inning"),
    ("inning", "inning"),
    ("outings", "outing"),
    ("outing", "outing"),
    ("cannings", "canning"),
    ("canning", "canning"),
    ("howe", "howe"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];
const PLURALS: [(&str, &str); 4] = [("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")];
/// Suffixes after a stem with a vowel followed by a consonant. The first suffix that a word ends
/// with decides.
const DOUBLE_SUFFIXES: [(&str, &str); 21] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
];
/// Suffixes after a stem with a vowel followed by a consonant.
const SUFFIXES: [(&str, &str); 7] = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
];
/// Suffixes that are removed from long stems.
const LAST_SUFFIXES: [&str; 19] = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou",
    "ism", "ate", "iti", "ous", "ive", "ize",
];

/// Returns the stem of a word of three or more ASCII lower-case letters and digits.
pub(super) fn stem(word: &str) -> String {
    if let Some((_, stem)) = IRREGULAR.iter().find(|(irregular, _)| *irregular == word) {
        return (*stem).to_owned();
    }
    let word = past_and_progressive(plural(word.to_owned()));
    let word = double_suffix(y_to_i(word));
    let word = replace_suffix(&word, &SUFFIXES, |stem| measure(stem) > 0).unwrap_or(word);
    last_l(last_e(last_suffix(word)))
}

/// Applies the first rule whose suffix the word ends with, if the stem before the suffix allows it.
fn replace_suffix(
    word: &str,
    rules: &[(&str, &str)],
    allows: impl Fn(&str) -> bool,
) -> Option<String> {
    let rule = |(suffix, to): &(&str, &str)| Some((word.strip_suffix(suffix)?, (*to).to_owned()));
    let (stem, to) = rules.iter().find_map(rule)?;
    allows(stem).then(|| stem.to_owned() + &to)
}

/// Returns for each character whether it is a consonant; `y` is a consonant unless it follows one.
fn consonants(word: &str) -> Vec<bool> {
    let mut consonants = Vec::with_capacity(word.len());
    for letter in word.bytes() {
        consonants.push(match letter {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => !consonants.last().is_some_and(|before| *before),
            _ => true,
        });
    }
    consonants
}

/// Number of times that a consonant follows a vowel: Porter's m.
fn measure(stem: &str) -> usize {
    consonants(stem).windows(2).filter(|pair| !pair[0] && pair[1]).count()
}

/// Returns true if the stem ends with consonant, vowel and a consonant other than w, x and y, or
/// consists of a vowel and a consonant.
fn ends_short(stem: &str) -> bool {
    match consonants(stem)[..] {
        [.., true, false, true] => !stem.ends_with(['w', 'x', 'y']),
        [false, true] => true,
        _ => false,
    }
}

/// Step 1a.
fn plural(word: String) -> String {
    match word.strip_suffix("ies") {
        Some(stem) if word.len() == 4 => format!("{stem}ie"),
        _ => replace_suffix(&word, &PLURALS, |_| true).unwrap_or(word),
    }
}

/// Step 1b.
fn past_and_progressive(word: String) -> String {
    if let Some(stem) = word.strip_suffix("ied") {
        return format!("{stem}{}", if word.len() == 4 { "ie" } else { "i" });
    }
    if let Some(stem) = word.strip_suffix("eed") {
        return if measure(stem) > 0 { format!("{stem}ee") } else { word };
    }
    let suffixes = ["ed", "ing"].iter();
    let stem = suffixes
        .filter_map(|suffix| word.strip_suffix(suffix))
        .find(|stem| consonants(stem).contains(&false));
    let Some(stem) = stem else { return word };
    let doubled = match (stem.as_bytes(), &consonants(stem)[..]) {
        ([.., before, last], [.., true]) => before == last,
        _ => false,
    };
    if ["at", "bl", "iz"].iter().any(|end| stem.ends_with(end)) {
        format!("{stem}e")
    } else if doubled {
        let keeps = stem.ends_with(['l', 's', 'z']);
        stem[..stem.len() - usize::from(!keeps)].to_owned()
    } else if measure(stem) == 1 && ends_short(stem) {
        format!("{stem}e")
    } else {
        stem.to_owned()
    }
}

/// Step 1c.
fn y_to_i(word: String) -> String {
    let after_consonant =
        |stem: &str| stem.len() > 1 && consonants(stem).last().is_some_and(|last| *last);
    replace_suffix(&word, &[("y", "i")], after_consonant).unwrap_or(word)
}

/// Step 2.
fn double_suffix(word: String) -> String {
    if let Some(stem) = word.strip_suffix("alli").filter(|stem| measure(stem) > 0) {
        return double_suffix(format!("{stem}al"));
    }
    if DOUBLE_SUFFIXES.iter().any(|(suffix, _)| word.ends_with(suffix)) {
        return replace_suffix(&word, &DOUBLE_SUFFIXES, |stem| measure(stem) > 0).unwrap_or(word);
    }
    // The l belongs to the stem.
    match word.strip_suffix("ogi") {
        Some(stem) if stem.ends_with('l') && measure(stem) > 0 => format!("{stem}og"),
        _ => word,
    }
}

/// Step 4.
fn last_suffix(word: String) -> String {
    let found = LAST_SUFFIXES.iter().find_map(|suffix| Some((suffix, word.strip_suffix(suffix)?)));
    match found {
        Some((&"ion", stem)) if !stem.ends_with(['s', 't']) => word,
        Some((_, stem)) if measure(stem) > 1 => stem.to_owned(),
        _ => word,
    }
}

/// Step 5a.
fn last_e(word: String) -> String {
    match word.strip_suffix('e') {
        Some(stem) if measure(stem) > 1 || measure(stem) == 1 && !ends_short(stem) => {
            stem.to_owned()
        }
        _ => word,
    }
}

/// Step 5b.
fn last_l(word: String) -> String {
    match word.strip_suffix('l') {
        Some(stem) if stem.ends_with('l') && measure(stem) > 1 => stem.to_owned(),
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words and their stems, generated by `tools/make_metric_golden.py`.
    const STEMS: &str = include_str!("../../tests/golden/stems.txt");

    #[test]
    fn stems_match_nltk() {
        let pairs = STEMS.lines().map(|line| line.split_once(' ').expect("a word and its stem"));
        let wrong: Vec<_> = pairs.filter(|(word, right)| stem(word) != *right).collect();
        assert!(STEMS.lines().count() > 900);
        assert!(wrong.is_empty(), "{} wrong: {wrong:?}", wrong.len());
    }
}
