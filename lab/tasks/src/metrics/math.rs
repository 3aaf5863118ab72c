//! Metrics of answers in `\boxed{}`, after the normalisation of MATH (Hendrycks et al. 2021).

/// Returns 1 if the last boxed answer is the right one.
pub(super) fn boxed(answer: &str, right: &str) -> f64 {
    let found = last_boxed(answer).is_some_and(|found| equivalent(found, right));
    f64::from(u8::from(found))
}

/// Returns 1 if the last boxed answer is a whole number and the right one.
pub(super) fn boxed_integer(answer: &str, right: &str) -> f64 {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let found = last_boxed(answer).and_then(number);
    f64::from(u8::from(found.is_some() && found == number(right)))
}

/// Content of the last `\boxed{}`.
fn last_boxed(text: &str) -> Option<&str> {
    let start = text.rfind("\\boxed")?;
    let inside = text[start..].strip_prefix("\\boxed{")?;
    let mut open = 1;
    for (place, c) in inside.char_indices() {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(&inside[..place]);
        }
    }
    None
}

/// Returns true if both texts are equal after normalisation, or unchanged if either cannot be
/// normalised.
fn equivalent(one: &str, other: &str) -> bool {
    match (normalise(one), normalise(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Normalises a text; `None` where the published function fails.
fn normalise(text: &str) -> Option<String> {
    let mut text = text.replace('\n', "").replace("\\!", "").replace("\\\\", "\\");
    for (from, to) in [
        ("tfrac", "frac"),
        ("dfrac", "frac"),
        ("\\left", ""),
        ("\\right", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("\\$", ""),
    ] {
        text = text.replace(from, to);
    }
    let mut parts = text.split("\\text{ ");
    let before_units = parts.next()?.to_owned();
    if parts.count() > 1 {
        return None;
    }
    let mut text = before_units.replace("\\%", "").replace('%', "");
    text = text.replace(" .", " 0.").replace("{.", "{0.");
    if text.is_empty() {
        return Some(text);
    }
    if text.starts_with('.') {
        text.insert(0, '0');
    }
    if let [name, value] = text.split('=').collect::<Vec<_>>()[..]
        && name.chars().count() <= 2
    {
        let value = value.to_owned();
        text = value;
    }
    let text = fix_roots(&text)?.replace(' ', "");
    let text = fix_fractions(&text)?;
    Some(if text == "0.5" { "\\frac{1}{2}".into() } else { fix_slash(text) })
}

/// Writes `\sqrt3` as `\sqrt{3}`.
fn fix_roots(text: &str) -> Option<String> {
    let mut parts = text.split("\\sqrt");
    let mut fixed = parts.next()?.to_owned();
    for part in parts {
        let first = part.chars().next()?;
        fixed += "\\sqrt";
        if first == '{' {
            fixed += part;
        } else {
            fixed.extend(['{', first, '}']);
            fixed += &part[first.len_utf8()..];
        }
    }
    Some(fixed)
}

/// Writes `\frac12` and `\frac1{2}` as `\frac{1}{2}`; returns the text unchanged if one has a
/// single character.
fn fix_fractions(text: &str) -> Option<String> {
    let mut parts = text.split("\\frac");
    let mut fixed = parts.next()?.to_owned();
    for part in parts {
        fixed += "\\frac";
        let mut chars = part.chars();
        let above = chars.next()?;
        if above == '{' {
            fixed += part;
            continue;
        }
        let Some(below) = chars.next() else { return Some(text.to_owned()) };
        let rest = chars.as_str();
        fixed.extend(['{', above, '}', '{']);
        if below != '{' {
            fixed.extend([below, '}']);
        }
        fixed += rest;
    }
    Some(fixed)
}

/// Writes `1/2` of whole numbers as `\frac{1}{2}`.
fn fix_slash(text: String) -> String {
    let whole = |number: &str| {
        let digits = number.strip_prefix('-').unwrap_or(number);
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty();
        plain && (digits == "0" && digits.len() == number.len() || !digits.starts_with('0'))
    };
    match text.split('/').collect::<Vec<_>>()[..] {
        [above, below] if whole(above) && whole(below) => format!("\\frac{{{above}}}{{{below}}}"),
        _ => text,
    }
}
