//! Checks of the parameters of a generation.

use std::fmt::Display;

use super::{GenerationParams, SamplingParams};
use crate::{Error, Result};

/// Checks the parameters for a model with `vocab_size` tokens.
///
/// # Errors
/// [`Error::Input`] that names the field.
pub(super) fn check_params(params: &GenerationParams, vocab_size: usize) -> Result<()> {
    check_sampling(&params.sampling)?;
    for &(token, bias) in &params.sampling.logit_bias {
        check_token("logit_bias", token, vocab_size)?;
        let expected = "a bias between -100 and 100";
        expect("logit_bias", bias, (-100.0..=100.0).contains(&bias), expected)?;
    }
    for &token in &params.stop_token_ids {
        check_token("stop_token_ids", token, vocab_size)?;
    }
    if params.stop.iter().any(String::is_empty) {
        return Err(Error::input("stop", "an empty text; expected at least one character"));
    }
    if params.grammar.is_some() && params.ignore_eos {
        let reason = "true; expected false, because a text by a grammar ends by the end token";
        return Err(Error::input("ignore_eos", reason));
    }
    Ok(())
}

fn check_sampling(params: &SamplingParams) -> Result<()> {
    let SamplingParams { temperature, top_p, min_p, repetition_penalty, .. } = *params;
    let is_size = |number: f32| number.is_finite() && number >= 0.0;
    expect("temperature", temperature, is_size(temperature), "a number of at least 0")?;
    expect("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "a number above 0, and at most 1")?;
    expect("min_p", min_p, (0.0..1.0).contains(&min_p), "a number of at least 0, and below 1")?;
    let is_factor = is_size(repetition_penalty) && repetition_penalty > 0.0;
    expect("repetition_penalty", repetition_penalty, is_factor, "a number above 0")?;
    for (name, penalty) in [
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
    ] {
        let is_valid = (-2.0..=2.0).contains(&penalty);
        expect(name, penalty, is_valid, "a number between -2 and 2")?;
    }
    Ok(())
}

fn check_token(name: &'static str, token: u32, vocab_size: usize) -> Result<()> {
    let is_known = (token as usize) < vocab_size;
    let expected = format!("a token less than the model's `vocab_size` = {vocab_size}");
    expect(name, token, is_known, &expected)
}

fn expect(name: &'static str, found: impl Display, is_valid: bool, expected: &str) -> Result<()> {
    if is_valid {
        return Ok(());
    }
    Err(Error::input(name, format!("{found}; expected {expected}")))
}
